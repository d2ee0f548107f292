"""Freed memory that stays with the process: what is freed in the block is taken again without the system's help."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest
from anyformer.pipelines import freed_memory
from anyformer.pipelines.freed_memory import OF_USERS, FreedMemoryLimit

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's limits are Linux's")
# A process of its own: the heap of a test process, full of holes, has room for large blocks here and there.
COUNT = """
import json, resource, torch
from anyformer.pipelines.freed_memory import FreedMemoryLimit, freed_memory_kept, held_bytes

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(10 << 20)  # 40 MiB: glibc never keeps more than 32 of its own accord
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def counted(device):
    with freed_memory_kept(torch.device(device)) as kept:
        return {"kept": kept, "pages": sum([pages() for _ in range(8)][4:])}

def held():  # bytes returned after steps and batches that free 8 or 800 MiB
    limit, found = FreedMemoryLimit(), []
    for look in (limit.on_prediction_step, limit.on_step_end):
        for taken in (1, 1, 100):
            [torch.ones(2 << 20) for _ in range(taken)]  # 8 MiB each
            before = held_bytes()
            look(None, None, None)
            found.append(before - held_bytes())
    return found

pages_given = {"outside": counted("cuda"), "inside": counted("cpu")}  # first, while the heap has no large holes
with freed_memory_kept(torch.device("cpu")):
    returned = held()
print(json.dumps({**pages_given, "returned": returned, "never": held()}))
"""


@cache
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


def test_free_memory_is_returned_where_steps_took_much_more_than_one_takes():
    found = counted()
    if not found["inside"]["kept"]:
        pytest.skip("the C library has no mallopt")
    assert sum(held > 500e6 for held in found["returned"]) == 2 and max(found["never"]) < 1e6


def test_the_limit_is_what_a_step_takes_that_began_without_free_memory(monkeypatch):
    returned, limit = [], FreedMemoryLimit()
    monkeypatch.setattr(freed_memory, "_return_free_memory", lambda: returned.append(held))
    for held in (300, 80, 110, 121, 90, 130, 136, 20, 135, 136):  # after a first step that shows what was before it
        limit.look(held)
    assert returned == [300, 121, 136, 136]


def test_a_users_own_limits_are_left_alone():
    assert not counted(MALLOC_TRIM_THRESHOLD_="131072")["inside"]["kept"]
