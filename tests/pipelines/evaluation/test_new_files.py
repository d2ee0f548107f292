"""`anyformer evaluate RUN FILE`: new labelled files, read and measured by the run's own recipe."""

import csv
import json
import shutil

import pytest
from image_data import image_recipe, picture_folder
from task_data import reviews, task_recipe, write_lines

CLASSES = {"label_names": ["bad", "good"]}


def with_names(path, number=40, seed=5):
    """New labelled reviews as a CSV, whose classes have their names."""
    rows = [json.loads(line) for line in reviews(path.with_suffix(".jsonl"), number, seed).read_text().splitlines()]
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, ["label", "id", "text"])
        table.writeheader()
        table.writerows({**row, "label": CLASSES["label_names"][row["label"]], "id": 7} for row in rows)
    return path


@pytest.fixture
def run(tmp_path, command, capsys):
    """A finished run, whose data are gone, and whose recipe has settings that a new file has not."""
    weighed = CLASSES | {"class_weights": "balanced"}
    recipe = task_recipe(tmp_path, "sequence_classification", training={"max_steps": 20}, task=weighed)
    assert command("train", recipe, "data.test_fraction=0.1", "data.test_files=null") == 0
    for path in tmp_path.glob("sequence_classification*.jsonl"):
        path.unlink()
    capsys.readouterr()
    return tmp_path / "run"


def test_a_new_file_is_measured_as_the_run_measures_beside_its_validation(run, tmp_path, command, capsys):
    file = with_names(tmp_path / "new.csv")
    assert command("evaluate", run, file, "--predictions", tmp_path / "answers.jsonl") == 0
    printed, (written,) = capsys.readouterr().out, run.glob("evaluation-*.json")
    result, trained = json.loads(written.read_text()), json.loads((run / "run.json").read_text())["metrics"]
    assert written.name == "evaluation-recipe-on-new-csv.json" and result["examples"] == 40
    assert result["validation"] == {n: trained[f"validation_{n}"] for n in ("loss", "accuracy")}
    assert "validation of the run" in printed and f"{trained['validation_loss']:.4f}" in printed
    names = [one["name"] for one in result["classes"]["classes"]]
    assert "accuracy" in result["intervals"] and names == CLASSES["label_names"]
    assert "recall" in printed and "surest mistakes" in printed and "new.csv, line" in printed
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    right = sum(answer["prediction"] == answer["reference"] for answer in answers) / 40
    assert right == pytest.approx(result["metrics"]["accuracy"])


def test_classes_that_a_run_does_not_know_are_shown_beside_its_own_with_the_setting_that_maps_them(
    run, tmp_path, command, capsys
):
    file, other = with_names(tmp_path / "new.csv"), tmp_path / "other.csv"
    assert command("evaluate", run, file) == 0
    right = capsys.readouterr().out
    other.write_text(file.read_text().replace("good,", "schön,").replace("bad,", "übel,"))
    assert command("evaluate", run, other) == 2
    said = capsys.readouterr().err.replace("übel, schön", "schön, übel")
    assert "labels schön, übel, classes bad, good" in said and said.count("\n") == 1
    assert "task.label_map='{" in said and "data.separator" not in said
    assert command("evaluate", run, other, "task.label_map={schön: good, übel: bad}") == 0
    accuracy = [line for line in right.splitlines() if "accuracy" in line]
    assert accuracy and set(accuracy) <= set(capsys.readouterr().out.splitlines())


def test_patterns_and_two_models_take_new_files_too(run, tmp_path, command, capsys):
    for number in range(2):
        with_names(tmp_path / f"part-{number}.csv", 10, seed=number)
    assert command("evaluate", run, tmp_path / "part-*.csv") == 0
    assert "20 examples" in capsys.readouterr().out
    shutil.copytree(run, tmp_path / "other")
    assert command("evaluate", run, tmp_path / "other", tmp_path / "part-0.csv") == 0
    assert "10 examples" in capsys.readouterr().out


def test_mistakes_about_new_files_are_one_sentence(run, tmp_path, command, capsys):
    bad = write_lines(tmp_path / "bad.jsonl", [{"text": "good film", "label": "great"}])
    pairs = write_lines(tmp_path / "pairs.jsonl", [{"good": "the film was good", "bad": "film the good was"}])
    native = tmp_path / "other" / "native"  # no recipe lies in it or above it
    shutil.copytree(run, native, ignore=lambda *_: ["recipe.yaml"])
    for words, sentence in (
        ([run, bad], "bad.jsonl, line 1"),
        ([run, tmp_path / "gone*.csv"], "gone*.csv' matches no file"),
        ([run, bad, "--shots", "1"], "--shots takes its solved examples from training data"),
        ([run, bad, "--split", "validation"], "has no validation split"),
        ([run, pairs], "was not trained for this"),  # a file of minimal pairs, which a classifier cannot score
        ([native, bad], "minimal_pairs"),  # without a recipe a file can only be one of pairs
    ):
        assert command("evaluate", *words) == 2
        assert sentence in (said := capsys.readouterr().err) and said.count("\n") == 1, words


def test_a_folder_of_images_and_a_text_are_new_files(tmp_path, command, tiny_recipe, capsys):
    images = image_recipe(tmp_path, training={"max_steps": 2})
    assert command("train", images) == 0
    picture_folder(tmp_path / "new", 6)
    assert command("evaluate", tmp_path / "run", tmp_path / "new") == 0
    assert json.loads((tmp_path / "run" / "evaluation-recipe-on-new.json").read_text())["examples"] == 6
    assert command("train", tiny_recipe(), f"training.output_dir={tmp_path / 'text'}", "training.max_steps=2") == 0
    (tmp_path / "new.txt").write_text("def read(path):\n    return path.read_text()\n" * 20)
    assert command("evaluate", tmp_path / "text", tmp_path / "new.txt") == 0
    result = json.loads((tmp_path / "text" / "evaluation-tiny-on-new-txt.json").read_text())
    assert "perplexity" in result["metrics"] and "unigram_perplexity" not in result["metrics"]
