"""training.lora: an adapter is trained and saved, its base stays as it was, and everything works on its folder."""

import importlib.util
import io
import json
import shutil

import pytest
import torch
import transformers
import yaml
from anyformer.pipelines.accounting.lora import with_lora
from anyformer.pipelines.adapters import load_config, load_merged, load_model
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.interop.verify import Float64Mode
from anyformer.pipelines.plugins import OBJECTIVES
from anyformer.pipelines.publishing.publish import files_to_publish
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import LoraSettings
from anyformer.pipelines.storage.model_folder import open_model_folder
from rehearsed import needs_mesh
from run_folders import facts_of
from safetensors.torch import load_file, save_file
from task_data import task_recipe, write_lines
from test_distributed import assert_close
from test_text_to_text import mixed_recipe
from transformers import LlamaConfig, LlamaForCausalLM

peft = pytest.importorskip("peft")

SAVED = 1e-5  # the merged weights are stored in fp32, in which the model then computes
MERGED = 1e-6  # float64: the product of the two matrices is added to the weights, not to their outputs
ADAPTER = "adapter_model.safetensors"


@pytest.fixture
def masked_base(tmp_path, command):
    """A masked language model of three steps, on the text that a classifier then reads."""
    base = tmp_path / "base"
    recipe = task_recipe(tmp_path, "sequence_classification", "base", training={"output_dir": str(base)})
    masked = ["task=null", "objective={name: masked, sequence_length: 32}", "evaluation={metrics: [perplexity]}"]
    assert command("train", recipe, *masked, "training.max_steps=3", "model.hidden_dropout=0.1") == 0
    return base


