"""What is kept says what it is of: no command shows a number beside other weights, data or files than it is of."""

import csv
import json
import os
import shutil
import time
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
import transformers
import yaml
from anyformer.pipelines import adapters, manifest
from anyformer.pipelines.api import Run
from anyformer.pipelines.cli.commands import main
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.evaluation import evaluate
from anyformer.pipelines.experiments import columns
from anyformer.pipelines.experiments.columns import measure_columns
from anyformer.pipelines.experiments.samplers import grid
from anyformer.pipelines.experiments.sweep_file import read_sweep
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.publishing.publish import files_to_publish, open_model_folder
from anyformer.pipelines.publishing.run_facts import RunFacts
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.reporting.comparison import compare_runs
from anyformer.pipelines.reporting.run_log import read_run
from anyformer.pipelines.storage.model_folder import write_manifest
from anyformer.pipelines.storage.record import Record
from family_variants import a_share
from run_folders import facts_of
from safetensors.torch import load_file, save_file
from task_data import task_recipe, write_recipe

import anyformer


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a finished run of a few steps, its recipe, its text and a suite of one task."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": topics[n]}) + "\n" for n in sorted(topics)[:24]))
    recipe = {
        "model": {"family": "decoder", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        "tokenizer": {"type": "byte_bpe", "vocab_size": 400},
        "data": {"files": str(folder / "text.jsonl"), "validation_fraction": 0.1},
        "objective": {"name": "causal", "sequence_length": 32},
        "evaluation": {"metrics": ["perplexity"], "max_rows": 8},
    }
    training = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 4}
    write_recipe(folder / "tiny.yaml", recipe, {"training": training})
    task = {"name": "tiny", "recipe": "tiny.yaml", "objective": {"sequence_length": 16}}
    (folder / "two.yaml").write_text(yaml.safe_dump({"description": "one task", "suite": [task]}))
    assert main(["train", str(folder / "tiny.yaml")]) == 0
    return folder


