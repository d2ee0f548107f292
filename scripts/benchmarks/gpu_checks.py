"""Checks of gpu.py: the laws of `anyformer check` on a GPU, and how often a training step waits for the GPU."""

import contextlib
import traceback
import warnings
from pathlib import Path

import torch
from anyformer.pipelines.checks.check_report import ask
from anyformer.pipelines.checks.laws import LAWS
from family_variants import ZOO
from method import line
from models import FAMILIES, Step, batch_of, model_of
from torch.utils._python_dispatch import TorchDispatchMode
from zoo_subject import ZooSubject

# The laws that a device's kernels can break; the other laws are about Python code.
OF_A_DEVICE = ("packing", "padding", "cache", "checkpointing", "backends", "device", "compiled", "dtypes")
ZOO_FP32 = 1e-3  # the zoo's weights are large, so that each one matters; this amplifies rounding
SIZES = {"hidden": 256, "heads": 4, "channels": 512, "layers": 4, "experts": 8, "vocab": 512, "image": 64}
SIZES |= {"length": 192, "targets": 96, "batch": 4}  # heads of 64 channels, which every kernel takes
TINY = SIZES | {"hidden": 64, "heads": 2, "layers": 1, "length": 48, "targets": 24}


class Report:
    """Prints a row for each check. A check that raises gets a row, too, and the next check follows."""

    def __init__(self, device: str, tiny: bool):
        self.device, self.tiny, self.sizes = device, tiny, TINY if tiny else SIZES
        print(line("what", "result", "detail") + "\n|---|---|---|")

    def row(self, what: str, result: str, detail: str) -> None:
        print(line(what, result, detail.replace("|", "\\|").replace("\n", " ")[:300]), flush=True)

    @contextlib.contextmanager
    def part(self, what: str):
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.row(what, "failed", f"{type(error).__name__}: {error}")


def laws(report: Report) -> None:
    """Ask the laws in OF_A_DEVICE of each model of the tests' zoo."""
    law_names = [name for name in LAWS if name in OF_A_DEVICE and not (report.tiny and name == "compiled")]
    for variant in ZOO[:: max(1, len(ZOO) // 5)] if report.tiny else ZOO:
        with report.part(f"{variant}"):
            subject = ZooSubject(variant, variant.model(torch.float32).to(report.device))
            subject.tolerance = subject.fp32_tolerance = ZOO_FP32
            for name in law_names:
                answer = ask(subject, name)
                worst = answer.worst
                off = "" if worst.difference is None else f": {worst.difference:.1e}, at most {worst.tolerance:.1e}"
                result = "failed" if answer.verdict == "fails" else str(answer.verdict)
                report.row(f"{variant}: {name}", result, f"{worst.what}{off} {worst.why}".strip())


READS = {"masked": 2}  # waits allowed for a family: for the labelled positions and their number; others have none


class Reads(TorchDispatchMode):
    """Records the operations whose result or shape the host reads, by name; these would wait for a GPU."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().split("::")[-1].split(".")[0]
        if name in self.NAMES:
            frame = [f for f in traceback.extract_stack() if "/torch/" not in f.filename and f.filename != __file__][-1]
            if "one_hot(" not in frame.line:  # its numbers are checked only on a CPU
                self.found.append(f"{Path(frame.filename).name}:{frame.lineno} {name}")
        return function(*args, **kwargs or {})


def host_reads(step, device: str) -> list[str]:
    """The places where the host waits for the device within one call of `step`, as torch warns of them on CUDA.

    On a CPU nothing waits; the result is then the operations that would wait for a GPU.
    """
    if device != "cuda":
        with Reads() as reads:
            step()
        return reads.found
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # The first call in a process also warns that the mode does not know all "synchronizing operations".
    return [f"{Path(w.filename).name}:{w.lineno}" for w in caught if "called a synchronizing" in str(w.message)]


def syncs(report: Report) -> None:
    """How often the host waits for the device in a training step."""
    for family in FAMILIES:
        with report.part(family):
            batch = batch_of(family, report.sizes, report.device)
            batch.pop("attention_mask", None)  # lengths of rows are read by the host
            step = Step(model_of(family, "ours", report.sizes, report.device), batch, "bf16")
            for _ in range(2):
                step()
            reads, limit = host_reads(step, report.device), READS.get(family, 0)
            result = "ok" if len(reads) <= limit else "failed"
            report.row(f"{family}: host syncs per step", result, f"{len(reads)}, at most {limit}; {sorted(set(reads))}")
