"""Memory that does not suffice ends a run with two settings that need less."""

import errno
import resource
from pathlib import Path

import pytest
import torch
from anyformer.pipelines.accounting.devices import CPU, Devices
from anyformer.pipelines.accounting.host_memory import _limits_of_groups, memory_of_this_machine
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.stage_plan import stages_of
from anyformer.pipelines.training.engines.whole import OneProcess
from anyformer.pipelines.training.fit.out_of_memory import (
    is_out_of_memory,
    memory_of_recipe,
    out_of_memory_sentence,
    ways_out,
)
from anyformer.pipelines.training.stages.stage_run import StageRun
from anyformer.pipelines.training.trainer import AnyformerTrainer
from processes import Process

WIDE = {"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4}
ROOM = 200 << 20  # bytes beside what a process has before its first step: less than that step of the wide model takes


def with_little_memory(function, *arguments) -> int:
    """Call the function; from its first training step on this (forked) process gets no more than ROOM."""
    step = AnyformerTrainer.training_step

    def training_step(self, *args, **kwargs):
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, resource.RLIM_INFINITY))
        return step(self, *args, **kwargs)

    AnyformerTrainer.training_step = training_step
    return function(*arguments)


@pytest.mark.parametrize("options", [[], pytest.param(["--dry-run"], marks=pytest.mark.slow)])
def test_a_training_without_memory_ends_in_one_sentence_with_two_settings(options, tiny_recipe, command, tmp_path):
    path = tiny_recipe(model=WIDE, training={"per_device_train_batch_size": 256, "gradient_accumulation_steps": 3})
    process = Process(with_little_memory, command, "train", path, *options, output=tmp_path / "log.txt")
    assert process.wait() == 2, process.text()
    line = process.text().strip().splitlines()[-1]
    assert line.startswith("anyformer: out of memory (") and " on cpu) in training with 256 rows at a time; " in line
    assert "training.gradient_checkpointing=true (activations of 0." in line and "by anyformer plan)" in line
    rows, times = (
        int(line.partition(f"training.{name}=")[2].split()[0])
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    assert rows * times == 256 * 3 and rows < 256
    assert not (tmp_path / "run" / ".incomplete").exists()


def test_what_is_named_is_what_can_be_changed_and_keeps_the_global_batch(tiny_recipe):
    """By the plan where it counts the model, else half the rows; other settings where there is one row."""
    path = tiny_recipe(model=WIDE)

    def ways(memory_bytes: int | None, *overrides, evaluates=False) -> list[str]:
        recipe = load_recipe(str(path), overrides)
        devices = Devices(CPU, 1, memory_bytes or 1, None, None)
        engine = OneProcess(recipe.training)
        memory = memory_of_recipe(recipe, engine, devices) if memory_bytes else None
        return ways_out(recipe, engine, evaluates, devices, memory)

    batch = "training.per_device_train_batch_size="
    assert ways(None, f"{batch}12", "training.gradient_accumulation_steps=2")[0] == (
        f"{batch}6 with training.gradient_accumulation_steps=4 instead of 12 with 2 (the same global batch)"
    )
    recipe = load_recipe(str(path), [f"{batch}64"])
    memory = memory_of_recipe(recipe, OneProcess(recipe.training), Devices(CPU, 1, 1, None, None))
    for fits in (5, 40):  # of 64 rows
        room = memory.states("none", 1).total + memory.held(fits, False).peak
        named = ways(room, f"{batch}64")[0]
        assert named.startswith(f"{batch}{4 if fits == 5 else 32} with")
    assert [way.partition("=")[0] for way in ways(None, f"{batch}1", "training.gradient_checkpointing=true")[:2]] == [
        "objective.sequence_length",
        "--launch zero3_offload, which splits the states over processes and keeps them in the host's memory",
    ]
    assert ways(None, evaluates=True)[:2] == [
        "training.per_device_eval_batch_size=2 instead of 4 (the results are the same)",
        "objective.sequence_length=24 instead of 48",
    ]


def test_memory_that_an_evaluation_lacks_is_told_with_its_own_settings(tiny_recipe):
    def evaluation_loop():  # as Trainer calls it
        raise MemoryError

    recipe = load_recipe(str(tiny_recipe()), ["training.per_device_eval_batch_size=6"])
    with pytest.raises(MemoryError) as error:
        evaluation_loop()
    sentence = out_of_memory_sentence(recipe, OneProcess(recipe.training), error.value)
    assert " in an evaluation with 6 rows at a time; set training.per_device_eval_batch_size=3 instead of 6" in sentence


def test_memory_that_a_stage_lacks_is_told_with_its_own_settings(tiny_recipe):
    path = tiny_recipe(training={"global_batch_size": 8})
    stages = "stages=[{until: 0.5, sequence_length: 16}, {until: 1.0, per_device_train_batch_size: 3}]"
    for told, words in (
        ("per_device_train_batch_size=1 instead of 2 (the same global batch)", []),
        ("sequence_length=24 instead of 48", ["stages.1.global_batch_size=1", "training.gradient_checkpointing=true"]),
    ):
        recipe = load_recipe(str(path), [stages, *words])
        last = stages_of(recipe)[1]
        run = StageRun(last, None, None, 8, 1 if words else 2, 4, 0)
        sentence = out_of_memory_sentence(recipe, OneProcess(recipe.training), MemoryError(), run)
        assert f"in training with {run.micro_batch} row" in sentence and f"; set stages.1.{told}" in sentence


def test_errors_of_memory_are_told_from_others():
    chained = ValueError("another")
    chained.__cause__ = torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(2**60)
    for error in (chained, MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), of_torch.value):
        assert is_out_of_memory(error)
    for error in (ValueError("out of range"), RuntimeError("shape mismatch"), OSError(errno.ENOSPC, "full"), None):
        assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    ("line", "file"), [("0::/job", "job/memory.max"), ("4:memory:/pod/job", "memory/pod/memory.limit_in_bytes")]
)
def test_the_memory_of_a_container_is_its_limit_in_both_versions_of_control_groups(line, file, tmp_path):
    groups = tmp_path / "cgroup"
    groups.write_text(f"3:cpu:/\n{line}\n")
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("max\n")
    assert list(_limits_of_groups(str(groups), tmp_path)) == []
    (tmp_path / file).write_text("123456\n")
    assert list(_limits_of_groups(str(groups), tmp_path)) == [123456]
    assert list(_limits_of_groups(str(tmp_path / "none"))) == [] and memory_of_this_machine() > 2**20
