"""Metrics that need no network: evaluate.Metric over scikit-learn, scipy and sacrebleu, and metrics of losses.

`evaluate.load` downloads a script for each metric; these ship with the package. Recipes and `anyformer list` read only
the registry `plugins.METRICS`: evaluate itself is imported when a metric is loaded.
"""

import functools
import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from ..errors import UnknownName, UserError, did_you_mean
from ..plugins import METRICS

COMPARED = ("classes", "probabilities", "label_sets", "numbers", "texts", "tags", "answers")
TOKENIZE = "13a"  # sacrebleu's default tokenizer
COMES_WITH = {"probabilities": "classes"}  # metrics of the key also fit tasks that compare the value


@dataclass(frozen=True)
class MetricRow:
    """One metric.

    compares: what stands in predictions and references. "classes", "numbers", "texts"; "probabilities": those of all
    classes, and the right class; "label_sets": 0 or 1 for each class; "tags": a list for each sentence, one for each
    word; "answers": a text, and the list of right texts; "rewards": those of the chosen answers, and those of the
    rejected ones. "pairs": the objective counts them (Learns.loss_parts); "tokens", "pixels": it is computed from
    summed losses. also: other values that it can compare.
    load: makes the evaluate.Metric, called with evaluate.Metric's arguments; None for metrics of losses. of_losses:
    computes the metric from the TokenLosses of objectives/text.py; None where a pass over the rows does not give
    it. every_token: every token must be predicted exactly once. whole_text: it has no meaning for a part of the rows.
    needs_train: it also reads the training rows. two_classes: it is defined for two classes only. of_entities: it needs
    tags that mark entities. needs: (package, extra that installs it) where not every installation has the package, such
    as ("rouge_score", "metrics"). interval: (value, number of examples) -> the bounds of its 95 % confidence interval;
    None where there is no formula and the bootstrap is used (significance.py). lower: whether lower is better.
    """

    compares: str
    description: str
    load: Callable[..., Any] | None = None
    of_losses: Callable[[Any], float] | None = None
    every_token: bool = False
    whole_text: bool = False
    needs_train: bool = False
    two_classes: bool = False
    of_entities: bool = False
    interval: Callable[[float, int], tuple[float, float]] | None = None
    needs: tuple[str, str] | None = None
    also: tuple[str, ...] = ()
    lower: bool = False

    def fits(self, compares: str | None) -> bool:
        """Whether it can compare what an objective compares."""
        return compares is not None and compares in (self.compares, COMES_WITH.get(self.compares), *self.also)

    @property
    def of_validations(self) -> bool:
        """Whether the validations during training compute it anyway: from losses, or counted beside them."""
        return (self.of_losses is not None and not self.whole_text) or self.compares == "pairs"

    def missing(self) -> str | None:
        """What must be installed before it can be computed, in words; None where nothing is missing."""
        if self.needs is None or importlib.util.find_spec(self.needs[0]) is not None:
            return None
        return f"needs the package {self.needs[0]}; install anyformer[{self.needs[1]}]"


def wilson(share: float, number: int, z: float = 1.96) -> tuple[float, float]:
    """The score interval (Wilson 1927) of a share measured on `number` examples; z = 1.96 covers 95 %."""
    spread = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    centre, scale = share + z * z / (2 * number), 1 + z * z / number
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


# What a metric compares -> its module in this package, where the module has another name.
MODULES = {"answers": "right_answers", "label_sets": "classes", "probabilities": "numbers", "rewards": "numbers"}


def _built_in(name: str, compares: str, cls: str, description: str, variant: str | None = None, **flags) -> None:
    """Register class `cls` of a module of this package; the module is imported when the metric is loaded."""
    module = MODULES.get(compares, compares)

    def load(**kwargs):
        return getattr(importlib.import_module(f".{module}", __name__), cls)(name, description, variant, **kwargs)

    METRICS.add(name, MetricRow(compares, description, load, **flags))


def register_metric(name: str, *, compares: str) -> Callable:
    """Decorator of a function (predictions, references) -> number; its docstring's first line describes the metric.

    Args:
        name: as evaluation.metrics names it.
        compares: "classes" (whole numbers), "probabilities" (a list of them, and a whole number as reference),
            "label_sets" (0 or 1 for each class), "numbers", "texts", "tags" (lists of names) or "answers" (a text, and
            a list of texts as reference).

    Raises:
        UserError: `compares` is none of these, or the name is taken.
    """
    if compares not in COMPARED:
        raise UserError(f"metric {name!r}: compares={compares!r} is not known; known: {', '.join(COMPARED)}")

    def register(function: Callable) -> Callable:
        description = (function.__doc__ or name).strip().splitlines()[0].rstrip(".")

        def load(**kwargs):
            from .offline_metric import of_function

            return of_function(compares, function)(name, description, None, **kwargs)

        METRICS.add(name, MetricRow(compares, description, load))
        return function

    return register


