"""Memory that does not suffice ends a run with two settings that need less; auto_batch finds what fits."""

import errno
import resource
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from anyformer.pipelines.accounting.devices import CPU, Devices
from anyformer.pipelines.accounting.host_memory import _limits_of_groups, memory_of_this_machine
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.global_batch import micro_batches
from anyformer.pipelines.training.engines.asked import engine_for
from anyformer.pipelines.training.engines.whole import OneProcess
from anyformer.pipelines.training.fit import auto_batch
from anyformer.pipelines.training.fit.out_of_memory import (
    is_out_of_memory,
    memory_of_recipe,
    out_of_memory_sentence,
    ways_out,
)
from anyformer.pipelines.training.trainer import AnyformerTrainer
from processes import Process, end_in_micro_batch
from run_folders import assert_same_weights, facts_of

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


# ------------------------------------------------------------------------------------------------- auto_batch

AUTO = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 6, "max_steps": 4, "save_steps": 2}


def noted(asked: list[int], most: int):
    return lambda size: asked.append(size) or size <= most


def test_the_largest_that_fits_is_found_whatever_fits():
    for product in (1, 12, 64, 97, 360):
        sizes = [number for number in range(1, product + 1) if product % number == 0]
        for most in range(product + 2):
            asked: list[int] = []
            found = auto_batch.largest(sizes, noted(asked, most))
            assert found == max([size for size in sizes if size <= most], default=0)
            assert len(asked) <= len(sizes).bit_length()


@pytest.mark.slow
def test_tried_steps_leave_no_trace_and_the_run_is_that_of_the_number_written_out(
    tiny_recipe, command, tmp_path, monkeypatch, capsys
):
    """Real steps, as on an accelerator; more than five rows do not fit here."""
    sizes, take = [], auto_batch.take_steps

    def takes_at_most_five(trainer, batch):
        take(trainer, batch)  # which changes the weights
        sizes.append(len(batch["input_ids"]))
        if sizes[-1] > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(auto_batch, "take_steps", takes_at_most_five)
    monkeypatch.setattr(auto_batch, "says_when_full", lambda device: True)
    path = tiny_recipe(training=AUTO)
    assert command("train", path, "training.auto_batch=true", "training.gradient_checkpointing=true") == 0
    assert "4 rows at a time, accumulated 3 times (by 2 steps each: 3 fit, 4 fit, 6 did not)" in capsys.readouterr().out
    found = facts_of(tmp_path / "run")
    assert found["auto_batch"]["rows"] == found["recipe"]["training"]["per_device_train_batch_size"] == 4
    assert found["recipe"]["training"]["gradient_accumulation_steps"] == 3
    whole = tmp_path / "whole"
    written = ["training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=3"]
    assert command("train", path, *written, f"training.output_dir={whole}", "training.gradient_checkpointing=true") == 0
    assert_same_weights(tmp_path / "run", whole)
    tries = len(sizes)
    assert command("train", path, "training.auto_batch=true", "training.gradient_checkpointing=true") == 0
    assert len(sizes) == tries and "is finished already" in capsys.readouterr().out
    monkeypatch.setattr(auto_batch, "take_steps", lambda *_: (_ for _ in ()).throw(MemoryError))
    assert command("train", path, "training.auto_batch=true", f"training.output_dir={tmp_path / 'none'}") == 2
    assert "not even one row at a time fits" in capsys.readouterr().err


def test_on_a_cpu_the_plan_says_what_fits_and_a_killed_run_goes_on_with_it(tiny_recipe, command, tmp_path, monkeypatch):
    path = tiny_recipe(training=AUTO | {"auto_batch": True})
    roomy = Devices(CPU, 1, 10**12, None, None)
    recipe = load_recipe(str(path))
    memory = memory_of_recipe(recipe, OneProcess(recipe.training), roomy)
    needed = memory.states("none", 1).total + memory.held(3, False).peak
    tight = Devices(CPU, 1, int(needed / auto_batch.SHARE_OF_HOST * 1.01), None, None)
    monkeypatch.setattr(auto_batch, "this_device", lambda: tight)
    text = end_in_micro_batch(11, command, "train", path, number=signal.SIGKILL, output=tmp_path / "log.txt")
    assert "3 rows at a time, accumulated 4 times (by anyformer plan: " in text
    monkeypatch.setattr(auto_batch, "this_device", lambda: roomy)
    assert command("train", path) == 0
    assert facts_of(tmp_path / "run")["auto_batch"]["rows"] == 3
    whole = tmp_path / "whole"
    written = ["training.per_device_train_batch_size=3", "training.gradient_accumulation_steps=4"]
    assert command("train", path, *written, "training.auto_batch=false", f"training.output_dir={whole}") == 0
    assert_same_weights(tmp_path / "run", whole)


def test_auto_batch_is_refused_where_a_step_is_shared_or_its_rows_are_told_apart(tiny_recipe, monkeypatch):
    recipe = load_recipe(str(tiny_recipe()), ["training.auto_batch=true"])
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UserError, match=r"^training\.auto_batch=true tries .* DeepSpeed shares a step among all"):
        auto_batch.check_auto_batch(engine_for(recipe.training))
    with pytest.raises(UserError, match=r"in_batch_negatives; set training\.per_device_train_batch_size"):
        load_recipe("stsb_bi_encoder", ["training.auto_batch=true", "task.loss=in_batch_negatives"])


def fitting(most: int, recipe, objective, model, devices, sizes) -> tuple[int, str]:
    return max(size for size in sizes if size <= most), ""


@pytest.mark.parametrize("named", [True, False])
def test_a_step_keeps_its_rows_whatever_fits_and_however_many_processes_share_them(named, tiny_recipe, monkeypatch):
    step = ["training.global_batch_size=24"] if named else ["training.gradient_accumulation_steps=6"]
    recipe = load_recipe(str(tiny_recipe()), ["training.per_device_train_batch_size=4", *step])
    for processes, most, expected in ((1, 9, (8, 3)), (2, 9, (6, 2)), (3, 1, (1, 8)), (4, 24, (6, 1))):
        rows = micro_batches(recipe.training, processes, 24)
        arguments = SimpleNamespace(
            train_batch_size=rows[0], gradient_accumulation_steps=rows[1], device=torch.device("cpu")
        )
        monkeypatch.setattr(auto_batch, "estimated", partial(fitting, most))
        data, engine = SimpleNamespace(objective=None), OneProcess(recipe.training)
        found = auto_batch.find_batch(recipe, engine, data, None, arguments, None, int)
        chosen = auto_batch.with_rows(recipe, found["rows"]).training
        assert (found["rows"], found["accumulated"]) == micro_batches(chosen, processes, 24) == expected
