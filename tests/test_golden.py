"""Golden losses: 20 steps of a tiny run of each family, compared with committed ones to six digits.

A change of initialisation, data order, tokenizer, masking, schedule or optimizer shows here, wanted or not. Where it is
wanted: `GOLDEN=write pytest -n 0 tests/test_golden.py`, and say in the commit why the numbers moved.
"""

import io
import json
import os
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from anyformer.pipelines.cli.commands import main
from PIL import Image

GOLDEN = Path(__file__).parent / "golden" / "losses.json"
# Six digits: machines add up in other orders, which moves the last of fp32's seven, and 20 small steps not much more.
TOLERANCE = 2e-6
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = SIZES | {"max_position_embeddings": 64}
OBJECTIVES = {
    "decoder": ({"family": "decoder", "num_key_value_heads": 2, **TEXT}, {"name": "causal"}),
    "encoder": ({"family": "encoder", **TEXT}, {"name": "masked"}),
    "seq2seq": ({"family": "seq2seq", **TEXT}, {"name": "span_corruption"}),
    "moe": ({"family": "moe", "num_experts": 4, "num_experts_per_tok": 2, **TEXT}, {"name": "causal"}),
}


def text_file(folder: Path) -> Path:
    """Documents of made-up words, the frequent ones short: the same on every machine and Python."""
    draw = random.Random(0)
    words = ["".join(chr(97 + int(draw.random() * 26)) for _ in range(1 + i // 8)) for i in range(64)]
    documents = [
        " ".join(words[int(draw.random() ** 2 * 64)] for _ in range(20 + int(draw.random() * 200))) for _ in range(40)
    ]
    path = folder / "text.txt"
    path.write_text("\n".join(documents) + "\n", encoding="ascii")
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


def recipe_of(family: str, folder: Path) -> dict:
    training = {
        "output_dir": str(folder / "run"),
        "max_steps": 20,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "adam_epsilon": 1e-6,
        "bf16": False,
        "logging_steps": 1,
        "seed": 1,
    }
    if family == "vit":
        model = {"family": "vit", "image_size": 8, "patch_size": 4, "num_channels": 1, **SIZES}
        task = {"name": "image_classification", "horizontal_flip": 0.5, "crop_padding": 1}
        return {"model": model, "data": {"files": str(image_file(folder))}, "task": task, "training": training}
    model, objective = OBJECTIVES[family]
    return {
        "model": model,
        "tokenizer": {"type": "byte_bpe", "vocab_size": 400},
        "data": {"files": str(text_file(folder)), "document": "line"},
        "objective": {"sequence_length": 32, **objective},
        "training": training,
    }


def losses_of(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("family", [*OBJECTIVES, "vit"])
def test_twenty_steps_have_the_golden_losses(family, tmp_path):
    recipe = tmp_path / "golden.yaml"
    recipe.write_text(yaml.safe_dump(recipe_of(family, tmp_path)), encoding="utf-8")
    assert main(["train", str(recipe)]) == 0
    losses = losses_of(tmp_path)
    assert len(losses) == 20
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("GOLDEN") == "write":
        known[family] = [float(f"{loss:.7g}") for loss in losses]
        GOLDEN.write_text(json.dumps(known, indent=1) + "\n", encoding="ascii")
    assert losses == pytest.approx(known[family], rel=TOLERANCE)
