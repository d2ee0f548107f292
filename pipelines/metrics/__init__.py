"""Metrics that need no network: subclasses of evaluate.Metric over scikit-learn, scipy and sacrebleu.

`evaluate.load` downloads a script for each metric; these ship with the package. This table is all that recipes and
`anyformer list` read: evaluate itself is imported when a metric is loaded.
"""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UserError, did_you_mean


@dataclass(frozen=True)
class MetricRow:
    """A metric's class `name` in the module `compares` of this package, and which of its variants."""

    compares: Literal["classes", "numbers", "texts"]
    name: str
    description: str
    variant: str | None = None


AVERAGES = {
    None: "of class 1 of two classes",
    "macro": "mean over classes",
    "weighted": "mean over examples' classes",
}
_OF_CLASSES = {
    "f1": ("F1", "harmonic mean of precision and recall"),
    "precision": ("Precision", "share of the predictions of a class that are right"),
    "recall": ("Recall", "share of the examples of a class that are found"),
}
METRICS = {
    "accuracy": MetricRow("classes", "Accuracy", "share of examples given the right class"),
    **{
        name if variant is None else f"{name}_{variant}": MetricRow("classes", cls, f"{words}, {of}", variant)
        for name, (cls, words) in _OF_CLASSES.items()
        for variant, of in AVERAGES.items()
    },
    "matthews_correlation": MetricRow("classes", "MatthewsCorrelation", "correlation of predicted and true classes"),
    "pearson": MetricRow("numbers", "Pearson", "linear correlation of predicted and true numbers"),
    "spearman": MetricRow("numbers", "Spearman", "correlation of the ranks of predicted and true numbers"),
    "bleu": MetricRow("texts", "Bleu", "BLEU of sacrebleu, 0 to 100: word n-grams shared with the reference"),
    "bleu_lowercase": MetricRow("texts", "Bleu", "BLEU of sacrebleu on lower-cased texts, 0 to 100", "lowercase"),
    "chrf": MetricRow("texts", "Chrf", "chrF of sacrebleu, 0 to 100: character n-grams shared with the reference"),
    "exact_match": MetricRow("texts", "ExactMatch", "share of texts equal to a reference"),
}
# What objectives report; perplexity.py computes these from summed losses, where nothing is compared.
PERPLEXITIES = {
    "perplexity": "exp of the mean loss per predicted token",
    "unigram_perplexity": "that of a model which only counts how often each token occurs in the training text",
    "word_perplexity": "exp of the summed loss per word and line end, so that tokenizers can be compared",
}
# Of objective pixels; objectives/pixels.py and linear_probe.py compute them.
OF_PIXELS = {
    "bits_per_pixel": "mean loss per pixel in bits, of images reduced to the recipe's colours",
    "bits_per_dimension": "that for each of the three numbers of a colour; of grey images the same",
    "linear_probe": "accuracy of a logistic regression on the averaged features of a middle layer",
}


def check_metrics(names: Iterable[str], compares: str, field: str = "metrics", num_classes: int | None = None) -> None:
    """Check names before anything is computed; nothing heavy is imported.

    Args:
        compares: what the task predicts: "classes", "numbers" or "texts".
        field: setting that holds the names, for errors.
        num_classes: how many classes there are, where that is known.

    Raises:
        UserError: an unknown name, a metric of something else, or one of two classes where there are more.
    """
    fitting = [name for name, row in METRICS.items() if row.compares == compares]
    for name in names:
        if name not in METRICS:
            raise UserError(f"{field}={name!r} is not known{did_you_mean(name, fitting)}")
        if name not in fitting:
            raise UserError(
                f"{field}={name!r} compares {METRICS[name].compares}, but this task predicts {compares}; "
                f"known: {', '.join(fitting)}"
            )
        if name in _OF_CLASSES and num_classes is not None and num_classes > 2:
            raise UserError(f"{field}={name!r} is of two classes, here are {num_classes}; use {name}_macro")


def load_metric(name: str, **kwargs) -> Any:
    """Return the evaluate.Metric of that name, as `evaluate.load` would, without network.

    Its `compute(predictions=..., references=...)` returns {name: number}; `add_batch` collects first. Numbers are kept
    in memory. `kwargs` are evaluate.Metric's.

    Raises:
        UserError: no such metric.
    """
    if name not in METRICS:
        raise UserError(f"metric {name!r} is not known{did_you_mean(name, METRICS)}")
    row = METRICS[name]
    module = importlib.import_module(f".{row.compares}", __name__)
    return getattr(module, row.name)(name, row.description, row.variant, **kwargs)


def compute_metrics(names: Iterable[str], predictions, references) -> tuple[dict[str, float], dict[str, str]]:
    """({name: number}, {name: settings and versions it depends on, where it says so}) of several metrics.

    Raises:
        UserError: no such metric, or one of two classes where others occur.
    """
    numbers, signatures = {}, {}
    for name in names:
        metric = load_metric(name)
        numbers |= metric.compute(predictions=predictions, references=references)
        if metric.signature is not None:
            signatures[name] = metric.signature
    return numbers, signatures
