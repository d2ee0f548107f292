"""The shipped recipes: each composes, and each makes a forward and backward pass on tiny overrides."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from anyformer.pipelines.plugins import objective_of
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.recipe_files import shipped, shipped_yaml
from family_variants import a_share
from image_data import pictures
from processes import run_ranks
from task_data import (
    contexts,
    functions,
    opinions,
    pairs,
    questions,
    random_decoder,
    reviews,
    sentences,
    tagged,
    tales,
    write_lines,
)
from test_distributed import needs_deepspeed, rank_main
from test_readme import TEXT
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

EXAMPLES = {
    "sequence_classification": reviews,
    "token_classification": tagged,
    "question_answering": contexts,
    "translation": sentences,
    "sequence_regression": pairs,
    "sentence_similarity": pairs,
    "instruction_tuning": questions,
    "preference": opinions,
    "text_to_text": reviews,
}
DERIVED = {"next_sentence": tales, "entity_kinds": tagged, "function_summary": functions}  # of what a recipe derives
COLUMNS = {  # of these examples
    "text_field": "text",
    "text_pair_field": "other",
    "label_field": "label",
    "tags_field": "tags",
}

TINY_DATA = ["data.dataset=null", "data.config_name=null", "data.streaming=false", "data.source=null"]
TINY_MODEL = [
    "model.num_hidden_layers=2",
    "model.hidden_size=64",
    "model.intermediate_size=96",
    "model.num_attention_heads=4",
    "model.num_key_value_heads=2",
    "model.head_dim=16",
    "objective.sequence_length=64",
    "tokenizer={type: byte_bpe, vocab_size: 512}",
    "training.bf16=false",
    "training.torch_compile=false",
]


def files_of_parts(parts):
    """In this folder, the files of several tasks, ten examples each."""
    numbers = {"classes": lambda i: i % 2, "numbers": lambda i: i / 2, "texts": str}
    for part in parts:
        columns = re.findall(r"{(\w+)}", part["source"])
        answer = numbers[part.get("answers", "texts")]
        rows = [dict.fromkeys(columns, f"text {i}") | {part["target_field"]: answer(i)} for i in range(10)]
        for name in ("files", "validation_files", "test_files"):
            if name in part["data"]:
                path = Path(part["data"][name].rstrip("*"))
                path.parent.mkdir(parents=True, exist_ok=True)
                before = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else rows
                write_lines(path, [old | row for old, row in zip(before, rows)])


# Those that the pages for newcomers train are trained by test_readme.py.
IN_README = re.findall(r"anyformer train (\w+)", TEXT)


def tiny_overrides(name, command, text_file, folder) -> list[str]:
    """What makes a shipped recipe one of seconds, on data that this writes into `folder`, the current one."""
    overrides = [*TINY_DATA, *TINY_MODEL, f"data.files={text_file}", f"training.output_dir={folder / 'run'}"]
    checkpoint, task = (shipped_yaml("recipes", name).get(key, {}) for key in ("model", "task"))
    checkpoint = checkpoint.get("name_or_path")
    if checkpoint is not None and task:
        random_decoder(checkpoint, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    elif checkpoint is not None:  # of another recipe, which comes first
        base = [f"data.files={text_file}", f"training.output_dir={checkpoint}", "training.max_steps=1"]
        tiny = [*TINY_DATA, *TINY_MODEL, *base, "evaluation={}"]
        assert command("train", Path(checkpoint).name, *tiny) == 0
        overrides = [each for each in overrides if not each.startswith(("model.", "tokenizer="))]
    if name == "tinyshakespeare_char":
        overrides = [f"data.files={text_file}", f"training.output_dir={folder / 'run'}"]
    derive = (shipped_yaml("recipes", name).get("data") or {}).get("derive")
    if derive is not None:
        text_file = DERIVED[derive](folder / ("made.py" if derive == "function_summary" else "made.jsonl"))
        overrides = [f"data.files={text_file}", "data.source=null", "tokenizer={type: byte_bpe, vocab_size: 300}"]
        overrides += [f"training.output_dir={folder / 'run'}"]
        overrides += ["task.text_field=tokens", "task.label_field=tags", "task.label_names=null"] * (
            derive == "entity_kinds"
        )
        overrides += ["data.document=paragraph"] * (derive == "function_summary")
    elif task and task["name"] in EXAMPLES:
        text_file = EXAMPLES[task["name"]](folder / "examples.jsonl")
        named = {column: task.get(field, column) for field, column in COLUMNS.items()}
        rows = [{"other": "a second text"} | json.loads(line) for line in text_file.read_text().splitlines()]
        write_lines(text_file, [{named.get(name, name): value for name, value in row.items()} for row in rows])
        tokenizer = ["tokenizer={type: byte_bpe, vocab_size: 300}"] if checkpoint is None else []
        overrides = [f"data.files={text_file}", *tokenizer, f"training.output_dir={folder / 'run'}"]
        overrides += ['task.source="mood: {text}"'] if task["name"] == "text_to_text" else []
    if objective_of(load_recipe(name)).tokens is None:  # images
        overrides = [f"data.files={pictures(folder / 'pictures.parquet')}", f"training.output_dir={folder / 'run'}"]
        if "clusters" in (shipped_yaml("recipes", name).get("objective") or {}):
            overrides += ["objective.clusters=16"]  # of the few greys there are
    if "minimal_pairs" in (shipped_yaml("recipes", name).get("evaluation") or {}):
        overrides += ["evaluation.minimal_pairs=null"]
    if "evaluation_overlap" in (shipped_yaml("recipes", name).get("objective") or {}):
        overrides += ["objective.evaluation_overlap=32"]  # of rows of 64
    parts = (shipped_yaml("recipes", name).get("objective") or {}).get("parts", [])
    overrides += [f"objective.parts.{number}.data=null" for number in range(len(parts))]
    if task and task["name"] == "multi_task":  # each part has data of its own
        files_of_parts(task["parts"])
        overrides = [f"training.output_dir={folder / 'run'}", "tokenizer.vocab_size=300"]
    else:
        overrides += ["data.validation_files=null", "data.validation_split=null", "data.validation_fraction=0.1"]
        overrides += ["data.test_files=null"]
    if find_spec("peft") is None:  # of an extra
        overrides += ["training.lora=null"]
    return [*overrides, "training.per_device_train_batch_size=2"]


# By default a half of the others; test_recipe.py composes all of them.
OTHERS = a_share([name for name in shipped("recipes") if name not in IN_README], 6)
OTHERS += [pytest.param(name, marks=pytest.mark.slow) for name in shipped("recipes") if name in IN_README]


@pytest.mark.parametrize("name", OTHERS)
def test_every_shipped_recipe_makes_a_training_pass_on_tiny_overrides(name, command, text_file, tmp_path, capsys):
    overrides = tiny_overrides(name, command, text_file, tmp_path)
    assert command("train", name, *overrides, "--dry-run") == 0, capsys.readouterr().err
    assert "gradients finite" in capsys.readouterr().out


ZERO2 = [
    *("training.deepspeed=zero2", "training.optim=adamw", "training.ema_decay=null", "training.bf16=false"),
    *("training.max_steps=2", "training.warmup_steps=0", "training.lr_scheduler_type=constant"),
    *("training.lr_scheduler_kwargs={}", "training.gradient_accumulation_steps=1", "training.torch_compile=false"),
    *("training.save_steps=2", "evaluation={max_rows: 4}", "stages=[]"),
]
CUTS = 4  # so that no test of all recipes takes longer than some minutes


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("cut", range(CUTS))
def test_every_shipped_recipe_trains_two_steps_under_zero2(cut, command, text_file, tmp_path, monkeypatch):
    """Two processes, which train one recipe after the other."""
    names, overrides = sorted(shipped("recipes"))[cut::CUTS], {}
    for name in names:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        overrides[name] = tiny_overrides(name, command, text_file, tmp_path / name)

    def train_each():
        for name in names:
            os.chdir(tmp_path / name)
            print("recipe", name, flush=True)
            rank_main(command, name, *overrides[name], *ZERO2)

    run_ranks(2, train_each, folder=tmp_path, env={"DS_ACCELERATOR": "cpu"}, timeout=1000)
    for name in names:
        facts = json.loads((tmp_path / name / "run" / "run.json").read_text())
        assert (facts["status"], facts["steps"]) == ("finished", 2), name
        assert (facts["engine"], facts["world_size"]) == ("DeepSpeedEngine", 2), name


ON_FILES = [name for name, file in shipped("recipes").items() if "files: data/" in file.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ON_FILES)
def test_a_shipped_recipe_makes_its_first_step_on_its_real_data(name, command, data_folder, tmp_path, capsys):
    """As it stands: tiny data do not show a vocabulary that the text is too small for, or a row that is too long."""
    (tmp_path / "data").symlink_to(data_folder)
    checkpoint = (shipped_yaml("recipes", name).get("model") or {}).get("name_or_path")
    if checkpoint is not None:
        random_decoder(checkpoint, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    assert command("train", name, "--dry-run") == 0, capsys.readouterr().err
    assert "gradients finite" in capsys.readouterr().out


def test_an_own_checkpoint_and_a_native_one_go_on_training(tiny_recipe, command, tmp_path):
    assert command("train", tiny_recipe(training={"max_steps": 4})) == 0
    first = tmp_path / "run"
    for source in (first, native_checkpoint(tmp_path / "native", first)):
        out = tmp_path / f"again-{source.name}"
        overrides = [f"model={{name_or_path: {source}}}", f"tokenizer={{name_or_path: {source}}}"]
        assert command("train", tiny_recipe(training={"max_steps": 4}), *overrides, f"training.output_dir={out}") == 0
        assert json.loads((out / "run.json").read_text())["steps"] == 4


def native_checkpoint(folder, tokenizer_from):
    """A tiny native GPT-2 with the tokenizer of one of our runs."""
    GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=32, n_layer=1, n_head=2, n_positions=64)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_from).save_pretrained(folder)
    return folder
