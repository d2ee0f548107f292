"""The parts of gpu.py. Each prints rows of its one table: what was tried, whether it held, and the numbers."""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import attention
import steps
import torch
from anyformer.pipelines.backends import backend_arguments, is_flash
from anyformer.pipelines.checks.check_report import ask
from anyformer.pipelines.checks.laws import LAWS
from anyformer.pipelines.objectives.documents_apart import with_borders
from family_variants import ZOO
from method import BF16_TOLERANCE, line
from models import FAMILIES, Step, batch_of, forward_backward, model_of
from torch.utils._python_dispatch import TorchDispatchMode
from zoo_subject import ZooSubject

# The laws that a device's kernels can break; the other laws are about Python code.
OF_A_DEVICE = ("packing", "padding", "cache", "checkpointing", "backends", "device", "compiled", "dtypes")
ZOO_FP32 = 1e-3  # the zoo's weights are large, so that each one matters; this amplifies rounding
SIZES = {"hidden": 256, "heads": 4, "channels": 512, "layers": 4, "experts": 8, "vocab": 512, "image": 64}
SIZES |= {"length": 192, "targets": 96, "batch": 4}  # heads of 64 channels, which every kernel takes
TINY = SIZES | {"hidden": 64, "heads": 2, "layers": 1, "length": 48, "targets": 24}
LARGE = {"hidden": 1024, "heads": 16, "layers": 8, "vocab": 32000, "length": 2048, "batch": 8}  # of what is timed
MODELS = {"125m": (768, 12, 12), "350m": (1024, 24, 16), "1b": (2048, 18, 16)}  # hidden size, layers, heads


class Report:
    """Prints a row for each check. A check that raises gets a row, too, and the next check follows.

    seconds: the limit of the part; half of it is left to a check that is under way.
    """

    def __init__(self, name: str, device: str, tiny: bool, seconds: float):
        self.name, self.device, self.tiny, self.sizes = name, device, tiny, TINY if tiny else SIZES
        self.large = TINY if tiny else LARGE
        self.ends = time.monotonic() + (seconds / 2 if not tiny else float("inf"))

    def row(self, what: str, result: str, detail: str) -> None:
        print(line(self.name, what, result, detail.replace("|", "\\|").replace("\n", " ")[:300]), flush=True)

    @contextlib.contextmanager
    def part(self, what: str):
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.row(what, "failed", f"{type(error).__name__}: {error}")

    def timed(self, step, calls: int = 5) -> str:
        """`12.3 ms, peak 1.2 GiB`: the median of some calls."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        taken = []
        for _ in range(1 if self.tiny else calls):
            begun = time.perf_counter()
            step()
            if self.device == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - begun)
        words = f"{statistics.median(taken) * 1e3:.1f} ms"
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.device == "cuda" else None
        return words if peak is None else f"{words}, peak {peak:.1f} GiB"

    def compared(self, what: str, value: float, expected: float, detail: str) -> None:
        off = abs(value - expected)
        is_equal = off <= BF16_TOLERANCE * max(1.0, abs(expected))
        self.row(what, "ok" if is_equal else "failed", f"loss off by {off:.1e}; {detail}")


def parity(report: Report) -> None:
    """Ask the laws in OF_A_DEVICE of models of the tests' zoo, spread over all of it, until the time is over."""
    law_names = [name for name in LAWS if name in OF_A_DEVICE and not (report.tiny and name == "compiled")]
    names = [*ZOO]
    spread = sorted(range(len(names)), key=lambda number: f"{number:08b}"[::-1])  # far apart, the first few too
    for number in spread[:5] if report.tiny else spread:
        if time.monotonic() > report.ends:
            return
        variant = names[number]
        with report.part(f"{variant}"):
            subject = ZooSubject(variant, variant.model(torch.float32).to(report.device))
            subject.tolerance = subject.fp32_tolerance = ZOO_FP32
            for name in law_names:
                answer = ask(subject, name)
                worst = answer.worst
                off = "" if worst.difference is None else f": {worst.difference:.1e}, at most {worst.tolerance:.1e}"
                result = "failed" if answer.verdict == "fails" else str(answer.verdict)
                report.row(f"{variant}: {name}", result, f"{worst.what}{off} {worst.why}".strip())


