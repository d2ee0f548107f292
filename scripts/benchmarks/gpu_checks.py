"""Checks of gpu.py: a GPU computes what the CPU computes, by every backend, and without waiting for the host.

Tolerances. fp32 on another device or by another kernel differs in the order of sums: FP32 of the largest value. A
product rounded to bf16 is off by 2^-9; how far that carries depends on the model, so bf16 is measured against itself:
a backend may be at most TWICE as far from fp32 as the readable eager backend is in bf16, on the same inputs.
"""

import contextlib
import copy
import traceback
import warnings
from pathlib import Path

import torch
from family_variants import ZOO
from method import line
from models import FAMILIES, Step, autocast, batch_of, model_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from zoo_subject import ZooSubject

import anyformer

FP32, ZOO_FP32 = 2e-4, 1e-3  # the zoo's weights are large, so that each one counts, and carry rounding further
TWICE, BF16 = 2.0, 2**-9  # BF16: least error that is granted, as a backend may be exact where eager is
# A few roundings of 2^-9 on top of each other; a document that sees another is off by a tenth.
PACKED_BF16 = 2**-5
BACKENDS = ("sdpa", "anyformer", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4")

SIZES = {"hidden": 256, "heads": 4, "channels": 512, "layers": 4, "experts": 8, "vocab": 512, "image": 64}
SIZES |= {"length": 192, "targets": 96, "batch": 4}  # heads of 64 channels, which every kernel takes
TINY = SIZES | {"hidden": 64, "heads": 2, "layers": 1, "length": 48, "targets": 24}
# Decoders that attend otherwise than LLaMA.
KINDS = {
    "sliding": {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 16},
    "alibi": {"position_encoding": "alibi"},
}


class Report:
    """Prints a row for each check. A check that raises is a row, too, and the next one goes on."""

    def __init__(self, device: str, tiny: bool):
        self.device, self.tiny, self.sizes = device, tiny, TINY if tiny else SIZES
        print(line("what", "result", "detail") + "\n|---|---|---|")

    def row(self, what: str, result: str, detail: str) -> None:
        print(line(what, result, detail.replace("|", "\\|").replace("\n", " ")[:300]), flush=True)

    def check(self, what: str, error: float, most: float) -> None:
        self.row(what, "ok" if error <= most else "failed", f"off by {error:.1e}, at most {most:.1e}")

    @contextlib.contextmanager
    def part(self, what: str):
        try:
            yield
        except ImportError as error:
            self.row(what, "not installed", str(error))
        except Exception as error:
            traceback.print_exc()
            self.row(what, "failed", f"{type(error).__name__}: {error}")

    def model(self, kind: str):
        """A small model of ours on the device, in fp32 and without dropout."""
        if kind in FAMILIES:
            return model_of(kind, "ours", self.sizes, self.device)
        torch.manual_seed(0)
        config = anyformer.AnyformerDecoderConfig(
            vocab_size=self.sizes["vocab"],
            hidden_size=self.sizes["hidden"],
            num_hidden_layers=2,
            num_attention_heads=self.sizes["heads"],
            **KINDS[kind],
        )
        return anyformer.AnyformerDecoderForCausalLM(config).to(self.device)

    def batch(self, kind: str) -> dict:
        return batch_of(kind if kind in FAMILIES else "decoder", self.sizes, self.device)

    def use_backend(self, what: str, model, name: str) -> bool:
        """Switch the attention backend; where that cannot be, a row says why."""
        if name == "flex_attention" and self.device == "cpu":
            self.row(what, "not installed", "on a CPU it has no backward pass and compiles for minutes")
            return False
        try:
            model.set_attn_implementation(name)
        except (ImportError, ValueError) as error:
            self.row(what, "not installed", str(error))
            return False
        return True


def outcome(model, batch: dict, dtype: str = "fp32", real=None) -> list[torch.Tensor]:
    """[logits, gradients of all parameters as one vector] of a pass; `real` (B, T): logits that are not padding's."""
    model.zero_grad(set_to_none=True)
    kwargs = {} if "pixel_values" in batch else {"return_logits": True}
    with autocast(dtype, batch["labels"].device.type):
        outputs = model(**batch, **kwargs)
    outputs.loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    logits = outputs.logits if real is None else outputs.logits[real]
    return [logits.detach().float(), torch.cat([g.flatten() for g in gradients]).float()]


def apart(got: list, expected: list) -> float:
    """The largest difference, as a share of the largest value: the worst of the tensors. nan is infinitely far."""
    pairs = [(a.cpu(), b.cpu()) for a, b in zip(got, expected, strict=True)]
    shares = [((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item() for a, b in pairs]
    return max(share if share == share else float("inf") for share in shares)


def backends(report: Report) -> None:
    """Every attention backend against eager: logits and gradients. Rows of the masked model have different lengths."""
    for kind in (*FAMILIES, *KINDS):
        model, batch = report.model(kind).train(), report.batch(kind)
        real = batch["attention_mask"].bool() if "attention_mask" in batch else None
        model.set_attn_implementation("eager")
        expected, rounded = outcome(model, batch, real=real), outcome(model, batch, "bf16", real)
        granted = max(TWICE * apart(rounded, expected), BF16)
        for name in BACKENDS:
            what = f"{kind}: {name}"
            if not report.use_backend(what, model, name):
                continue
            with report.part(what):
                if not name.startswith("flash"):  # which knows half types only
                    report.check(f"{what}, fp32", apart(outcome(model, batch, real=real), expected), FP32)
                report.check(f"{what}, bf16", apart(outcome(model, batch, "bf16", real), expected), granted)


def steps(report: Report) -> None:
    """Logits and gradients of each model of the tests' zoo on the device and on the CPU, in fp32."""
    variants = ZOO[:: max(1, len(ZOO) // 5)] if report.tiny else ZOO
    for variant in variants:
        with report.part(f"{variant}"):
            model = variant.model(torch.float32).train()
            batch = ZooSubject(variant, model).labelled()
            batch = {name: x.float() if x.is_floating_point() else x for name, x in batch.items()}
            for module in model.modules():  # what is drawn at random differs between devices
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
                for holder in (module, getattr(module, "config", None)):
                    for name in ("jitter", "attention_dropout", "hidden_dropout"):
                        if holder is not None and name in holder.__dict__:
                            setattr(holder, name, 0.0)
            expected = outcome(model, batch)
            model = copy.deepcopy(model).to(report.device)
            got = outcome(model, {name: x.to(report.device) for name, x in batch.items()})
            report.check(f"{variant}", apart(got, expected), ZOO_FP32)


@torch.no_grad()
def packed(report: Report) -> None:
    """Documents packed into a row against the documents alone."""
    lengths = (7, 21, 5, 40)
    for family in ("decoder", "moe", "masked", "seq2seq"):
        model, batch = report.model(family).eval(), report.batch(family)
        documents = [{"input_ids": row[None, :length]} for row, length in zip(batch["input_ids"], lengths)]
        names = {"input_ids": "position_ids"}
        if family == "seq2seq":
            names["labels"] = "decoder_position_ids"
            documents = [
                document | {"labels": row[None, : length // 2]}
                for document, row, length in zip(documents, batch["labels"], lengths)
            ]
        row = {name: torch.cat([each[name] for each in documents], dim=1) for name in names}
        for name, positions in names.items():
            found = torch.cat([torch.arange(each[name].shape[1]) for each in documents])
            row[positions] = found[None].to(report.device)

        def logits(batches, dtype, model=model):
            with autocast(dtype, report.device):
                return [torch.cat([model(**batch).logits for batch in batches], dim=1).float()]

        for name in ("eager", *BACKENDS):
            what = f"{family}: packed, {name}"
            if not report.use_backend(what, model, name):
                continue
            with report.part(what):
                if not name.startswith("flash"):
                    report.check(f"{what}, fp32", apart(logits([row], "fp32"), logits(documents, "fp32")), FP32)
                report.check(f"{what}, bf16", apart(logits([row], "bf16"), logits(documents, "bf16")), PACKED_BF16)


def generation(report: Report) -> None:
    """Greedy tokens with a static cache (compiled by `generate` on a GPU) equal those of a growing one."""
    for kind in ("decoder", "moe", "seq2seq", *KINDS):
        with report.part(kind):
            model, prompt = report.model(kind).eval(), report.batch(kind)["input_ids"][:2, :12]
            tokens = 6 if report.tiny else 24
            asked = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
            growing = model.generate(prompt, use_cache=True, **asked)
            torch._dynamo.reset()
            static = model.generate(prompt, cache_implementation="static", use_cache=True, **asked)
            report.check(f"{kind}: static cache, share of other tokens", (static != growing).float().mean().item(), 0.0)


# ------------------------------------------------------------------------------------------- waiting for the device

READS = {"masked": 2}  # which positions are labelled, and how often; nothing else waits for the device


class Reads(TorchDispatchMode):
    """Operations whose result or whose shape the host reads, by name: what would wait for a GPU."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().split("::")[-1].split(".")[0]
        if name in self.NAMES:
            frame = [f for f in traceback.extract_stack() if "/torch/" not in f.filename and f.filename != __file__][-1]
            if "one_hot(" not in frame.line:  # whose numbers are checked on a CPU only
                self.found.append(f"{Path(frame.filename).name}:{frame.lineno} {name}")
        return function(*args, **kwargs or {})


def host_reads(step, device: str) -> list[str]:
    """Where the host waits for the device within one call of `step`: the driver's own count on CUDA.

    On a CPU nobody waits: counted are the operations that would.
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
            batch = report.batch(family)
            batch.pop("attention_mask", None)  # lengths of rows are read by the host
            step = Step(report.model(family), batch, "bf16")
            for _ in range(2):
                step()
            reads, most = host_reads(step, report.device), READS.get(family, 0)
            result = "ok" if len(reads) <= most else "failed"
            report.row(f"{family}: host syncs per step", result, f"{len(reads)}, at most {most}; {sorted(set(reads))}")
