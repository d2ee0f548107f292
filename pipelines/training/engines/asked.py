"""The engine a run asks for: what it cannot run with, and that no launcher puts another in its place without a word.

Nothing here imports torch, so that mistakes are sentences before a process starts.
"""

import os

from ...errors import UserError
from ...recipes.parallelism import MESH, RING, RING_NEEDS_GPUS, ULYSSES, engine_of, words_of
from ...recipes.schema import TrainingSection
from .deepspeed_engine import read_deepspeed

# What runs, by how the class begins that a model is wrapped into. FSDP2 makes a subclass, FSDPAnyformerDecoderModel.
WRAPPERS = {
    "DDP": ("DistributedDataParallel",),
    "DeepSpeed": ("DeepSpeedEngine",),
    "FSDP": ("FSDP", "FullyShardedDataParallel"),
}
# Only accelerate's launcher sets it. transformers sets others of accelerate's variables by itself.
BY_ACCELERATE = "ACCELERATE_DYNAMO_USE_FULLGRAPH"
# A rank of a launcher has one of these; MPI's are those that accelerate reads, and a lone task of SLURM may have PMI's.
RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
WAY_OUT = "anyformer train RECIPE --launch"
WHOLE = (None, "DDP")  # engines that keep weights and optimizer states whole in each process


def is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on", "y", "t")


def asked_engine(section: TrainingSection) -> str | None:
    """DeepSpeed, FSDP, mesh or DDP, as recipe and launcher ask for it; None for one plain process."""
    if section.parallelism is not None and engine_of(section.parallelism) == MESH:
        return MESH
    if section.extra.get("deepspeed") is not None or is_true("ACCELERATE_USE_DEEPSPEED"):
        return "DeepSpeed"
    if section.extra.get("fsdp") or is_true("ACCELERATE_USE_FSDP"):
        return "FSDP"
    return "DDP" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else None


def splitter(section: TrainingSection) -> str | None:
    """What splits the model among processes, as an error names it; None where each process holds it whole."""
    if section.parallelism is not None:
        return "training.parallelism"
    engine = asked_engine(section)
    return None if engine in WHOLE else engine


def check_whole_matrices(section: TrainingSection) -> None:
    """Raise UserError for an optimizer or an average that needs what DeepSpeed splits and flattens."""
    if section.optim == "muon":
        raise UserError("training.optim=muon needs whole matrices, but DeepSpeed flattens them; set it to adamw")
    check_average(section, "DeepSpeed")


def check_average(section: TrainingSection, engine: str) -> None:
    """Raise UserError for a moving average of weights that an engine splits."""
    if section.ema_decay is not None:
        raise UserError(
            f"training.ema_decay={section.ema_decay} needs whole weights, but {engine} splits or flattens them; set it "
            f"to null{'' if splits_weights(section) else ', or average checkpoints by evaluation.average_checkpoints'}"
        )


def check_checkpoint_average(number: int | None, section: TrainingSection) -> None:
    """Raise UserError for a mean of `number` checkpoints of a model that no process holds whole."""
    splits = splits_weights(section)
    if number is not None and splits is not None:
        raise UserError(
            f"evaluation.average_checkpoints={number} needs a model that a process holds whole, but {splits} splits "
            f"it; set it to null"
        )


def splits_weights(section: TrainingSection) -> str | None:
    """FSDP or ZeRO-3, which leave no process with all weights; None elsewhere, as under ZeRO-1 and ZeRO-2."""
    engine = asked_engine(section)
    return "FSDP" if engine == "FSDP" else "ZeRO-3" if engine == "DeepSpeed" and zero_stage(section) == 3 else None


def check_launcher(section: TrainingSection, device: str, devices: int) -> None:
    """Raise UserError where accelerate or its launcher would run something else than was asked for, silently.

    device: cuda, cpu, ...; devices: accelerators of this machine, 0 without any.
    """
    if BY_ACCELERATE in os.environ and "MASTER_ADDR" in os.environ and not {*RANKS, "PMI_RANK"} & os.environ.keys():
        raise UserError(
            f"accelerate launch was asked for several processes and has started one, as it does on a CPU; write "
            f"{WAY_OUT} ddp --nproc 2 (where one is meant, unset MASTER_ADDR)"
        )
    engine, shares = asked_engine(section), section.parallelism
    if shares is not None and engine_of(shares) == RING and device == "cpu":
        raise UserError(f"training.parallelism={words_of(shares)}: {RING_NEEDS_GPUS}")
    _check_mesh(section)
    if engine == "DeepSpeed" and is_true("ACCELERATE_USE_CPU"):
        raise UserError(
            f"ACCELERATE_USE_CPU=true switches DeepSpeed off, and DDP would train instead; unset it (without GPUs "
            f"DeepSpeed takes the CPU by itself), or write {WAY_OUT} ddp"
        )
    if engine == "FSDP" and (device == "cpu" or is_true("ACCELERATE_USE_CPU")):
        raise UserError(
            f"FSDP2 needs GPUs: on a CPU accelerate trains DDP instead; write {WAY_OUT} zero3, which shards on CPUs too"
        )
    local = int(os.environ.get("LOCAL_RANK", 0))
    if device != "cpu" and local >= devices:
        raise UserError(
            f"process {local + 1} of this machine has no GPU: there are {devices}; start as many processes as GPUs"
        )


