"""Ownership of checkpoints: files that can hold code are loaded only from the user's folders, and only unchanged.

DeepSpeed and FSDP read their parts of a checkpoint with pickle, which runs what a file tells it to.
"""

import os
from pathlib import Path

from ..manifest import MANIFEST, read_manifest


def find_foreign(checkpoint: Path) -> str | None:
    """A path of a verified checkpoint that is a link, another user's or not in the manifest, in words; None: none."""
    listed = read_manifest(checkpoint)
    for path in (checkpoint.parent, checkpoint, *sorted(checkpoint.rglob("*"))):
        name = "the folder" if path in (checkpoint, checkpoint.parent) else str(path.relative_to(checkpoint))
        if path.is_symlink():
            return f"{name} is a link"
        if hasattr(os, "geteuid") and path.stat().st_uid != os.geteuid():
            return f"{name} belongs to another user (number {path.stat().st_uid})"
        if path.is_file() and name != MANIFEST and name not in listed:
            return f"{name} is not in its manifest"
    return None
