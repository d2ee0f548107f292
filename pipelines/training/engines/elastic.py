"""Resuming from a checkpoint that another number of processes has written.

Under DeepSpeed each process saves its shard. Shards of ZeRO-1 and ZeRO-2 are converted to DeepSpeed's universal
checkpoint. That conversion loses a part of ZeRO-3's state (losses differ by 1e-3), so ZeRO-3 needs the same number of
processes. All other engines read states of any number of processes.
"""

import contextlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from transformers import set_seed

from ...errors import UserError
from ...recipes.parallelism import MESH
from ...storage.checkpoints import RUN_FILE
from ...words import counted
from ..checkpoints.run_folder import read_identity
from ..checkpoints.safe_load import forged_files_named, plain_data_alone
from .engine import Engine
from .mesh import OPTIMIZER_FOLDER

UNIVERSAL = ".universal"  # in the run's folder; holds the converted checkpoint while the run uses it


def saved_under(checkpoint: Path) -> str:
    """Which engine wrote a checkpoint: "DeepSpeed", "FSDP", "mesh", or "plain" for one process or DDP."""
    if (checkpoint / OPTIMIZER_FOLDER).is_dir():
        return MESH
    if any(checkpoint.glob("global_step*")):
        return "DeepSpeed"
    return "FSDP" if any(checkpoint.glob("pytorch_model_fsdp*")) else "plain"


def processes_of(checkpoint: Path) -> int | None:
    """The number of processes that wrote a checkpoint; None where it does not say."""
    return (read_identity(checkpoint / RUN_FILE) or {}).get("world_size")


def check_engine_of(checkpoint: Path, engine: Engine) -> None:
    """Raise UserError for a checkpoint of another engine, whose states this one cannot read."""
    writer, reader = saved_under(checkpoint), "plain" if engine.whole else engine.name
    if writer != reader:
        ways = {kind.name: kind.launched_by for kind in Engine.__subclasses__()}
        launch = "without DeepSpeed and FSDP" if writer == "plain" else f"by --launch {ways[writer]}"
        raise UserError(
            f"{checkpoint} holds the states of a run {'without an engine' if writer == 'plain' else 'under ' + writer}"
            f", which {engine.name or 'one process'} cannot read; go on {launch}, or begin from its weights "
            f"in another output_dir, by model.name_or_path={checkpoint}"
        )


def shared_out_anew(checkpoint: Path, processes: int, trusted: bool) -> Path:
    """Convert a DeepSpeed checkpoint of another number of processes to a universal one in the run's folder.

    Returns the checkpoint itself if the number is the same. trusted: whether its files may hold more than plain data.
    Raises UserError for ZeRO-3.
    """
    before = processes_of(checkpoint)
    if before == processes:
        return checkpoint
    states = next(checkpoint.glob("global_step*"))
    if any(states.glob("zero_pp_rank_*_model_states.pt")):
        raise UserError(
            f"{checkpoint} was written under ZeRO-3 by {counted(before, 'process', 'processes')}, and its shares "
            f"cannot be given to {processes}; start {before}, or begin from its weights in another output_dir, by "
            f"model.name_or_path={checkpoint}"
        )
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
