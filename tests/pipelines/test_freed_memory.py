"""Freed memory that stays with the process: what is freed in the block is taken again without the system's help."""

import json
import os
import subprocess
import sys

import pytest
from anyformer.pipelines.freed_memory import OF_USERS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's limits are Linux's")
# A process of its own: the heap of a test process, full of holes, has room for large blocks here and there.
COUNT = """
import json, resource, sys, torch
from anyformer.pipelines.freed_memory import freed_memory_kept

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(50 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with freed_memory_kept(torch.device(sys.argv[1])) as kept:
    found = [pages() for _ in range(24)]
print(json.dumps({"kept": kept, "pages": found[12:]}))
"""


def counted(device: str, **env) -> dict:
    """Pages that the system gave for each of the last twelve blocks of 200 MiB."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_USERS} | env
    done = subprocess.run([sys.executable, "-c", COUNT, device], env=environment, capture_output=True, check=True)
    return json.loads(done.stdout)


def test_memory_freed_in_the_block_is_used_again_there():
    inside, outside = counted("cpu"), counted("cuda")
    if not inside["kept"]:
        pytest.skip("the C library has no mallopt")
    assert not outside["kept"] and sum(inside["pages"]) * 10 < sum(outside["pages"])


def test_a_users_own_limits_are_left_alone():
    assert not counted("cpu", MALLOC_TRIM_THRESHOLD_="131072")["kept"]
