"""Tiny images that a tiny model can learn, and recipes on them."""

import io
import random
from pathlib import Path

import numpy as np
import PIL.Image
import yaml
from task_data import TRAINING

SIZE = 8
NAMES = ["left", "right"]


def picture(bright_left: bool, draw: random.Random, channels: int = 1) -> PIL.Image.Image:
    """A noisy image whose left or right half is brighter."""
    noise = np.array([[draw.randrange(100) for _ in range(SIZE)] for _ in range(SIZE)], dtype=np.uint8)
    half = slice(0, SIZE // 2) if bright_left else slice(SIZE // 2, SIZE)
    noise[:, half] += 120
    return PIL.Image.fromarray(noise if channels == 1 else np.stack([noise, noise // 2, 255 - noise], axis=-1))


def encoded(image: PIL.Image.Image, format: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, format)
    return stream.getvalue()


def pictures(path: Path, number=96, seed=0, channels=1, named=True) -> Path:
    """A Parquet file as datasets writes it: {"image": Image, "label": ClassLabel}."""
    import datasets

    draw = random.Random(seed)
    label = datasets.ClassLabel(names=NAMES) if named else datasets.Value("int64")
    rows = {"image": [], "label": []}
    for i in range(number):
        rows["image"].append({"bytes": encoded(picture(i % 2 == 0, draw, channels)), "path": None})
        rows["label"].append(i % 2)
    features = datasets.Features({"image": datasets.Image(), "label": label})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(path))
    return path


def picture_folder(folder: Path, number=24, seed=0, channels=1) -> Path:
    """Image files in a folder per class; returns the pattern that names them all."""
    draw = random.Random(seed)
    for i in range(number):
        path = folder / NAMES[i % 2] / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(i % 2 == 0, draw, channels).save(path)
    return folder / "*" / "*.png"


def image_recipe(folder: Path, name="recipe", channels=1, **sections) -> Path:
    """Write a recipe of image classification that trains in a second; keyword sections override single settings."""
    train = folder / "pictures.parquet"
    recipe = {
        "model": {
            "family": "vit",
            "image_size": SIZE,
            "patch_size": 4,
            "num_channels": channels,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
        },
        "data": {
            "files": str(train if train.exists() else pictures(train, channels=channels)),
            "validation_fraction": 0.2,
            "test_files": str(pictures(folder / "test.parquet", 11, seed=1, channels=channels)),
        },
        "task": {"name": "image_classification"},
        "training": TRAINING | {"output_dir": str(folder / "run")},
        "evaluation": {"every_steps": 5},
    }
    for section, values in sections.items():
        recipe[section] = values if values is None else {**(recipe.get(section) or {}), **values}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path
