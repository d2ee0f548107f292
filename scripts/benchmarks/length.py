"""Time and memory per token against the length of a row, for each kind of attention.

A model of 2 layers without a head processes one row: a forward pass without gradients, and a forward and backward
pass. The kinds compute different functions, so only their costs are compared. Memory is the peak beyond weights and
inputs, as torch's profiler records it. The plot is written beside this file.

"none" is the same model with values passed through in place of attention: what no kind can be faster than.

In bf16 (autocast) and fp32. The ratios of each kind to full attention, with their goals, are those of the longest row;
then whether its memory per token grows with the row, and the length from which it takes less time, interpolated between
the lengths that were measured.
"""

import contextlib
import math
from pathlib import Path

import method
import torch
from anyformer.pipelines.plots import plot_against_length
from transformers import AttentionInterface

from anyformer import AnyformerDecoderConfig, AnyformerDecoderModel, AnyformerEncoderConfig, AnyformerEncoderModel

WINDOW, STRIDE = 128, 64
KINDS = {
    "full": {"attention_pattern": ["full_attention"]},
    "full, two-sided": {"attention_pattern": ["full_attention"]},
    "sliding": {"attention_pattern": ["sliding_attention"], "sliding_window": WINDOW},
    "strided": {"attention_pattern": ["strided_attention"], "attention_stride": STRIDE},
    "local+global": {"attention_pattern": ["local_global_attention"], "sliding_window": WINDOW // 2},
    "linear": {"attention_pattern": ["linear_attention"]},
    "compressive": {"attention_pattern": ["compressive_attention"], "segment_length": WINDOW},
    "recurrent": {"segment_length": WINDOW, "memory_length": WINDOW},
    "none": {"attention_pattern": ["full_attention"], "attn_implementation": "values_passed_through"},
}
AttentionInterface.register("values_passed_through", lambda module, q, k, v, *_, **__: (v.transpose(1, 2), None))
ENCODERS = {"full, two-sided", "local+global"}
# Times of full attention (an encoder's for an encoder's) over those of a kind, at 4,096 tokens and windows of 128.
GOALS = {
    ("sliding", "forward"): 2.5,
    ("sliding", "training"): 2.0,
    ("strided", "forward"): 1.5,
    ("strided", "training"): 1.5,
    ("local+global", "forward"): 1.8,
    ("local+global", "training"): 1.8,
}
GOAL_LENGTH = 4096
FLAT = 1.05  # growth of memory per token from the shortest row to the longest that is called flat
HEADER = (
    "| what | kind | forward, us/token | training, us/token | forward, KiB/token | training, KiB/token | "
    "training time of full |\n|---|---|---|---|---|---|---|"
)


def trunk(kind: str, args):
    """(model, keyword arguments beside its input)."""
    fields = {
        "vocab_size": 64,
        "hidden_size": args.hidden,
        "num_attention_heads": args.heads,
        "num_hidden_layers": 2,
        "max_position_embeddings": max(args.length),
    }
    torch.manual_seed(0)
    if kind in ENCODERS:
        return AnyformerEncoderModel(AnyformerEncoderConfig(**fields, **KINDS[kind], add_pooling_layer=False)), {}
    return AnyformerDecoderModel(AnyformerDecoderConfig(**fields, **KINDS[kind])), {"use_cache": False}


def autocast(dtype: str):
    return torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()


def passes(kind: str, length: int, args, dtype: str = "fp32") -> tuple:
    """Two functions: a forward pass, and one with its backward pass."""
    model, kwargs = trunk(kind, args)
    ids = torch.randint(64, (1, length), generator=torch.Generator().manual_seed(0))
    if kind == "local+global":  # one token that sees all and is seen by all, as [CLS] is
        kwargs["global_attention_mask"] = torch.nn.functional.pad(torch.ones(1, 1), (0, length - 1)).long()

    def forward():
        with torch.no_grad(), autocast(dtype):
            model.eval()(ids, **kwargs)

    def training():
        for parameter in model.parameters():
            parameter.grad = None
        with autocast(dtype):
            loss = model.train()(ids, **kwargs).last_hidden_state.square().mean()
        loss.backward()

    return forward, training


def measure(length: int, args, dtype: str) -> list[dict]:
    """One line per kind: seconds and bytes per token of both passes, and their timings."""
    both = {kind: passes(kind, length, args, dtype) for kind in args.kinds}
    rows = [{"kind": kind, "length": length} for kind in args.kinds]
    for number, name in enumerate(("forward", "training")):
        arms = {kind: functions[number] for kind, functions in both.items()}
        timings = method.compare(arms, args.kinds[0], args.rounds, warm=1)
        for row in rows:
            seconds = timings[row["kind"]].milliseconds / 1e3
            row |= {f"{name}_us": 1e6 * seconds / length, name: timings}
            row |= {f"{name}_kib": method.peak_bytes(arms[row["kind"]]) / 1024 / length}
    return rows


def main(argv=None):
    p = method.parser(__doc__, rounds=3)
    p.add_argument("--length", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096], help="tokens of the row")
    p.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--plot", default=str(Path(__file__).with_name("length.png")), help="picture to write; empty: none")
    p.add_argument("--dtype", choices=("fp32", "bf16"), nargs="+", default=["fp32"], help="the plot shows the first")
    args = method.start(p, argv)
    if args.quick:
        args.length, args.rounds = [length for length in args.length if length <= 1024], min(args.rounds, 2)
    for number, dtype in enumerate(args.dtype):
        print(HEADER if number == 0 else f"\n{HEADER}")
        rows = []
        for length in args.length:
            rows += print_rows(measure(length, args, dtype), args, dtype, length)
        compare_with_full(rows, args, dtype)
        if args.plot and number == 0:
            plot_against_length(rows, Path(args.plot))
            print(f"written to {args.plot}")


