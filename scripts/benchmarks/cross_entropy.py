"""The loss of a language-model head: ours without the logits against cross-entropy of all logits.

Forward and backward of `hidden @ weight.T` and its cross-entropy. Extra memory is the peak beyond inputs and
gradients, as torch's profiler records it, as a share of the logits in fp32.
"""

import method
import products
import torch
from anyformer.modeling.linear_cross_entropy import linear_cross_entropy

# In fp32 three quarters of the full logits' time are products that both make: leaving out all else would be 1.33.
SPEED, MEMORY = {"bf16": method.Goal(1.5)}, method.Goal(0.2, at_least=False)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def full_logits(hidden, weight, labels):
    """The computation of transformers' models: logits in the model's dtype, cross-entropy of their fp32 copy."""
    return torch.nn.functional.cross_entropy((hidden @ weight.t()).float(), labels)


def extra_bytes(step, inputs) -> int:
    """Most bytes held during `step` beyond the gradients that it leaves."""
    step()
    for tensor in inputs:
        tensor.grad = None
    kept = []
    most = method.peak_bytes(lambda: kept.extend(step()))
    return most - sum(tensor.nbytes for tensor in kept)


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--tokens", type=int, default=1024)
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--hidden", type=int, default=384)
    p.add_argument("--dtype", choices=DTYPES, nargs="+", default=["fp32", "bf16"])
    p.add_argument("--compile", action="store_true", help="also the compiled arms (minutes of compiling)")
    args = method.start(p, argv)
    if args.quick:
        args.tokens, args.rounds, args.dtype = min(args.tokens, 512), min(args.rounds, method.QUICK_ROUNDS), ["fp32"]
        args.compile = False
    print(method.HEADER)
    for name in args.dtype:
        compare(args, name)


def compare(args, dtype):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(args.tokens, args.hidden, generator=generator)
    weight = torch.randn(args.vocab, args.hidden, generator=generator) * 0.05
    labels = torch.randint(args.vocab, (args.tokens,), generator=generator)
    losses = {"full logits": full_logits, "ours": linear_cross_entropy}
    method.require_equal({arm: loss(hidden, weight, labels).item() for arm, loss in losses.items()})
    if args.compile:
        losses |= {f"{arm} compiled": torch.compile(loss, dynamic=False) for arm, loss in losses.items()}
    hidden, weight = (x.to(DTYPES[dtype]).requires_grad_() for x in (hidden, weight))

    def step_of(loss):
        def step():
            hidden.grad = weight.grad = None
            loss(hidden, weight, labels).backward()
            return hidden.grad, weight.grad

        return step

    arms = {arm: step_of(loss) for arm, loss in losses.items()}
    what = f"{dtype} N={args.tokens} V={args.vocab} D={args.hidden}"
    timings = method.compare(products.with_products(arms), "full logits", args.rounds)
    print(method.guard_row(what, "full logits", timings))
    logits_bytes = 4 * args.tokens * args.vocab
    for arm, step in arms.items():
        is_ours = arm.startswith("ours")
        goal = SPEED.get(dtype) if is_ours else None
        if arm != "full logits":
            print(method.row(what, arm, "full logits", timings[arm], goal, method.is_void(timings)), flush=True)
        share = extra_bytes(step, (hidden, weight)) / logits_bytes
        memory = MEMORY if is_ours else None
        verdict = memory.verdict(share, share) if memory else "-"
        print(
            f"| {what} | {arm} | fp32 logits | extra memory {share:.3f} | - | {memory or '-'} | {verdict} |", flush=True
        )
    products.print_bound(what, timings, ["full logits"])


if __name__ == "__main__":
    main()
