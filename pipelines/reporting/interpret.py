"""The meaning of the numbers at the end of a run, in sentences, and how certain they are."""

import math
from dataclasses import dataclass

from ..plugins import METRICS
from ..publishing.run_facts import validated_on
from ..words import counted, short_metric
from .run_log import RunLog

# A validation better than the last one by less than this share is within the noise of the rows it was measured on.
CLEARLY_BETTER = 0.005


def between(low: float, high: float) -> str:
    """The bounds of a 95 % interval, for people."""
    digits = digits_of(low, high)
    return f"(95 %: {low:.{digits}f} to {high:.{digits}f})"


def digits_of(low: float, high: float) -> int:
    """How many decimal places the bounds of an interval are written with."""
    return 3 if max(abs(low), abs(high)) < 10 else 2


def interval_of_share(metric: str, value: float, facts: dict) -> tuple[float, float] | None:
    """The 95 % interval of a metric that is a share of a known number of examples; None for other metrics.

    facts: of the rows that it was measured on: `examples`, their number, and `parts`, the number of each task's.
    """
    examples = facts.get("examples")
    for part, number in facts.get("parts", {}).items():
        if metric.endswith(f"_{part}"):
            metric, examples = metric.removesuffix(f"_{part}"), number
    row = METRICS.get(metric)
    return None if row is None or row.interval is None or not examples else row.interval(value, examples)


def with_interval(metric: str, value: float, facts: dict) -> str:
    """A metric as it is printed, with its interval where it is a share of examples; facts: as interval_of_share's."""
    bounds = interval_of_share(metric, value, facts)
    return short_metric(value) + (f"  {between(*bounds)}" if bounds else "")


def interpret(run: dict) -> list[str]:
    """Sentences about a finished run that its numbers do not say by themselves.

    run: the contents of run.json; `validations` are those during training, {"step", "loss", ...} each.
    """
    metrics, sentences = run.get("metrics", {}), [run["ended_early"]] if "ended_early" in run else []
    more = "try more training.max_steps, or another training.learning_rate"
    for split in ("validation", "test"):
        ours, unigrams = metrics.get(f"{split}_perplexity"), metrics.get(f"{split}_unigram_perplexity")
        if ours is not None and unigrams is not None and ours >= unigrams:
            sentences.append(
                f"the {split} perplexity is not below that of counting tokens alone ({short_metric(unigrams)}): the "
                f"model has learned nothing of their order yet; {more}"
            )
        accuracy, classes = metrics.get(f"{split}_accuracy"), run.get("data", {}).get(split, {}).get("classes")
        if accuracy is not None and classes:
            frequent = max(classes, key=classes.get)
            share = classes[frequent] / sum(classes.values())
            if accuracy <= share:
                sentences.append(
                    f"the {split} accuracy is not above {share:.4f}, that of always answering {frequent}; {more}"
                )
    for first in (one for one in run.get("validations", []) if one["step"] == 0):
        known = {name.replace("_", " "): value for name, value in first.items() if value is not None}
        numbers = ", ".join(f"{name} {short_metric(value)}" for name, value in known.items() if name != "step")
        sentences.append(f"before the first step the validation gave {numbers}")
    if run.get("validations") and (on_rows := validated_on(run)):
        sentences.append(f"validations during training were {on_rows}; the numbers here are of all rows")
    return [*sentences, *better_before(run), *mishaps(run)]


def mishaps(run: dict) -> list[str]:
    """What the guards of the training have reported (step_guard.py, router_statistics.py)."""
    sentences = []
    if "skipped_steps" in run:
        number, steps = run["skipped_steps"]["number"], [str(one["step"]) for one in run["skipped_steps"]["steps"]]
        shown = f"{', '.join(steps[:8])}{', ...' if number > 8 else ''}"
        sentences.append(
            f"{counted(number, 'step')} of {run['steps']} {'was' if number == 1 else 'were'} left out, for a bad loss "
            f"or gradient norm ({shown}); run.json says why"
        )
    if "grad_norm_warnings" in run:
        warnings = counted(run["grad_norm_warnings"], "gradient norm")
        sentences.append(f"{warnings} far above the usual; metrics.jsonl has them")
    if "collapsed_layers" in run:
        layers = ", ".join(map(str, run["collapsed_layers"]))
        sentences.append(f"few experts were at work at the end in sparse layers {layers}; router.jsonl has their loads")
    return sentences


def better_before(run: dict) -> list[str]:
    """A sentence on the step whose validation was clearly better than the last one, if no setting keeps its model."""
    section, validations = run.get("recipe", {}).get("evaluation", {}), run.get("validations", [])
    validations = [entry for entry in validations if entry["loss"] is not None]
    if len(validations) < 2 or section.get("best_metric") or section.get("average_checkpoints"):
        return []
    # Metrics of answers may order the validations otherwise than the loss does.
    named = (name for name in section.get("metrics") or [] if name in METRICS and METRICS[name].of_losses is None)
    measured = next((n for n in named if all(entry.get(n) is not None for entry in validations)), "loss")
    sign = 1 if measured == "loss" or METRICS[measured].lower else -1
    best, last = min(validations, key=lambda entry: sign * entry[measured]), validations[-1]
    if sign * (last[measured] - best[measured]) <= CLEARLY_BETTER * abs(last[measured]):
        return []
    keeps = f"evaluation.best_metric={measured} would keep that model"
    worse = "the training has made the model worse; lower training.learning_rate"
    return [
        f"the best validation was at step {best['step']} ({measured} {short_metric(best[measured])}, in the last one "
        f"{short_metric(last[measured])}); {keeps if best['step'] else worse}"
    ]


def validations_of(history: list[dict], metrics: list[str]) -> list[dict]:
    """The validations in Trainer's log of the training: {"step", "loss", and the recipe's metrics} of each."""
    lines = [line for line in history if "validation_loss" in line]
    return [
        {"step": line["step"]}
        | {name: line[f"validation_{name}"] for name in ("loss", *metrics) if f"validation_{name}" in line}
        for line in lines
    ]


@dataclass
class Measured:
    """A metric of a split. low, high: its 95 % interval; None without a formula or a known number of examples."""

    split: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    examples: int | None = None
    is_best: bool = False  # of several runs compared

    @property
    def words(self) -> str:
        """The value as it is printed."""
        return short_metric(self.value)

    @property
    def interval(self) -> str:
        """The interval as it is printed; empty where there is none."""
        return "" if self.low is None else between(self.low, self.high)[1:-1].removeprefix("95 %: ")


def measured(log: RunLog) -> list[Measured]:
    """The metrics of a run, with Wilson's intervals of shares; `anyformer evaluate` has the bootstrap's for others."""
    table = []
    for name, value in log.metrics.items():
        split, _, metric = name.partition("_")
        facts = log.run.get("data", {}).get(split) or {}
        examples = facts.get("examples")
        if not log.is_finished:
            examples = min(examples or 0, log.section("evaluation").get("max_rows") or math.inf) or None
        one = Measured(split, metric, value, examples=examples)
        bounds = interval_of_share(metric, value, facts | {"examples": examples})
        if bounds is not None:
            one.low, one.high = bounds
        table.append(one)
    return table
