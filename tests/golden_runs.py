"""Tiny runs of each family and task: what test_golden.py and scripts/benchmarks/compare_losses.py train.

Texts and images are drawn with `random.Random.random` alone, which gives the same numbers on every machine and Python.
"""

import io
import json
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet
from PIL import Image

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = SIZES | {"max_position_embeddings": 64}
OBJECTIVES = {
    "decoder": ({"family": "decoder", "num_key_value_heads": 2, **TEXT}, {"name": "causal"}),
    "encoder": ({"family": "encoder", **TEXT}, {"name": "masked"}),
    "seq2seq": ({"family": "seq2seq", **TEXT}, {"name": "span_corruption"}),
    "moe": ({"family": "moe", "num_experts": 4, "num_experts_per_tok": 2, **TEXT}, {"name": "causal"}),
}
TOKENIZER = {"type": "byte_bpe", "vocab_size": 400}
# These have dropout and a validation split: random numbers and evaluation are compared, too.
SCORED = ("pixels", "translation", "sequence_classification")
FAMILIES = (*OBJECTIVES, "vit", *SCORED)


def made_up_words(draw: random.Random) -> list[str]:
    """64 words, the first ones short."""
    return ["".join(chr(97 + int(draw.random() * 26)) for _ in range(1 + i // 8)) for i in range(64)]


def text_file(folder: Path) -> Path:
    """Documents of made-up words, the frequent ones short."""
    draw = random.Random(0)
    words = made_up_words(draw)
    documents = [
        " ".join(words[int(draw.random() ** 2 * 64)] for _ in range(20 + int(draw.random() * 200))) for _ in range(40)
    ]
    path = folder / "text.txt"
    path.write_text("\n".join(documents) + "\n", encoding="ascii")
    return path


def example_file(folder: Path) -> Path:
    """Lines with a text of 3 to 20 made-up words, the same words spelt backwards, and the parity of their number."""
    draw, lines = random.Random(1), []
    words = made_up_words(draw)
    for _ in range(120):
        text = [words[int(draw.random() ** 2 * 64)] for _ in range(3 + int(draw.random() * 18))]
        row = {"text": " ".join(text), "reversed": " ".join(word[::-1] for word in text), "label": len(text) % 2}
        lines.append(json.dumps(row) + "\n")
    path = folder / "examples.jsonl"
    path.write_text("".join(lines), encoding="ascii")
    return path


def image_file(folder: Path) -> Path:
    """Grey images of 8 x 8 pixels, one half brighter than the other: which one is the class."""
    draw, rows = random.Random(0), []
    for number in range(200):
        label = number % 2
        pixels = bytes(int(draw.random() * 128) + 100 * ((x < 4) == bool(label)) for _ in range(8) for x in range(8))
        file = io.BytesIO()
        Image.frombytes("L", (8, 8), pixels).save(file, "PNG")
        rows.append({"image": {"bytes": file.getvalue(), "path": None}, "label": label})
    path = folder / "images.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def recipe_of(family: str, folder: Path, steps: int = 20) -> dict:
    """The recipe of one of FAMILIES, training `steps` steps into folder/run on data that is written into `folder`."""
    training = {
        "output_dir": str(folder / "run"),
        "max_steps": steps,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "adam_epsilon": 1e-6,
        "bf16": False,
        "logging_steps": 1,
        "seed": 1,
    }
    return sections_of(family, folder) | {"training": training}


def sections_of(family: str, folder: Path) -> dict:
    """Every section but `training`."""
    if family == "vit":
        return {
            "model": {"family": "vit", "image_size": 8, "patch_size": 4, "num_channels": 1, **SIZES},
            "data": {"files": str(image_file(folder))},
            "task": {"name": "image_classification", "horizontal_flip": 0.5, "crop_padding": 1},
        }
    if family == "pixels":
        return {
            "model": {"family": "decoder", "position_encoding": "learned", "hidden_dropout": 0.1, **SIZES},
            "data": {"files": str(image_file(folder)), "validation_fraction": 0.2},
            "objective": {"name": "pixels", "image_size": 8, "clusters": 8},
            "evaluation": {"every_steps": 10},
        }
    if family in ("translation", "sequence_classification"):
        columns = {"source_field": "text", "target_field": "reversed"} if family == "translation" else {}
        return {
            "model": {"family": "seq2seq" if columns else "encoder", "hidden_dropout": 0.1, **TEXT},
            "tokenizer": TOKENIZER,
            "data": {"files": str(example_file(folder)), "validation_fraction": 0.2},
            "task": {"name": family, "max_length": 48, **columns},
            "evaluation": {"every_steps": 10},
        }
    model, objective = OBJECTIVES[family]
    return {
        "model": model,
        "tokenizer": TOKENIZER,
        "data": {"files": str(text_file(folder)), "document": "line"},
        "objective": {"sequence_length": 32, **objective},
    }


def losses_of(run: Path) -> list[float]:
    """The training losses that a run logged, by step."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]
