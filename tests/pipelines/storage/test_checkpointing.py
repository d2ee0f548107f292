"""A checkpoint is complete or invisible, and damage is found."""

import json
import os
import shutil

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.manifest import find_change
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.storage.atomic import make_sibling_folder, replaced_file, write_atomically
from anyformer.pipelines.storage.checkpoints import STAGING, commit, find_last_complete, list_checkpoints, prune
from anyformer.pipelines.training.checkpoints.resume import check_engine
from anyformer.pipelines.training.checkpoints.safe_load import find_foreign
from anyformer.pipelines.training.engines.whole import OneProcess
from hypothesis import given
from hypothesis import strategies as st
from run_folders import make_checkpoint
from safetensors.torch import save_file


def test_newest_complete_checkpoint_is_found_by_number_not_by_name(tmp_path):
    for step in (9, 100, 20):
        make_checkpoint(tmp_path, step)
    for name in ("checkpoint-x", "corrupt-checkpoint-500", "my-checkpoint-700"):
        (tmp_path / name).mkdir()
    assert [p.name for p in list_checkpoints(tmp_path)] == ["checkpoint-100", "checkpoint-20", "checkpoint-9"]
    assert find_last_complete(tmp_path).name == "checkpoint-100"


def test_the_files_of_a_checkpoint_have_the_mode_of_the_umask(tmp_path):
    staged, before = tmp_path / STAGING / "checkpoint-1", os.umask(0o026)
    staged.mkdir(parents=True)
    save_file({"x": torch.zeros(1)}, staged / "model.safetensors")  # which makes it for its owner alone
    commit(staged, tmp_path / "checkpoint-1")
    os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "checkpoint-1").iterdir()} == {0o640}


def test_what_is_not_this_user_s_own_in_a_checkpoint_is_found(tmp_path, monkeypatch):
    """Sharded checkpoints are read with pickle, which runs what a file tells it to."""
    checkpoint = make_checkpoint(tmp_path, 4)
    assert find_foreign(checkpoint) is None
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    assert "the folder belongs to another user" in find_foreign(checkpoint)
    monkeypatch.undo()
    (checkpoint / "sub" / "added.pt").write_bytes(b"code")
    assert find_foreign(checkpoint) == "sub/added.pt is not in its manifest"
    (checkpoint / "sub" / "added.pt").unlink()
    (checkpoint / "sub" / "link.pt").symlink_to(checkpoint / "model.safetensors")
    assert find_foreign(checkpoint) == "sub/link.pt is a link"


@pytest.mark.parametrize("sharded", [True, False])
def test_a_sharded_checkpoint_of_another_user_is_resumed_by_who_says_so_alone(sharded, tmp_path, monkeypatch):
    checkpoint, engine = make_checkpoint(tmp_path, 4), OneProcess(TrainingSection())
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    engine.reads_pickles = sharded
    if sharded:
        with pytest.raises(UserError, match=r"checkpoint-4: the folder belongs to another user .*--trust-remote-code"):
            check_engine(checkpoint, engine, 1, trusted=False)
    check_engine(checkpoint, engine, 1, trusted=sharded)


def test_what_was_never_committed_is_invisible(tmp_path):
    good = make_checkpoint(tmp_path, 4)
    half = tmp_path / STAGING / "checkpoint-8"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    assert find_last_complete(tmp_path) == good
    assert not half.exists()


@given(data=st.data())
def test_any_single_change_is_found(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    first, second = make_checkpoint(folder, 1), make_checkpoint(folder, 2)
    victim = second / data.draw(st.sampled_from(["model.safetensors", "sub/rng.pth", "manifest.json"]))
    content = bytearray(victim.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "truncate", "delete"]))
    if kind == "delete":
        victim.unlink()
    elif kind == "truncate":
        victim.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    else:
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 6))
        victim.write_bytes(content)
        if victim.name == "manifest.json":
            try:  # white space of the manifest means nothing
                if json.loads(content) == json.loads((first / "manifest.json").read_bytes()):
                    return
            except ValueError:
                pass  # not JSON any more: damage that must be found below
    assert find_change(second) is not None
    reports = []
    assert find_last_complete(folder, report=reports.append) == first
    assert len(reports) == 1 and "checkpoint-2" in reports[0]
    assert (folder / "corrupt-checkpoint-2").is_dir()


def test_the_same_step_committed_again_replaces_the_old_one(tmp_path):
    make_checkpoint(tmp_path, 3)
    again = make_checkpoint(tmp_path, 3, {"model.safetensors": b"other"})
    assert (again / "model.safetensors").read_bytes() == b"other" and find_change(again) is None
    assert not (again / "sub").exists()


def test_old_checkpoints_are_pruned_but_not_the_best(tmp_path):
    for step in (1, 2, 3, 4):
        make_checkpoint(tmp_path, step)
    prune(tmp_path, keep=2, best=str(tmp_path / "checkpoint-1"))
    assert [p.name for p in list_checkpoints(tmp_path)] == ["checkpoint-4", "checkpoint-3", "checkpoint-1"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "run.json"
    write_atomically(path, "old")
    with pytest.raises(RuntimeError), replaced_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    write_atomically(path, "new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_folder_to_be_renamed_has_the_permissions_of_any_new_folder(tmp_path):
    (tmp_path / "plain").mkdir()
    made = make_sibling_folder(tmp_path / "model")
    assert made.parent == tmp_path and made.stat().st_mode == (tmp_path / "plain").stat().st_mode


# --------------------------------------------------------------------------------------------------- pickles


class Payload:
    """What a pickle can do when it is read: here, make a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_forged_checkpoint_runs_nothing(tiny_recipe, command, tmp_path, capsys):
    """Its manifest is in order, as whoever forges it would see to."""
    constant = {"lr_scheduler_type": "constant", "warmup_steps": 1}  # the run may take more steps
    path = tiny_recipe(training={"max_steps": 2, "save_steps": 2} | constant)
    assert command("train", path) == 0
    capsys.readouterr()
    marker = tmp_path / "was-here"
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        run, staged = shutil.copytree(tmp_path / "run", tmp_path / name), tmp_path / "staged"
        checkpoint = list_checkpoints(run)[0]
        torch.save({"state": Payload(marker)}, checkpoint / name)
        checkpoint.rename(staged)
        commit(staged, checkpoint)
        code = command("train", path, "training.max_steps=4", f"training.output_dir={run}")
        error = capsys.readouterr().err
        assert not marker.exists(), error
        if name != "training_args.bin":  # which nobody reads
            assert code == 2 and f"{name} holds more than tensors and plain data" in error and error.count("\n") == 1
