"""Going on from a checkpoint that other processes have written: more of them, or fewer.

Under DeepSpeed each process saves its share. Those of ZeRO-1 and ZeRO-2 become a universal checkpoint of DeepSpeed's;
ZeRO-3's lose a part of the state (losses differ by 1e-3), so it goes on with as many processes. All others read states
of any number of processes.
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

UNIVERSAL = ".universal"  # folder of a run, with the checkpoint that it goes on from


def saved_under(checkpoint: Path) -> str:
    """Which engine wrote a checkpoint: DeepSpeed, FSDP, mesh, or plain, as one process and DDP do."""
    if (checkpoint / OPTIMIZER_FOLDER).is_dir():
        return MESH
    if any(checkpoint.glob("global_step*")):
        return "DeepSpeed"
    return "FSDP" if any(checkpoint.glob("pytorch_model_fsdp*")) else "plain"


def processes_of(checkpoint: Path) -> int | None:
    """How many processes wrote a checkpoint; None where it does not say."""
    return (read_identity(checkpoint / RUN_FILE) or {}).get("world_size")


def check_engine_of(checkpoint: Path, engine: Engine) -> None:
    """Raise UserError for a checkpoint of an engine whose states the one that would go on does not read."""
    there, here = saved_under(checkpoint), "plain" if engine.whole else engine.name
    if there != here:
        ways = {each.name: each.launched_by for each in Engine.__subclasses__()}
        how = "without DeepSpeed and FSDP" if there == "plain" else f"by --launch {ways[there]}"
        raise UserError(
            f"{checkpoint} holds the states of a run {'without an engine' if there == 'plain' else 'under ' + there}, "
            f"which {engine.name or 'one process'} cannot read; go on {how}, or begin from its weights "
            f"in another output_dir, by model.name_or_path={checkpoint}"
        )


def shared_out_anew(checkpoint: Path, processes: int, trusted: bool) -> Path:
    """A DeepSpeed checkpoint for another number of processes, as a universal one beside it; the same for as many.

    trusted: whether its files may hold more than plain data. Raises UserError for ZeRO-3.
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
    made = checkpoint.parent / UNIVERSAL / checkpoint.name
    shutil.rmtree(made.parent, ignore_errors=True)
    made.mkdir(parents=True)
    for file in checkpoint.iterdir():
        if file != states and file.name != "latest":
            (made / file.name).symlink_to(file.resolve())
    with forged_files_named(checkpoint, True), plain_data_alone(not trusted):
        convert(states, made / states.name)
    (made / "latest_universal").write_text(states.name)
    return made


def convert(states: Path, made: Path) -> None:
    """Write the universal form of DeepSpeed's shares of a checkpoint; what it prints goes nowhere."""
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
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        ds_to_universal.main(settings)


def reads_universal(trainer) -> None:
    """Let DeepSpeed's engine, which does not exist yet, read a universal checkpoint."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    for config in (plugin.deepspeed_config, plugin.hf_ds_config.config):
        config.setdefault("checkpoint", {})["load_universal"] = True


def draw_anew(seed: int, step: int, process: int) -> None:
    """Begin the generators of random numbers of a process whose states no checkpoint holds.

    process: its number. Processes that share a row pass the same one, so that they draw the same dropout.
    """
    set_seed(int(np.random.default_rng((seed, step, process)).integers(2**32)))
