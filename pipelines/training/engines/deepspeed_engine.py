"""DeepSpeed: its configuration, its process group, and how ZeRO-3 splits fresh models over the processes."""

import os
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError
from ...recipes.deepspeed_settings import read_deepspeed, zero_stage
from ...recipes.optimizer_rows import optimizer_of
from ...recipes.parallelism import ULYSSES, engine_of, words_of
from ...recipes.schema import TrainingSection
from ...recipes.types import show
from .engine import WAY_OUT, Engine, is_true

if TYPE_CHECKING:  # the launcher reads configurations without torch
    from transformers import TrainingArguments


class DeepSpeed(Engine):
    """ZeRO splits optimizer states, gradients and, in stage 3, weights over the processes."""

    name = "DeepSpeed"
    launched_by = "zero2"
    wrappers = ("DeepSpeedEngine",)
    keeps_steps = clips_itself = True
    reads_pickles = loads_by_itself = True

    @property
    def splits_weights(self) -> str | None:
        return "ZeRO-3" if zero_stage(self.section) == 3 else None

    @property
    def builds_late(self) -> bool:
        return self.splits_weights is not None

    def start(self, arguments: "TrainingArguments") -> None:
        """Start DeepSpeed's process group.

        ZeRO-3 shards a model over this group while it is built; without it the model would be sharded over one process.
        DeepSpeed also groups the processes that share rows (sp).
        """
        from transformers.integrations import is_deepspeed_zero3_enabled

        sharing = getattr(arguments, "parallelism_config", None)
        if is_deepspeed_zero3_enabled() or (sharing is not None and sharing.sp_size > 1):
            import deepspeed

            deepspeed.init_distributed(dist_backend="gloo" if arguments.use_cpu else None)

    @contextmanager
    def entered(self, trainer_settings: dict):
        gather_experts_whole(trainer_settings["model"])
        yield

    def share(self, model, device):
        from .late_weights import is_late

        return share_out(model, device) if is_late(model) else model

    def check_settings(self) -> None:
        check_whole_matrices(self.section)
        if is_true("ACCELERATE_USE_DEEPSPEED"):
            return
        value = self.section.extra["deepspeed"]
        if "RANK" not in os.environ:
            raise UserError(
                f"training.deepspeed={show(value)} needs a launcher, which starts one process per device; add --launch "
                f"zero2 to anyformer train, or write torchrun --nproc_per_node 1 scripts/train.py in its place"
            )
        read_deepspeed(value)

    def check_device(self, device: str) -> None:
        if is_true("ACCELERATE_USE_CPU"):
            raise UserError(
                f"ACCELERATE_USE_CPU=true switches DeepSpeed off, and DDP would train instead; unset it (without GPUs "
                f"DeepSpeed takes the CPU by itself), or write {WAY_OUT} ddp"
            )

    def _check_parallelism(self) -> None:
        super()._check_parallelism()
        stage, shares = zero_stage(self.section), self.parallelism
        if shares is not None and engine_of(shares) == ULYSSES and stage != 3:
            raise UserError(
                f"training.parallelism={words_of(shares)}: under ZeRO-{stage} DeepSpeed scales the gradients of sp "
                f"otherwise than one process does, and losses differ by 1e-3; write {WAY_OUT} zero3"
            )

    def resumable(self, checkpoint: Path, processes: int, trusted: bool) -> Path:
        from .elastic import shared_out_anew

        return shared_out_anew(checkpoint, processes, trusted)


def check_whole_matrices(section: TrainingSection) -> None:
    """Raise UserError for an optimizer or a weight average that needs whole matrices, which DeepSpeed flattens."""
    row = optimizer_of(section.optim)
    if row.whole_matrices:  # DeepSpeed 0.19 clips Muon's orthogonal updates to max_grad_norm (its issue 8439)
        muon = " (its own Muon clips updates in place of gradients: its open pull request 7776)" if row.gathers else ""
        other = ", or train under DDP, FSDP2 or a mesh" if row.gathers else ""
        raise UserError(
            f"training.optim={section.optim} needs whole matrices, but DeepSpeed flattens them{muon}; set it to adamw"
            f"{other}"
        )
    DeepSpeed(section).check_average()


def share_out(model, device):
    """Draw the weights of a model module by module, and split each over the processes as ZeRO-3 does.

    DeepSpeed's usual way (`zero.Init` around the constructor) draws them in another order.
    """
    import deepspeed
    from torch import nn
    from transformers.integrations.deepspeed import deepspeed_config

    from .late_weights import fill

    first = nn.Linear(1, 1)  # any split parameter has the method that splits others
    zero = deepspeed.zero.Init(module=first, config_dict_or_path=deepspeed_config())

    def split(made: list[nn.Parameter]) -> None:
        for parameter in made:
            parameter.data = parameter.data.to(zero.dtype)
        first.weight.convert_to_zero_parameters(param_list=made)

    fill(model, split)
    for module in model.modules():  # DeepSpeed does not move the buffers of a split model
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
    return model


@contextmanager
def whole_weights(arguments: "TrainingArguments"):
    """In the block transformers builds models as if without ZeRO-3, so that a seed gives the same weights as under DDP.

    Under ZeRO-3 it would initialise shards in another order; `share_out` splits the model afterwards. transformers
    keeps DeepSpeed's configuration in a module's variable, which is unset in the block.
    """
    config = getattr(arguments, "hf_deepspeed_config", None)
    if config is None:  # the engine may come from the launcher's file instead of the recipe
        config = getattr(arguments.deepspeed_plugin, "dschf", None)
    if config is None:
        yield
        return
    from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(config)


def gathered(weights: list):
    """A block in which weights that ZeRO-3 has split are whole; changes by the first process are kept."""
    if not any(hasattr(weight, "ds_id") for weight in weights):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(weights, modifier_rank=0)


def gather_experts_whole(model) -> None:
    """Under ZeRO-3, let all experts of a layer be gathered together, not one at a time.

    The tokens of each rank choose different experts; if each rank gathered only those, ranks would wait for each other
    forever. The names of classes of experts end in Experts, in our models as in transformers'.
    """
    from transformers.integrations import is_deepspeed_zero3_enabled

    classes = {type(module) for module in model.modules() if type(module).__name__.endswith("Experts")}
    if classes and is_deepspeed_zero3_enabled():
        from deepspeed.utils import set_z3_leaf_modules

        set_z3_leaf_modules(model, list(classes))
