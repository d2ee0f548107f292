"""Time and memory per token against the length of a row, for each kind of attention.

A model of 2 layers without a head processes one row: a forward pass without gradients, and a forward and backward
pass. The kinds compute different functions, so only their costs are compared. Memory is the peak beyond weights and
inputs, as torch's profiler records it. The plot is written beside this file.
"""

from pathlib import Path

import method
import torch
from anyformer.pipelines.plots import plot_against_length

from anyformer import AnyformerDecoderConfig, AnyformerDecoderModel, AnyformerEncoderConfig, AnyformerEncoderModel

WINDOW, STRIDE = 128, 64
KINDS = {
    "full": {"attention_pattern": ["full_attention"]},
    "sliding": {"attention_pattern": ["sliding_attention"], "sliding_window": WINDOW},
    "strided": {"attention_pattern": ["strided_attention"], "attention_stride": STRIDE},
    "local+global": {"attention_pattern": ["local_global_attention"], "sliding_window": WINDOW // 2},
    "linear": {"attention_pattern": ["linear_attention"]},
    "compressive": {"attention_pattern": ["compressive_attention"], "segment_length": WINDOW},
    "recurrent": {"segment_length": WINDOW, "memory_length": WINDOW},
}
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
    if kind == "local+global":
        return AnyformerEncoderModel(AnyformerEncoderConfig(**fields, **KINDS[kind], add_pooling_layer=False)), {}
    return AnyformerDecoderModel(AnyformerDecoderConfig(**fields, **KINDS[kind])), {"use_cache": False}


def passes(kind: str, length: int, args) -> tuple:
    """Two functions: a forward pass, and one with its backward pass."""
    model, kwargs = trunk(kind, args)
    ids = torch.randint(64, (1, length), generator=torch.Generator().manual_seed(0))
    if kind == "local+global":  # one token that sees all and is seen by all, as [CLS] is
        kwargs["global_attention_mask"] = torch.nn.functional.pad(torch.ones(1, 1), (0, length - 1)).long()

    def forward():
        with torch.no_grad():
            model.eval()(ids, **kwargs)

    def training():
        for parameter in model.parameters():
            parameter.grad = None
        model.train()(ids, **kwargs).last_hidden_state.square().mean().backward()

    return forward, training


def measure(length: int, args) -> list[dict]:
    """One line per kind: seconds and bytes per token of both passes."""
    both = {kind: passes(kind, length, args) for kind in args.kinds}
    rows = [{"kind": kind, "length": length} for kind in args.kinds]
    for number, name in enumerate(("forward", "training")):
        arms = {kind: functions[number] for kind, functions in both.items()}
        timings = method.compare(arms, args.kinds[0], args.rounds, warm=1)
        for row in rows:
            seconds = timings[row["kind"]].milliseconds / 1e3
            row |= {f"{name}_us": 1e6 * seconds / length}
            row |= {f"{name}_kib": method.peak_bytes(arms[row["kind"]]) / 1024 / length}
    return rows


def main(argv=None):
    p = method.parser(__doc__, rounds=3)
    p.add_argument("--length", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096], help="tokens of the row")
    p.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--plot", default=str(Path(__file__).with_name("length.png")), help="picture to write; empty: none")
    args = method.start(p, argv)
    if args.quick:
        args.length, args.rounds = [length for length in args.length if length <= 1024], min(args.rounds, 2)
    print(HEADER)
    rows = []
    for length in args.length:
        found = measure(length, args)
        full = next((row["training_us"] for row in found if row["kind"] == "full"), None)
        for row in found:
            cells = [f"T={length} D={args.hidden} L=2", row["kind"]]
            cells += [f"{row[name]:.1f}" for name in ("forward_us", "training_us", "forward_kib", "training_kib")]
            cells.append(f"{row['training_us'] / full:.2f} x" if full else "-")
            print(f"| {' | '.join(cells)} |", flush=True)
        rows += found
    if args.plot:
        plot_against_length(rows, Path(args.plot))
        print(f"written to {args.plot}")


if __name__ == "__main__":
    main()
