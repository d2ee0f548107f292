"""Freed memory that stays with the process: what is freed in the block is taken again without the system's help."""

import json
import resource
import sys

import pytest
import torch
from anyformer.pipelines.freed_memory import OF_USERS, freed_memory_kept
from processes import Process

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's limits are Linux's")


def pages_of_a_step() -> int:
    """How many pages the system gave for two blocks of 200 MiB, which glibc by itself does not keep."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(2):
        torch.ones(50 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def count_pages(file, device: str) -> None:
    with freed_memory_kept(torch.device(device)) as kept:
        pages_of_a_step()
        inside = pages_of_a_step()
    pages_of_a_step()
    file.write_text(json.dumps({"kept": kept, "inside": inside, "after": pages_of_a_step()}))


def counted(folder, device: str = "cpu", **env) -> dict:
    file = folder / "pages.json"
    child = Process(count_pages, file, device, env=env)
    assert child.wait() == 0
    return json.loads(file.read_text())


def test_memory_freed_in_the_block_is_used_again_and_goes_back_after_it(tmp_path, monkeypatch):
    for name in OF_USERS:
        monkeypatch.delenv(name, raising=False)
    found = counted(tmp_path)
    if not found["kept"]:
        pytest.skip("the C library has no mallopt")
    assert found["inside"] * 10 < found["after"]


@pytest.mark.parametrize("device, env", [("cuda", {}), ("cpu", {"MALLOC_TRIM_THRESHOLD_": "131072"})])
def test_a_gpu_and_a_users_own_limits_are_left_alone(tmp_path, monkeypatch, device, env):
    for name in OF_USERS:
        monkeypatch.delenv(name, raising=False)
    assert not counted(tmp_path, device, **env)["kept"]