def zero_stage(section: TrainingSection) -> int:
    """The stage of ZeRO that recipe or launcher ask for."""
    given = section.extra.get("deepspeed")
    if given is None:
        return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2))  # accelerate's default
    return (read_deepspeed(given).get("zero_optimization") or {}).get("stage", 0)


def _check_mesh(section: TrainingSection) -> None:
    """Raise UserError where training.parallelism meets a launcher that asks for an engine of its own."""
    if section.parallelism is None:
        return
    kind, words = engine_of(section.parallelism), f"training.parallelism={words_of(section.parallelism)}"
    if kind == MESH and (is_true("ACCELERATE_USE_FSDP") or is_true("ACCELERATE_USE_DEEPSPEED")):
        asked = "FSDP" if is_true("ACCELERATE_USE_FSDP") else "DeepSpeed"
        raise UserError(
            f"{words} splits the model itself, but the launcher's file asks for {asked}; take configs/accelerate/"
            f"ddp.yaml, or write {WAY_OUT} mesh"
        )
    if kind == ULYSSES and section.extra.get("deepspeed") is None and not is_true("ACCELERATE_USE_DEEPSPEED"):
        raise UserError(f"{words}: sp runs under DeepSpeed; write {WAY_OUT} zero3")
    if kind == ULYSSES and zero_stage(section) != 3:
        raise UserError(
            f"{words}: under ZeRO-{zero_stage(section)} DeepSpeed scales the gradients of sp otherwise than one "
            f"process does, and losses differ by 1e-3; write {WAY_OUT} zero3"
        )
    if kind == RING and not section.extra.get("fsdp") and not is_true("ACCELERATE_USE_FSDP"):
        raise UserError(f"{words}: cp runs under FSDP2; write {WAY_OUT} fsdp2")


def check_one_device(n_gpu: int) -> None:
    """Raise UserError where Trainer would spread a batch over the GPUs of one process by nn.DataParallel.

    n_gpu: TrainingArguments.n_gpu. The batch would be as many times the recipe's, and each step slower than by DDP.
    """
    if n_gpu > 1:
        raise UserError(
            f"one process sees {n_gpu} GPUs, and nn.DataParallel would train on them, with {n_gpu} times the batch; "
            f"write {WAY_OUT} ddp, or choose one of them: CUDA_VISIBLE_DEVICES=0"
        )


def check_world_size(world_size: int) -> None:
    """Raise UserError where the launcher has started more processes than have found each other."""
    asked = int(os.environ.get("WORLD_SIZE", 1))
    if asked != world_size:
        raise UserError(
            f"the launcher asked for {asked} processes (WORLD_SIZE), but the run has {world_size}; write {WAY_OUT} ddp "
            f"--nproc {asked}"
        )


def check_engine(asked: str | None, wrapped) -> None:
    """Raise UserError where the model that begins to train is not wrapped into the engine asked for.

    wrapped: the trainer's `model_wrapped`, a compiled module around it or not.
    """
    if asked == MESH:
        return  # nothing wraps it; mesh.check_shared looks at its weights
    names = {type(module).__name__ for module in (wrapped, getattr(wrapped, "_orig_mod", wrapped))}
    if asked is not None and not any(name.startswith(WRAPPERS[asked]) for name in names):
        kinds = [kind for kind, name in WRAPPERS.items() if any(n.startswith(name) for n in names)]
        raise UserError(
            f"the run was started for {asked}, but {kinds[0] if kinds else 'a plain model'} would train; write "
            f"{WAY_OUT} {'ddp' if asked == 'DDP' else 'zero2' if asked == 'DeepSpeed' else 'fsdp2'}"
        )
