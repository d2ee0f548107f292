"""Scripts of the repository that make data: what they write."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent.parent / "scripts"


def run(script: str, *arguments) -> str:
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sentences_are_rows_of_the_columns_that_are_asked_for(tmp_path):
    wiki, reviews, out = tmp_path / "wiki.txt", tmp_path / "reviews.jsonl.gz", tmp_path / "out" / "rows.jsonl"
    wiki.write_text(" = Heading = \n The cat , it seems , sat . It was <unk> then . The dog did n't sit .\n")
    with gzip.open(reviews, "wt") as file:
        file.write(json.dumps({"review": "Too short. Isn't this (a long) one?<br />And here another one."}) + "\n")
    run("sentences.py", wiki, f"{reviews}:review", "--before", " ", "--out", out)
    whole = ["The cat, it seems, sat.", "The dog didn't sit.", "Isn't this (a long) one?", "And here another one."]
    assert rows_of(out) == [{"text": f" {sentence}"} for sentence in whole]
    pairs = ["--tokens", "--lowercase", "--columns", "one", "two", "--words", 13]
    run("sentences.py", wiki, f"{reviews}:review", *pairs, "--out", out)
    assert rows_of(out) == [{"one": "the cat , it seems , sat .", "two": "the dog did n't sit ."}]  # one row is whole
    run("sentences.py", f"{reviews}:review", "--tokens", "--split", "--columns", "tokens", "--rows", 1, "--out", out)
    assert rows_of(out) == [{"tokens": ["Is", "n't", "this", "(", "a", "long", ")", "one", "?"]}]


def test_each_question_has_a_sentence_that_answers_it_or_the_likest_other_one(tmp_path):
    text = "The tower is in Rome. It was built of stone. Nobody knows who built it."
    rows = [{"question": "Of what was it built?", "context": text, "answers": {"answer_start": [text.index("stone")]}}]
    rows += [{"question": "What is this?", "context": "One sentence.", "answers": {"answer_start": [0]}}]
    with gzip.open(tmp_path / "squad.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows * 20))
    said = run("answering_sentences.py", tmp_path / "squad.jsonl.gz", "--out", tmp_path / "pairs.jsonl")
    pairs = rows_of(tmp_path / "pairs.jsonl")
    assert {(pair["sentence"], pair["label"]) for pair in pairs} == {
        ("It was built of stone.", 1),
        ("Nobody knows who built it.", 0),
    }
    assert len(pairs) == 20 and "20 pairs" in said and "words alone: 100.0%" in said
