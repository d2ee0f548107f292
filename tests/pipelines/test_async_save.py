"""Checkpoints written beside the training hold what those written at once hold, and are complete or invisible."""

import json
import os
import signal
import threading
import time
from contextlib import nullcontext

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.storage.checkpoints import STAGING, find_corruption, list_checkpoints
from anyformer.pipelines.training.async_save import CheckpointWrites, check_async_save, on_host
from anyformer.pipelines.training.trainer import AnyformerTrainer
from processes import end_in_micro_batch, logged_losses, run_ranks
from safetensors.torch import load_file
from test_distributed import rank_main
from torch.utils._pytree import tree_flatten

SHORT = {"max_steps": 6, "save_steps": 2, "save_total_limit": 3, "ema_decay": 0.9}


def assert_same_checkpoint(ours, theirs) -> None:
    """All but what names the run's folder and settings."""
    names = {path.name for path in ours.iterdir()}
    assert names == {path.name for path in theirs.iterdir()} and find_corruption(ours) is None
    for name in ("model.safetensors", "weight_average.safetensors"):
        a, b = load_file(ours / name), load_file(theirs / name)
        assert a.keys() == b.keys() and all(a[key].equal(b[key]) for key in b)
    for name in ("optimizer.pt", "scheduler.pt"):
        (a, how), (b, same) = (tree_flatten(torch.load(folder / name, weights_only=True)) for folder in (ours, theirs))
        assert how == same and all(x.equal(y) if torch.is_tensor(x) else x == y for x, y in zip(a, b))
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_is_written_beside_the_training_is_what_is_written_at_once(tied, tiny_recipe, command, tmp_path):
    path = tiny_recipe(training=SHORT, model={"tie_word_embeddings": tied})
    for name, beside in (("run", "true"), ("whole", "false")):
        folder = f"training.output_dir={tmp_path / name}"
        assert command("train", path, folder, f"training.async_save={beside}") == 0
    ours, theirs = (list_checkpoints(tmp_path / name) for name in ("run", "whole"))
    assert [found.name for found in ours] == ["checkpoint-6", "checkpoint-4", "checkpoint-2"]
    for a, b in zip(ours, theirs):
        assert_same_checkpoint(a, b)
    assert not (tmp_path / "run" / STAGING).exists()
    assert json.loads((ours[0] / "config.json").read_text())["use_cache"] is True


def never_ends_for(name: str):
    """In this (forked) process: the optimizer's file of a checkpoint gets half of itself, then nothing more.

    The sixth step begins after that.
    """
    save, step, begun = torch.save, AnyformerTrainer.training_step, threading.Event()

    def half(obj, path, *args, **kwargs):
        if name in str(path) and "optimizer" in str(path):
            assert threading.current_thread().name == "checkpoint"
            path.write_bytes(b"half")
            begun.set()
            threading.Event().wait()
        return save(obj, path, *args, **kwargs)

    def training_step(self, *args, **kwargs):
        assert self.state.global_step < 5 or begun.wait(60)
        return step(self, *args, **kwargs)

    torch.save, AnyformerTrainer.training_step = half, training_step


def train_with_a_slow_disk(name: str, command, *arguments) -> int:
    never_ends_for(name)
    return command(*arguments)


