"""Differences between two recipes, and whether a run of one can be resumed with the other."""

import fnmatch
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from ..plugins import OBJECTIVES
from .checks import FOLLOWS_VALIDATIONS, UNSHAPED
from .schema import LEARNED, MINIMAL_PAIRS, DataSection, Recipe
from .secrets import without_signatures
from .types import default_of, show

# Settings of the length of a run; a longer run may continue a finished one (training/checkpoints/extend_run.py).
LENGTH = ("training.max_steps", "training.num_train_epochs", "training.restarts")

# Settings that do not change the mathematics of a run: only these may differ between a run and its resumption.
FREE_ON_RESUME = [
    "name",
    "description",
    "model.preset",
    "model.attn_implementation",
    "model.experts_implementation",
    "publish.*",
    "evaluation.*",
    "data.cache_dir",
    "data.description",
    "data.bad_rows",
    "data.test_files",
    "data.test_split",
    "objective.*evaluation_overlap",
    "training.output_dir",
    "training.resume",
    "training.audit_samples",
    "training.parallelism*",
    "training.report_to",
    "training.run_name",
    "training.project",
    "training.logging_*",
    "training.log_*",
    "training.save_*",
    "training.trackio_*",
    "training.dataloader_num_workers",
    "training.dataloader_p*",
    "training.per_device_eval_batch_size",
    "training.eval_*",
    "training.skip_memory_metrics",
    "training.debug",
    "training.ddp_timeout",
    "training.gradient_checkpointing",
    # These either act at a step where the run would have ended, or only report.
    "training.bad_step",
    "training.max_bad_steps",
    "training.*_spike",
    "training.*_warning",
    "training.stall_minutes",
]


def of_best_metric(metric: str | None) -> tuple[str, str]:
    """The settings of the evaluation section on which the values by which `metric` chooses the best model depend."""
    return "best_metric", MINIMAL_PAIRS if metric == MINIMAL_PAIRS else "max_rows"


def flat_settings(value: Any, path: str = "") -> dict[str, Any]:
    """A recipe's plain data flattened: {"training.learning_rate": 0.003, ...}."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    flat = {}
    for key, item in value.items():
        flat |= flat_settings(item, f"{path}.{key}" if path else str(key))
    return flat


def resume_difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The first of `resume_differences` in words, those of the run's length last; None: the runs are the same."""
    first = min(resume_differences(old, new), key=lambda difference: difference[0] in LENGTH, default=None)
    return None if first is None else f"{first[0]} is {show(first[1])} there and {show(first[2])} here"


def resume_differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The settings in which two `Recipe.to_dict()`s would train differently: path, value in `old`, value in `new`.

    A key that one of them lacks (because another version wrote it) counts as its default.
    """
    before, after = (flat_settings(_numbered(without_signatures(side))) for side in (old, new))
    names = {section: new[section].get("name") for section in LEARNED if isinstance(new.get(section), dict)}
    learned = {section: asdict(OBJECTIVES[name].Settings()) for section, name in names.items() if name in OBJECTIVES}
    defaults = flat_settings(Recipe().to_dict()) | flat_settings(learned)
    data_defaults = {f"data.{row.name}": default_of(row) for row in fields(DataSection)}
    for path in before.keys() ^ after.keys():  # of lists: data.mixture.0.name, task.parts.0.data.name
        section, name = path.split(".")[-3:-1], path.split(".")[-1]
        if "data" in section or "mixture" in section:
            defaults.setdefault(path, data_defaults.get(f"data.{name}"))
    free = FREE_ON_RESUME
    if after.get("training.lr_scheduler_type") in UNSHAPED:
        free = [*free, "training.lr_scheduler_kwargs*"]
    bound: tuple[str, ...] = ()  # settings that are free unless the learning rate follows the validations
    if after.get("training.lr_scheduler_type") in FOLLOWS_VALIDATIONS:
        names = ("every_steps", *of_best_metric(after.get("evaluation.best_metric")))
        bound = ("training.per_device_eval", *(f"evaluation.{name}" for name in names))
    for path in dict.fromkeys([*after, *before]):
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in free) and not path.startswith(bound):
            continue
        old_value, new_value = (side.get(path, defaults.get(path)) for side in (before, after))
        if old_value != new_value:
            yield path, old_value, new_value


def _numbered(value: Any) -> Any:
    """Replace each list of sections by a mapping from their numbers to them."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = {str(number): item for number, item in enumerate(value)}
    return {key: _numbered(item) for key, item in value.items()} if isinstance(value, dict) else value
