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
import json, resource, torch
from anyformer.pipelines.freed_memory import freed_memory_kept

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(10 << 20)  # 40 MiB: glibc never keeps more than 32 of its own accord
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def counted(device):
    with freed_memory_kept(torch.device(device)) as kept:
        return {"kept": kept, "pages": sum([pages() for _ in range(8)][4:])}

print(json.dumps({"outside": counted("cuda"), "inside": counted("cpu")}))
"""


def counted(**env) -> dict:
    """Pages that the system gave for the last four of eight blocks of 40 MiB, outside (as for a GPU) and inside."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_USERS} | env
    done = subprocess.run([sys.executable, "-c", COUNT], env=environment, capture_output=True, check=True)
    return json.loads(done.stdout)


def test_memory_freed_in_the_block_is_used_again_there():
    found = counted()
    if not found["inside"]["kept"]:
        pytest.skip("the C library has no mallopt")
    assert not found["outside"]["kept"] and found["inside"]["pages"] * 2 < found["outside"]["pages"]


def test_a_users_own_limits_are_left_alone():
    assert not counted(MALLOC_TRIM_THRESHOLD_="131072")["inside"]["kept"]