def test_an_adapted_classifier_survives_a_kill_loads_everywhere_and_merges(
    tmp_path, command, capsys, masked_base, whole_and_killed
):
    before = (masked_base / "model.safetensors").read_bytes()
    steps = {"max_steps": 20, "gradient_accumulation_steps": 2, "learning_rate": 0.02}  # epochs of 8 steps
    recipe = task_recipe(
        tmp_path,
        "sequence_classification",
        training=steps | {"lora": {"r": 4, "target_modules": "all-linear"}},
        task={"label_names": ["sad", "glad"]},
        evaluation={"best_metric": "loss"},
    )
    start = (recipe, f"model.name_or_path={masked_base}")
    capsys.readouterr()
    whole, _ = whole_and_killed(28, *start, weights=ADAPTER)  # in the middle of step 14
    printed, one = capsys.readouterr().out.replace(f"{tmp_path / 'broken'}", ""), load_file(whole / ADAPTER)
    assert facts_of(whole)["best_step"] is not None

    facts = facts_of(whole)
    trained = sum(x.numel() for x in one.values())
    assert facts["trained_parameters"] == trained < facts["parameters"]
    assert f"trained: {trained:,} of {facts['parameters']:,} parameters" in printed and "adapter, tokenizer" in printed
    assert {name.split(".")[2] for name in one if "lora" not in name} == {"score", "model"}  # new head and pooler
    assert (masked_base / "model.safetensors").read_bytes() == before

    # PEFT's own way, and transformers' with the config beside it.
    auto = transformers.AutoModelForSequenceClassification
    config = load_config(whole)
    assert config.id2label == {0: "sad", 1: "glad"} and json.loads((whole / "adapter_config.json").read_text())[
        "base_model_name_or_path"
    ] == str(masked_base)
    adapted = load_model(auto, whole, dtype=torch.float64).eval()
    wrapped = peft.AutoPeftModelForSequenceClassification.from_pretrained(whole, dtype=torch.float64).eval()
    ids = torch.randint(4, 200, (3, 12), generator=torch.Generator().manual_seed(0))
    sum_of_both = load_merged(auto, whole, dtype=torch.float64)[0].eval()
    with Float64Mode():
        expected = adapted(input_ids=ids).logits
        assert torch.equal(wrapped(input_ids=ids).logits, expected)
        torch.testing.assert_close(sum_of_both(input_ids=ids).logits, expected, atol=MERGED, rtol=0)
    base = load_file(masked_base / "model.safetensors")
    state = {name.replace(".base_layer", ""): x for name, x in adapted.state_dict().items()}
    kept = [name for name in base if name in state]
    assert len(kept) > 10 and all(torch.equal(state[name], base[name].double()) for name in kept)

    assert f"next: anyformer predict {whole} FILE\n" in printed and f"merge {whole} {whole}_merged" in printed
    assert command("merge", whole, tmp_path / "merged") == 0
    said = capsys.readouterr().out
    assert "the adapter added to" in said and "left out" not in said  # the numbers are of the merged model, too
    assert json.loads((tmp_path / "merged" / "run.json").read_text())["metrics"] == facts["metrics"]
    saved = (whole / "tokenizer.json").read_bytes()
    (whole / "tokenizer.json").write_bytes(saved[:99])
    assert command("merge", whole, tmp_path / "other") == 2
    assert "tokenizer.json has changed since it was saved" in capsys.readouterr().err
    (whole / "tokenizer.json").write_bytes(saved)
    merged = auto.from_pretrained(tmp_path / "merged").eval()
    assert merged.config.id2label == config.id2label and not list((tmp_path / "merged").glob("adapter*"))
    torch.testing.assert_close(merged(input_ids=ids).logits, expected.float(), atol=SAVED, rtol=0)
    answer = transformers.pipeline("text-classification", str(tmp_path / "merged"))("a lovely film with two actors")
    assert answer[0]["label"] in ("sad", "glad")

    assert command("evaluate", whole) == 0
    measured = json.loads(next(whole.glob("evaluation-*.json")).read_text())["metrics"]
    assert measured["accuracy"] == facts["metrics"]["test_accuracy"]
    assert measured["loss"] == pytest.approx(facts["metrics"]["test_loss"], abs=1e-6)
    card = (whole / "README.md").read_text()
    assert "library_name: peft" in card and "PeftModel.from_pretrained" in card and "num_labels=2" in card
    capsys.readouterr()
    assert command("publish", whole, "me/mine") == 2
    assert "anyformer merge" in capsys.readouterr().err
    # With a base that everybody has, the adapter and what belongs to it are published, and no path of this machine.
    own = json.loads((whole / "adapter_config.json").read_text())
    (whole / "adapter_config.json").write_text(json.dumps(own | {"base_model_name_or_path": "me/base"}))
    files = files_to_publish(open_model_folder(whole))
    assert {"adapter_config.json", ADAPTER, "adapted_config.json", "tokenizer.json", "run.json"} <= files.keys()
    texts = [file if isinstance(file, bytes) else file.read_bytes() for name, file in files.items() if name != ADAPTER]
    assert "config.json" not in files and not any(str(tmp_path).encode() in text for text in texts)


BASES = {"encoder": "masked", "seq2seq": "denoising", "decoder": "causal"}
ALIKE = {
    "sequence_regression": "sequence_classification",
    "multi_task": "translation",
}  # whose recipes are made of those


def recipe_of_task(folder, name):
    if name == "multi_task":
        return mixed_recipe(folder)
    task = {"name": name} if name in ALIKE else {}
    return task_recipe(folder, ALIKE.get(name, name), task=task)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(n for n, row in OBJECTIVES.items() if row.section == "task" and row.tokens))
def test_every_task_of_texts_trains_an_adapter_measures_it_and_merges_it(tmp_path, command, name):
    """From a checkpoint that was pretrained on plain text, so that the task's head is new."""
    recipe = recipe_of_task(tmp_path, name)
    family = yaml.safe_load(recipe.read_text())["model"].get("family")
    base = tmp_path / "base"  # preference tuning has one there
    if family is not None:
        plain = task_recipe(tmp_path, "sequence_classification", "base", training={"output_dir": str(base)})
        learned = ["task=null", f"objective={{name: {BASES[family]}, sequence_length: 32}}", f"model.family={family}"]
        tokenizer = ["evaluation={metrics: [perplexity]}", "model.max_position_embeddings=128"]
        assert command("train", plain, *learned, *tokenizer, "training.max_steps=1") == 0
    short = ["training.max_steps=2", "evaluation.every_steps=null", "evaluation.best_metric=null"]
    start = ["train", recipe, f"model={{name_or_path: {base}}}", "tokenizer={}", *short]
    assert command(*start, "training.lora={r: 2, target_modules: all-linear}") == 0
    run, merged = tmp_path / "run", tmp_path / "merged"
    assert (run / ADAPTER).is_file() and not (run / "model.safetensors").exists()
    assert command("merge", run, merged) == 0
    found = []
    for model in (run, merged):
        assert command("evaluate", model, recipe, "--output", tmp_path / "found.json") == 0
        found.append(json.loads((tmp_path / "found.json").read_text())["metrics"])
    assert found[0].keys() == found[1].keys() and len(found[0]) >= 2
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], abs=1e-4)  # fp32: the sum of weights, not of outputs


