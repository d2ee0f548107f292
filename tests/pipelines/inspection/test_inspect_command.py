"""The options of `inspect`: texts of a file, words, figures of heads, and the model's answer beside each text."""

import csv
import json
from pathlib import Path

import pytest
from image_data import image_recipe
from PIL import Image
from task_data import task_recipe
from test_inspect import data_of

import anyformer

LAYERS = {"num_hidden_layers": 2}


@pytest.fixture
def trained(tmp_path, command):
    """Factory: a run of a task, two steps long."""

    def train(task: str) -> Path:
        (tmp_path / task).mkdir()
        short = {"training": {"max_steps": 2}, "evaluation": {"every_steps": None}}
        assert command("train", task_recipe(tmp_path / task, task, model=LAYERS, **short)) == 0
        return tmp_path / task / "run"

    return train


@pytest.fixture
def inspected(command, tmp_path):
    """Factory: what the page holds of each text."""

    def inspect(*words) -> list[dict]:
        assert command("inspect", *words, "--out", tmp_path / "page.html") == 0
        return data_of(tmp_path / "page.html")["views"]

    return inspect


def test_texts_of_a_table_with_words_figures_and_classes(trained, inspected, command, tmp_path, capsys):
    run, table = trained("sequence_classification"), tmp_path / "new.csv"
    with table.open("w", newline="") as stream:
        csv.writer(stream).writerows([("stars", "text"), (1, "a dull film, a film"), (5, "a good story"), (3, "")])
    views = inspected(
        *(run, "a lovely scene", "--texts", table, "--word", "film", "--word", "story", "--figure", "L0.H1", "L1.H3")
    )
    printed = capsys.readouterr()
    assert [one["title"] for one in views] == ["a lovely scene", "a dull film, a film", "a good story"]
    assert "1 row without a text left out" in printed.err
    answers = anyformer.predict(run, [{"text": one["title"]} for one in views])
    assert [one["answer"] for one in views] == [f"{a['prediction']} ({a['score']:.1%})" for a in answers]
    assert [list(one["words"]) for one in views] == [[], ["film"], ["story"]]
    read = views[1]["maps"][0]["queries"]
    assert "".join(read[place] for place in views[1]["words"]["film"]).split() == ["film", "film"]
    assert all(("to film" in each["summary"]) == (one is views[1]) for one in views for each in one["maps"])
    for number in (1, 2, 3):
        for head in ("L0.H1", "L1.H3"):
            assert min(Image.open(tmp_path / f"page-{number}-{head}.png").size) > 200
    assert str(tmp_path / "page-3-L1.H3.png") in printed.out
    assert command("inspect", run, "a", "--figure", "L2.H0", "--out", tmp_path / "none.html") == 2
    said = "--figure L2.H0: the model has no such head; it has L0 with H0 to H3, L1 with H0 to H3"
    assert said in capsys.readouterr().err and not (tmp_path / "none.html").exists()
    table.write_text("stars,texts\n1,a\n")
    assert command("inspect", run, "--texts", table) == 2
    assert "task.text_field='text': no such column" in capsys.readouterr().err
    assert command("inspect", run) == 2
    assert "nothing to look at: name a TEXT" in capsys.readouterr().err


def test_lines_of_a_text_and_what_is_written_for_them(trained, inspected, tmp_path):
    run, lines = trained("translation"), tmp_path / "new.txt"
    lines.write_text("the old man\n\nthe dog runs\n")
    views = inspected(run, "--texts", lines, "--figure", "cross.L1.H0", "encoder.L0.H2")
    assert [one["title"] for one in views] == ["the old man", "the dog runs"]
    assert [one["answer"] for one in views] == [
        answer["prediction"] for answer in anyformer.predict(run, [{"en": one["title"]} for one in views])
    ]
    assert Image.open(tmp_path / "page-2-cross.L1.H0.png").size[0] > 200


def test_the_answer_is_what_the_objective_says(trained, inspected, tmp_path):
    (view,) = inspected(trained("token_classification"), "anna was in paris")
    assert view["answer"] == "none" or ": " in view["answer"]
    rows = [{"question": "who was in the film", "context": "the film with mr otto"}]
    (tmp_path / "new.jsonl").write_text(json.dumps(rows[0]))
    run = trained("question_answering")
    single, pair = inspected(run, "who was in the film", "--texts", tmp_path / "new.jsonl", "--word", "film")
    assert single["answer"] is None and pair["answer"].startswith(anyformer.predict(run, rows)[0]["prediction"])
    assert pair["title"] == "who was in the film | the film with mr otto"
    assert len(pair["words"]["film"]) == 2 * len(single["words"]["film"])


def test_a_decoder_says_what_comes_next(tiny_recipe, inspected, command, tmp_path):
    assert command("train", tiny_recipe(training={"max_steps": 2}), f"training.output_dir={tmp_path / 'run'}") == 0
    (view,) = inspected(tmp_path / "run", "def f(a")
    (token, share), *_ = view["lens"][-1]
    assert view["answer"].startswith(f"{token!r} {share:.1%}, ") and view["answer"].endswith("comes next")


def test_an_image_has_its_class_and_figures(inspected, command, tmp_path):
    recipe = image_recipe(tmp_path, training={"max_steps": 2}, evaluation={"every_steps": None})
    assert command("train", recipe) == 0
    Image.new("L", (8, 8), 200).save(tmp_path / "new.png")
    (view,) = inspected(tmp_path / "run", tmp_path / "new.png", "--figure", "L0.H0")
    (answer,) = anyformer.predict(tmp_path / "run", [str(tmp_path / "new.png")])
    assert view["answer"] == f"{answer['prediction']} ({answer['score']:.1%})" and view["image"]
    assert (tmp_path / "page-1-L0.H0.png").exists()
