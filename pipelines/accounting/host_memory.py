"""Memory that processes of this machine may use: its size, and the limits set by containers and shells.

Standard library only.
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def memory_of_this_machine() -> int:
    """Bytes of the machine's memory, or of that which this process's control group (a container's) may use, if less."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits_of_groups()])


def limit_of_process() -> int | None:
    """The limit of this process's address space in bytes (`ulimit -v`); None: no limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _limits_of_groups(groups: str = "/proc/self/cgroup", root: Path = CGROUPS) -> Iterator[int]:
    """The limits of the control groups of this process and of their parents (cgroups v1 and v2)."""
    try:
        lines = Path(groups).read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = Path(path.lstrip("/"))
        for group in (inner, *inner.parents):  # in a container the path may be the host's: the root counts, too
            try:
                text = (base / group / name).read_text(encoding="utf-8").strip()
            except OSError:
                continue
            if text.isdigit():  # else "max"
                yield int(text)
