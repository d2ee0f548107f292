"""One optimizer step of a mixture of experts: transformers' Mixtral and ours, with equal weights and batches.

A step is forward, backward, clipping, fused AdamW and clearing the gradients. Native arms are transformers' ways to
compute experts: eager (one after the other), grouped_mm (its default) and batched_mm (a copy of the weights for every
token and expert, meant for generation: slow and large, so not among the default arms). "bf16" is autocast over fp32
weights, as mixed-precision training has it; "bf16-weights" are weights, moments and all in bf16. Ours computes the
routers' statistics and balance losses in every step; native's balance loss, another formula, is left out.
"""

import copy

import method
import products
import torch
from steps import BF16_TOLERANCE, Step, require_equal_losses
from transformers import MixtralConfig, MixtralForCausalLM

import anyformer

GOAL = method.Goal(1.2)  # against each native arm, so against the best
NATIVE = ("native eager", "native grouped_mm", "native batched_mm")
ARMS = ("native eager", "native grouped_mm", "ours")


def build(args, dtype: str) -> dict[str, Step]:
    """{arm: Step}, each with its own copy of the same weights."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(args.vocab, (args.batch, args.length), generator=generator)
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.heads,
        num_local_experts=args.experts,
        num_experts_per_tok=args.experts_per_token,
        max_position_embeddings=args.length,
        router_aux_loss_coef=0.0,
        use_cache=False,
    )
    original = MixtralForCausalLM._from_config(config, attn_implementation="sdpa")
    steps = {}
    for arm in args.arms:
        if arm == "ours":
            model = anyformer.from_native(original)
        else:
            model = copy.deepcopy(original)
            model.set_experts_implementation(arm.removeprefix("native "))
        batch = {"input_ids": ids, "labels": ids}
        steps[arm] = Step(model, batch, "bf16" if dtype == "bf16" else "fp32")
    require_equal_losses(steps)
    if dtype == "bf16-weights":
        for step in steps.values():
            step.model.to(torch.bfloat16)
        with torch.no_grad():
            method.require_equal({name: step.loss().item() for name, step in steps.items()}, BF16_TOLERANCE)
    return steps


def run(args, dtype: str) -> None:
    steps = build(args, dtype)
    arms = products.with_products({name: (lambda step=step: step() and None) for name, step in steps.items()})
    reference = args.arms[0]
    timings = method.compare(arms, reference, args.rounds, warm=1)
    what = f"{dtype} T={args.length} B={args.batch} L={args.layers} D={args.hidden} E={args.experts}"
    what += f" K={args.experts_per_token} F={args.intermediate} V={args.vocab}"
    print(method.guard_row(what, reference, timings), flush=True)
    for arm in args.arms[1:]:
        peers = [name for name in args.arms if name != "ours"] if arm == "ours" else [reference]
        for peer in peers:
            goal = GOAL if arm == "ours" else None
            timing = method.relative_to(timings, peer, arm)
            print(method.row(what, arm, peer, timing, goal, method.is_void(timings)), flush=True)
    products.print_bound(what, timings, [name for name in args.arms if name != "ours"])


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--dtype", choices=("fp32", "bf16", "bf16-weights"), nargs="+", default=["fp32", "bf16"])
    p.add_argument("--arms", nargs="+", default=list(ARMS), choices=[*NATIVE, "ours"])
    sizes = {"layers": 2, "hidden": 384, "heads": 6, "intermediate": 512, "batch": 4, "vocab": 8192, "length": 256}
    for name, default in (sizes | {"experts": 8, "experts-per-token": 2}).items():
        p.add_argument(f"--{name}", type=int, default=default)
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.dtype = min(args.rounds, method.QUICK_ROUNDS), ["fp32"]
    print(method.HEADER)
    for dtype in args.dtype:
        run(args, dtype)


if __name__ == "__main__":
    main()
