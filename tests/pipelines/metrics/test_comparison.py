"""Laws of intervals and of two models compared: the bootstrap by its definition, McNemar by the binomial test."""

from itertools import product

import numpy as np
import pytest
import scipy.stats
from anyformer.pipelines.metrics import COMPARED, METRICS, compute_metrics, load_metric, significance
from anyformer.pipelines.metrics.significance import Comparison, differences, intervals
from family_variants import a_share
from hypothesis import given
from hypothesis import strategies as st

ROUNDING = 1e-9  # sums in another order
TAGS = ["O", "B-PER", "I-PER", "I-LOC", "B-LOC"]
WORDS = ["a", "cat", "dog", "sits", "on", "Mat"]


def examples_of(compares: str, number: int = 23, seed: int = 0, classes: int = 2) -> Comparison:
    """Random predictions beside references."""
    draw = np.random.default_rng(seed)
    if compares in ("classes", "probabilities"):
        true, probabilities = draw.integers(0, classes, number), draw.dirichlet([1] * classes, number)
        return Comparison([], probabilities.argmax(-1).tolist(), true.tolist(), probabilities)
    if compares == "label_sets":
        return Comparison([], *draw.integers(0, 2, (2, number, 3)).tolist())
    if compares in ("numbers", "rewards"):
        x = draw.normal(size=number)
        return Comparison([], x.tolist(), (x + draw.normal(size=number)).tolist())
    if compares == "tags":
        lengths = draw.integers(1, 8, number)
        given, true = ([draw.choice(TAGS, length).tolist() for length in lengths] for _ in range(2))
        return Comparison([], given, true)
    texts = [[" ".join(draw.choice(WORDS, draw.integers(3, 8))) for _ in range(number)] for _ in range(2)]
    given = [r if i % 3 == 0 else p for i, (p, r) in enumerate(zip(*texts))]
    return Comparison([], given, [[text, "dog"] for text in texts[1]] if compares == "answers" else texts[1])


KNOWN = [
    name for name, row in METRICS.items() if row.compares in COMPARED and row.load is not None and row.missing() is None
]


@pytest.mark.parametrize("name, classes", a_share(product(KNOWN, [2, 4]), 3))
def test_a_resample_has_the_score_of_the_examples_drawn(name, classes):
    if classes > 2 and (METRICS[name].two_classes or METRICS[name].compares not in ("classes", "probabilities")):
        return
    comparison = examples_of(METRICS[name].compares, 23 if classes == 2 else 7, classes=classes)
    given, true = comparison.inputs(name)
    found = significance.resampled_scores(comparison, [name], 4, seed=3)[name]
    for score, weights in zip(found, significance.resamples(len(true), 4, 3)):
        drawn = np.repeat(np.arange(len(true)), weights)
        expected = load_metric(name).compute(predictions=[given[i] for i in drawn], references=[true[i] for i in drawn])
        assert score == pytest.approx(expected[name], abs=ROUNDING, nan_ok=True)


def test_the_interval_is_the_percentiles_of_the_resamples_and_depends_on_the_seed_alone():
    comparison = examples_of("numbers", 60)
    comparison.metrics = ["pearson"]
    value, _ = compute_metrics(["pearson"], comparison.predictions, comparison.references)
    found = intervals(comparison, value, 200, seed=1)["pearson"]
    draw = np.random.default_rng([1, 60])
    x, y = np.array(comparison.predictions), np.array(comparison.references)
    scores = [np.corrcoef(x[i], y[i])[0, 1] for i in (draw.integers(60, size=60) for _ in range(200))]
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.percentile(scores, [2.5, 97.5])), abs=ROUNDING)
    assert found == intervals(comparison, value, 200, seed=1)["pearson"] | {"method": "bootstrap of 200"}
    assert found != intervals(comparison, value, 200, seed=2)["pearson"]
    assert intervals(comparison, value, 0, seed=1) == {}
    assert found["low"] < value["pearson"] < found["high"]


