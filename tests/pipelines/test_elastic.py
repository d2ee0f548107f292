"""One run on one, two and four processes: equal steps, one order of samples, and checkpoints that any goes on from."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.global_batch import micro_batches, rows_per_step
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.training.checkpoints.resume import check_engine, saved_under
from anyformer.pipelines.training.engines.deepspeed_engine import DeepSpeed
from anyformer.pipelines.training.engines.whole import DDP, OneProcess
from hypothesis import given
from hypothesis import strategies as st
from processes import end_in_micro_batch, logged_losses, run_ranks
from run_folders import read_audit
from test_distributed import assert_close, needs_deepspeed, rank_main


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_any_processes_have_equal_shares_of_a_step(most, accumulated, before, now):
    section = TrainingSection(
        output_dir="run", per_device_train_batch_size=most, gradient_accumulation_steps=accumulated
    )
    rows = rows_per_step(section, before)
    if rows % now:
        with pytest.raises(
            UserError, match=rf"{rows:,} rows? of a step cannot be shared out evenly over {now} processes"
        ):
            micro_batches(section, now, rows)
        return
    micro, passes = micro_batches(section, now, rows)
    assert micro * passes * now == rows and micro <= most
    if before == now:
        assert (micro, passes) == (most, accumulated)


def test_a_global_batch_is_said_once_and_shared_out_evenly():
    section = TrainingSection(output_dir="run", per_device_train_batch_size=8, global_batch_size=12)
    assert [micro_batches(section, n, rows_per_step(section, n)) for n in (1, 2, 3, 6)] == [
        (6, 2),
        (6, 1),
        (4, 1),
        (2, 1),
    ]
    with pytest.raises(UserError, match="global_batch_size=12 cannot be shared out evenly over 5 processes; start "):
        micro_batches(section, 5, 12)
    section = replace(section, gradient_accumulation_steps=2)
    with pytest.raises(UserError, match=r"gradient_accumulation_steps=2 follows from training.global_batch_size=12"):
        micro_batches(section, 1, 12)


@pytest.fixture
def recipe(tiny_recipe):
    """Twelve steps of four rows, nearly three passes over 17 rows; dropout draws differently on other processes."""
    return tiny_recipe(
        model={"hidden_dropout": 0.0},
        data={"max_documents": 3},
        training={
            "max_steps": 12,
            "per_device_train_batch_size": 2,
            "global_batch_size": 4,
            "save_steps": 1,
            "audit_samples": True,
        },
    )


def consumed(run) -> tuple[list, Counter]:
    """The rows of each step, sorted, and how often each document's tokens came in an epoch."""
    steps, documents = {}, Counter()
    for line in read_audit(run):
        steps.setdefault(line["step"], []).extend(line["rows"])
        for row in line["documents"]:
            documents.update((line["epoch"], *part) for part in row)
    return [sorted(rows) for _, rows in sorted(steps.items())], documents


def killed(command, processes, micro_batch, recipe, run, folder, *options):
    """Train on so many processes until the first of them kills itself in that micro-batch."""
    folder.mkdir()
    if processes == 1:
        end_in_micro_batch(
            micro_batch, command, "train", recipe, f"training.output_dir={run}", *options, output=folder / "log"
        )
        return
    with pytest.raises(RuntimeError, match="ended with -9"):
        run_ranks(processes, dying, micro_batch, command, recipe, f"training.output_dir={run}", *options, folder=folder)


def dying(micro_batch, *arguments):
    from processes import send_signal_in_micro_batch

    send_signal_in_micro_batch(micro_batch, 9)
    rank_main(*arguments)


def test_a_checkpoint_of_another_engine_is_not_begun_again(tmp_path):
    checkpoint = tmp_path / "checkpoint-5"
    (checkpoint / "global_step5").mkdir(parents=True)
    assert saved_under(checkpoint) == "DeepSpeed"
    section = TrainingSection()
    with pytest.raises(
        UserError, match=r"run under DeepSpeed, which DDP cannot read; go on by --launch zero2, or begin"
    ):
        check_engine(checkpoint, DDP(section), 1, True)
    check_engine(checkpoint, DeepSpeed(section), 1, True)
    shutil.rmtree(checkpoint / "global_step5")
    with pytest.raises(UserError, match="run without an engine, which DeepSpeed cannot read; go on without"):
        check_engine(checkpoint, DeepSpeed(section), 1, True)
    check_engine(checkpoint, DDP(section), 1, True)
    check_engine(checkpoint, OneProcess(section), 1, True)


def run_on(processes, main, command, recipe, run, folder, *options):
    folder.mkdir()
    environment = {"DS_ACCELERATOR": "cpu"}
    run_ranks(processes, main, command, recipe, f"training.output_dir={run}", *options, folder=folder, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_two_one_and_four_processes_and_workers_read_one_order(workers, recipe, command, tmp_path):
    whole, run, option = tmp_path / "whole", tmp_path / "run", f"training.dataloader_num_workers={workers}"
    assert command("train", recipe, f"training.output_dir={whole}") == 0
    killed(command, 2, 3, recipe, run, tmp_path / "two", option)
    killed(command, 1, 7, recipe, run, tmp_path / "one", option)
    run_on(4, rank_main, command, recipe, run, tmp_path / "four", option)
    assert_close(logged_losses(run), logged_losses(whole))
    assert len(list((run / "samples").iterdir())) == 4
    assert json.loads((run / "run.json").read_text())["rows_per_step"] == 4
    assert consumed(run) == consumed(whole) and set(consumed(run)[1].values()) == {1}  # nothing twice in an epoch


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2])
def test_zero_1_and_2_go_on_with_other_numbers_of_processes(stage, recipe, command, tmp_path):
    """Two processes, one, and two again, through DeepSpeed's universal checkpoints."""
    whole, run, engine = tmp_path / "whole", tmp_path / "run", f"training.deepspeed=zero{stage}"
    assert command("train", recipe, f"training.output_dir={whole}") == 0
    killed(command, 2, 5, recipe, run, tmp_path / "two", engine)
    with pytest.raises(RuntimeError, match="ended with -9"):
        run_on(1, partial(dying, 9), command, recipe, run, tmp_path / "one", engine)
    run_on(2, rank_main, command, recipe, run, tmp_path / "again", engine)
    assert_close(logged_losses(run), logged_losses(whole))
    assert not (run / ".universal").exists()
    assert consumed(run) == consumed(whole)


@pytest.mark.slow
@needs_deepspeed
def test_zero_3_says_that_it_goes_on_with_as_many_processes(recipe, command, tmp_path):
    run, engine = tmp_path / "run", "training.deepspeed=zero3"
    killed(command, 2, 5, recipe, run, tmp_path / "two", engine)
    with pytest.raises(RuntimeError, match="under ZeRO-3 by 2 processes, and its shares cannot be given to 1; start 2"):
        run_on(1, rank_main, command, recipe, run, tmp_path / "one", engine)
