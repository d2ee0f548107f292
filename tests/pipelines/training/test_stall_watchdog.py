"""A run without progress ends by itself, says where it stands, and can go on; slow work is no stall."""

import signal

import pytest
from anyformer.pipelines.storage.checkpoints import list_checkpoints
from anyformer.pipelines.training.guards.stall_watchdog import EXIT_STALLED, StallWatchdog
from anyformer.pipelines.training.trainer import AnyformerTrainer
from processes import Process, logged_losses, rank_environments
from transformers import TrainerState

LIMIT = 0.05  # minutes


def hangs_in_micro_batch(number: int, rank: int, command, *arguments) -> int:
    """Run the command; the process of this rank waits forever when that micro-batch begins."""
    import os

    from test_distributed import forget_the_parents_state

    forget_the_parents_state()
    step, begun = AnyformerTrainer.training_step, [0]

    def waits_forever():
        signal.pause()

    def training_step(self, *args, **kwargs):
        begun[0] += 1
        if begun[0] == number and os.environ.get("RANK", "0") == str(rank):
            waits_forever()
        return step(self, *args, **kwargs)

    AnyformerTrainer.training_step = training_step
    return command(*arguments)


def test_a_stalled_run_ends_with_its_stacks_and_the_same_command_goes_on(tiny_recipe, command, tmp_path):
    path = tiny_recipe(training={"max_steps": 4, "save_steps": 2})
    limit = f"training.stall_minutes={LIMIT}"
    process = Process(hangs_in_micro_batch, 4, 0, command, "train", path, limit, output=tmp_path / "log.txt")
    assert process.wait() == EXIT_STALLED, process.text()
    (stacks,) = (tmp_path / "run").glob("stall-*")
    assert stacks.name == "stall-rank0.txt" and "in waits_forever" in stacks.read_text()
    line = process.text().strip().splitlines()[-1]
    assert line.startswith("anyformer: no progress for 0.05 minutes (training.stall_minutes) since ")
    assert line.endswith("checkpoint-2 is complete, and the same command goes on from it")
    assert command("train", path) == 0 and len(logged_losses(tmp_path / "run")) == 4


@pytest.mark.slow
def test_all_processes_end_where_one_stalls(tiny_recipe, command, tmp_path):
    path = tiny_recipe(training={"max_steps": 4, "save_steps": 2})
    job = (hangs_in_micro_batch, 4, 1, command, "train", path, f"training.stall_minutes={LIMIT}")
    ranks = [
        Process(*job, output=tmp_path / f"{rank}.txt", env=environment)
        for rank, environment in enumerate(rank_environments(2))
    ]
    assert [rank.wait() for rank in ranks] == [EXIT_STALLED] * 2, [rank.text() for rank in ranks]
    waits = [(tmp_path / "run" / f"stall-rank{rank}.txt").read_text() for rank in range(2)]
    assert "in waits_forever" not in waits[0] and "in waits_forever" in waits[1]
    assert list_checkpoints(tmp_path / "run")[0].name == "checkpoint-2"


def test_each_sign_of_life_begins_the_wait_anew(tmp_path):
    """Steps, micro-batches, batches of an evaluation: each may take nearly as long as the limit."""
    watchdog, state = StallWatchdog(tmp_path, minutes=1), TrainerState(global_step=3)
    for sign in ("on_step_end", "on_substep_end", "on_prediction_step", "on_evaluate", "on_save"):
        getattr(watchdog, sign)(None, state, None)
        assert not any(watchdog.is_stalled() for _ in range(int(55 / watchdog.interval)))
    assert any(watchdog.is_stalled() for _ in range(3))