AVERAGES = {
    None: "of class 1 of two classes",
    "macro": "mean over classes",
    "weighted": "mean over examples' classes",
}
_OF_CLASSES = {
    "f1": "harmonic mean of precision and recall",
    "precision": "share of the predictions of a class that are right",
    "recall": "share of the examples of a class that are found",
}


def _of_losses(name: str, compares: str, description: str, **flags) -> None:
    """Register the method `name` of objectives/text.py's TokenLosses as a metric of tokens or pixels."""
    METRICS.add(name, MetricRow(compares, description, of_losses=methodcaller(name), lower=True, **flags))


OF_TEXT = {"every_token": True, "whole_text": True}
_of_losses("perplexity", "tokens", "exp of the mean loss per predicted token")
_of_losses(
    "unigram_perplexity",
    "tokens",
    "that of a model which only counts how often each token occurs in the training text",
    needs_train=True,
    **OF_TEXT,
)
_of_losses(
    "word_perplexity",
    "tokens",
    "exp of the summed loss per word and line end, so that tokenizers can be compared",
    **OF_TEXT,
)
_of_losses("bits_per_pixel", "pixels", "mean loss per pixel in bits, of images reduced to the recipe's colours")
METRICS.add(
    "linear_probe",
    MetricRow(
        "pixels", "accuracy of a logistic regression on the averaged features of a middle layer", needs_train=True
    ),
)
METRICS.add(
    "pair_accuracy",
    MetricRow("pairs", "share of the pairs of segments that are told from wrong ones", interval=wilson),
)
SETS = ("label_sets",)
_built_in(
    "accuracy",
    "classes",
    "Accuracy",
    "share of examples given the right class (all of them)",
    interval=wilson,
    also=SETS,
)
for _name, _words in _OF_CLASSES.items():
    for _variant, _of in AVERAGES.items():
        _built_in(
            _name if _variant is None else f"{_name}_{_variant}",
            *("classes", "AveragedMetric", f"{_words}, {_of}", _variant),
            two_classes=_variant is None,
            also=() if _variant is None else SETS,
        )
_words = "harmonic mean of precision and recall, over all labels at once"
_built_in("f1_micro", "label_sets", "AveragedMetric", _words, "micro")
_built_in(
    "expected_calibration_error",
    "probabilities",
    "ExpectedCalibrationError",
    "how far confidence is from accuracy, mean over 15 bins (0: none); less is better",
    lower=True,
)
_built_in("matthews_correlation", "classes", "MatthewsCorrelation", "correlation of predicted and true classes")
_built_in("reward_accuracy", "rewards", "RewardAccuracy", "share of pairs whose chosen answer has the higher reward")
_built_in("reward_margin", "rewards", "RewardMargin", "mean difference of the rewards of chosen and rejected answers")
_built_in("pearson", "numbers", "Correlation", "linear correlation of predicted and true numbers")
_built_in("spearman", "numbers", "Correlation", "correlation of the ranks of predicted and true numbers")
_built_in("bleu", "texts", "Bleu", "BLEU of sacrebleu, 0 to 100: word n-grams shared with the reference")
_built_in("bleu_lowercase", "texts", "Bleu", "BLEU of sacrebleu on lower-cased texts, 0 to 100", "lowercase")
_built_in("chrf", "texts", "Chrf", "chrF of sacrebleu, 0 to 100: character n-grams shared with the reference")
for _variant, _of in (("1", "words"), ("2", "pairs of words"), ("L", "the longest common sequence of words")):
    _description = f"ROUGE-{_variant} F1 of summaries, 0 to 1: {_of} shared with the reference"
    _needs = ("rouge_score", "metrics")
    _built_in(f"rouge{_variant}", "texts", "Rouge", _description, f"rouge{_variant}", needs=_needs)
