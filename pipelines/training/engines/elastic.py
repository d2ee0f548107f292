"""A checkpoint that another number of processes has written is made readable.

Under DeepSpeed each process saves its shard. Shards of ZeRO-1 and ZeRO-2 are converted to DeepSpeed's universal
checkpoint. All other engines read states of any number of processes.
"""

import contextlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from transformers import set_seed

from ..checkpoints.run_folder import processes_of
from ..checkpoints.safe_load import forged_files_named, plain_data_alone

UNIVERSAL = ".universal"  # in the run's folder; holds the converted checkpoint while the run uses it


def shared_out_anew(checkpoint: Path, processes: int, trusted: bool) -> Path:
    """Convert a DeepSpeed checkpoint of another number of processes to a universal one in the run's folder.

    Returns the checkpoint itself if the number is the same. trusted: whether its files may hold more than plain data.
    """
    if processes_of(checkpoint) == processes:
        return checkpoint
    (states,) = checkpoint.glob("global_step*")
    converted = checkpoint.parent / UNIVERSAL / checkpoint.name
    shutil.rmtree(converted.parent, ignore_errors=True)
    converted.mkdir(parents=True)
    for file in checkpoint.iterdir():
        if file != states and file.name != "latest":
            (converted / file.name).symlink_to(file.resolve())
    with forged_files_named(checkpoint, True), plain_data_alone(not trusted):
        convert(states, converted / states.name)
    (converted / "latest_universal").write_text(states.name)
    return converted


def convert(states: Path, made: Path) -> None:
    """Write the universal form of a checkpoint's DeepSpeed shards, without DeepSpeed's output."""
    from deepspeed.checkpoint import ds_to_universal

    settings = SimpleNamespace(
        input_folder=str(states),
        output_folder=str(made),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        ds_to_universal.main(settings)


def reads_universal(trainer) -> None:
    """Configure DeepSpeed to read a universal checkpoint; to be called before its engine is made."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    for config in (plugin.deepspeed_config, plugin.hf_ds_config.config):
        config.setdefault("checkpoint", {})["load_universal"] = True


def draw_anew(seed: int, step: int, process: int) -> None:
    """Seed the random number generators of a process whose states the checkpoint does not hold.

    process: its number. Processes that share rows pass the same number, so that they draw the same dropout.
    """
    set_seed(int(np.random.default_rng((seed, step, process)).integers(2**32)))
