"""A full disk, recognised in the errors of all the writers."""

import errno
import shutil
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last of `ulimit -f`


def has_no_space(error: BaseException | None) -> bool:
    """Whether an error, or one that it follows from, says that the disk is full."""
    while error is not None:
        if getattr(error, "errno", None) in FULL or any(f"os error {number})" in str(error) for number in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_disk_full(error: BaseException | None, folder: Path) -> bool:
    """Whether an error while writing to `folder` came from a full disk.

    torch's, safetensors' and tokenizers' writers do not always pass the OSError on, so the free space is checked, too.
    """
    if has_no_space(error):
        return True
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free < 1 << 20
