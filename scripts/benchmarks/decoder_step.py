"""One optimizer step of a decoder: transformers' LLaMA and ours, eager and compiled, with equal weights and batches.

A step is forward, backward, clipping, fused AdamW and clearing the gradients. fp32, or bf16 by autocast. Arms: native
(sdpa), native compiled, ours, ours compiled. On a GPU the same arms are timed with CUDA events; tokens per second, MFU
(PaLM's convention and with causal attention counted once), peak memory and host synchronisations per step are printed.
"""

import contextlib
import gc
import warnings

import method
import torch
from anyformer.pipelines.accounting.flops import flops_per_token, peak_flops
from twins import twins

# Sequence length -> layers, batch, vocabulary, and the goals: (arm, its peer, dtype, ratio).
SHAPES = {256: (4, 4, 8192), 1024: (2, 2, 8192), 2048: (1, 1, 2048)}
GOALS = {
    ("fp32", 256): {("ours compiled", "native"): 1.12},
    ("bf16", 1024): {("ours compiled", "native compiled"): 1.25},
    ("bf16", 2048): {("ours compiled", "native compiled"): 1.35},
}
PEERS = {"ours": ("native",), "native compiled": ("native",), "ours compiled": ("native", "native compiled")}
# Autocast rounds each product to 8 bits; our head stays in fp32 on CPUs without bf16.
BF16_TOLERANCE = 5e-3


class Step:
    """One arm: a model with its optimizer, on a fixed batch. Calling it takes a step and returns the loss."""

    def __init__(self, model, ids, dtype: str, compiled: bool):
        self.model, self.ids, self.dtype = model.train(), ids, dtype
        self.forward = torch.compile(model, dynamic=False) if compiled else model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss(self, dtype: str | None = None):
        bf16 = (dtype or self.dtype) == "bf16"
        device = self.ids.device.type
        with torch.autocast(device, torch.bfloat16) if bf16 else contextlib.nullcontext():
            return self.forward(input_ids=self.ids, labels=self.ids, use_cache=False).loss

    def __call__(self):
        loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def build(names, shape, length, hidden, heads, dtype, device) -> dict:
    """{arm: Step}, each with its own copy of the same weights."""
    layers, batch, vocab = shape
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab, (batch, length), generator=generator).to(device)
    steps = {}
    for name in names:
        native, ours = twins(vocab, hidden, layers, heads, length)
        model = (native if name.startswith("native") else ours).to(device)
        steps[name] = Step(model, ids, dtype, name.endswith("compiled"))
    return steps


def require_equal_losses(steps: dict) -> None:
    """Compare losses of the eager arms in fp32, then of every arm in the dtype that is timed."""
    with torch.no_grad():
        method.require_equal(
            {name: s.loss("fp32").item() for name, s in steps.items() if not name.endswith("compiled")}
        )
    dtype = next(iter(steps.values())).dtype
    tolerance = method.LOSS_TOLERANCE if dtype == "fp32" else BF16_TOLERANCE
    method.require_equal({name: s.loss().item() for name, s in steps.items()}, tolerance)


def run_cpu(args, length, dtype) -> None:
    steps = build(args.arms, shape_of(args, length), length, args.hidden, args.heads, dtype, "cpu")
    require_equal_losses(steps)
    # The result is dropped, so that an arm's graph is freed before another arm is timed.
    arms = {name: (lambda step=step: step() and None) for name, step in steps.items()}
    timings = method.compare(arms, args.arms[0], args.rounds, warm=1)
    what = described(args, length, dtype)
    print(method.guard_row(what, args.arms[0], timings), flush=True)
    for arm in args.arms[1:]:
        for peer in PEERS.get(arm, ()):
            if peer in timings:
                goal = GOALS.get((dtype, length), {}).get((arm, peer))
                timing = method.relative_to(timings, peer, arm)
                goal = None if goal is None else method.Goal(goal)
                print(method.row(what, arm, peer, timing, goal, method.is_void(timings)), flush=True)


def run_cuda(args, length, dtype) -> None:
    """Interleaved blocks of ten steps between CUDA events; the host never waits inside a block."""
    steps = build(args.arms, shape_of(args, length), length, args.hidden, args.heads, dtype, "cuda")
    require_equal_losses(steps)
    timings = method.compare(steps, args.arms[0], args.rounds, warm=3, clock=cuda_seconds)
    what = described(args, length, dtype)
    print(method.guard_row(what, args.arms[0], timings), flush=True)
    for name, step in steps.items():
        seconds, tokens = timings[name].milliseconds / 1e3, step.ids.numel()
        palm = flops_per_token(step.model, length) * tokens
        causal = palm - 6 * step.model.config.num_hidden_layers * args.hidden * length * tokens
        peak, source = peak_flops(step.ids.device, torch.bfloat16 if dtype == "bf16" else torch.float32)
        print(
            f"| {what} | {name} | {tokens / seconds:,.0f} tok/s | MFU {palm / seconds / peak:.1%} (PaLM), "
            f"{causal / seconds / peak:.1%} (causal), peak {source} | {1e3 * seconds:.1f} | "
            f"{peak_memory(step) / 2**30:.2f} GiB | {synchronisations(step)} host syncs per step |",
            flush=True,
        )
        for peer in PEERS.get(name, ()):
            if peer in timings:
                print(method.row(what, name, peer, method.relative_to(timings, peer, name), None, False), flush=True)


def cuda_seconds(step, steps: int = 10) -> float:
    """Seconds per step of a block of steps, by CUDA events."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / steps


def peak_memory(step) -> int:
    """Peak bytes of one step: its allocations, weights and optimizer state, without those of other arms."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    own = sum(p.nbytes for p in step.model.parameters()) * 3  # weights and AdamW's two moments
    return torch.cuda.max_memory_allocated() - before + own


def synchronisations(step) -> int:
    """How often the host waits for the device within one step."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught)


def shape_of(args, length) -> tuple:
    layers, batch, vocab = SHAPES.get(length, (2, 2, 8192))
    return args.layers or layers, args.batch or batch, args.vocab or vocab


def described(args, length, dtype) -> str:
    layers, batch, vocab = shape_of(args, length)
    return f"{dtype} T={length} B={batch} L={layers} D={args.hidden} V={vocab}"


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--dtype", choices=("fp32", "bf16"), nargs="+", default=["fp32", "bf16"])
    p.add_argument("--length", type=int, nargs="+", default=list(SHAPES), help="sequence lengths")
    p.add_argument("--arms", nargs="+", default=["native", *PEERS], choices=["native", *PEERS])
    p.add_argument("--hidden", type=int, default=384)
    p.add_argument("--heads", type=int, default=6)
    for name in ("layers", "batch", "vocab"):
        p.add_argument(f"--{name}", type=int, help=f"instead of the {name} that belongs to the length")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.dtype, args.length = min(args.rounds, method.QUICK_ROUNDS), ["fp32"], args.length[:1]
        args.arms = [arm for arm in args.arms if not arm.endswith("compiled")]
    if args.device == "cpu":
        print("on a GPU: not run (no CUDA device)" if not torch.cuda.is_available() else "on a GPU: not asked for")
    print(method.HEADER)
    for dtype in args.dtype:
        for length in args.length:
            torch.compiler.reset()
            (run_cpu if args.device == "cpu" else run_cuda)(args, length, dtype)


if __name__ == "__main__":
    main()
