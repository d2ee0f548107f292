"""Laws of sequence_regression: numbers are learned, measured by correlations, and rows without one are not counted."""

import json
import random

import pytest
import torch
from anyformer.modeling.task_losses import sequence_classification_loss
from anyformer.pipelines.training.losses.model_loss import loss_of_logits
from task_data import CHARACTERS, task_recipe, write_lines

KIND = "sequence_classification"


def numbered(path, number=120, seed=0):
    """Texts of `up` and `down`; the label is the share of `up`, from -1 to 1."""
    draw, rows = random.Random(seed), []
    for _ in range(number):
        words = [draw.choice(["up", "down"]) for _ in range(8)]
        rows.append({"text": " ".join(words), "label": words.count("up") / 4 - 1})
    return write_lines(path, rows)


def recipe_of(folder, **training):
    return task_recipe(
        folder,
        KIND,
        data={"files": str(numbered(folder / "a.jsonl")), "test_files": str(numbered(folder / "b.jsonl", 23, 1))},
        task={"name": "sequence_regression"},
        tokenizer=CHARACTERS,
        training=training,
        evaluation={"every_steps": 20, "best_metric": "pearson"},
    )


def test_numbers_are_learned_and_measured_by_their_correlations(tmp_path, command, capsys):
    assert command("train", recipe_of(tmp_path, max_steps=60)) == 0
    run = tmp_path / "run"
    metrics = json.loads((run / "run.json").read_text())["metrics"]
    assert metrics["test_pearson"] > 0.6 and metrics["test_spearman"] > 0.6
    assert metrics["test_loss"] < 0.1  # the labels have a variance of 0.125
    config = json.loads((run / "config.json").read_text())
    assert config["problem_type"] == "regression" and config["id2label"] == {"0": "score"}
    assert "labels " in capsys.readouterr().out
    assert command("evaluate", run, "training.per_device_eval_batch_size=7") == 0
    again = json.loads((run / "evaluation-recipe.json").read_text())["metrics"]
    # Other batches, other padding: fp32 sums in another order, which may change the order of nearly equal predictions.
    for name, tolerance in (("loss", 1e-4), ("pearson", 1e-4), ("spearman", 0.02)):
        assert again[name] == pytest.approx(metrics[f"test_{name}"], abs=tolerance)


def test_what_is_no_number_is_one_sentence(refused):
    for value, words in (("high", "holds 'high', which is no finite number"), (-100, "stands for a missing label")):
        refused([{"text": "up", "label": value}] * 30, {"name": "sequence_regression"}, words)


def test_rows_without_a_number_are_not_counted_by_either_loss():
    logits, labels = torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([0.0, 4.0, -100.0])
    assert sequence_classification_loss(logits, labels, "regression").item() == 2.5
    assert loss_of_logits({"logits": logits}, labels, shift=False).item() == 2.5
    assert loss_of_logits({"logits": logits}, labels, 1, shift=False).item() == 5.0
    none = torch.full_like(labels, -100)
    assert sequence_classification_loss(logits, none, "regression") == 0
    assert loss_of_logits({"logits": logits}, none, shift=False) == 0
