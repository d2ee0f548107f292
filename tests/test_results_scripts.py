"""scripts/results: the rows that a script writes."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest


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
