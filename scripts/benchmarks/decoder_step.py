"""One optimizer step of a decoder: transformers' LLaMA and ours, eager and compiled, with equal weights and batches.

A step is forward, backward, clipping, fused AdamW and clearing the gradients. fp32, or bf16 by autocast. Arms: native
(sdpa), native compiled, ours, ours compiled; lean and lean compiled, the same architecture with nothing around it
(lean.py). On a GPU: gpu.sh.
"""

import method
import products
import torch
from lean import LeanDecoder
from steps import BF16_TOLERANCE, Step
from twins import twins

# Sequence length -> layers, batch, vocabulary, and the goals: (arm, its peer, dtype, ratio).
SHAPES = {256: (4, 4, 8192), 1024: (2, 2, 8192), 2048: (1, 1, 2048)}
GOALS = {
    ("fp32", 256): {("ours compiled", "native"): 1.2},
    ("bf16", 1024): {("ours compiled", "native compiled"): 1.2, ("ours compiled", "lean compiled"): 1.0},
    ("bf16", 2048): {("ours compiled", "native compiled"): 1.35},
}
PEERS = {
    "lean": ("native",),
    "ours": ("native", "lean"),
    "native compiled": ("native",),
    "lean compiled": ("native",),
    "ours compiled": ("native", "native compiled", "lean compiled"),
}


class CompiledStep(Step):
    """The same through torch.compile."""

    def __init__(self, model, batch: dict, dtype: str):
        super().__init__(model, batch, dtype)
        self.graph = torch.compile(model, dynamic=False)

    def forward_loss(self):
        return self.graph(**self.batch).loss


def build(names, shape, length, hidden, heads, dtype) -> dict:
    """{arm: Step}, each with its own copy of the same weights."""
    layers, batch, vocab = shape
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab, (batch, length), generator=generator)
    steps = {}
    for name in names:
        native, ours = twins(vocab, hidden, layers, heads, length)
        model = {"native": native, "ours": ours}.get(name.split()[0]) or LeanDecoder(native)
        step = CompiledStep if name.endswith("compiled") else Step
        inputs = {"input_ids": ids, "labels": ids, "use_cache": False}
        steps[name] = step(model, inputs, dtype)
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


def run(args, length, dtype) -> None:
    steps = build(args.arms, shape_of(args, length), length, args.hidden, args.heads, dtype)
    require_equal_losses(steps)
    # The result is dropped, so that an arm's graph is freed before another arm is timed.
    arms = products.with_products({name: (lambda step=step: step() and None) for name, step in steps.items()})
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
    products.print_bound(what, timings, [name for name in args.arms if name.startswith("native")])


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
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.dtype, args.length = min(args.rounds, method.QUICK_ROUNDS), ["fp32"], args.length[:1]
        args.arms = [arm for arm in args.arms if not arm.endswith("compiled")]
    print(method.HEADER)
    for dtype in args.dtype:
        for length in args.length:
            torch.compiler.reset()
            run(args, length, dtype)


if __name__ == "__main__":
    main()
