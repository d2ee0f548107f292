"""Models that transformers splits over a mesh by its own plans: FSDP2, HSDP, tensor and expert parallelism.

transformers (5.23) splits a model over a mesh of processes while its weights are loaded; no class wraps it. Trainer
saves no optimizer states of such models, so they are saved here, in shards; the weights are saved whole, as always.
"""

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import AutocastKwargs
from safetensors.torch import load_file
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ...accounting.lora import is_adapted, plain
from ...adapters import ADAPTER_WEIGHTS
from ...errors import UserError, first_line
from ...patches import replaced
from ...precision import resolve_bf16
from ...recipes.parallelism import FIELD, MESH, check_model_shares, reading_together, words_of
from ...recipes.schema import ParallelismSettings
from ..checkpoints.safe_load import plain_shards_alone
from .engine import WAY_OUT, Engine, is_true
from .late_weights import Sliced
from .loaded_shares import read_shares

OPTIMIZER_FOLDER = "optimizer_shards"
SCHEDULER_FILE = "scheduler.pt"  # Trainer's name
NEEDED = ("dp_replicate_size", "ep_size")  # fields of DistributedConfig in versions of transformers that are new enough


class Mesh(Engine):
    """Splits the model while it is built; as no class wraps it, check_shared looks at its weights."""

    name = MESH
    launched_by = "mesh"
    builds_late = True
    reads_pickles = True
    reduces_each_batch = True  # else each device keeps whole gradients till the last micro-batch, 280 GB for 70B
    autocast = AutocastKwargs(cache_enabled=False)  # a cache would keep bf16 copies of all weights through a step

    def _check_parallelism(self) -> None:
        if is_true("ACCELERATE_USE_FSDP") or is_true("ACCELERATE_USE_DEEPSPEED"):
            launched = "FSDP" if is_true("ACCELERATE_USE_FSDP") else "DeepSpeed"
            raise UserError(
                f"training.parallelism={words_of(self.parallelism)} splits the model itself, but the launcher's file "
                f"asks for {launched}; take configs/accelerate/ddp.yaml, or write {WAY_OUT} mesh"
            )

    def check_device(self, device: str) -> None:
        if device == "cpu" and self.parallelism.fsdp_cpu_offload:
            raise UserError(
                "training.parallelism.fsdp_cpu_offload=true needs GPUs: on a CPU shards are in its memory already; set "
                "it to false"
            )

    @contextmanager
    def loading(self, config, device):
        check_model_shares(self.parallelism, config)
        if self.parallelism.pp > 1:
            yield {}
            return
        how = distributed_config(self.parallelism, in_bf16=resolve_bf16(self.section, device.type))
        try:
            with tied_heads_together():
                yield {"distributed_config": how}
        except RuntimeError as error:  # torch has no plan for an operation
            raise UserError(
                f"{FIELD}={words_of(self.parallelism)} does not go with this model: {first_line(error)}"
            ) from error

    def share(self, model, device):
        """Split the model over the processes, which have all built it with the same weights, unless it was loaded so.

        Raises UserError for a model that cannot be split like this.
        """
        settings = self.parallelism
        if mesh_of(model):
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()  # frees what a forward pass has gathered, such as that of check_documents_apart
            check_shared(model, settings)
            return model
        check_model_shares(settings, model.config)
        config = distributed_config(settings, in_bf16=resolve_bf16(self.section, device.type))
        # It warns about every tensor that is redistributed over two dimensions, which is normal on such a mesh.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        backends = {"attn_implementation": model.config._attn_implementation}
        experts = getattr(model.config, "_experts_implementation", None)
        backends |= {} if experts is None else {"experts_implementation": experts}
        weights = {name: Sliced(weight) for name, weight in model.state_dict(keep_vars=True).items()}
        try:
            with tied_heads_together():
                split = type(model).from_pretrained(
                    None,
                    config=model.config,
                    state_dict=weights,
                    dtype=model.dtype,
                    distributed_config=config,
                    **backends,
                )
        except (ValueError, RuntimeError, OSError) as error:  # RuntimeError: torch has no plan for an operation
            raise UserError(f"{FIELD}={words_of(settings)} does not go with this model: {first_line(error)}") from error
        if split.can_generate():
            split.generation_config = model.generation_config
        split.train(model.training)
        check_shared(split, settings)
        return split

    def running(self, wrapped) -> str:
        return f"DTensor({' x '.join(f'{name} {size}' for name, size in mesh_of(wrapped).items())})"

    # ---- called by the trainer

    @property
    def reading_together(self) -> int:
        return reading_together(self.parallelism)

    @contextmanager
    def entered(self, trainer_settings: dict):
        """While Trainer is constructed, hides two facts.

        It would refuse to save split states, and accelerate would share rows by the split.
        """
        model = plain(trainer_settings["model"])
        with replaced(trainer_settings["args"], save_only_model=True), replaced(model, _tp_size=None):
            yield

    def check_begun(self, trainer) -> None:
        check_shared(trainer.model, self.parallelism)

    def share_rows(self, loader) -> None:
        """Do what accelerate does with a ParallelismConfig, which it refuses on CPUs."""
        together, shard = self.reading_together, getattr(loader, "batch_sampler", None)
        if together > 1 and isinstance(shard, BatchSamplerShard):
            shard.process_index, shard.num_processes = shard.process_index // together, shard.num_processes // together
            if shard.num_processes == 1:
                shard.even_batches = False  # otherwise an epoch's last batch is filled up with the first rows

    def load_weights(self, trainer, folder: Path) -> bool:
        if is_adapted(trainer.model):
            from peft import set_peft_model_state_dict

            set_peft_model_state_dict(trainer.model, load_file(folder / ADAPTER_WEIGHTS))
        else:
            read_shares(trainer.model, folder)
        return True

    def save_weights(self, trainer, folder: Path) -> bool:
        """Gather the whole weights on the process that writes, and free them after saving."""
        state, config = self.whole_state(trainer), trainer.model.config
        if trainer.args.should_save:
            distributed = config.__dict__.pop("distributed_config", None)  # or save_pretrained would gather once more
            try:
                trainer._save(str(folder), state)
            finally:
                if distributed is not None:
                    config.distributed_config = distributed
        return True

    def whole_state(self, trainer) -> dict:
        """The whole weights on the process that writes, {} on the others; all processes must call this."""
        model, state = trainer.model, trainer.model.state_dict()  # FSDP2 reshards what a forward pass left unsharded
        if is_adapted(model):  # PEFT would gather the split weights of the base, which are not saved
            return {name: tensor for name, tensor in state.items() if not hasattr(tensor, "full_tensor")}
        options = {"save_on_this_rank": trainer.args.should_save}
        return model.gather_sharded_state_dict_for_save(model, state, model.config.distributed_config, **options)

    def load_states(self, trainer, folder: Path) -> bool:
        """Load optimizer and schedule; raises UserError for states that do not fit the weights of this process."""
        from transformers.distributed.checkpoint import load_optimizer_distributed

        shards, optimizer = folder / OPTIMIZER_FOLDER, trainer.optimizer
        empty = [group for group in optimizer.param_groups if not group["params"]]  # of an adapter; torch fails at them
        if empty:
            optimizer.param_groups = [group for group in optimizer.param_groups if group["params"]]
        try:
            with plain_shards_alone(shards):
                load_optimizer_distributed(trainer.model, optimizer, str(shards))
        except (RuntimeError, KeyError, ValueError, CheckpointException) as error:
            raise UserError(
                f"{shards} holds states of other weights than this process has ({first_line(error)}); go on with the "
                f"{FIELD} that the run began with"
            ) from error
        optimizer.param_groups += empty
        trainer.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_FILE, weights_only=True))
        return True

    def save_states(self, trainer, folder: Path) -> bool:
        from transformers.distributed.checkpoint import save_optimizer_distributed

        save_optimizer_distributed(trainer.model, trainer.optimizer, str(folder / OPTIMIZER_FOLDER))
        if trainer.args.should_save:
            torch.save(trainer.lr_scheduler.state_dict(), folder / SCHEDULER_FILE)
        return True