def packed(report: Report) -> None:
    """Passes over a packed row under a dense mask and by the backends that need none: equal losses, time and memory."""
    sizes = report.large | {"batch": 1, "length": 64 if report.tiny else 8192, "layers": 2}
    batch = batch_of("decoder", sizes, report.device)
    batch["position_ids"] = attention.documents(sizes["length"]).to(report.device)
    for kind in ("ours", "native"):
        model, expected = model_of("decoder", kind, sizes, report.device), None
        chosen = backend_arguments("auto", "auto", model.config, half=True, packed=True).values()
        for name in dict.fromkeys(["sdpa", *chosen, *(["flex_attention"] if report.device == "cuda" else [])]):
            with report.part(f"{kind} by {name}"):
                model.set_attn_implementation(name)
                hook = model.register_forward_pre_hook(with_borders, with_kwargs=True) if is_flash(name) else None
                step = forward_backward(model, batch, "bf16")
                value = float(step())
                expected = value if expected is None else expected
                report.compared(f"{kind} by {name}", value, expected, report.timed(step))
                if hook is not None:
                    hook.remove()


def compiled(report: Report) -> None:
    """Steps of a decoder whose layers are compiled, and of one whose are not."""
    batch, expected = batch_of("decoder", report.large, report.device), None
    for is_compiled in (False, True):
        what = "compiled layers" if is_compiled else "plain layers"
        with report.part(what):
            model, begun = model_of("decoder", "ours", report.large, report.device), time.perf_counter()
            step = Step(model, batch, "bf16", is_compiled)
            value = float(step())
            first = time.perf_counter() - begun
            expected = value if expected is None else expected
            step()
            report.compared(what, value, expected, f"{report.timed(step)}; first step {first:.1f} s")
            del model, step


def generate(report: Report) -> None:
    """New tokens per second of native models and ours, all rows together."""
    tokens = 4 if report.tiny else 64
    sizes = report.large | {"prompt": 8 if report.tiny else 128, "tokens": tokens}
    sizes.pop("length")
    for cache in ("growing",) if report.tiny else ("growing", "static"):
        variants = steps.generate(report.device, "bf16", cache=cache, **sizes)
        for name, call in variants.items():
            with report.part(f"{name}, {cache} cache"):
                call()
                begun = time.perf_counter()
                call()
                rate = sizes["batch"] * tokens / (time.perf_counter() - begun)
                report.row(f"{name}, {cache} cache", "measured", f"{rate:,.0f} tokens/s in {sizes['batch']} rows")


# ------------------------------------------------------------------------------------------------ training by command


def anyformer(*words: str) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, "-m", "anyformer_main", *words], capture_output=True, text=True)
    print(done.stdout, done.stderr, file=sys.stderr)
    return done


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


def trained(report: Report) -> None:
    """A few steps of `anyformer train`: their MFU, and their peak memory beside that of `anyformer rehearse`."""
    hidden, layers, heads = (64, 2, 4) if report.tiny else MODELS[report.name]
    rows, length, steps = (2, 64, 2) if report.tiny else (8, 2048, 12)
    words = ["quickstart", f"model.hidden_size={hidden}", f"model.num_hidden_layers={layers}"]
    words += [f"model.num_attention_heads={heads}", f"model.num_key_value_heads={heads}", "training.optim=adamw"]
    words += [f"model.intermediate_size={-(-8 * hidden // 192) * 64}", f"model.max_position_embeddings={length}"]
    words += [f"objective.sequence_length={length}", f"training.per_device_train_batch_size={rows}"]
    words += [f"training.max_steps={steps}", f"training.logging_steps={steps // 2}", "evaluation.every_steps=null"]
    words += [
        "evaluation.max_rows=8",
        "evaluation.sample_prompts=[]",
        f"data.max_documents={40 if report.tiny else 400}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        done = anyformer("train", *words, f"training.output_dir={run}")
        if done.returncode:
            report.row("train", "failed", last_line(done.stderr))
            return
        lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    last = [each for each in lines if "mfu" in each][-1]
    rates = f"MFU {last['mfu']:.1%}, {last['tokens_per_second']:,.0f} tokens/s"
    report.row("train", "measured", f"{rates}, peak {last['memory_gb']:.2f} GB")
    done = anyformer("rehearse", *words, "--devices", "1xH100-80GB", "--json")
    if done.returncode:
        report.row("memory", "not run", f"anyformer rehearse: {last_line(done.stderr)}")
        return
    rehearsed = json.loads(done.stdout)["peak_bytes"] / 1e9
    # What a CPU has is the memory of the whole process.
    off = "" if report.device == "cpu" else f", off by {rehearsed / last['memory_gb'] - 1:+.1%}"
    report.row("memory", "measured", f"peak {last['memory_gb']:.2f} GB, rehearsed {rehearsed:.2f} GB{off}")


# ------------------------------------------------------------------------------------------- waiting for the device

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
