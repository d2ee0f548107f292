"""scripts/results: the rows that a script writes, and the rows of RESULTS.md that a script measures."""

import gzip
import importlib
import json
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from anyformer.pipelines.recipes.compose import load_recipe
from test_readme import SMALL_VOCABULARY, TINY


@pytest.fixture
def written(repo_root, monkeypatch):
    """Run a script with arguments; its last one is the file that it writes; return the rows there."""

    def run(script: str, *arguments) -> list[dict]:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        monkeypatch.syspath_prepend(repo_root / "scripts" / "results")  # as where python runs a script
        runpy.run_path(str(repo_root / "scripts" / "results" / script), run_name="__main__")
        return [json.loads(line) for line in Path(arguments[-1]).read_text().splitlines()]

    return run


def test_sentences_are_rows_of_the_columns_that_are_asked_for(written, tmp_path):
    wiki, reviews, out = tmp_path / "wiki.txt", tmp_path / "reviews.jsonl.gz", tmp_path / "out" / "rows.jsonl"
    wiki.write_text(" = Heading = \n The cat , it seems , sat . It was <unk> then . The dog did n't sit .\n")
    with gzip.open(reviews, "wt") as file:
        file.write(json.dumps({"review": "Too short. Isn't this (a long) one?<br />And here another one."}) + "\n")
    found = written("sentences.py", wiki, f"{reviews}:review", "--before", " ", "--out", out)
    whole = ["The cat, it seems, sat.", "The dog didn't sit.", "Isn't this (a long) one?", "And here another one."]
    assert found == [{"text": f" {sentence}"} for sentence in whole]
    pairs = ["--tokens", "--lowercase", "--columns", "one", "two", "--words", 13]
    found = written("sentences.py", wiki, f"{reviews}:review", *pairs, "--out", out)
    assert found == [{"one": "the cat , it seems , sat .", "two": "the dog did n't sit ."}]  # one row is whole
    words = ["--tokens", "--split", "--columns", "tokens", "--rows", 1]
    found = written("sentences.py", f"{reviews}:review", *words, "--out", out)
    assert found == [{"tokens": ["Is", "n't", "this", "(", "a", "long", ")", "one", "?"]}]


@pytest.fixture
def results(repo_root, monkeypatch, tmp_path):
    """A copy of RESULTS.md as measure.py sees it, and measure.py."""
    monkeypatch.syspath_prepend(repo_root / "scripts" / "results")
    measure = importlib.import_module("measure")
    (tmp_path / "RESULTS.md").write_text((repo_root / "RESULTS.md").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(measure, "FILE", tmp_path / "RESULTS.md")
    monkeypatch.setattr(measure, "KEPT", tmp_path / "measured.json")
    return measure


def test_each_row_of_the_results_has_commands_and_a_run_of_its_own(results):
    """A run of another row would be taken for its own: it is finished."""
    trained: dict[str, tuple] = {}
    text = results.FILE.read_text(encoding="utf-8")
    for row in results.rows_of(text):
        assert row.commands and row.names and row.line() in text
        for command in row.commands:
            words = shlex.split(command)
            if words[1] == "evaluate":
                continue
            assert words[:2] == ["anyformer", "train"], command
            settings = [word for word in words[3:] if "=" in word]
            if any(setting.startswith("model.name_or_path=") for setting in settings):  # of a run that is not here
                settings = [setting for setting in settings if not setting.startswith("model.")]
            recipe = load_recipe(words[2], [setting for setting in settings if not setting.startswith("teacher.")])
            folder = f"{recipe.training.output_dir} {'--seeds' in words}"
            assert trained.setdefault(folder, command) == command, folder


@pytest.mark.slow
def test_a_row_is_measured_and_written(results, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    command = shlex.join(["anyformer", "train", "quickstart", *TINY, SMALL_VOCABULARY, "training.output_dir=runs/tiny"])
    cells = ("`quickstart` (Q)", "Python's sources", "perplexity 1.0", "", "", "never")
    row = results.Row(cells, (command,))
    results.FILE.write_text(f"before\n{row.line()}\nafter\n", encoding="utf-8")
    written = results.measure(row, None)
    kept = json.loads(results.KEPT.read_text(encoding="utf-8"))[cells[0]]
    perplexity = kept["metrics"][0]["validation_perplexity"]
    assert kept["seeds"] == [42] and kept["commands"] == [command] and kept["machine"] and kept["versions"]["torch"]
    assert written.cells[:2] == cells[:2] and written.cells[2] == f"validation perplexity {perplexity:.1f}"
    assert kept["commit"] in written.cells[-1]
    again = results.measure(row, "loss")  # of the finished run
    assert again.cells[2] == f"validation loss {kept['metrics'][0]['validation_loss']:.3f}"
