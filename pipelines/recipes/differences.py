"""Where two recipes differ, and whether a run of one goes on with the other."""

import fnmatch
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from ..plugins import OBJECTIVES
from .compose import without_former
from .schema import LEARNED, DataSection, Recipe
from .secrets import without_signatures
from .types import default_of, show

# Settings that say how long a run is: a longer one may be its continuation (training/checkpoints/extend_run.py).
LENGTH = ("training.max_steps", "training.num_train_epochs", "training.restarts")

# Settings that leave the run's mathematics alone: they may change between a run and its resumption. The rest may not.
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
    # They act where a run would have ended, and only report elsewhere.
    "training.bad_step",
    "training.max_bad_steps",
    "training.*_spike",
    "training.*_warning",
    "training.stall_minutes",
]


def flat_settings(value: Any, path: str = "") -> dict[str, Any]:
    """A recipe as plain data, one level deep: {"training.learning_rate": 0.003, ...}."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    flat = {}
    for key, item in value.items():
        flat |= flat_settings(item, f"{path}.{key}" if path else str(key))
    return flat


def resume_difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The first of `resume_differences` in words, but the length of the run last; None: the same run."""
    found = min(resume_differences(old, new), key=lambda difference: difference[0] in LENGTH, default=None)
    return None if found is None else f"{found[0]} is {show(found[1])} there and {show(found[2])} here"


def resume_differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The settings in which two `Recipe.to_dict()`s would train differently: path, value in `old`, value in `new`.

    Keys one of them lacks (written by another version) count as their defaults.
    """
    before, after = (flat_settings(_numbered(without_former(without_signatures(side)))) for side in (old, new))
    names = {section: new[section].get("name") for section in LEARNED if isinstance(new.get(section), dict)}
    learned = {section: asdict(OBJECTIVES[name].Settings()) for section, name in names.items() if name in OBJECTIVES}
    defaults = flat_settings(Recipe().to_dict()) | flat_settings(learned)
    of_data = {f"data.{row.name}": default_of(row) for row in fields(DataSection)}
    for path in before.keys() ^ after.keys():  # of sections in lists: data.mixture.0.name, task.parts.0.data.name
        section, name = path.split(".")[-3:-1], path.split(".")[-1]
        if "data" in section or "mixture" in section:
            defaults.setdefault(path, of_data.get(f"data.{name}"))
    for path in dict.fromkeys([*after, *before]):
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in FREE_ON_RESUME):
            continue
        there, here = (side.get(path, defaults.get(path)) for side in (before, after))
        if there != here:
            yield path, there, here


def _numbered(value: Any) -> Any:
    """Lists of sections as sections that are named by their numbers."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = {str(number): item for number, item in enumerate(value)}
    return {key: _numbered(item) for key, item in value.items()} if isinstance(value, dict) else value