_built_in("tag_accuracy", "tags", "TagAccuracy", "share of words given the right tag")
for _name, _words in (
    ("f1", "harmonic mean of the two"),
    ("precision", "share of the entities found that are right"),
    ("recall", "share of the entities that are found"),
):
    _description = f"{_name} of entities by seqeval, 0 to 1: {_words}; right means same words and type"
    _built_in(f"entity_{_name}", "tags", "Entities", _description, _name, of_entities=True)
_built_in("answer_exact_match", "answers", "AnswerExactMatch", "SQuAD's share of answers that are right, 0 to 1")
_built_in("answer_f1", "answers", "AnswerF1", "SQuAD's mean F1 of the answers' words, 0 to 1")
_built_in("exact_match", "texts", "ExactMatch", "share of texts equal to a reference", interval=wilson)


def of_validations(objective) -> list[str]:
    """The recipe's metrics that validations during training measure; others need the finished model."""
    metrics = objective.recipe.evaluation.metrics
    return [name for name in metrics if objective.Scores.predicts or METRICS[name].of_validations]


def check_metrics(names: Iterable[str], fitting: list[str], setting: str, num_classes: int | None = None) -> None:
    """Check the names of metrics before anything is computed; imports nothing heavy.

    Args:
        fitting: the metrics that the objective, which `setting` names, can report.
        num_classes: the number of classes, where it is known.

    Raises:
        UserError: a name that is unknown or does not fit, a missing package, or a metric of two classes for more.
    """
    for name in names:
        row = METRICS.get(name)
        if row is None or name not in fitting:
            wrong = "is not known" if row is None else f"compares {row.compares} and is not for {setting}"
            near = did_you_mean(name, fitting) if fitting else "; only the loss is measured"
            raise UnknownName(f"evaluation.metrics={name!r} {wrong}{near}")
        if row.missing() is not None:
            raise UserError(f"evaluation.metrics={name!r} {row.missing()}")
        if row.two_classes and num_classes is not None and num_classes > 2:
            raise UserError(f"evaluation.metrics={name!r} is of two classes, here are {num_classes}; use {name}_macro")


def load_metric(name: str, **kwargs) -> Any:
    """Return the evaluate.Metric of that name, as `evaluate.load` would, without network.

    Its `compute(predictions=..., references=...)` returns {name: number}; `add_batch` collects examples first. They are
    kept in memory. `kwargs` are evaluate.Metric's.

    Raises:
        UserError: no such metric.
    """
    names = [known for known, row in METRICS.items() if row.load is not None]
    if name not in names:
        raise UnknownName(f"metric {name!r} is not known{did_you_mean(name, names)}")
    return METRICS[name].load(**kwargs)


def compute_metrics(
    names: Iterable[str],
    predictions,
    references,
    probabilities=None,
    rows: list[int] | None = None,
    tokenize: str = TOKENIZE,
) -> tuple[dict[str, float], dict[str, str]]:
    """({name: number}, {name: settings and versions that the number depends on, if any}) of several metrics.

    probabilities: of all classes, (examples, classes), for metrics that compare them instead of `predictions`. rows:
    the examples' row numbers in their split, where they are known. tokenize: evaluation.bleu_tokenize. What a reader
    has to know of the references is printed once.

    Raises:
        UserError: no such metric, or a metric of two classes where other classes occur.
    """
    from .significance import Comparison, keep

    comparison = Comparison(list(names), predictions, references, probabilities, rows, tokenize=tokenize)
    keep(comparison)
    numbers, signatures = {}, {}
    for name in comparison.metrics:
        metric = comparison.metric(name)
        predicted, true = comparison.inputs(name)
        numbers |= metric.compute(predictions=predicted, references=true)
        if metric.signature is not None:
            signatures[name] = metric.signature
        remark = metric.remark(true)
        if remark is not None and os.environ.get("RANK", "0") == "0":
            _say(f"{name}: {remark}")
    return numbers, signatures


_say = functools.cache(print)  # validations measure the same references again


def check_tokenize(name: str, fitting: list[str]) -> None:
    """Raise UserError where a tokenizer of sacrebleu lacks its package, or no metric that fits uses it."""
    needs = {"ja-mecab": ("MeCab", "ja"), "ko-mecab": ("mecab_ko", "ko")}
    if name != TOKENIZE and "bleu" not in fitting:
        raise UserError(f"evaluation.bleu_tokenize={name} has no effect, as no bleu is measured here; remove it")
    if name in needs and importlib.util.find_spec(needs[name][0]) is None:
        package, extra = needs[name]
        raise UserError(f"evaluation.bleu_tokenize={name} needs the package {package}; install sacrebleu[{extra}]")