def test_shares_of_examples_have_wilsons_interval_without_resamples():
    comparison = examples_of("classes", 40)
    comparison.metrics = ["accuracy", "f1"]
    values, _ = compute_metrics(["accuracy", "f1"], comparison.predictions, comparison.references)
    found = intervals(comparison, values, 0, seed=0)
    assert set(found) == {"accuracy"} and found["accuracy"]["method"] == "wilson"
    hits = round(values["accuracy"] * 40)
    exact = scipy.stats.binomtest(hits, 40).proportion_ci(method="wilson")
    assert (found["accuracy"]["low"], found["accuracy"]["high"]) == pytest.approx(tuple(exact), abs=1e-4)  # z = 1.96


def test_a_correlation_that_does_not_exist_has_no_interval():
    assert intervals(Comparison(["pearson"], [1.0] * 5, [1, 2, 3, 4, 5]), {"pearson": float("nan")}, 20, 0) == {}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_mcnemar_is_the_binomial_test_of_the_answers_that_one_model_alone_has_right(rows):
    first, second = (np.array(column) for column in zip(*rows))
    alone, other, p = significance.mcnemar(first, second)
    assert (alone, other) == (rows.count((True, False)), rows.count((False, True)))
    # Two-sided, as a sum: twice the smaller tail of a fair coin's tosses.
    tail = scipy.stats.binom.cdf(min(alone, other), alone + other, 0.5)
    assert p == pytest.approx(min(1.0, 2 * tail))


def test_two_models_are_compared_on_the_same_resamples():
    first, second = examples_of("classes", 50, 0), examples_of("classes", 50, 0)
    second.predictions = [r if i % 2 else p for i, (p, r) in enumerate(zip(first.predictions, first.references))]
    first.metrics = second.metrics = ["accuracy", "f1"]
    found = differences(first, second, 100, seed=5)
    gained = np.mean(np.equal(second.predictions, second.references)) - np.mean(
        np.equal(first.predictions, first.references)
    )
    assert found["accuracy"]["difference"] == pytest.approx(gained)
    assert found["accuracy"]["test"] == "McNemar, exact" and found["accuracy"]["first_alone"] == 0
    assert found["f1"]["test"] == "paired bootstrap of 100" and found["f1"]["p"] < 0.05 < 1
    assert found["accuracy"]["low"] >= 0  # it is better in every resample, because the pairs stay together
    same = differences(first, first, 20, seed=5)
    assert all(row["difference"] == 0 and row["p"] == 1 for row in same.values())
    assert "p" not in differences(first, second, 0, seed=5)["f1"]


def test_several_tests_are_corrected_by_holms_steps():
    assert significance.holm([]) == [] and significance.holm([0.03]) == [0.03]
    # In their order 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1, none less than the one before it.
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.9, 0.8]) == [1.0, 1.0]


# --------------------------------------------------------------------------------------------- probabilities


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 5))
def test_calibration_error_is_the_mean_gap_of_confidence_and_accuracy_in_fifteen_bins(seed, number, classes):
    draw = np.random.default_rng(seed)
    probabilities, true = draw.dirichlet(np.ones(classes), number), draw.integers(0, classes, number)
    expected = 0.0
    for m in range(15):  # Guo et al. 2017, eq. 3, bin by bin
        inside = [i for i in range(number) if m / 15 < max(probabilities[i]) <= (m + 1) / 15]
        if inside:
            accuracy = np.mean([probabilities[i].argmax() == true[i] for i in inside])
            confidence = np.mean([max(probabilities[i]) for i in inside])
            expected += len(inside) / number * abs(accuracy - confidence)
    found = load_metric("expected_calibration_error").compute(predictions=probabilities, references=true)
    assert found["expected_calibration_error"] == pytest.approx(expected, abs=ROUNDING)


def test_a_metric_of_probabilities_is_for_every_task_of_classes():
    from anyformer.pipelines.plugins import OBJECTIVES

    assert "probabilities" in COMPARED
    for name, cls in OBJECTIVES.items():
        assert ("expected_calibration_error" in cls.metric_names()) == (cls.compares == "classes"), name
