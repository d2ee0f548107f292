"""What `anyformer plan` counts of an adapter's training is what a real step holds: states exactly, the peak closely."""

import ctypes
import importlib.util
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from anyformer.pipelines.accounting.devices import CPU, Devices, devices_of
from anyformer.pipelines.accounting.plan import plan_run
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.engines.whole import OneProcess
from anyformer.pipelines.training.fit.out_of_memory import memory_of_recipe, ways_out
from anyformer.pipelines.training.trainer import AnyformerTrainer
from processes import Process
from task_data import random_decoder
from transformers import AutoModelForCausalLM, LlamaConfig

pytest.importorskip("peft")

TOLERANCE = 0.10
SIZES = {
    "small": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 16384},
    "deep": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 16, "vocab_size": 2048},
    "wide": {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 3, "vocab_size": 8192},
}
TIED = {"small": True, "deep": False, "wide": False}
HAS_4_BITS = importlib.util.find_spec("bitsandbytes") is not None
NF4 = pytest.param("nf4", marks=pytest.mark.skipif(not HAS_4_BITS, reason="needs bitsandbytes"))
MMAP_THRESHOLD = -3  # of mallopt: larger blocks go back to the system as soon as they are freed


def resident(reset: bool = False) -> tuple[int, int]:
    """(bytes of this process in memory, the most since the last reset)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    now, most = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


def tensors_of(weight: torch.Tensor) -> list[torch.Tensor]:
    """What a weight is kept in; bitsandbytes keeps scales and tables beside packed weights."""
    packed = getattr(weight, "quant_state", None)
    if packed is None:
        return [weight]
    second = packed.state2
    return [weight, packed.absmax, packed.code, packed.offset, second.absmax, second.code]


def size_of(tensors) -> int:
    """Bytes; a tensor that several share counts once."""
    return sum({x.data_ptr(): x.numel() * x.element_size() for x in tensors}.values())


def measuring(path: Path, function, *arguments) -> int:
    """Call the function; of the second micro-batch of the second step write the bytes of its states and its growth."""
    ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 1 << 16)
    step, numbers = AnyformerTrainer.training_step, itertools.count()

    def training_step(self, model, *args, **kwargs):
        if next(numbers) != 3:
            return step(self, model, *args, **kwargs)
        before, _ = resident(reset=True)
        loss = step(self, model, *args, **kwargs)
        grown = resident()[1] - before
        weights = list(model.parameters())
        states = [x for state in self.optimizer.state.values() for name, x in state.items() if name != "step"]
        sizes = {
            "weights": size_of(x for weight in weights for x in tensors_of(weight)),
            "gradients": size_of(weight.grad for weight in weights if weight.grad is not None),
            "optimizer": size_of(states),
        }
        path.write_text(json.dumps(sizes | {"grown": grown}))
        return loss

    AnyformerTrainer.training_step = training_step
    return function(*arguments)


@pytest.fixture
def recipe_of(tmp_path, tiny_recipe):
    """(size, base, checkpointing, more settings) -> (recipe file, overrides) of an adapter's training."""

    def make(size: str, base: str, checkpointing: bool, *more: str) -> tuple[Path, list[str]]:
        folder = random_decoder(tmp_path / size, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
        ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "tie_word_embeddings": TIED[size]}
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(LlamaConfig(**SIZES[size], **heads, **ids)).save_pretrained(folder)
        training = {"max_steps": 2, "gradient_accumulation_steps": 2, "bf16": True, "optim": "adamw"}
        training |= {"gradient_checkpointing": checkpointing, "save_steps": 2}
        path = tiny_recipe(
            model=None,
            tokenizer=None,
            training=training | {"lora": {"base": base, "r": 8, "target_modules": "all-linear", "dropout": 0.0}},
            objective={"name": "causal", "sequence_length": 256},
            data={"validation_fraction": 0.0},
            evaluation=None,
        )
        return path, [f"model.name_or_path={folder}", *more]

    return make


def planned_and_measured(recipe: tuple[Path, list[str]], command, tmp_path) -> tuple:
    path, overrides = recipe
    process = Process(measuring, tmp_path / "sizes.json", command, "train", path, *overrides, output=tmp_path / "log")
    assert process.wait(1200) == 0, process.text()
    found = plan_run(load_recipe(str(path), overrides), devices_of("cpu"))
    return found, json.loads((tmp_path / "sizes.json").read_text())


CELLS = list(itertools.product(SIZES, ("float32", "bfloat16", "nf4"), (False, True)))


@pytest.mark.parametrize("size, base, checkpointing", [pytest.param(*c, marks=pytest.mark.slow) for c in CELLS])
def test_the_peak_of_a_step_is_within_a_tenth_of_the_plan(size, base, checkpointing, recipe_of, command, tmp_path):
    found, measured = planned_and_measured(recipe_of(size, base, checkpointing), command, tmp_path)
    row, states = found.memory.chosen, found.memory.chosen.states
    held = sum(measured[name] for name in ("weights", "gradients", "optimizer"))
    print(
        size, base, checkpointing, "planned", row.total, row.total - states.total + states.beside, "measured", measured
    )
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(states, name) == measured[name], name
    assert row.total == pytest.approx(held + measured["grown"], rel=TOLERANCE)
    assert not found.notes[1:]
