"""A tiny recipe on real text, and ways to run it."""

import json
import shutil
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import yaml
from processes import end_in_micro_batch, free_port, logged_losses, run_ranks


@pytest.fixture
def text_file(tmp_path) -> Path:
    """About 150 kB of Python's own documentation, a document per line."""
    path = tmp_path / "topics.jsonl"
    lines = [json.dumps({"text": topics[name]}) for name in sorted(topics)[:24]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def tiny_recipe(tmp_path, text_file):
    """Factory: write a recipe that trains in a second or two; keyword sections override, `None` removes a section."""

    def make(name="tiny", **sections) -> Path:
        recipe = {
            "model": {
                "family": "decoder",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 64,
                "hidden_dropout": 0.1,
            },
            "tokenizer": {"type": "byte_bpe", "vocab_size": 512},
            "data": {"files": str(text_file), "validation_fraction": 0.1},
            "objective": {"name": "causal", "sequence_length": 48},
            "training": {
                "output_dir": str(tmp_path / "run"),
                "max_steps": 24,
                "per_device_train_batch_size": 4,
                "learning_rate": 5e-3,
                "bf16": False,
                "logging_steps": 1,
                "save_steps": 5,
            },
            "evaluation": {"metrics": ["perplexity", "unigram_perplexity"], "max_rows": 8},
        }
        for section, values in sections.items():
            recipe[section] = recipe.get(section, {}) | values if values is not None else None
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        return path

    return make


@pytest.fixture
def command():
    """The command line as a function in this process: arguments -> exit code."""
    from anyformer.pipelines.cli.commands import main

    return lambda *arguments: main([str(a) for a in arguments])


@pytest.fixture
def alone(command, tmp_path):
    """Train a recipe in this process -> (run.json, losses, folder)."""

    def run(recipe, *overrides):
        run = tmp_path / f"alone-{free_port()}"
        assert command("train", recipe, f"training.output_dir={run}", *overrides) == 0
        return json.loads((run / "run.json").read_text()), logged_losses(run), run

    return run


@pytest.fixture
def ranks(command, tmp_path):
    """Train a recipe in some gloo ranks, from a checkpoint where one is given -> (run.json, losses, folder)."""
    from test_distributed import rank_main

    def run(count, recipe, *overrides, start=None):
        folder = tmp_path / f"ranks-{free_port()}"
        folder.mkdir()
        run = folder / "run"
        if start is not None:
            shutil.copytree(start, run / start.name)
        words = (recipe, f"training.output_dir={run}", *overrides)
        run_ranks(count, rank_main, command, *words, folder=folder, env={"DS_ACCELERATOR": "cpu"})
        facts = json.loads((run / "run.json").read_text())
        assert facts["world_size"] == count and facts["status"] == "finished"
        return facts, logged_losses(run), run

    return run


@pytest.fixture
def whole_and_killed(command, tmp_path):
    """Train in two folders, in the second killed in that micro-batch and begun again: equal weights and numbers."""
    from run_folders import assert_same_weights, facts_of

    def run(micro_batch, *arguments, weights="model.safetensors"):
        whole, broken = tmp_path / "whole", tmp_path / "broken"
        assert command("train", *arguments, f"training.output_dir={whole}") == 0
        again = ("train", *arguments, f"training.output_dir={broken}")
        end_in_micro_batch(micro_batch, command, *again, output=tmp_path / "log.txt")
        assert not (broken / weights).exists()
        assert command(*again) == 0
        assert_same_weights(whole, broken, weights)
        one, other = facts_of(whole), facts_of(broken)
        assert one["metrics"] == other["metrics"] and one["best_step"] == other["best_step"]
        return whole, broken

    return run


@pytest.fixture
def without_launcher(monkeypatch):
    """A machine without GPUs, and no launcher around the tests."""
    from anyformer.pipelines.training.engines import launch

    for name in (*launch.RANKS, "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launch, "count_gpus", lambda: 0)