@pytest.fixture
def place(made, tmp_path):
    """A copy of `made`, whose recipe names the copied text and run."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    for file in (tmp_path / "tiny.yaml", tmp_path / "run" / "recipe.yaml", tmp_path / "run" / "run.json"):
        file.write_text(file.read_text().replace(str(made), str(tmp_path)))
    for file in tmp_path.glob("run/checkpoint-*/anyformer_run.json"):
        shutil.rmtree(file.parent)
    return tmp_path


def change_weights(run: Path) -> None:
    """Other weights in a file of the same size and time."""
    file = run / "model.safetensors"
    before = file.stat()
    save_file({name: x + 0.05 for name, x in load_file(file).items()}, file, metadata={"format": "pt"})
    assert file.stat().st_size == before.st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def change_text(text: Path) -> None:
    """Another text of the same size and time."""
    before = text.stat()
    text.write_text(text.read_text().replace(" the ", " eht "))
    os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_run_whose_tokenizer_was_changed_is_not_gone_on_with(place, command, capsys):
    run, recipe = place / "run", place / "tiny.yaml"
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    for words in ([], [f"tokenizer={{name_or_path: {run}}}", f"training.output_dir={place / 'same'}"]):
        assert command("train", recipe, *words) == 2
        assert f"{run}: tokenizer.json has changed since it was saved with the weights" in capsys.readouterr().err
    for name in ("model", "tokenizer"):
        with pytest.raises(UserError, match=r"tokenizer\.json has changed"):
            getattr(Run(run), name)


def test_a_person_may_write_other_files_and_save_another_model_into_a_run_s_folder(place, command, capsys):
    run = place / "run"
    (run / "README.md").write_text("mine")
    (run / "notes.txt").write_text("mine")
    (run / "generation_config.json").write_text('{"max_new_tokens": 5}')
    assert command("evaluate", run) == 0
    anyformer.register()
    model = transformers.AutoModelForCausalLM.from_pretrained(run)
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    tokenizer.add_tokens(["<new>"])
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(run)
    tokenizer.save_pretrained(run)
    assert command("evaluate", run) == 0 and command("generate", run, "def") == 0
    assert command("publish", run, "me/mine", "--dry-run", "--no-check") == 0
    assert "metrics and samples of the run are left out" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["weights", "data"])
def test_numbers_that_are_of_other_weights_or_data_are_left_out_and_named(change, place, command, capsys):
    run = place / "run"
    assert command("evaluate", run, place / "two.yaml") == 0
    suite = f"{json.loads((run / 'evaluation-two.json').read_text())['tasks']['tiny']['metrics']['loss']:.4f}"
    own = f"{facts_of(run)['metrics']['validation_perplexity']:.3g}"[:4]
    by_position = Record.now(run, facts_of(run)["recipe"]).facts() | {"perplexity": [3.0]}
    (run / "by-position.json").write_text(json.dumps(by_position))
    assert read_run(run).by_position == by_position
    capsys.readouterr()
    assert command("publish", run, "me/mine", "--dry-run", "--no-check") == 0
    card = capsys.readouterr().out
    assert suite in card and own in card
    if change == "weights":
        change_weights(run)
    else:
        change_text(place / "text.jsonl")
    assert command("publish", run, "me/mine", "--dry-run", "--no-check") == 0
    card = capsys.readouterr().out
    assert suite not in card and "evaluation-two.json: tiny left out" in card
    assert ("left out: the model in" in card) == (own not in card) == (change == "weights")
    log, other = read_run(run), place / "other"
    assert not log.by_position and ("of another model" if change == "weights" else "of other data") in log.damaged[-1]
    shutil.copytree(run, other)
    assert command("report", run, other, "--out", place / "both.html") == 0
    assert command("report", run) == 0
    for page in (run / "report.html", place / "both.html"):
        assert ("left out: the model in" in page.read_text()) == (change == "weights")
    if change == "weights":
        files = files_to_publish(open_model_folder(run))
        assert "metrics.jsonl" not in files and "metrics" not in json.loads(files["run.json"])


def test_what_is_shown_reads_a_large_file_only_where_it_was_touched(place, monkeypatch):
    run, read = place / "run", []
    time.sleep(0.03)  # the manifest is younger than what it names
    write_manifest(run)
    monkeypatch.setattr(manifest, "LARGE", 0)
    monkeypatch.setattr(adapters, "hash_of", lambda file: read.append(file.name) or manifest.hash_of(file))
    before = adapters.weights_identity(run)
    read.clear()
    assert adapters.weights_identity(run, shown=True) == before and "model.safetensors" not in read
    change_weights(run)
    assert adapters.weights_identity(run, shown=True) == adapters.weights_identity(run) != before


def test_the_numbers_of_an_adapter_are_of_its_base_too(place):
    base, adapter = place / "run", place / "adapter"
    adapter.mkdir()
    save_file({"base_model.model.lora_A": torch.ones(2, 2)}, adapter / "adapter_model.safetensors")
    settings = {"base_model_name_or_path": str(base), "r": 2}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    (adapter / "run.json").write_text(json.dumps(facts_of(base) | Record.of_run(adapter).facts()))
    assert RunFacts.read(adapter).metrics
    base.rename(place / "moved")
    assert RunFacts.read(adapter).metrics  # nothing says that the base has changed
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": f"{place}/moved"}))
    assert RunFacts.read(adapter).metrics
    change_weights(place / "moved")
    assert not RunFacts.read(adapter).metrics and "left out" in RunFacts.read(adapter).left_out[0]


def test_a_finished_run_whose_model_or_data_was_changed_is_completed_again(place, command, capsys):
    run, test = place / "again", place / "test.jsonl"
    test.write_text((place / "text.jsonl").read_text()[:9000].rpartition("\n")[0])
    words = ("train", place / "tiny.yaml", f"data.test_files={test}", f"training.output_dir={place / 'again'}")
    assert command(*words) == 0
    weights, metrics = (run / "model.safetensors").read_bytes(), facts_of(run)["metrics"]
    capsys.readouterr()
    edit = {"generation_config.json": {"max_new_tokens": 5}, "notes/mine.json": {}}
    (run / "notes").mkdir()
    for name, content in edit.items():  # not of the weights
        (run / name).write_text(json.dumps(content))
    assert command(*words) == 0 and "finished already" in capsys.readouterr().out
    assert json.loads((run / "generation_config.json").read_text()) == {"max_new_tokens": 5}
    change_weights(run)
    assert command(*words) == 0
    assert "the model (now in replaced-1) is not that of the finished run" in capsys.readouterr().err
    assert (run / "model.safetensors").read_bytes() == weights and facts_of(run)["metrics"] == metrics
    assert (run / "replaced-1" / "model.safetensors").read_bytes() != weights
    change_text(test)
    assert command(*words) == 0
    after = facts_of(run)["metrics"]
    assert after["test_loss"] != metrics["test_loss"] and after["validation_loss"] == metrics["validation_loss"]
    for checkpoint in run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    change_weights(run)
    capsys.readouterr()
    assert command(*words) == 2 and "has been changed since" in capsys.readouterr().err


def losses(folder: Path) -> list[float]:
    with (folder / "sweep.csv").open() as file:
        return [float(row["perplexity"]) for row in csv.DictReader(file)]


@pytest.mark.slow
def test_a_sweep_measures_a_model_again_if_weights_or_data_are_others(place, command):
    run, sizes = place / "run", "objective.sequence_length=[16,32]"
    words = ("sweep", place / "tiny.yaml", sizes, "--evaluate", run, "--metric", "perplexity", "--max-examples", "4")
    assert command(*words) == 0
    folder = next(place.glob("*-sweep"))
    first, made = losses(folder), [file.stat().st_mtime_ns for file in sorted(folder.glob("*.json"))]
    (run / "model.safetensors").touch()
    assert command(*words) == 0
    assert [file.stat().st_mtime_ns for file in sorted(folder.glob("*.json"))] == made  # nothing has changed
    change_weights(run)
    assert command(*words) == 0
    second = losses(folder)
    change_text(place / "text.jsonl")
    assert command(*words) == 0
    assert len({*first, *second, *losses(folder)}) == 6


def test_a_column_that_depends_on_the_code_is_measured_again_by_another_and_not_shown_beside_it(place, monkeypatch):
    run, other, names = place / "run", place / "other", ["cache_bytes_per_token", "learning_rate"]
    cache = measure_columns(names, [run])[run]["cache_bytes_per_token"]
    kept = json.loads((run / "columns.json").read_text())
    for name in names:
        kept[name]["value"] = 7.5
    (run / "columns.json").write_text(json.dumps(kept))
    shutil.copytree(run, other)
    assert [*measure_columns(names, [run])[run].values()] == [7.5, 7.5]
    monkeypatch.setattr(columns, "code_identity", lambda: {"torch": "of next year"})
    assert [*measure_columns(names, [run])[run].values()] == [cache, 7.5]
    compare_runs([run, other], place / "both.html")
    page = (place / "both.html").read_text()
    assert "cache_bytes_per_token is left out" in page and '<th scope="col">cache bytes' not in page
    assert page.count("<td>7.5</td>") == 2
    compare_runs([run], place / "one.html")
    assert '<th scope="col">cache bytes' in (place / "one.html").read_text()


@pytest.mark.slow
def test_columns_and_perplexities_by_position_are_of_the_run_as_it_is(place, command, tmp_path):
    sweep = tmp_path / "sweep.yaml"
    settings = {"recipe": "tiny.yaml", "by_position": 16, "max_examples": 4, "columns": ["cache_bytes_per_token"]}
    sweep.write_text(yaml.safe_dump(settings | {"vary": {"training.seed": [1, 2]}}))
    words = ("sweep", sweep, "--out", place / "runs", "training.max_steps=2")
    assert command(*words) == 0
    run = place / "runs" / "seed=1"
    before = json.loads((run / "by-position.json").read_text())
    (run / "columns.json").write_text((run / "columns.json").read_text().replace('value": ', 'value": 1'))
    columns = json.loads((run / "columns.json").read_text())["cache_bytes_per_token"]
    assert command(*words[:-1], "training.max_steps=4") == 0  # the same runs, trained on
    after = json.loads((run / "by-position.json").read_text())
    assert after["perplexity"] != before["perplexity"]
    assert json.loads((run / "columns.json").read_text())["cache_bytes_per_token"] != columns


@pytest.mark.slow
def test_a_step_of_a_story_is_made_again_if_the_step_before_it_was(place, command, capsys):
    recipe = yaml.safe_load((place / "tiny.yaml").read_text())
    second = {name: recipe[name] for name in ("data", "objective", "evaluation")}
    second["training"] = recipe["training"] | {"max_steps": 2}
    story = place / "mine.yaml"
    story.write_text(yaml.safe_dump({"output_dir": str(place / "story"), "steps": {"one": recipe, "two": second}}))
    assert command("train", story) == 0
    before = (place / "story" / "two" / "model.safetensors").read_bytes()
    shutil.rmtree(place / "story" / "one")
    assert command("train", story, "one.training.seed=5") == 0
    assert "made again" in capsys.readouterr().out
    assert (place / "story" / "two" / "model.safetensors").read_bytes() != before
    assert (place / "story" / "corrupt-two" / "model.safetensors").read_bytes() == before


READING = ["model={name_or_path: RUN}", "teacher={name_or_path: RUN, stored: true, top_k: 4}"]


@pytest.mark.parametrize("section", a_share(READING, 2), ids=["base", "teacher"])
def test_a_model_that_is_replaced_while_it_is_read_leaves_nothing_behind(section, place, command, monkeypatch, capsys):
    run, cache = place / "run", place / "cache"
    whole = transformers.AutoModelForCausalLM.from_pretrained.__func__
    words = ["train", place / "tiny.yaml", f"training.output_dir={place / 'taught'}", f"data.cache_dir={cache}"]
    words += [f"tokenizer={{name_or_path: {run}}}", section.replace("RUN", str(run))]

    def replaced(cls, name, *args, **kwargs):
        if str(name) == str(run):
            change_weights(run)
        return whole(cls, name, *args, **kwargs)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", classmethod(replaced))
    assert command(*words) == 2
    assert "was changed while it was read" in capsys.readouterr().err
    monkeypatch.undo()
    assert command(*words) == 0
    alone = [*words, f"training.output_dir={place / 'alone'}", f"data.cache_dir={place / 'fresh'}"]
    assert command(*alone) == 0
    weights, expected = (load_file(place / name / "model.safetensors") for name in ("taught", "alone"))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_nothing_is_kept_of_data_that_is_replaced_while_a_model_is_measured(place, command, monkeypatch, capsys):
    load, text = evaluate.load, place / "text.jsonl"
    monkeypatch.setattr(evaluate, "load", lambda *arguments: change_text(text) or load(*arguments))
    assert command("evaluate", place / "run") == 2
    assert "a file of the data was changed while it was read" in capsys.readouterr().err
    assert not list((place / "run").glob("evaluation-*"))


def test_a_reference_that_is_replaced_while_it_is_read_leaves_no_log_probabilities(tmp_path, monkeypatch):
    recipe = task_recipe(tmp_path, "preference")
    whole = transformers.AutoModelForCausalLM.from_pretrained.__func__

    def replaced(cls, name, *args, **kwargs):
        change_weights(Path(name))
        return whole(cls, name, *args, **kwargs)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", classmethod(replaced))
    with pytest.raises(UserError, match=r"base was changed while it was read"):
        prepare_data(load_recipe(recipe), splits=["test"])
    monkeypatch.undo()
    kept, fresh = (
        [row["reference"] for row in prepare_data(load_recipe(recipe, words), splits=["test"]).rows["test"]]
        for words in ([], [f"data.cache_dir={tmp_path / 'fresh'}"])
    )
    assert all(map(torch.equal, kept, fresh))


URL = "https://shelf.example/a.txt?X-Amz-Credential=me&X-Amz-Signature="


def test_no_signature_or_password_is_in_the_names_and_tables_of_a_sweep(place, command, capsys):
    urls = json.dumps([f"{URL}5ecre7", "https://shelf.example/b.txt?sig=5ecre7&version=2", "https://u:5ecre7@c/d.txt"])
    names = [one.name for one in grid(read_sweep(str(place / "tiny.yaml"), [f"data.files={urls}"]))]
    assert len(set(names)) == 3 and not any("5ecre7" in name for name in names)
    words = ("sweep", place / "tiny.yaml", f"data.files={json.dumps([f'{URL}5ecre7', 'nowhere.txt'])}")
    assert command(*words, "--dry-run") == 0
    assert "5ecre7" not in capsys.readouterr().out
    assert command("sweep", place / "tiny.yaml", f"data.files={json.dumps([f'{URL}5ecre7', f'{URL}0ther'])}") == 2
    assert "5ecre7" not in capsys.readouterr().err  # the same file twice


def test_a_card_names_the_base_as_training_found_it_wherever_it_is_published(place, command, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (place / "models").mkdir()
    shutil.copytree(place / "run", place / "models" / "base")
    words = ("model={name_or_path: models/base}", "tokenizer={}", "training.max_steps=1", "training.output_dir=tuned")
    assert command("train", "tiny.yaml", *words) == 0
    cards = []
    for folder in (place, place / "models"):
        monkeypatch.chdir(folder)
        capsys.readouterr()
        assert command("publish", place / "tuned", "me/mine", "--dry-run", "--no-check") == 0
        cards.append(capsys.readouterr().out)
    assert cards[0] == cards[1] and "base_model:" not in cards[0] and "from `models/base`" in cards[0]
