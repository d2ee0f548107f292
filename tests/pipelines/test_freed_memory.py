"""Batches of ever new sizes do not fill up the host's memory."""

import json
import os
import random
import subprocess
import sys

import pytest
import yaml

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
MARGIN = 0.15  # GB in 120 steps; it was 0.9 while the caches held every number of rows


def test_caches_of_products_are_small_unless_the_user_says_how_large_they_are():
    code = f"import os, anyformer_main, anyformer.pipelines; print(*(os.environ[name] for name in {CACHES}))"
    for given, expected in (({}, "256 256"), ({CACHES[0]: "9"}, "9 256")):
        env = {name: value for name, value in os.environ.items() if name not in CACHES} | given
        ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == expected


@pytest.mark.slow
def test_the_memory_of_a_training_on_texts_of_many_lengths_does_not_grow(tmp_path):
    draw, texts = random.Random(0), tmp_path / "texts.jsonl"
    words = [" ".join(str(draw.randrange(1000)) for _ in range(draw.randrange(10, 180))) for _ in range(640)]
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(words)]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        "model": {"family": "encoder", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
        "tokenizer": {"type": "byte_bpe", "vocab_size": 300},
        "data": {"files": str(texts)},
        "task": {"name": "sequence_classification", "max_length": 512},
        "training": {"output_dir": str(tmp_path / "run"), "max_steps": 160, "per_device_train_batch_size": 4},
    }
    recipe["model"] |= {"max_position_embeddings": 512}
    recipe["training"] |= {"bf16": True, "logging_steps": 20, "save_steps": 1000}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    env = {name: value for name, value in os.environ.items() if name not in CACHES}
    train = [sys.executable, "-m", "anyformer_main", "train", str(tmp_path / "recipe.yaml")]
    subprocess.run(train, env=env, capture_output=True, check=True)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    peaks = {line["step"]: line["memory_gb"] for line in lines if "memory_gb" in line}
    assert peaks[160] - peaks[40] < MARGIN, peaks
