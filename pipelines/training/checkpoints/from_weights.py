"""`--from-weights`: a run begins from the weights of the run that its output_dir holds, which is kept beside it.

Of the earlier run only the weights (and the tokenizer) go on: with other data or settings its optimizer, schedule and
place in the data mean nothing.
"""

import json
import os
from pathlib import Path

from ...adapters import is_adapter
from ...errors import UserError
from ...storage.checkpoints import MANIFEST, check_intact, list_checkpoints


def aside_of(output_dir: str | Path) -> Path:
    """Where the earlier run is kept: runs/mine-before."""
    folder = Path(output_dir)
    return folder.with_name(f"{folder.name}-before")


def weights_to_begin_from(output_dir: str | Path) -> Path:
    """The place that the earlier run's weights have once it has been set aside: its folder, or its newest checkpoint.

    Raises UserError where there are none or they are damaged, or another run is kept there already.
    """
    folder, aside = Path(output_dir), aside_of(output_dir)
    if aside.exists() and folder.exists() and not _begins_from(folder, aside):
        raise UserError(f"{aside} holds an earlier run already; rename it, or choose another training.output_dir")
    there = aside if aside.exists() else folder
    if (there / "config.json").is_file() or is_adapter(there):
        return aside
    checkpoints = list_checkpoints(there)
    if not checkpoints:
        raise UserError(f"training.output_dir={folder} holds no weights to begin from; remove --from-weights")
    if (checkpoints[0] / MANIFEST).is_file():
        check_intact(checkpoints[:1], "the newest of the run to begin from", "begins from the one before it")
    return aside / checkpoints[0].name


def _begins_from(folder: Path, aside: Path) -> bool:
    """Whether the run in a folder has begun from the one that is set aside: the command is given again."""
    try:
        name = json.loads((folder / "run.json").read_text(encoding="utf-8"))["recipe"]["model"]["name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(name, str) and Path(name).is_relative_to(aside)


def set_aside_before(output_dir: str | Path) -> None:
    """Rename the earlier run, unless that has happened; `weights_to_begin_from` has been asked before."""
    if not aside_of(output_dir).exists():
        os.replace(output_dir, aside_of(output_dir))
