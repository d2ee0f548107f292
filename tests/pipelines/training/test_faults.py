"""What may happen to a run from outside: a second start, a full disk, SIGTERM at any time, damaged files."""

import itertools
import json
import os
import shutil
import signal
import socket
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from anyformer.pipelines.data import tokenization
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.storage.checkpoints import list_checkpoints
from anyformer.pipelines.storage.folder_lock import LOCK, FolderInUse, folder_lock
from anyformer.pipelines.training import finish, run, session
from anyformer.pipelines.training.checkpoints import run_folder
from anyformer.pipelines.training.checkpoints.resume import Resume
from anyformer.pipelines.training.checkpoints.run_folder import RunFolder
from anyformer.pipelines.training.engines.whole import OneProcess
from anyformer.pipelines.training.guards import stop_signal
from anyformer.pipelines.training.log.progress import ProgressLine
from anyformer.pipelines.training.losses.evaluation_sums import EvaluationSums
from processes import Process, end_in_micro_batch, logged_losses, rank_environments
from run_folders import assert_same_weights, make_checkpoint
from task_data import task_recipe
from test_distributed import forget_the_parents_state

FULL = "I/O error: No space left on device (os error 28)"  # as the writers of safetensors and tokenizers put it


@pytest.fixture
def short_recipe(tiny_recipe):
    return tiny_recipe(training={"max_steps": 4, "save_steps": 2}, tokenizer={"vocab_size": 300})


def hidden_files(folder: Path) -> list[str]:
    """What is half-written or left over: hidden files and folders, at any depth."""
    return [str(p.relative_to(folder)) for p in folder.rglob(".*")]


def is_stopped(process: Process) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# ----------------------------------------------------------------------------------------------------- the lock


def test_a_second_start_is_refused_with_host_and_process_and_the_first_run_loses_nothing(
    short_recipe, command, tmp_path, capsys
):
    first = Process(command, "train", short_recipe, output=tmp_path / "log.txt", micro_batch=4, number=signal.SIGSTOP)
    first.wait_until(lambda: is_stopped(first))
    assert command("train", short_recipe) == 2
    sentence = capsys.readouterr().err.strip()
    assert "\n" not in sentence and f"in use by process {first.pid} on {socket.gethostname()} (since 20" in sentence
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait() == 0, first.text()
    assert len(logged_losses(tmp_path / "run")) == 4 and not hidden_files(tmp_path / "run")


