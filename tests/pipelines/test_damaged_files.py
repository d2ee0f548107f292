"""What lies outside of the program (damaged files, a full disk, a killed writer) is one sentence and is cleaned up."""

import errno
import os
import signal
import time

import pytest
from anyformer.pipelines.storage.atomic import new_folder
from processes import Process


@pytest.fixture
def model(tmp_path, tiny_config):
    from anyformer import AnyformerDecoderForCausalLM

    AnyformerDecoderForCausalLM(tiny_config()).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("rest", [0, 0.5], ids=["empty", "half"])
def test_damaged_weights_are_one_sentence(model, command, capsys, rest, tmp_path):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(rest * file.stat().st_size)])
    for words in (["inspect", model, "a"], ["convert", model, tmp_path / "twin"], ["publish", model, "me/mine"]):
        assert command(*words) == 2, words
        printed = capsys.readouterr().err
        assert printed.count("\n") == 1 and "damaged" in printed, printed


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("I/O error: No space left on device (os error 28)")]
)
def test_a_full_disk_is_one_sentence_at_every_command(model, command, capsys, monkeypatch, tmp_path, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    assert command("convert", model, tmp_path / "twin") == 2
    assert "the disk is full" in capsys.readouterr().err and sorted(tmp_path.glob(".twin*")) == []


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path):
    def write():
        with new_folder(tmp_path / "out") as folder:
            (folder / "large").write_text("...")
            time.sleep(100)

    process = Process(write)
    process.wait_until(lambda: list(tmp_path.glob(".out-*/large")))
    with new_folder(tmp_path / "out") as folder:
        assert len(list(tmp_path.glob(".out-*"))) == 2 and folder.is_dir()  # the other one still writes
    os.rename(tmp_path / "out", tmp_path / "first")
    process.kill(signal.SIGKILL)
    with new_folder(tmp_path / "out"):
        assert len(list(tmp_path.glob(".out-*"))) == 1
