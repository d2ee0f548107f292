"""Numbers by which single classes are judged: their scores, confusions, calibration, the most confident mistakes.

Arrays are (N,), one entry for each example (for tags: each word); classes are numbers, `names` their names.
"""

from collections.abc import Sequence
from typing import Any

from ..lazy import np
from .numbers import BINS, bin_of

MOST_CLASSES = 100  # in a confusion matrix
MOST_PAIRS, MOST_MISTAKES = 20, 10


def per_class(names: Sequence[str], given: "np.ndarray", true: "np.ndarray") -> list[dict[str, Any]]:
    """{"name", "precision", "recall", "f1", "support"} of each class; 0 where the denominator is zero.

    given, true: predicted and true classes, or (N, C) of 0 and 1 where an example may have several classes. In that
    case there are also "found", "missed" and "wrong": the class's true positives, false negatives and false positives.
    """
    from sklearn.metrics import multilabel_confusion_matrix, precision_recall_fscore_support

    labels = range(len(names))
    *scores, support = precision_recall_fscore_support(true, given, labels=labels, zero_division=0)
    columns = dict(zip(("precision", "recall", "f1", "support"), [*scores, support.astype(int)]))
    if true.ndim == 2:
        counts = multilabel_confusion_matrix(true, given)
        columns |= {"found": counts[:, 1, 1], "missed": counts[:, 1, 0], "wrong": counts[:, 0, 1]}
    values = zip(*(column.tolist() for column in columns.values()))
    return [{"name": name, **dict(zip(columns, row))} for name, row in zip(names, values, strict=True)]


def per_entity(given: list[list[str]], true: list[list[str]]) -> list[dict[str, Any]]:
    """As per_class, for each type of entity in the tags of sentences: by seqeval, which counts as conlleval does."""
    from seqeval.metrics import classification_report
    from seqeval.metrics.sequence_labeling import get_entities

    from .tags import marking

    given, true = (list(map(marking, sentences)) for sentences in (given, true))
    kinds = sorted({kind for kind, *_ in [*get_entities(given), *get_entities(true)]})
    report = classification_report(true, given, output_dict=True, zero_division=0) if kinds else {}
    keys = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
    return [
        {"name": kind, **{name: float(report[kind][key]) for name, key in keys.items()}}
        | {"support": int(report[kind]["support"])}
        for kind in kinds
    ]


def confusion(names: Sequence[str], given: "np.ndarray", true: "np.ndarray") -> dict[str, Any]:
    """{"matrix": {"names", "counts"}, "confused": the most frequent confusions}.

    counts[i][j]: examples of class i that were predicted as class j; of more than MOST_CLASSES classes, those with the
    most mistakes. confused: {"true", "given", "number"}, at most MOST_PAIRS, the most frequent first.
    """
    from sklearn.metrics import confusion_matrix

    wrong = given != true
    mistakes = sum(np.bincount(side[wrong], minlength=len(names)) for side in (given, true))
    shown = np.sort(np.argsort(-mistakes, kind="stable")[:MOST_CLASSES])
    pairs, times = np.unique(np.stack([true[wrong], given[wrong]]), axis=1, return_counts=True)
    top = np.argsort(-times, kind="stable")[:MOST_PAIRS]
    named = [names[number] for number in shown]
    seen = np.isin(true, shown).any()  # scikit-learn raises if none of the labels occurs
    counts = confusion_matrix(true, given, labels=shown).tolist() if seen else [[0] * len(shown)] * len(shown)
    return {
        "matrix": {"names": named, "counts": counts},
        "confused": [
            {"true": names[pairs[0, i]], "given": names[pairs[1, i]], "number": int(times[i])} for i in top.tolist()
        ],
    }


def calibration(confidence: "np.ndarray", right: "np.ndarray") -> dict[str, Any]:
    """How confident answers are, compared with how many are right: {"ece", "confidence", "accuracy", "bins"}.

    ece: expected calibration error (Guo et al. 2017, eq. 3), as the metric of that name. bins: {"low", "high",
    "number", "confidence", "accuracy"} of each bin that is not empty, with the means of its answers.

    confidence: (N,) probabilities. right: (N,) of booleans.
    """
    bins = bin_of(confidence)
    columns = None, confidence.astype(float), right.astype(float)
    number, sure, good = (np.bincount(bins, weights=column, minlength=BINS) for column in columns)
    means = (confidence.mean(dtype=float), right.mean(dtype=float))
    return {
        "ece": float(np.abs(sure - good).sum() / len(right)),
        **dict(zip(("confidence", "accuracy"), map(float, means))),
        "bins": [
            {"low": i / BINS, "high": (i + 1) / BINS, "number": int(number[i])}
            | {"confidence": float(sure[i] / number[i]), "accuracy": float(good[i] / number[i])}
            for i in np.flatnonzero(number).tolist()
        ],
    }


def surest_mistakes(confidence: "np.ndarray", right: "np.ndarray", most: int = MOST_MISTAKES) -> list[int]:
    """The positions of the wrong answers with the highest confidence, the most confident first."""
    wrong = np.flatnonzero(~right)
    return wrong[np.argsort(-confidence[wrong], kind="stable")][:most].tolist()