def test_the_lock_of_a_killed_process_is_stale_and_forked_workers_do_not_hold_it(tmp_path):
    def hold_and_die():
        with folder_lock(tmp_path):
            Process(time.sleep, 10)  # a worker that outlives it
            (tmp_path / "held").touch()
            signal.pause()

    holder = Process(hold_and_die)
    holder.wait_until((tmp_path / "held").exists)
    with pytest.raises(FolderInUse, match=f"process {holder.pid} on "), folder_lock(tmp_path):
        pass
    holder.kill()
    assert (tmp_path / LOCK).exists()
    with folder_lock(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()
    assert not (tmp_path / LOCK).exists()


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.lockf", no_locks)
    with folder_lock(tmp_path):
        assert (tmp_path / LOCK).exists()


# ------------------------------------------------------------------------------------------------ failed starts


@pytest.mark.slow
def test_a_start_that_failed_before_its_first_checkpoint_does_not_own_the_folder(short_recipe, command, tmp_path):
    run = tmp_path / "run"
    end_in_micro_batch(1, command, "train", short_recipe, output=tmp_path / "log.txt")
    assert json.loads((run / "run.json").read_text())["status"] == "running" and not list_checkpoints(run)
    assert command("train", short_recipe, "model.hidden_size=16") == 0
    assert json.loads((run / "run.json").read_text())["recipe"]["model"]["hidden_size"] == 16


# --------------------------------------------------------------------------------------------------- full disk


def test_a_disk_that_is_full_when_the_tokenizer_is_saved_ends_in_one_sentence(
    short_recipe, command, tmp_path, capsys, monkeypatch
):
    def save_pretrained(self, folder, *_, **__):
        raise Exception(FULL)  # tokenizers' own

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", save_pretrained)
    assert command("train", short_recipe) == 2
    sentence = capsys.readouterr().err.strip()
    assert "\n" not in sentence and "data.cache_dir=" in sentence and "set a folder of yours with space" in sentence
    assert not hidden_files(tmp_path / "anyformer-cache")


# ----------------------------------------------------------------------------------------------------- SIGTERM


def terminate_in(name: str, command, *arguments) -> int:
    """Run the command; this (forked) process sends itself SIGTERM when the run's function `name` is called."""
    module = next(each for each in (session, run, finish) if hasattr(each, name))
    function = getattr(module, name)

    def terminated(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return function(*args, **kwargs)

    setattr(module, name, terminated)
    return command(*arguments)


@pytest.mark.slow
def test_sigterm_outside_training_is_answered_and_leaves_nothing_half_done(short_recipe, command, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log.txt"
    for name, words in (
        ("prepare_data", "before the first checkpoint"),
        ("build_model", "before the first checkpoint"),
        ("evaluate_splits", "checkpoint-4 is complete; the same command goes on from there"),
        ("save_final", "checkpoint-4 is complete"),
        ("look_at_finished", "checkpoint-4 is complete"),
    ):
        process = Process(terminate_in, name, command, "train", short_recipe, output=log)
        assert process.wait() == 128 + signal.SIGTERM, process.text()
        assert process.text().strip().splitlines()[-1].startswith("stopped by signal 15") and words in process.text()
        assert not hidden_files(tmp_path), name
    whole = tmp_path / "whole"
    assert command("train", short_recipe) == command("train", short_recipe, f"training.output_dir={whole}") == 0
    facts = json.loads((run / "run.json").read_text())
    assert facts["status"] == "finished" and facts["steps"] == len(logged_losses(run)) == 4  # not one step more
    assert_same_weights(run, whole)


def test_sigterm_while_the_corpus_is_tokenised_leaves_no_cache_folder(short_recipe, command, tmp_path, monkeypatch):
    killed = nullcontext(lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(tokenization, "progress_of", lambda *_: killed)
    assert command("train", short_recipe) == 128 + signal.SIGTERM
    assert not hidden_files(tmp_path) and not (tmp_path / "run").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def signals_in(callback: str, step: int, times: list[float], command, *arguments) -> int:
    """Run the command; this process sends itself SIGTERM at the given seconds after a callback of that step begins.

    Returns the exit code. The callback goes on when all have been sent.
    """
    forget_the_parents_state()
    real = getattr(ProgressLine, callback)

    def signalled(self, args, state, control, **kwargs):
        if state.global_step == step and times:
            begun = time.monotonic()
            while times:
                time.sleep(max(0.0, begun + times.pop(0) - time.monotonic()))
                os.kill(os.getpid(), signal.SIGTERM)
        return real(self, args, state, control, **kwargs)

    setattr(ProgressLine, callback, signalled)
    return command(*arguments)


@pytest.mark.slow
def test_sigterm_during_an_evaluation_ends_at_its_step_with_a_checkpoint_also_after_the_last(
    short_recipe, command, tmp_path
):
    whole = (command, "train", short_recipe, "evaluation.every_steps=2", f"training.output_dir={tmp_path / 'whole'}")
    assert whole[0](*whole[1:]) == 0
    broken = ("train", short_recipe, "evaluation.every_steps=2", "training.save_steps=3")
    for step, words in ((2, "stopped by signal 15 after step 2; saved "), (4, "checkpoint-4 is complete")):
        process = Process(signals_in, "on_prediction_step", step, [0], command, *broken, output=tmp_path / "log.txt")
        assert process.wait() == 143, process.text()
        assert words in process.text() and list_checkpoints(tmp_path / "run")[0].name == f"checkpoint-{step}"
        assert not hidden_files(tmp_path / "run")
    assert command(*broken) == 0
    assert_same_weights(tmp_path / "run", tmp_path / "whole")
    assert logged_losses(tmp_path / "run") == logged_losses(tmp_path / "whole")
    validations = [json.loads((tmp_path / name / "run.json").read_text())["validations"] for name in ("run", "whole")]
    assert validations[0] == validations[1] and len(validations[0]) == 2


@pytest.mark.slow
def test_all_processes_stop_after_an_evaluation_in_which_one_got_the_signal(short_recipe, command, tmp_path):
    """And a second later once more, as from a launcher: they have ended in order by then, or do."""
    words = (command, "train", short_recipe, "evaluation.every_steps=2", "training.save_steps=4")
    ranks = [
        Process(
            *(signals_in, "on_prediction_step", 2, [0, 0.5] if rank else [], *words),
            output=tmp_path / f"{rank}.txt",
            env=environment,
        )
        for rank, environment in enumerate(rank_environments(2))
    ]
    assert [rank.wait(60) for rank in ranks] == [143, 143], [rank.text() for rank in ranks]
    assert "stopped by signal 15 after step 2; saved " in ranks[0].text()
    assert [found.name for found in list_checkpoints(tmp_path / "run")] == ["checkpoint-2"]


def test_two_signals_within_a_moment_are_one_and_a_later_one_ends_the_run_at_once(
    short_recipe, command, tmp_path, monkeypatch
):
    """As under SLURM, which signals every process of a job, launchers included."""

    validated = ("train", short_recipe, "evaluation.every_steps=1", "training.save_steps=4")

    def run(*times: float) -> Process:
        return Process(signals_in, "on_prediction_step", 1, [*times], command, *validated, output=tmp_path / "log.txt")

    process = run(0, 0.01, 0.02)
    assert process.wait() == 143 and "stopped by signal 15 after step 1; saved " in process.text()
    monkeypatch.setattr(stop_signal, "ECHO_SECONDS", 0.2)
    shutil.rmtree(tmp_path / "run")
    process = run(0, 0.3)
    assert process.wait() == 143 and "stopped by signal 15 before the first checkpoint" in process.text()
    assert not list_checkpoints(tmp_path / "run") and not hidden_files(tmp_path / "run")


# ------------------------------------------------------------------------------------ killed after the last step


def dying_in(name: str, command, *arguments) -> int:
    """Run the command; this (forked) process dies when run.py's function `name` is called, or writes "finished"."""
    place, name, *status = (RunFolder, "write", "finished") if name == "finished" else (finish, name)
    function = getattr(place, name)

    def dies(*args, **kwargs):
        if not status or status[0] in args:
            os._exit(9)
        return function(*args, **kwargs)

    setattr(place, name, dies)
    return command(*arguments)


AFTER_TRAINING = (
    "evaluate_splits",
    "save_final",
    "write_atomically",  # the objective's files
    "look_at_finished",
    "draw_card_picture",
    "prepare_folder",
    "write_report",
    "finished",
    "print_result",
)
OF_ITS_TIME = {"run.json", "report.html", "README.md", "metrics.jsonl", "training_args.bin"}


def files_of(run: Path) -> dict[str, bytes]:
    """The files of a run's folder but for its checkpoints; of those that tell times, their names alone."""
    files = {str(f.relative_to(run)): f for f in run.rglob("*") if f.is_file() and "checkpoint-" not in str(f)}
    return {name: b"" if name in OF_ITS_TIME else file.read_bytes() for name, file in files.items()}


@pytest.mark.parametrize("points", [("prepare_folder",), pytest.param(AFTER_TRAINING, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_point_after_its_last_step_is_completed_by_the_same_command(
    points, command, tmp_path, capsys
):
    """And its folder is then that of a run that nobody disturbed; the files for sentence-transformers are there."""
    recipe = task_recipe(tmp_path, "sentence_similarity", training={"max_steps": 2, "save_steps": 2})
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert command("train", recipe) == 0
    run.rename(whole)
    for name in points:
        process = Process(dying_in, name, command, "train", recipe, output=tmp_path / "log.txt")
        assert process.wait() == 9, f"{name}: {process.text()}"
        assert (json.loads((run / "run.json").read_text())["status"] == "finished") == (name == "print_result")
        if (run / "config.json").exists():
            assert (run / "modules.json").exists() and (run / "1_Pooling" / "config.json").exists()
    assert command("train", recipe) == 0
    assert ("finished already" in capsys.readouterr().out) == ("print_result" in points)
    assert files_of(run) == files_of(whole)
    assert len({file.stat().st_mode for file in run.rglob("*") if file.is_file()}) == 1  # safetensors' own too
    lines = [
        [{name: line.get(name) for name in ("step", "loss", "validation_loss", "test_loss")} for line in found]
        for found in (map(json.loads, (f / "metrics.jsonl").read_text().splitlines()) for f in (run, whole))
    ]
    assert lines[0] == lines[1]
    facts, others = (json.loads((folder / "run.json").read_text()) for folder in (run, whole))
    assert facts["metrics"] == others["metrics"] and facts.keys() - others.keys() == {"resumed_at"}


# ------------------------------------------------------------------------------------- nobody reads, other clocks


def without_reader(command, *arguments) -> int:
    """Run the command; whoever reads this (forked) process's output leaves before its third step."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            reader, writer = os.pipe()
            os.close(reader)
            os.dup2(writer, 1)

    ProgressLine.on_step_begin = on_step_end
    return command(*arguments)


def test_a_run_whose_output_nobody_reads_any_more_says_why_it_stops(short_recipe, command, tmp_path):
    process = Process(without_reader, command, "train", short_recipe, output=tmp_path / "log.txt")
    assert process.wait() == 141
    assert process.text().splitlines()[-1] == (
        f"anyformer: stopped by a closed output pipe; {tmp_path / 'run' / 'checkpoint-2'} is complete; the same "
        f"command goes on from there"
    )


def test_records_are_json_for_every_parser_and_no_clock_that_is_set_back_counts(
    short_recipe, command, tmp_path, capsys, monkeypatch
):
    clock = itertools.count(2e9, -1000)
    monkeypatch.setattr("time.time", lambda: next(clock))
    monkeypatch.setattr(finish, "look_at_finished", lambda *_: ({"validation_pearson": float("nan")}, {}, []))
    for _ in range(2):  # the second prints the result again
        assert command("train", short_recipe) == 0
        assert "validation pearson │ no number" in " ".join(capsys.readouterr().out.split())

    def refused(name):
        raise ValueError(name)

    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(line, parse_constant=refused) for line in lines]
    run = json.loads((tmp_path / "run" / "run.json").read_text(), parse_constant=refused)
    assert run["metrics"]["validation_pearson"] is None is entries[-1]["validation_pearson"]
    assert 0 < run["wall_seconds"] < 1e6


# --------------------------------------------------------------------------------------------- damaged files


@pytest.mark.slow
def test_damaged_records_do_not_keep_a_run_from_going_on(short_recipe, command, tmp_path, capsys):
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert command("train", short_recipe, f"training.output_dir={whole}") == 0
    end_in_micro_batch(4, command, "train", short_recipe, output=tmp_path / "log.txt")  # in its last step
    (run / "run.json").write_text('{"recipe": [')
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(lines[0] + b"\xff\xfe\n" + lines[1] + b'{"loss": 1}\n' + b"".join(lines[2:]))
    assert command("train", short_recipe) == 0
    captured = capsys.readouterr()
    assert f"{run / 'run.json'} cannot be read; set aside as corrupt-run.json" in captured.err
    assert f"{run / 'metrics.jsonl'}: 2 damaged lines left out; the whole is in corrupt-metrics.jsonl" in captured.out
    assert f"going on from {run / 'checkpoint-2'}" in captured.out
    assert (run / "corrupt-run.json").exists() and b"\xff" in (run / "corrupt-metrics.jsonl").read_bytes()
    assert logged_losses(run) == logged_losses(whole)
    assert_same_weights(run, whole)


@pytest.mark.parametrize(
    "settings, words",
    [
        (["evaluation.best_metric=loss"], "the best by loss, is damaged"),
        pytest.param(
            ["evaluation.average_checkpoints=2"], "one of those to average, is damaged", marks=pytest.mark.slow
        ),
    ],
)
def test_a_checkpoint_damaged_before_the_end_does_not_become_the_final_model(
    settings, words, short_recipe, command, tmp_path, capsys, monkeypatch
):
    """One bit of an older checkpoint's weights; its deletion is a way on."""
    run, damaged = tmp_path / "run", tmp_path / "run" / "checkpoint-2"
    words_of_command = ("train", short_recipe, "evaluation.every_steps=2", *settings)

    def on_train_end(self, args, state, control, **kwargs):
        state.best_global_step = 2 if args.metric_for_best_model else None
        weights = bytearray((damaged / "model.safetensors").read_bytes())
        weights[-2] ^= 64
        (damaged / "model.safetensors").write_bytes(weights)

    with monkeypatch.context() as patch:
        patch.setattr("anyformer.pipelines.training.log.progress.ProgressLine.on_train_end", on_train_end)
        assert command(*words_of_command) == 2
    sentence = capsys.readouterr().err.strip()
    assert sentence.startswith(f"anyformer: {damaged}, {words} (model.safetensors has changed since it was written)")
    assert json.loads((run / "run.json").read_text())["status"] == "running" and not (run / "config.json").exists()
    shutil.rmtree(damaged)
    assert command(*words_of_command) == 0 and (run / "config.json").exists()


def test_a_final_loss_that_is_no_number_does_not_end_as_finished(short_recipe, command, tmp_path, capsys, monkeypatch):
    infinite = {"loss": float("inf"), "nll": float("inf"), "predictions": 1}
    monkeypatch.setattr(EvaluationSums, "metrics", lambda *_: (infinite, None))
    assert command("train", short_recipe) == 2
    assert "validation_loss of the final model is inf, so the run in" in capsys.readouterr().err
    run = tmp_path / "run"
    assert json.loads((run / "run.json").read_text())["status"] == "running" and not (run / "config.json").exists()


def test_going_on_under_other_versions_is_said_and_all_of_them_are_kept(
    short_recipe, command, tmp_path, capsys, monkeypatch
):
    run, now = tmp_path / "run", run_folder.package_versions()
    before = now | {"torch": "2.11.0", "transformers": "5.17.0"}
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "package_versions", lambda: before)
        end_in_micro_batch(4, command, "train", short_recipe, output=tmp_path / "log.txt")
    assert command("train", short_recipe) == 0
    changes = f"torch 2.11.0 -> {now['torch']}, transformers 5.17.0 -> {now['transformers']}"
    assert f"checkpoint-2 was written under other versions ({changes})" in capsys.readouterr().err
    for file in (run / "run.json", run / "checkpoint-4" / "anyformer_run.json"):
        facts = json.loads(file.read_text())
        assert facts["versions"] == now
        assert facts["versions_by_step"] == [{"from_step": 0, **before}, {"from_step": 2, **now}]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "{}", "null", '{"' + "x" * 5000 + '": {"size": 1, "sha256": ""}}', "{}\xff", "3"]
)
@pytest.mark.parametrize("file", ["manifest.json", "anyformer_run.json"])
def test_a_checkpoint_with_a_malformed_record_is_set_aside_for_the_one_before(file, text, tmp_path):
    recipe = load_recipe("quickstart", [f"training.output_dir={tmp_path}"])
    folder = RunFolder(recipe, {"fingerprint": "x" * 32})
    identity = json.dumps(folder.identity() | {"world_size": 1}).encode()
    good, bad = (make_checkpoint(tmp_path, step, {"anyformer_run.json": identity, "weights": b"w"}) for step in (1, 2))
    (bad / file).write_bytes(text.encode("latin-1"))
    verdict = Resume(folder, OneProcess(recipe.training)).verdict()
    assert (verdict.kind, verdict.checkpoint) == ("goes on", good)
    assert (tmp_path / "corrupt-checkpoint-2").is_dir()


def test_a_model_without_checkpoints_and_with_a_damaged_run_file_is_not_overwritten(
    short_recipe, command, tmp_path, capsys
):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / "run.json").write_text("null")
    assert command("train", short_recipe) == 2
    assert "run.json is damaged, and no checkpoint says" in capsys.readouterr().err
    assert (run / "run.json").read_text() == "null"
