"""What a user can get wrong: one sentence, exit code 2, nothing written, nothing lost."""

import shutil
import subprocess

import pytest
from anyformer.pipelines.manifest import find_change
from anyformer.pipelines.storage.checkpoints import list_checkpoints
from processes import Process

# override of the tiny recipe -> what the sentence must say
MISTAKES = {
    "missing-file": (["data.files=nowhere/*.txt"], ["data.files", "nowhere/*.txt"]),
    "no-such-checkpoint": (
        ["model={name_or_path: nowhere/model}", "tokenizer={name_or_path: nowhere/model}"],
        ["nowhere/model"],
    ),
    "a-run-that-was-never-made": (["model.name_or_path=runs/mine"], ["model.name_or_path=runs/mine: no such folder"]),
}


def test_validations_without_data_are_refused_before_anything_is_prepared(tiny_recipe, command, monkeypatch, capsys):
    """Tokenising may take hours."""
    prepare = "anyformer.pipelines.objectives.causal.Causal.Reads.prepare"
    monkeypatch.setattr(prepare, lambda *_: pytest.fail("too late"))
    recipe = tiny_recipe(data={"validation_fraction": 0}, evaluation={"every_steps": 5})
    assert command("train", recipe) == 2
    assert "evaluation.every_steps=5 is set, but the data section names no validation data" in capsys.readouterr().err


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2_and_nothing_is_written(name, tiny_recipe, command, tmp_path, capsys):
    overrides, says = MISTAKES[name]
    assert command("train", tiny_recipe(), *overrides) == 2
    sentence = capsys.readouterr().err.strip()
    assert sentence.startswith("anyformer: ") and "\n" not in sentence and "Traceback" not in sentence
    for words in says:
        assert words in sentence
    assert not any(p.is_file() for p in (tmp_path / "run").rglob("*"))
    assert name != "missing-file" or not (tmp_path / "run").exists()


def test_an_unfinished_run_is_no_model_to_begin_from(tiny_recipe, command, tmp_path, capsys):
    checkpoint = tmp_path / "begun" / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    assert command("train", tiny_recipe(), f"model.name_or_path={tmp_path / 'begun'}") == 2
    assert f"the run there is not finished; its newest checkpoint is {checkpoint}" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tiny_recipe, command, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert command("train", tiny_recipe(), f"training.output_dir={tmp_path / 'file' / 'run'}") == 2
    sentence = capsys.readouterr().err
    assert "training.output_dir=" in sentence and "cannot be written" in sentence
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB, where this machine lets us mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no right to mount a small file system here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_really_full_disk_ends_in_one_sentence_with_the_last_checkpoint_usable(
    small_disk, tiny_recipe, command, tmp_path
):
    recipe = tiny_recipe(model={"hidden_size": 64}, training={"save_total_limit": 5, "save_steps": 2})
    output = f"training.output_dir={small_disk / 'run'}"
    process = Process(command, "train", recipe, output, output=tmp_path / "log.txt")
    assert process.wait() == 2, process.text()
    last = process.text().strip().splitlines()[-1]
    assert "disk is full" in last and "last complete checkpoint is" in last
    (found, *_) = checkpoints = list_checkpoints(small_disk / "run")
    assert str(found) in last and all(find_change(c) is None for c in checkpoints)
    moved = tmp_path / "moved"  # more room: the run goes on from there
    shutil.copytree(small_disk / "run", moved)
    again = Process(command, "train", recipe, f"training.output_dir={moved}", output=tmp_path / "again.txt")
    assert again.wait() == 0, again.text()
    assert f"going on from {moved / found.name}" in again.text()
    assert (moved / "model.safetensors").exists()
