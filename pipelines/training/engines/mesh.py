"""Models that several processes share by transformers' own plans: FSDP2, HSDP, tensor and expert parallelism.

transformers (5.23) splits a model over a mesh of processes while its weights are loaded; nothing wraps it. Trainer
saves no state of its optimizer, which is done here, in shards; the weights are saved whole, as of any other model.
"""

import dataclasses
import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...errors import UserError, first_line
from ...recipes.parallelism import FIELD, check_model_shares, words_of
from ...recipes.schema import ParallelismSettings
from ..checkpoints.safe_load import plain_shards_alone
from ..checkpoints.stored_weights import stored_weights
from .late_weights import Sliced

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OPTIMIZER_FOLDER = "optimizer_shards"
NEEDED = ("dp_replicate_size", "ep_size")  # fields of DistributedConfig, by which a transformers that can is known


def distributed_config(settings: ParallelismSettings):
    """transformers' DistributedConfig of the settings; raises UserError where this transformers has none that can."""
    from transformers.distributed import DistributedConfig

    known = {field.name for field in dataclasses.fields(DistributedConfig)}
    if not known.issuperset(NEEDED):  # transformers < 5.23
        raise UserError(
            f"{FIELD}={words_of(settings)} needs transformers 5.23 or newer; install it, or use --launch ddp"
        )
    return DistributedConfig(
        fsdp_size=settings.dp_shard,
        dp_replicate_size=settings.dp_replicate,
        tp_size=settings.tp,
        ep_size=settings.ep,
        fsdp_mixed_precision=settings.fsdp_mixed_precision,
        fsdp_cpu_offload=settings.fsdp_cpu_offload,
    )


def share_model(model: "PreTrainedModel", settings: ParallelismSettings) -> "PreTrainedModel":
    """The model split over the processes, which have each built it with the same weights.

    Raises UserError for a model that cannot be shared so.
    """
    check_model_shares(settings, model.config)
    config = distributed_config(settings)
    # One line for each tensor that crosses two dimensions of the mesh, which is what such a mesh is for.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    backends = {"attn_implementation": model.config._attn_implementation}
    experts = getattr(model.config, "_experts_implementation", None)
    backends |= {} if experts is None else {"experts_implementation": experts}
    try:
        shared = type(model).from_pretrained(
            None,
            config=model.config,
            state_dict={name: Sliced(weight) for name, weight in model.state_dict(keep_vars=True).items()},
            dtype=model.dtype,
            distributed_config=config,
            **backends,
        )
    except (ValueError, RuntimeError, OSError) as error:  # torch's of an operation without a plan is a RuntimeError
        raise UserError(f"{FIELD}={words_of(settings)} does not go with this model: {first_line(error)}") from error
    if shared.can_generate():
        shared.generation_config = model.generation_config
    shared.train(model.training)
    check_shared(shared, settings)
    return shared


def mesh_of(model) -> dict[str, int]:
    """{dimension: processes} over which a model's weights are split; {} of a model that is whole."""
    from torch.distributed.tensor import DTensor

    found: dict[str, int] = {}
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            found |= {name: size for name, size in zip(mesh.mesh_dim_names, mesh.shape) if size > 1}
    return found


def check_shared(model, settings: ParallelismSettings) -> None:
    """Raise UserError unless the weights of a model lie on the mesh that the settings ask for."""
    wanted = {"fsdp": settings.dp_shard, "dp_replicate": settings.dp_replicate, "tp": settings.tp, "ep": settings.ep}
    found = mesh_of(model)
    if settings.ep > 1:  # a model of experts alone may have nothing else on these
        wanted |= {name: found.get(name, size) for name, size in wanted.items() if name in ("fsdp", "tp")}
    missing = next((name for name, size in wanted.items() if size > 1 and found.get(name) != size), None)
    if missing is not None:
        raise UserError(
            f"{FIELD}={words_of(settings)} was asked for, but no weight of {type(model).__name__} is split by "
            f"{missing} (its mesh is {found or 'none'})"
        )


def share_out_rows(loader, shared: int) -> None:
    """Change a loader that accelerate has prepared, so that `shared` processes after each other get the same batches.

    accelerate does so itself where its own ParallelismConfig is set, which it refuses on CPUs.
    """
    from accelerate.data_loader import BatchSamplerShard

    shard = getattr(loader, "batch_sampler", None)
    if shared > 1 and isinstance(shard, BatchSamplerShard):
        shard.process_index, shard.num_processes = shard.process_index // shared, shard.num_processes // shared
        if shard.num_processes == 1:
            shard.even_batches = False  # an epoch's last batch would be filled up with its first rows


def whole_state(model, is_main: bool) -> dict[str, torch.Tensor]:
    """The whole weights of a shared model on the main process, nothing on others; all have to call it."""
    return model.gather_sharded_state_dict_for_save(
        model, model.state_dict(), model.config.distributed_config, save_on_this_rank=is_main
    )


@contextmanager
def saved_as_whole(config):
    """A block in which save_pretrained takes a state dict of whole weights as it is."""
    given = config.__dict__.pop("distributed_config", None)
    try:
        yield
    finally:
        if given is not None:
            config.distributed_config = given


def load_whole_weights(model, folder: Path) -> None:
    """Give a shared model the weights of a folder that holds them whole, in one file or several."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(
        model, stored_weights(model, folder), options=StateDictOptions(full_state_dict=True, strict=True)
    )


def save_shared_optimizer(model, optimizer, checkpoint: Path) -> None:
    from transformers.distributed.checkpoint import save_optimizer_distributed

    save_optimizer_distributed(model, optimizer, str(Path(checkpoint) / OPTIMIZER_FOLDER))


def load_shared_optimizer(model, optimizer, checkpoint: Path) -> None:
    """Raises UserError for a checkpoint without the states of a shared optimizer."""
    from torch.distributed.checkpoint import CheckpointException
    from transformers.distributed.checkpoint import load_optimizer_distributed

    folder = Path(checkpoint) / OPTIMIZER_FOLDER
    if not folder.is_dir():
        raise UserError(f"{checkpoint} holds no {OPTIMIZER_FOLDER}: it was not written by a run with {FIELD}")
    try:
        with plain_shards_alone(folder):
            load_optimizer_distributed(model, optimizer, str(folder))
    except (RuntimeError, KeyError, ValueError, CheckpointException) as error:
        raise UserError(
            f"{folder} holds states of other weights than this process has ({first_line(error)}); go on with the "
            f"{FIELD} that the run began with"
        ) from error


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
