"""Augmented batches of images beside the training steps that consume them.

Images are decoded once, into a store of bytes on disk. The loader reads a batch from it in random order, shifts,
mirrors and mixes it (mixup) and makes it fp32; the step is forward, backward, clipping and fused AdamW of a vision
transformer on as many images. Sizes: that of cifar10_vit, and 224 x 224 pixels in patches of 16. The figure is how many
times faster the loader is than the model.
"""

import tempfile
from pathlib import Path

import method
import numpy as np
import torch
from anyformer.pipelines.data.image_store import store_images
from anyformer.pipelines.images.augmentation import Augmentation, ImageCollator
from anyformer.pipelines.objectives.image_classification import ImageRows
from steps import Step

from anyformer import AnyformerViTConfig, AnyformerViTForImageClassification

GOAL = method.Goal(5.0)
# name -> images, batch, crop padding, and the model's sizes
SHAPES = {
    "cifar": (2048, 128, 4, {"image_size": 32, "patch_size": 4, "num_hidden_layers": 6, "hidden_size": 144}),
    "imagenet": (256, 16, 16, {"image_size": 224, "patch_size": 16, "num_hidden_layers": 4, "hidden_size": 384}),
}


def run(args, name: str, folder: Path) -> None:
    count, batch, padding, sizes = SHAPES[name]
    side, draw = sizes["image_size"], np.random.default_rng(0)

    def images():
        yield draw.integers(256, size=(count, 3, side, side), dtype=np.uint8), draw.integers(10, size=count).tolist()

    rows = ImageRows(store_images(folder, "benchmark", "benchmark", images), augment=True)
    augmentation = Augmentation(padding, horizontal_flip=0.5, mixup_alpha=0.1)
    collator = ImageCollator(augmentation, store=rows.store, num_classes=10, mean=[120.0] * 3, std=[70.0] * 3, seed=0)

    def loading() -> dict:
        return collator(rows.__getitems__(draw.permutation(count)[:batch].tolist()))

    config = AnyformerViTConfig(
        intermediate_size=3 * sizes["hidden_size"], num_attention_heads=6, num_labels=10, **sizes
    )
    inputs = {key: x for key, x in loading().items() if key in ("pixel_values", "labels")}
    step = Step(AnyformerViTForImageClassification(config), inputs, "fp32")
    arms = {"step": lambda: step() and None, "loader": lambda: loading() and None}
    timings = method.compare(arms, "step", args.rounds, warm=1)
    what = f"{batch} images of {side} x {side}, L={sizes['num_hidden_layers']} D={sizes['hidden_size']}"
    print(method.guard_row(what, "step", timings))
    print(method.row(what, "loader", "step", timings["loader"], GOAL, method.is_void(timings)), flush=True)


def main(argv=None):
    p = method.parser(__doc__, rounds=7)
    p.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.shape = min(args.rounds, method.QUICK_ROUNDS), args.shape[:1]
    torch.manual_seed(0)
    print(method.HEADER)
    for name in args.shape:
        with tempfile.TemporaryDirectory() as folder:
            run(args, name, Path(folder))


if __name__ == "__main__":
    main()