def test_every_door_takes_the_place_to_which_a_base_has_moved(tmp_path, command, capsys, monkeypatch):
    """Also the reference of preferences, which was the base at its old place."""
    lora = {"max_steps": 2, "lora": {"r": 4, "target_modules": "all-linear"}, "learning_rate": 1e-2}
    recipe, run, base = task_recipe(tmp_path, "preference", training=lora), tmp_path / "run", tmp_path / "base"
    assert command("train", recipe) == 0
    write_lines(tmp_path / "pairs.jsonl", [{"sentence_good": "a good one", "sentence_bad": "one good a"}])
    found, short = tmp_path / "found.json", ("--greedy", "--max-new-tokens", "4")
    doors = {
        "preferences": ("evaluate", run, "--output", found),
        "its recipe": ("evaluate", run, recipe, "--output", found),
        "minimal pairs": ("evaluate", run, tmp_path / "pairs.jsonl", "--output", found),
        "two models": ("evaluate", run, run, recipe, "--output", found),
        "generate": ("generate", run, "a good", *short),
        "chat": ("chat", run, *short),
        "inspect": ("inspect", run, "a good one", "--out", tmp_path / "page.html"),
        "merge": ("merge", run, tmp_path / "merged"),
    }

    def opened(door, *more):
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO("a good\n"))
        found.unlink(missing_ok=True)
        code, said = command(*doors[door], *more), capsys.readouterr()
        made = json.loads(found.read_text()) if found.exists() else {}
        metrics = [each["metrics"] for each in made.get("results", [made]) if "metrics" in each]
        return code, said.err, metrics or said.out.replace(str(base), "").replace(str(tmp_path / "moved"), "")

    before = {door: opened(door) for door in doors}
    shutil.rmtree(tmp_path / "merged")
    base.rename(tmp_path / "moved")
    for door in doors:
        code, error, _ = opened(door)
        assert code == 2 and "which is not found here; name it by --base-model NAME" in error
        code, error, given = opened(door, "--base-model", tmp_path / "moved")
        assert (before[door][0], code) == (0, 0), error
        assert given == before[door][2]


def test_an_adapter_leaves_out_what_its_task_does_not_use(tmp_path, command, masked_base):
    """The pooler of a masked language model, which is new and gets no gradient: several processes would wait for it."""
    lora = {"max_steps": 2, "lora": {"r": 2, "target_modules": "all-linear"}}
    recipe = task_recipe(tmp_path, "sentence_similarity", training=lora)
    assert command("train", recipe, f"model.name_or_path={masked_base}") == 0
    trained = load_file(tmp_path / "run" / ADAPTER)
    assert trained and not [name for name in trained if "pooler" in name]
    assert command("evaluate", tmp_path / "run") == 0
    assert command("merge", tmp_path / "run", tmp_path / "merged") == 0  # which misses none, either


