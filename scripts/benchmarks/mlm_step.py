"""One optimizer step of masked-language-model training on rows of different lengths: transformers' BERT and ours.

A step is forward, backward, clipping, fused AdamW and clearing the gradients, with equal weights and batches: rows of
20 to 100 % of the longest, 15 % of the real tokens labelled. Ours runs its head on labelled positions only and
leaves padding out ("ours padded" computes it). Peak memory is what one step allocates at most.
"""

import method
import products
import torch
from anyformer.modeling.stack import TransformerStack
from steps import Step, require_equal_losses
from transformers import BertConfig, BertForMaskedLM

import anyformer

SHAPES = {
    "small": {"layers": 2, "hidden": 384, "heads": 6, "intermediate": 1536, "batch": 4, "vocab": 30522},
    "base": {"layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072, "batch": 4, "vocab": 30522},
}
GOALS = {"small": 2.8, "base": 1.5}
ARMS = ("native eager", "native", "ours padded", "ours")


def batch_of(rows: int, length: int, vocab: int) -> dict:
    """Padded rows with mask and labels, random with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.linspace(0.2, 1.0, rows).mul(length).long()
    real = torch.arange(length)[None] < lengths[:, None]
    ids = torch.randint(5, vocab, (rows, length), generator=generator).where(real, torch.tensor(0))
    chosen = (torch.rand(rows, length, generator=generator) < 0.15) & real
    return {"input_ids": ids, "attention_mask": real.long(), "labels": ids.where(chosen, torch.tensor(-100))}


class PaddedStep(Step):
    """Ours, with padding tokens computed as in transformers."""

    def forward_loss(self):
        can_unpad = TransformerStack.can_unpad
        TransformerStack.can_unpad = lambda *_: False
        try:
            return super().forward_loss()
        finally:
            TransformerStack.can_unpad = can_unpad


def run(args, shape: str, dtype: str) -> None:
    sizes = SHAPES[shape]
    batch = batch_of(sizes["batch"], args.length, args.vocab or sizes["vocab"])
    steps = {}
    for arm in args.arms:
        torch.manual_seed(0)
        native = BertForMaskedLM._from_config(
            BertConfig(
                vocab_size=args.vocab or sizes["vocab"],
                hidden_size=sizes["hidden"],
                num_hidden_layers=args.layers or sizes["layers"],
                num_attention_heads=sizes["heads"],
                intermediate_size=sizes["intermediate"],
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            ),
            attn_implementation="eager" if arm == "native eager" else "sdpa",
        )
        model = native if arm.startswith("native") else anyformer.from_native(native)
        steps[arm] = (PaddedStep if arm == "ours padded" else Step)(model, batch, dtype)
    require_equal_losses(steps)
    arms = products.with_products({name: (lambda step=step: step() and None) for name, step in steps.items()})
    timings = method.compare(arms, "native", args.rounds, warm=1)
    what = f"{shape} {dtype} T={args.length} L={args.layers or sizes['layers']} D={sizes['hidden']}"
    print(method.guard_row(what, "native", timings), flush=True)
    memory = {name: method.peak_bytes(step) for name, step in steps.items()}
    for arm in steps:
        goal = method.Goal(GOALS[shape]) if arm == "ours" else None
        if arm != "native":
            print(method.row(what, arm, "native", timings[arm], goal, method.is_void(timings)), flush=True)
            print(method.memory_row(what, arm, "native", memory, arm == "ours"), flush=True)
    products.print_bound(what, timings, ["native"])


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    p.add_argument("--dtype", choices=("fp32", "bf16"), nargs="+", default=["fp32"])
    p.add_argument("--length", type=int, default=256, help="tokens of the longest row")
    p.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    for name in ("layers", "vocab"):
        p.add_argument(f"--{name}", type=int, help=f"instead of the {name} of the shape")
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.shape, args.dtype = min(args.rounds, method.QUICK_ROUNDS), args.shape[:1], ["fp32"]
    print(method.HEADER)
    for shape in args.shape:
        for dtype in args.dtype:
            run(args, shape, dtype)


if __name__ == "__main__":
    main()
