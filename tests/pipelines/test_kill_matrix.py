"""kill -9 in a run of two processes: every engine, every kind of data; the same command again ends bit-identical.

A run is killed twice: in the middle of an accumulated step after an epoch's end, then, with workers that load its rows,
in a later step. What one process does is in the tests of each kind of data.
"""

import os
from functools import partial

import pytest
from processes import run_ranks
from task_data import task_recipe
from test_distributed import ENGINES, needs_deepspeed, rank_main
from test_elastic import dying
from test_mixture_stream import mixed_recipe, steps_of  # noqa: F401 (a fixture)
from test_streams import stream_recipe  # noqa: F401 (a fixture)

OF_ALL_DATA = ["ddp", *(pytest.param(name, marks=needs_deepspeed) for name in ("zero2", "zero3"))]
# Ten steps of 2 processes x 2 micro-batches x 2 rows; an epoch has fewer steps.
TRAINING = {
    "max_steps": 10,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "save_steps": 2,
    "logging_steps": 1,
}


@pytest.fixture
def recipes(tiny_recipe, stream_recipe, mixed_recipe, tmp_path):  # noqa: F811
    """Kind of data -> path of a recipe, with dropout: the random numbers of each process go on, too."""
    return {
        "packed": lambda: tiny_recipe(data={"max_documents": 3}, training=TRAINING),
        "examples": lambda: task_recipe(tmp_path, "sequence_classification", training=TRAINING),
        "stream": lambda: stream_recipe(TRAINING),
        "streamed mixture": lambda: mixed_recipe(training=TRAINING),
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["packed", "examples", "stream", "streamed mixture"])
@pytest.mark.parametrize("engine", OF_ALL_DATA)
def test_a_run_of_two_processes_that_is_killed_twice_ends_bit_identical(engine, kind, recipes, command, tmp_path):
    recipe, environment = recipes[kind](), {"DS_ACCELERATOR": "cpu"}

    def ranks(name, main, run, *more):
        folder = tmp_path / name
        folder.mkdir()
        arguments = (command, recipe, f"training.output_dir={tmp_path / run}", *ENGINES[engine], *more)
        run_ranks(2, main, *arguments, folder=folder, env=environment)

    ranks("log-whole", rank_main, "whole")
    workers = "training.dataloader_num_workers=2"
    for name, micro_batch, more in (("log-1", 10, ()), ("log-2", 4, (workers,))):
        with pytest.raises(RuntimeError, match="ended with -9"):
            ranks(name, partial(dying, micro_batch), "broken", *more)
    found = sorted(int(folder.name.split("-")[1]) for folder in (tmp_path / "broken").glob("checkpoint-*"))
    assert found and max(found) < 10  # neither at its beginning nor at its end
    ranks("log-3", rank_main, "broken")
    whole, broken = (tmp_path / name for name in ("whole", "broken"))
    assert steps_of(broken) == steps_of(whole)
    assert os.path.getsize(whole / "model.safetensors") > 0
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
