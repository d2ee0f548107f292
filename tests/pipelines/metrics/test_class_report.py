"""Laws of reports on single classes: scikit-learn's and seqeval's numbers, the metric's calibration, bounded sizes."""

import numpy as np
import pytest
import sklearn.metrics
from anyformer.pipelines.metrics import load_metric
from anyformer.pipelines.metrics.class_report import (
    MOST_CLASSES,
    calibration,
    confusion,
    per_class,
    per_entity,
)

EXACT = 1e-6  # probabilities are float32


def answers(classes: int, number: int = 400):
    """(given, true, probabilities of all classes), right in about a half."""
    draw = np.random.default_rng(classes)
    true = draw.integers(classes, size=number)
    shares = draw.dirichlet(np.ones(classes), size=number) + (draw.random((number, 1)) < 0.5) * np.eye(classes)[true]
    shares = (shares / shares.sum(-1, keepdims=True)).astype("float32")
    return shares.argmax(-1), true, shares


def test_of_several_classes_each_has_what_is_found_missed_and_wrongly_given():
    given, true = np.array([[1, 0], [1, 1], [0, 0]]), np.array([[1, 1], [0, 1], [0, 1]])
    a, b = per_class(["a", "b"], given, true)
    assert (a["found"], a["missed"], a["wrong"], a["precision"]) == (1, 0, 1, 0.5)
    assert (b["found"], b["missed"], b["wrong"], b["recall"]) == (1, 2, 0, pytest.approx(1 / 3))


def test_entities_are_judged_by_their_type_and_sentences_without_one_are_no_error():
    given, true = [["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC"]]
    loc, per = per_entity(given, true)
    assert (loc["name"], loc["f1"], loc["support"]) == ("LOC", 1.0, 1) and (per["name"], per["f1"]) == ("PER", 0.0)
    assert per_entity([["O"]], [["O"]]) == []


@pytest.mark.parametrize("classes", [3, MOST_CLASSES + 40])
def test_a_matrix_is_scikit_learns_of_the_classes_with_most_mistakes(classes):
    given, true, _ = answers(classes)
    found = confusion([str(n) for n in range(classes)], given, true)
    shown = list(map(int, found["matrix"]["names"]))
    assert len(shown) == min(classes, MOST_CLASSES) and shown == sorted(shown)
    assert found["matrix"]["counts"] == sklearn.metrics.confusion_matrix(true, given, labels=shown).tolist()
    pair = found["confused"][0]
    assert pair["number"] == ((true == int(pair["true"])) & (given == int(pair["given"]))).sum()
    assert pair["true"] != pair["given"] and pair["number"] == max(one["number"] for one in found["confused"])


def test_calibration_is_that_of_the_metric_and_its_bins_hold_every_answer():
    given, true, shares = answers(5)
    found = calibration(shares.max(-1), given == true)
    metric = load_metric("expected_calibration_error").compute(predictions=shares, references=true)
    assert found["ece"] == pytest.approx(metric["expected_calibration_error"], abs=EXACT)
    assert sum(one["number"] for one in found["bins"]) == len(true)
    assert all(one["low"] - EXACT <= one["confidence"] <= one["high"] + EXACT for one in found["bins"])