def distributed_config(settings: ParallelismSettings, in_bf16: bool):
    """transformers' DistributedConfig of the settings; raises UserError if this transformers is too old for them.

    in_bf16: whether FSDP2 gathers weights in bf16, in which the model then computes; sums of gradients stay fp32.
    """
    from transformers.distributed import DistributedConfig

    names = {field.name for field in dataclasses.fields(DistributedConfig)}
    if not names.issuperset(NEEDED):  # transformers < 5.23
        raise UserError(
            f"{FIELD}={words_of(settings)} needs transformers 5.23 or newer; install it, or use --launch ddp"
        )
    return DistributedConfig(
        fsdp_size=settings.dp_shard,
        dp_replicate_size=settings.dp_replicate,
        tp_size=settings.tp,
        ep_size=settings.ep,
        fsdp_mixed_precision=in_bf16,
        fsdp_cpu_offload=settings.fsdp_cpu_offload,
    )


@contextmanager
def tied_heads_together() -> Iterator[None]:
    """In the block transformers splits a head that is tied to the embeddings together with them.

    It ties them later, and two groups of FSDP2 would gather the same weights and send a gradient each. Here they and
    the last norm are in the group of the whole model, which gathers once, and sends gradients at the end of the
    backward pass, however often the head is called.
    """
    from transformers.distributed import mixin

    apply = mixin.apply_fully_sharded_data_parallelism

    def applied(model, mesh, plan, *plans):
        head = model.get_output_embeddings()
        if head in [model.get_submodule(name.rpartition(".")[0]) for name in model.all_tied_weights_keys]:
            head.weight = model.get_input_embeddings().weight
            plan = {name: style for name, style in plan.items() if style != "keep_full_weight"}
        return apply(model, mesh, plan, *plans)

    with replaced(mixin, apply_fully_sharded_data_parallelism=applied):
        yield


def mesh_of(model) -> dict[str, int]:
    """{dimension: number of processes} of the mesh over which weights are split; {} for a model that is not."""
    sizes: dict[str, int] = {}
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            sizes |= {name: size for name, size in zip(mesh.mesh_dim_names, mesh.shape) if size > 1}
    return sizes


def check_shared(model, settings: ParallelismSettings) -> None:
    """Raise UserError unless the weights of a model are split over the mesh that the settings ask for."""
    expected = {"fsdp": settings.dp_shard, "dp_replicate": settings.dp_replicate, "tp": settings.tp, "ep": settings.ep}
    sizes = mesh_of(model)
    if settings.ep > 1:  # with ep these dimensions may have other sizes on the mesh, but they must be there
        expected |= {name: sizes.get(name, size) for name, size in expected.items() if name in ("fsdp", "tp")}
    missing = next((name for name, size in expected.items() if size > 1 and sizes.get(name) != size), None)
    if missing is not None:
        raise UserError(
            f"{FIELD}={words_of(settings)} was asked for, but no weight of {type(model).__name__} is split by "
            f"{missing} (its mesh is {sizes or 'none'})"
        )


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
