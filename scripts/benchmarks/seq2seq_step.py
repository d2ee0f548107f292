"""One optimizer step of an encoder-decoder: transformers' T5 v1.1 and ours, with equal weights and batches.

A step is forward, backward, clipping, fused AdamW and clearing the gradients. Arms: native eager (the faster of the
native ones on CPUs), native sdpa, ours. Peak memory is what one step allocates at most.
"""

import method
import products
import torch
from steps import Step, require_equal_losses
from transformers import T5Config, T5ForConditionalGeneration

import anyformer

GOAL = method.Goal(1.08)
ARMS = ("native eager", "native sdpa", "ours")


def run(args, dtype: str) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = {
        "input_ids": torch.randint(3, args.vocab, (args.batch, args.length), generator=generator),
        "labels": torch.randint(3, args.vocab, (args.batch, args.target_length), generator=generator),
    }
    steps = {}
    for arm in args.arms:
        torch.manual_seed(0)
        native = T5ForConditionalGeneration._from_config(
            T5Config(
                vocab_size=args.vocab,
                d_model=args.hidden,
                d_kv=args.hidden // args.heads,
                d_ff=args.intermediate,
                num_layers=args.layers,
                num_heads=args.heads,
                dropout_rate=0.0,
                feed_forward_proj="gated-gelu",
                tie_word_embeddings=False,
                decoder_start_token_id=0,
            ),
            attn_implementation="sdpa" if arm == "native sdpa" else "eager",
        )
        model = native if arm.startswith("native") else anyformer.from_native(native)
        if not arm.startswith("native"):
            model.set_attn_implementation("sdpa")
        steps[arm] = Step(model, batch, dtype)
    require_equal_losses(steps)
    arms = products.with_products({name: (lambda step=step: step() and None) for name, step in steps.items()})
    reference = args.arms[0]
    timings = method.compare(arms, reference, args.rounds, warm=1)
    what = f"{dtype} S={args.length} T={args.target_length} L={args.layers}+{args.layers} D={args.hidden}"
    print(method.guard_row(what, reference, timings), flush=True)
    memory = {name: method.peak_bytes(step) for name, step in steps.items()}
    for arm in args.arms[1:]:
        peers = [name for name in args.arms if name.startswith("native")] if arm == "ours" else [reference]
        for peer in peers:
            timing = method.relative_to(timings, peer, arm)
            goal = GOAL if arm == "ours" else None
            print(method.row(what, arm, peer, timing, goal, method.is_void(timings)), flush=True)
            print(method.memory_row(what, arm, peer, memory, arm == "ours"), flush=True)
    products.print_bound(what, timings, [name for name in args.arms if name.startswith("native")])


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--dtype", choices=("fp32", "bf16"), nargs="+", default=["fp32"])
    p.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    sizes = {"layers": 2, "hidden": 384, "heads": 6, "intermediate": 1024, "batch": 4, "vocab": 8192, "length": 256}
    for name, default in (sizes | {"target-length": 64}).items():
        p.add_argument(f"--{name}", type=int, default=default)
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.dtype = min(args.rounds, method.QUICK_ROUNDS), ["fp32"]
    print(method.HEADER)
    for dtype in args.dtype:
        run(args, dtype)


if __name__ == "__main__":
    main()