def check_form_for_vllm(folder, r: int) -> None:
    """What `vllm serve BASE --enable-lora --lora-modules NAME=FOLDER` takes (vllm/lora/peft_helper.py): LoRA alone, of
    one r, without other modules; A is (r, in) and B (out, r), under the names of the base's modules."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["peft_type"] == "LORA" and settings["r"] == r and settings["lora_alpha"] > 0
    assert not settings["modules_to_save"] and settings["bias"] == "none" and not settings["use_dora"]
    for name, weight in load_file(folder / ADAPTER).items():
        assert name.startswith("base_model.model.model.layers.")
        assert name.endswith((".lora_A.weight", ".lora_B.weight")) and weight.shape["lora_B" in name] == r


def test_an_adapted_decoder_writes_goes_on_and_is_saved_merged_on_request(tmp_path, tiny_recipe, command, capsys):
    base = tmp_path / "base"
    recipe = tiny_recipe(training={"max_steps": 3, "output_dir": str(base)})
    assert command("train", recipe) == 0
    lora = ["training.lora={r: 2, alpha: 8}", "training.max_steps=4", "evaluation.average_checkpoints=2"]
    lora += ["training.save_steps=2", "evaluation.sample_prompts=[The]", "evaluation.sample_tokens=4"]
    run = tmp_path / "run"
    assert command("train", recipe, f"model.name_or_path={base}", *lora, f"training.output_dir={run}") == 0
    found = [load_file(run / f"checkpoint-{step}" / ADAPTER) for step in (2, 4)]
    mean = {name: (found[0][name] + found[1][name]) / 2 for name in found[0]}
    torch.testing.assert_close(load_file(run / ADAPTER), mean, atol=1e-7, rtol=0)
    assert facts_of(run)["samples"][0]["text"].startswith("The")
    check_form_for_vllm(run, 2)
    capsys.readouterr()
    assert command("generate", run, "The", "--max-new-tokens", "4", "--greedy") == 0
    assert capsys.readouterr().out.startswith("The")
    settings = json.loads((run / "generation_config.json").read_text()) | {"repetition_penalty": 1.5}
    (run / "generation_config.json").write_text(json.dumps(settings))
    assert load_model(transformers.AutoModelForCausalLM, run).generation_config.repetition_penalty == 1.5
    assert command("convert", run, tmp_path / "native") == 2
    assert "is an adapter; make a whole model of it first" in capsys.readouterr().err
    # Its checkpoints do not hold the base, so a run does not go on from another one.
    changed = load_file(base / "model.safetensors")
    save_file({name: x + 1 for name, x in changed.items()}, base / "model.safetensors", {"format": "pt"})
    assert command("train", recipe, f"model.name_or_path={base}", *lora, f"training.output_dir={run}") == 2
    assert "have changed since" in capsys.readouterr().err
    save_file(changed, base / "model.safetensors", {"format": "pt"})
    # An adapter is a start like any other: its base with it is trained on.
    again = [f"model.name_or_path={run}", "training.max_steps=1", f"training.output_dir={tmp_path / 'again'}"]
    assert command("train", recipe, *again) == 0 and (tmp_path / "again" / "model.safetensors").is_file()
    assert command("train", recipe, *again, "training.lora={}") == 2
    assert "is an adapter itself" in capsys.readouterr().err
    merged = [f"model.name_or_path={base}", "training.lora={merge: true}", "training.max_steps=1"]
    assert command("train", recipe, *merged, f"training.output_dir={tmp_path / 'merged'}") == 0
    one, other = load_file(base / "model.safetensors"), load_file(tmp_path / "merged" / "model.safetensors")
    assert one.keys() == other.keys() and not (tmp_path / "merged" / ADAPTER).exists()
    changed = {name.split(".")[-2] for name in one if not torch.equal(one[name], other[name])}
    assert changed == {"q_proj", "v_proj"}  # what PEFT adapts where nobody says


def test_lora_that_cannot_be_had_is_refused_in_one_sentence(tmp_path, tiny_recipe, command, capsys, monkeypatch):
    recipe = tiny_recipe(training={"max_steps": 1})
    assert command("train", recipe, "training.lora={r: 4}") == 2
    assert "this model's are fresh; set model.name_or_path" in capsys.readouterr().err
    assert command("train", recipe, "training.lora={rank: 4}") == 2
    assert "training.lora.rank: no such setting" in capsys.readouterr().err
    assert command("train", recipe) == 0
    start = ("train", recipe, f"model.name_or_path={tmp_path / 'run'}", f"training.output_dir={tmp_path / 'x'}")
    capsys.readouterr()
    assert command(*start, "training.lora={target_modules: [q_porj]}") == 2
    assert "has no module 'q_porj'; did you mean q_proj?" in capsys.readouterr().err
    assert command("merge", tmp_path / "run", tmp_path / "y") == 2
    assert "holds no adapter" in capsys.readouterr().err
    with monkeypatch.context() as launched:
        launched.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        assert command(*start, "training.lora={merge: true}") == 2
    assert "merge=true needs whole weights, but DeepSpeed splits them; leave it out" in capsys.readouterr().err
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else find(name, *rest))
    assert command(*start, "training.lora={}") == 2
    assert "training.lora needs the package peft; install anyformer[peft]" in capsys.readouterr().err


@pytest.mark.slow
@needs_mesh
def test_two_processes_that_share_the_base_by_fsdp2_train_the_adapter_that_one_trains(
    tmp_path, command, masked_base, alone, ranks
):
    """A classifier's new head and the adapter are whole on both, the base is split; then from the middle again."""
    steps = {"max_steps": 10, "save_steps": 5, "gradient_accumulation_steps": 2, "learning_rate": 5e-3}
    recipe = task_recipe(
        tmp_path,
        "sequence_classification",
        model={"hidden_dropout": 0.0},
        training=steps | {"lora": {"r": 4, "dropout": 0.0, "target_modules": "all-linear"}},
        task={"label_names": ["sad", "glad"]},
        evaluation={"best_metric": "loss"},
    )
    start = (recipe, f"model.name_or_path={masked_base}", "model.hidden_dropout=0.0")
    own_facts, own_losses, one = alone(*start)
    shared = (*start, "training.gradient_accumulation_steps=1", "training.parallelism={dp_shard: 2}")
    facts, losses, two = ranks(2, *shared)
    _, rest, again = ranks(2, *shared, start=two / "checkpoint-5")
    assert facts["engine"] == "DTensor(fsdp 2)" and facts["parameters"] == own_facts["parameters"]
    assert facts["trained_parameters"] == own_facts["trained_parameters"]
    assert_close(losses, own_losses)
    assert rest == losses[5:]
    weights, own, resumed = (load_file(folder / ADAPTER) for folder in (two, one, again))
    assert weights.keys() == own.keys()
    for name, tensor in own.items():
        torch.testing.assert_close(weights[name], tensor, atol=2e-3, rtol=0, msg=name)
        assert torch.equal(weights[name], resumed[name])
    for name, value in own_facts["metrics"].items():
        assert facts["metrics"][name] == pytest.approx(value, abs=1e-3), name
    assert (two / "adapted_config.json").read_text() == (one / "adapted_config.json").read_text()
    assert command("evaluate", two) == 0
    assert command("merge", two, tmp_path / "merged") == 0


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("{tp: 2}", "goes with dp_shard and dp_replicate of training.parallelism alone"),
        ("{dp_shard: 2, pp: 2}", "pp is not wired beside dp_shard"),
        ("{dp_shard: 2}", "training.lora.merge=true needs whole weights"),
    ],
)
def test_what_lora_cannot_share_is_one_sentence(words, sentence, tiny_recipe, tmp_path):
    with pytest.raises(UserError) as caught:
        load_recipe(
            str(tiny_recipe()),
            [f"training.parallelism={words}", "training.lora={merge: true}", f"model={{name_or_path: {tmp_path}}}"],
        )
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_adapters_of_layers_with_one_input_keep_it_once_and_learn_the_same():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = torch.arange(64).view(2, 32)

    def kept_and_gradients(casts):
        torch.manual_seed(0)
        base = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=64)).bfloat16()
        settings = LoraSettings(dropout=0.0, target_modules="all-linear")
        model = with_lora(base, settings, "AutoModelForCausalLM", [])
        for module in model.modules():
            if casts and hasattr(module, "cast_input_dtype_enabled"):
                module._forward_pre_hooks.clear()
        kept = {}

        def keep(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with saved, torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        size = sum(storage.nbytes() for storage in kept.values())
        loss.backward()
        return size, [weight.grad for weight in model.parameters() if weight.grad is not None]

    (ours, gradients), (theirs, expected) = kept_and_gradients(False), kept_and_gradients(True)
    inputs = 2 * 2 * 64 * (2 * 32 + 32)  # two layers; in bytes of bf16, two inputs less of q, k, v and one of gate, up
    assert theirs - ours >= inputs
    assert all(map(torch.equal, gradients, expected)) and len(gradients) == len(expected)
