"""Checks of gpu.py: a GPU computes what the CPU computes, by every backend, compiled, and without waiting for the host.

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
from models import Step, autocast
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import anyformer

FP32, ZOO_FP32 = 2e-4, 1e-3  # the zoo's weights are large, so that each one counts, and carry rounding further
TWICE, BF16 = 2.0, 2**-9  # BF16: least error that is granted, as a backend may be exact where eager is
CURVE = 0.02  # of a loss in bf16 against fp32, at each step: rounding is averaged over all tokens, a fault is not
# A few roundings of 2^-9 on top of each other; a document that sees another is off by a tenth.
PACKED_BF16 = 2**-5
BACKENDS = ("sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4")

FAMILIES = {
    "decoder": ("AnyformerDecoderForCausalLM", {"num_key_value_heads": 2}),
    "moe": ("AnyformerMoeForCausalLM", {"num_key_value_heads": 2, "num_experts": 8, "router_aux_loss_coef": 0.0}),
    "encoder": ("AnyformerEncoderForMaskedLM", {}),
    "seq2seq": ("AnyformerSeq2SeqForConditionalGeneration", {"decoder_start_token_id": 1}),
    "vit": ("AnyformerViTForImageClassification", {"image_size": 64, "patch_size": 16, "num_labels": 5}),
}
# Models of a family that attend differently: name -> (family, fields).
KINDS = {
    "sliding": ("decoder", {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 16}),
    "alibi": ("decoder", {"position_encoding": "alibi"}),
    "linear": ("decoder", {"attention_pattern": ["linear_attention"]}),
    "relative": ("seq2seq", {"position_encoding": "relative", "norm_position": "pre", "norm_type": "rmsnorm"}),
}


class Report:
    """Prints a row for each check. A check that raises is a row, too, and the next one goes on."""

    def __init__(self, device: str, tiny: bool):
        self.device, self.tiny = device, tiny
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

    def model(self, family: str, **more):
        """A small model on the device in fp32, without dropout. Heads of 64 channels, which every kernel takes."""
        name, fields = FAMILIES[family]
        sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512, "num_hidden_layers": 4}
        if self.tiny:
            sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "num_hidden_layers": 1}
        if family != "vit":
            sizes |= {"vocab_size": 512, "max_position_embeddings": 512, "hidden_dropout": 0.0}
            sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        config_class = getattr(anyformer, f"{name.split('For')[0]}Config")
        torch.manual_seed(0)
        return getattr(anyformer, name)(config_class(**(sizes | fields | more))).to(self.device)

    def batch(self, family: str, seed: int = 0, rows: int = 4, length: int | None = None) -> dict:
        """Random inputs with labels, on the device."""
        drawn = torch.Generator().manual_seed(seed)
        length = length or (48 if self.tiny else 192)
        if family == "vit":
            batch = {"pixel_values": torch.randn(rows, 3, 64, 64, generator=drawn), "labels": torch.arange(rows) % 5}
        else:
            ids = torch.randint(4, 512, (rows, length), generator=drawn)
            batch = {"input_ids": ids, "labels": ids.clone()}
        if family == "encoder":
            batch["labels"] = ids.masked_fill(torch.rand(ids.shape, generator=drawn) > 0.15, -100)
        if family == "seq2seq":
            batch["labels"] = torch.randint(4, 512, (rows, length // 2), generator=drawn)
        return {name: x.to(self.device) for name, x in batch.items()}

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
    """Every attention backend against eager: logits and gradients. An encoder's rows are of different lengths."""
    for kind, (family, fields) in ({name: (name, {}) for name in FAMILIES} | KINDS).items():
        if kind in ("moe", "linear"):
            continue  # they attend as a decoder, or by no backend
        model, batch, real = report.model(family, **fields).train(), report.batch(family), None
        if family == "encoder":
            length = batch["input_ids"].shape[1]
            real = torch.arange(length) < torch.linspace(0.4, 1.0, 4)[:, None] * length
            real = real.to(report.device)
            batch |= {"attention_mask": real.long(), "labels": batch["labels"].masked_fill(~real, -100)}
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
            batch = variant.labelled(model)
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
    lengths = (7, 21, 5, 40) if report.tiny else (60, 7, 133, 41)
    for family in ("decoder", "moe", "encoder", "seq2seq"):
        model = report.model(family).eval()
        documents = [report.batch(family, seed, 1, length) for seed, length in enumerate(lengths)]
        row = {name: torch.cat([each[name] for each in documents], dim=1) for name in documents[0]}
        for name, of in (("position_ids", "input_ids"), ("decoder_position_ids", "labels")):
            if name == "position_ids" or family == "seq2seq":
                row[name] = torch.cat([torch.arange(each[of].shape[1]) for each in documents])[None].to(report.device)

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