def print_rows(found: list[dict], args, dtype: str, length: int) -> list[dict]:
    full = next((row["training_us"] for row in found if row["kind"] == "full"), None)
    for row in found:
        cells = [f"{dtype} T={length} D={args.hidden} L=2", row["kind"]]
        cells += [f"{row[name]:.1f}" for name in ("forward_us", "training_us", "forward_kib", "training_kib")]
        cells.append(f"{row['training_us'] / full:.2f} x" if full else "-")
        print(f"| {' | '.join(cells)} |", flush=True)
    return found


def compare_with_full(rows: list[dict], args, dtype: str) -> None:
    """Ratios at the longest row, and from which length on each kind takes less time than full attention."""
    longest = max(args.length)
    last = [row for row in rows if row["length"] == longest]
    print(f"\n{method.HEADER}")
    for name in ("forward", "training"):
        what = f"{dtype} {name} T={longest} D={args.hidden} L=2"
        timings = last[0][name]
        print(method.guard_row(what, args.kinds[0], timings))
        for kind, peer in peers(args.kinds).items():
            goal = GOALS.get((kind, name)) if longest == GOAL_LENGTH else None
            timing = method.relative_to(timings, peer, kind)
            print(method.row(what, kind, peer, timing, goal and method.Goal(goal), method.is_void(timings)), flush=True)
    shortest = min(args.length)
    if shortest == longest:
        return
    for kind in args.kinds:
        growth = [
            held(rows, kind, longest, name) / held(rows, kind, shortest, name) for name in ("forward", "training")
        ]
        verdict = "flat" if max(growth) <= FLAT else "grows"
        print(
            f"{dtype}: memory per token of {kind} at {longest:,} tokens, of that at {shortest:,}: "
            f"{growth[0]:.2f} (forward), {growth[1]:.2f} (training): {verdict}"
        )
    for kind, peer in peers([kind for kind in args.kinds if kind != "none"]).items():
        found = [f"{crossover(rows, kind, peer, f'{name}_us')} ({name})" for name in ("forward", "training")]
        print(f"{dtype}: {kind} takes less time than {peer} attention from {', '.join(found)} tokens on")


def held(rows: list[dict], kind: str, length: int, name: str) -> float:
    """KiB per token of a kind's pass."""
    return next(row[f"{name}_kib"] for row in rows if (row["kind"], row["length"]) == (kind, length))


def peers(kinds: list[str]) -> dict[str, str]:
    """{kind: the full attention that sees as many sides}, of those that are measured."""
    found = {kind: "full, two-sided" if kind in ENCODERS else "full" for kind in kinds}
    return {kind: peer for kind, peer in found.items() if kind != peer and peer in kinds}


def crossover(rows: list[dict], kind: str, peer: str, name: str) -> str:
    """The length at which a kind's time per token falls below its peer's, on a logarithmic scale of lengths."""
    times = {(row["kind"], row["length"]): row[name] for row in rows}
    lengths = sorted({row["length"] for row in rows})
    gains = [math.log(times[peer, length] / times[kind, length]) for length in lengths]
    if gains[-1] <= 0:
        return f"more than {lengths[-1]:,}"
    slower = [i for i, gain in enumerate(gains) if gain <= 0]
    if not slower:
        return f"{lengths[0]:,} or fewer"
    i = slower[-1]
    share = -gains[i] / (gains[i + 1] - gains[i])
    return f"about {round(math.exp(math.log(lengths[i]) * (1 - share) + math.log(lengths[i + 1]) * share)):,}"


if __name__ == "__main__":
    main()
