"""Time and memory per token against the length of a row, for each backend of attention (FlashAttention's claim).

A decoder of 2 layers without a head processes one row: a forward pass without gradients, and a forward and backward
pass. `eager` holds the scores of all pairs of tokens; the kernels behind the others compute them in blocks (Dao et al.
2022). All compute the same: the largest difference from eager's hidden states is printed. Memory is the peak beyond
weights and inputs, as torch's profiler records it. On a CPU flex_attention has no backward pass, and is compiled once
before it is timed.
"""

import length
import method
import torch

ARMS = ("eager", "sdpa", "flex_attention")
HEADER = (
    "| what | backend | forward, us/token | training, us/token | forward, KiB/token | training, KiB/token | "
    "eager's training time |\n|---|---|---|---|---|---|---|"
)


def passes(backend: str, tokens: int, args) -> tuple:
    """(hidden states, forward pass, forward and backward pass or None), of equal weights and tokens."""
    model, _ = length.trunk("full", args)
    model.set_attn_implementation(backend)
    ids = torch.randint(64, (1, tokens), generator=torch.Generator().manual_seed(0))

    def forward():
        with torch.no_grad():
            model.eval()(ids, use_cache=False)

    def training():
        for parameter in model.parameters():
            parameter.grad = None
        model.train()(ids, use_cache=False).last_hidden_state.square().mean().backward()

    with torch.no_grad():
        states = model.eval()(ids, use_cache=False).last_hidden_state
    return states, forward, None if backend == "flex_attention" else training


def measure(tokens: int, args) -> list[dict]:
    """One line for each backend: seconds and bytes per token of both passes."""
    found = {name: passes(name, tokens, args) for name in args.arms}
    rows = [{"backend": name} for name in args.arms]
    for number, what in enumerate(("forward", "training"), start=1):
        arms = {name: each[number] for name, each in found.items() if each[number] is not None}
        timings = method.compare(arms, args.arms[0], args.rounds, warm=1)
        for row in rows:
            if row["backend"] in arms:
                row |= {f"{what}_us": 1e3 * timings[row["backend"]].milliseconds / tokens}
                row |= {f"{what}_kib": method.peak_bytes(arms[row["backend"]]) / 1024 / tokens}
    reference = found[args.arms[0]][0]
    for row in rows:
        row["difference"] = (found[row["backend"]][0] - reference).abs().max().item()
    return rows


def main(argv=None):
    p = method.parser(__doc__, rounds=3)
    p.add_argument("--length", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096], help="tokens of the row")
    p.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--heads", type=int, default=4)
    args = method.start(p, argv)
    if args.quick:
        args.length, args.rounds = [tokens for tokens in args.length if tokens <= 1024], min(args.rounds, 2)
    print(HEADER)
    for tokens in args.length:
        found = measure(tokens, args)
        for row in found:
            cells = [f"T={tokens} D={args.hidden} L=2", row["backend"]]
            for name in ("forward_us", "training_us", "forward_kib", "training_kib"):
                cells.append(f"{row[name]:.1f}" if name in row else "-")
            share = found[0]["training_us"] / row["training_us"] if "training_us" in row else None
            cells.append(f"{share:.2f} x" if share else "-")
            print(f"| {' | '.join(cells)} |", flush=True)
        apart = max(row["difference"] for row in found)
        if not apart <= 1e-4:
            raise SystemExit(f"not comparable: hidden states differ by {apart:.1e} at T={tokens}")
        print(f"largest difference of hidden states at T={tokens}: {apart:.1e}", flush=True)


if __name__ == "__main__":
    main()