def curves(report: Report) -> None:
    """Losses of 20 steps of each family: fp32 on the device against the CPU, bf16 against fp32."""
    for family in FAMILIES:

        def losses(device, dtype, family=family):
            model, found = report.model(family).to(device), []
            batches = [{k: x.to(device) for k, x in report.batch(family, seed).items()} for seed in range(4)]
            step = Step(model, batches[0], dtype, lr=1e-3)
            for number in range(6 if report.tiny else 20):
                step.batch = batches[number % 4]
                found.append(step().float().cpu())
            return torch.stack(found)

        with report.part(family):
            on_cpu, fp32, bf16 = losses("cpu", "fp32"), losses(report.device, "fp32"), losses(report.device, "bf16")
            # Adam divides by the gradient's size: what is nearly nothing is as good as random in its first steps.
            report.check(f"{family}: fp32 against the CPU", ((fp32 - on_cpu).abs() / on_cpu).max().item(), 1e-3)
            report.check(f"{family}: bf16 against fp32", ((bf16 - fp32).abs() / fp32).max().item(), CURVE)


def generation(report: Report) -> None:
    """Greedy tokens with a static cache (compiled by `generate` on a GPU) equal those of a growing one."""
    for kind, (family, fields) in ({name: (name, {}) for name in ("decoder", "moe", "seq2seq")} | KINDS).items():
        with report.part(kind):
            model = report.model(family, **fields).eval()
            prompt = report.batch(family, rows=2, length=12)["input_ids"]
            tokens = 6 if report.tiny else 24
            asked = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
            growing = model.generate(prompt, **asked)
            torch._dynamo.reset()
            static = model.generate(prompt, cache_implementation="static", **asked)
            report.check(f"{kind}: static cache, share of other tokens", (static != growing).float().mean().item(), 0.0)


def compiled(report: Report) -> None:
    """Loss and gradients of each family as one compiled graph."""
    backend = "inductor" if report.device == "cuda" else "aot_eager"  # a CPU's compiler takes minutes here
    for family in FAMILIES:
        for dtype in ("fp32", "bf16"):
            what = f"{family}, {dtype}"
            model, batch = report.model(family, num_hidden_layers=1).train(), report.batch(family)

            def result(function, dtype, model=model, batch=batch):
                model.zero_grad(set_to_none=True)
                with autocast(dtype, report.device):
                    loss = function(**batch).loss
                loss.backward()
                gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
                return [loss.detach()[None].float(), torch.cat(gradients)]

            with report.part(what):
                torch.compiler.reset()
                got = result(torch.compile(model, fullgraph=True, dynamic=False, backend=backend), dtype)
                plain = result(model, dtype)
                granted = FP32 if dtype == "fp32" else max(TWICE * apart(plain, result(model, "fp32")), BF16)
                report.check(what, apart(got, plain), granted)


# ------------------------------------------------------------------------------------------- waiting for the device

READS = {"encoder": 2}  # which positions are labelled, and how often; nothing else waits for the device


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
            step = Step(report.model(family), report.batch(family), "bf16")
            for _ in range(2):
                step()
            reads, most = host_reads(step, report.device), READS.get(family, 0)
            result = "ok" if len(reads) <= most else "failed"
            report.row(f"{family}: host syncs per step", result, f"{len(reads)}, at most {most}; {sorted(set(reads))}")
