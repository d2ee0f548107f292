#!/usr/bin/env python
"""A convolutional network of a vision transformer's size, the baseline that the notes compare with.

The script writes an untrained ResNet of transformers (He et al. 2016, basic blocks) with the image processor, the
classes and nearly the number of parameters of an existing run. Recipes start from it (model.name_or_path), so that
images, steps and metrics are the recipe's:

    anyformer train fashion_mnist_vit
    python scripts/results/cnn.py runs/cnn_untrained --like runs/fashion_mnist_vit
    anyformer sweep scripts/results/cnn_or_transformer.yaml
"""

import argparse

import torch
from transformers import AutoModelForImageClassification, ResNetConfig, ResNetForImageClassification
from transformers.models.auto.image_processing_auto import AutoImageProcessor


def network(width: int, like) -> ResNetForImageClassification:
    """Three stages of two blocks of width, 2 x width and 4 x width channels, for the classes of the config `like`."""
    sizes = [width, 2 * width, 4 * width]
    labels = {"id2label": like.id2label, "label2id": like.label2id}
    shape = {"embedding_size": width, "hidden_sizes": sizes, "depths": [2, 2, 2], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(num_channels=like.num_channels, **shape, **labels))


def parameters(model) -> int:
    """The model's number of parameters."""
    return sum(weight.numel() for weight in model.parameters())


def main() -> None:
    """Write a model without training that is as large as that of a run."""
    import anyformer  # noqa: F401  (its models are registered)

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", help="where the model is written")
    parser.add_argument("--like", required=True, metavar="RUN", help="a finished run of image classification")
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    like = AutoModelForImageClassification.from_pretrained(args.like)
    with torch.device("meta"):
        size = parameters(like)
        width = min(range(8, 257, 4), key=lambda width: abs(parameters(network(width, like.config)) - size))
    torch.manual_seed(args.seed)
    model = network(width, like.config)
    model.save_pretrained(args.folder)
    AutoImageProcessor.from_pretrained(args.like).save_pretrained(args.folder)
    print(f"{args.folder}: {parameters(model):,} parameters for {size:,} of {args.like}, {width} wide")


if __name__ == "__main__":
    main()