def test_training_goes_on_while_a_checkpoint_is_written_and_a_kill_then_leaves_the_one_before(
    tiny_recipe, command, tmp_path
):
    path = tiny_recipe(training=SHORT | {"async_save": True})
    broken = (train_with_a_slow_disk, "checkpoint-4", command, "train", path)
    end_in_micro_batch(6, *broken, output=tmp_path / "log.txt")  # that of step 6: step 5 was made meanwhile
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert [found.name for found in list_checkpoints(run)] == ["checkpoint-2"]
    assert (run / STAGING / "checkpoint-4" / "optimizer.pt").read_bytes() == b"half"
    assert command("train", path) == command("train", path, f"training.output_dir={whole}") == 0
    ours, theirs = load_file(run / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert logged_losses(run) == logged_losses(whole) and not (run / STAGING).exists()


@pytest.mark.parametrize("ends_by", ["a signal", "an error"])
def test_what_is_being_written_is_finished_before_a_run_ends(ends_by, tiny_recipe, command, tmp_path, monkeypatch):
    """The fifth step begins while checkpoint-4 is written, which waits for that step to begin."""
    save, step, begun = torch.save, AnyformerTrainer.training_step, threading.Event()

    def waits(obj, path, *args, **kwargs):
        if "checkpoint-4" in str(path) and "optimizer" in str(path):
            assert begun.wait(60)
            time.sleep(0.2)
        return save(obj, path, *args, **kwargs)

    def training_step(self, *args, **kwargs):
        if self.state.global_step == 4:
            begun.set()
            if ends_by == "an error":
                raise UserError("the fifth step")
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch, "save", waits)
    monkeypatch.setattr(AnyformerTrainer, "training_step", training_step)
    path = tiny_recipe(training=SHORT | {"async_save": True})
    assert command("train", path) == (2 if ends_by == "an error" else 128 + signal.SIGTERM)
    found = list_checkpoints(tmp_path / "run")
    expected = ["checkpoint-5", "checkpoint-4", "checkpoint-2"]
    assert [one.name for one in found] == expected[ends_by == "an error" :]
    assert [find_corruption(one) for one in found] == [None] * len(found)
    assert not (tmp_path / "run" / STAGING).exists()


@pytest.mark.slow
def test_two_processes_write_beside_the_training_what_they_write_at_once(tiny_recipe, command, tmp_path):
    path = tiny_recipe(training=SHORT)
    for name, beside in (("run", "true"), ("whole", "false")):
        (tmp_path / f"ranks-{name}").mkdir()
        options = (f"training.output_dir={tmp_path / name}", f"training.async_save={beside}")
        run_ranks(2, rank_main, command, path, *options, folder=tmp_path / f"ranks-{name}")
    for ours, theirs in zip(*(list_checkpoints(tmp_path / name) for name in ("run", "whole")), strict=True):
        assert_same_checkpoint(ours, theirs)
        assert (ours / "rng_state_1.pth").is_file()


def test_a_disk_that_is_full_beside_the_training_is_told_and_leaves_the_checkpoint_before(
    tiny_recipe, command, tmp_path, monkeypatch, capsys
):
    save = torch.save

    def full(obj, path, *args, **kwargs):
        if "checkpoint-4" in str(path) and "optimizer" in str(path):
            raise OSError(28, "No space left on device")
        return save(obj, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    assert command("train", tiny_recipe(training=SHORT | {"async_save": True})) == 2
    error = capsys.readouterr().err
    assert "the disk is full" in error and "checkpoint-4 could not be written" in error
    assert [found.name for found in list_checkpoints(tmp_path / "run")] == ["checkpoint-2"]
    assert not (tmp_path / "run" / STAGING).exists()


def test_one_checkpoint_is_written_at_a_time_and_errors_come_out_where_it_is_waited_for():
    writes, done, gate = CheckpointWrites(beside=True), [], threading.Event()
    writes.add(gate.wait)
    writes.publish(lambda: done.append("first"), nullcontext())
    assert done == []
    threading.Timer(0.05, gate.set).start()
    writes.wait()
    assert done == ["first"]
    writes.add(lambda: 1 / 0)
    writes.publish(lambda: done.append("second"), nullcontext())
    with pytest.raises(ZeroDivisionError):
        writes.wait()
    writes.wait()
    writes.add(lambda: time.sleep(0.01))
    writes.finish()
    assert done == ["first"]


def test_copies_do_not_see_what_happens_to_the_tensors_afterwards():
    values = {"state": {0: {"step": torch.tensor(1.0), "m": torch.ones(3)}}, "groups": [{"lr": 0.1, "params": [0]}]}
    copies = on_host(values)
    values["state"][0]["m"].zero_()
    assert copies["state"][0]["m"].tolist() == [1, 1, 1] and copies["groups"] == values["groups"]


def test_engines_that_split_states_refuse_it(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    check_async_save(TrainingSection())
    with pytest.raises(UserError, match=r"^training\.async_save=true copies whole weights .* FSDP splits them"):
        check_async_save(TrainingSection(async_save=True))
