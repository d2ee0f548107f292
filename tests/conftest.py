"""Shared helpers: offline environment, real data, tiny models."""

import contextlib
import functools
import gc
import os
import signal
import sys
from pathlib import Path

# Before anything imports huggingface_hub: tests never reach the network, and two workers do not fight over threads.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_sessionstart(session):
    """One thread: results do not depend on the machine's cores, and forked children (processes.py) can compute.

    The process that only hands tests to workers does without torch, and starts them some seconds earlier.
    """
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        import torch
        from hypothesis import settings

        # Few examples, other ones in each run, however long they take on a busy machine.
        settings.register_profile("few", max_examples=12, deadline=None)
        settings.load_profile("few")
        torch.set_num_threads(1)
        # The first backward pass of a process decides whether autograd has threads, which no fork survives: it does
        # where a compiled program has registered another device before.
        torch.ones((), requires_grad=True).backward()


def pytest_collection_finish():
    keep_what_imports_left()


_frozen_modules = 0


def keep_what_imports_left() -> None:
    """Modules stay: Trainers collect garbage by hand, and would walk through all that imports left each time."""
    global _frozen_modules
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)


def pytest_unconfigure():
    gc.unfreeze()


@pytest.fixture(autouse=True)
def own_signals():
    """A command that a signal has ended leaves it ignored, in this process as well, and in all that it starts later."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real data sets, where this machine has them: $ANYFORMER_DATA, or the folder beside the repository."""
    folder = ROOT / os.environ.get("ANYFORMER_DATA", ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"real data sets are not on this machine ({folder}); set ANYFORMER_DATA")
    return folder


@pytest.fixture(autouse=True)
def own_folder_cache_and_seed(tmp_path, monkeypatch):
    """Each test has a current folder and a cache of its own, and starts from the same seed.

    So none depends on another, nor on what the user has trained into `runs/`.
    """
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "anyformer-cache"))
    # Which only a power cut could tell from a write: what a killed process wrote stays.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    # A run draws its loss; test_report.py is about that.
    monkeypatch.setattr("anyformer.pipelines.reporting.figures.draw_loss", lambda folder: False)
    # The peak is timed, in bf16 for ten seconds on a CPU that lacks it; test_throughput.py is about that.
    monkeypatch.setattr("anyformer.pipelines.accounting.flops.measured_flops", lambda *_: 1e12)
    torch.manual_seed(0)
    yield
    if len(sys.modules) > _frozen_modules + 200:
        keep_what_imports_left()


def tiny_configs(family: str):
    """A fixture: a factory of configs of a few thousand parameters (family_variants.py); keyword arguments override."""

    @pytest.fixture
    def factory():
        from family_variants import tiny

        return functools.partial(tiny, family)

    return factory


tiny_config, tiny_moe_config = tiny_configs("decoder"), tiny_configs("moe")
tiny_encoder_config, tiny_seq2seq_config, tiny_vit_config = map(tiny_configs, ("encoder", "seq2seq", "vit"))


@pytest.fixture
def in_float64():
    """Tensors and models that a test makes are float64, and so is what a model's code asks to compute in fp32."""
    import torch
    from anyformer.pipelines.interop.verify import Float64Mode

    torch.set_default_dtype(torch.float64)
    with Float64Mode():
        yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def poison_empty_memory():
    """A function: from its call on memory that nobody has written to holds nan, so that a forgotten weight shows."""
    from anyformer.pipelines.checks.laws.saving_law import unwritten_is_nan

    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(unwritten_is_nan())


@pytest.fixture
def without_activations(monkeypatch):
    """A plan measures no activations, which takes seconds for each model; test_plan.py is about those."""
    from anyformer.pipelines.accounting.activations import Activations, StepActivations

    monkeypatch.setattr(StepActivations, "measured", lambda *_: Activations(1, 1))


@pytest.fixture
def without_code_files(monkeypatch):
    """Models are saved without their code, which takes most of the time; test_hub_round_trip.py is about that."""
    import transformers

    for module in (
        transformers.modeling_utils,
        transformers.configuration_utils,
        transformers.generation.configuration_utils,
    ):
        if hasattr(module, "custom_object_save"):
            monkeypatch.setattr(module, "custom_object_save", lambda *_, **__: [])
