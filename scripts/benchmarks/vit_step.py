"""One optimizer step of image classification: transformers' ViT and ours, with equal weights and images.

A step is forward, backward, clipping, fused AdamW and clearing the gradients. Arms: native eager, native sdpa, ours;
the goal is against the faster of the native ones. Peak memory is what one step allocates at most.
"""

import method
import products
import torch
from steps import Step, require_equal_losses
from transformers import ViTConfig, ViTForImageClassification

import anyformer

GOAL = method.Goal(1.10)
ARMS = ("native eager", "native sdpa", "ours")


def run(args, dtype: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (args.batch, 3, args.image, args.image)
    batch = {
        "pixel_values": torch.randn(shape, generator=generator),
        "labels": torch.randint(args.classes, (args.batch,), generator=generator),
    }
    steps = {}
    for arm in args.arms:
        torch.manual_seed(0)
        native = ViTForImageClassification._from_config(
            ViTConfig(
                hidden_size=args.hidden,
                num_hidden_layers=args.layers,
                num_attention_heads=args.heads,
                intermediate_size=4 * args.hidden,
                image_size=args.image,
                patch_size=args.patch,
                num_labels=args.classes,
            ),
            attn_implementation="eager" if arm == "native eager" else "sdpa",
        )
        model = native if arm.startswith("native") else anyformer.from_native(native)
        steps[arm] = Step(model, batch, dtype)
    require_equal_losses(steps)
    arms = products.with_products({name: (lambda step=step: step() and None) for name, step in steps.items()})
    reference = args.arms[0]
    timings = method.compare(arms, reference, args.rounds, warm=1)
    what = f"{dtype} {args.image}/{args.patch} B={args.batch} L={args.layers} D={args.hidden}"
    print(method.guard_row(what, reference, timings), flush=True)
    memory = {name: method.peak_bytes(step) for name, step in steps.items()}
    natives = [name for name in args.arms if name.startswith("native")]
    for arm in args.arms[1:]:
        for peer in natives if arm == "ours" else [reference]:
            timing = method.relative_to(timings, peer, arm)
            goal = GOAL if arm == "ours" else None
            print(method.row(what, arm, peer, timing, goal, method.is_void(timings)), flush=True)
            print(method.memory_row(what, arm, peer, memory, arm == "ours"), flush=True)
    products.print_bound(what, timings, natives)


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--dtype", choices=("fp32", "bf16"), nargs="+", default=["fp32", "bf16"])
    p.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    sizes = {"layers": 4, "hidden": 384, "heads": 6, "batch": 4, "image": 224, "patch": 16, "classes": 1000}
    for name, default in sizes.items():
        p.add_argument(f"--{name}", type=int, default=default)
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.layers, args.dtype = min(args.rounds, method.QUICK_ROUNDS), 2, ["fp32"]
    print(method.HEADER)
    for dtype in args.dtype:
        run(args, dtype)


if __name__ == "__main__":
    main()
