"""DeepSpeed: its configuration, its process group, and fresh models that are split over the processes by ZeRO-3."""

import json
import os
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError, did_you_mean
from ...recipes.optimizer_rows import optimizer_of
from ...recipes.parallelism import ULYSSES, engine_of, words_of
from ...recipes.recipe_files import text_of
from ...recipes.schema import TrainingSection
from ...recipes.types import show
from .engine import WAY_OUT, Engine, is_true

if TYPE_CHECKING:  # the launcher reads configurations without torch
    from transformers import TrainingArguments


class DeepSpeed(Engine):
    """ZeRO: optimizer states, gradients and, in stage 3, weights are split over the processes."""

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

    def share(self, model, device):
        from .late_weights import is_late

        return share_out(model, device) if is_late(model) else model

    def check_settings(self) -> None:
        check_whole_matrices(self.section)
        if is_true("ACCELERATE_USE_DEEPSPEED"):
            return
        given = self.section.extra["deepspeed"]
        if "RANK" not in os.environ:
            raise UserError(
                f"training.deepspeed={show(given)} needs a launcher, which starts one process per device; add --launch "
                f"zero2 to anyformer train, or write torchrun --nproc_per_node 1 scripts/train.py in its place"
            )
        read_deepspeed(given)

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
    """Raise UserError for an optimizer or an average that needs what DeepSpeed splits and flattens."""
    row = optimizer_of(section.optim)
    if row.whole_matrices:  # DeepSpeed 0.19 clips Muon's orthogonal updates to max_grad_norm: its issue 8439
        muon = " (its own Muon clips updates in place of gradients: its open pull request 7776)" if row.gathers else ""
        other = ", or train under DDP, FSDP2 or a mesh" if row.gathers else ""
        raise UserError(
            f"training.optim={section.optim} needs whole matrices, but DeepSpeed flattens them{muon}; set it to adamw"
            f"{other}"
        )
    DeepSpeed(section).check_average()


def zero_stage(section: TrainingSection) -> int:
    """The stage of ZeRO that recipe or launcher ask for."""
    given = section.extra.get("deepspeed")
    if given is None:
        return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2))  # accelerate's default
    return (read_deepspeed(given).get("zero_optimization") or {}).get("stage", 0)


def shipped_deepspeed() -> dict:
    """{name: file} of configs/deepspeed."""
    folder = resources.files("anyformer.configs") / "deepspeed"
    return {f.name.removesuffix(".json"): f for f in folder.iterdir() if f.name.endswith(".json")}


def deepspeed_config(value):
    """A path or dict as it is; a name such as `zero2` as the shipped configs/deepspeed/zero2.json.

    A folder of such a name, as a run may have left, is not meant.
    """
    if not isinstance(value, str) or os.path.isfile(value):
        return value
    shipped = shipped_deepspeed()
    if value in shipped:
        return str(shipped[value])
    if not os.path.exists(value):
        raise UserError(f"training.deepspeed={value!r} is neither a file nor shipped{did_you_mean(value, shipped)}")
    return value


def read_deepspeed(given) -> dict:
    """The settings behind training.deepspeed; raises UserError for a file that holds none."""
    setting, config = f"training.deepspeed={show(given)}", deepspeed_config(given)
    if isinstance(config, str):
        try:
            config = json.loads(text_of(Path(config), setting))
        except ValueError as error:
            raise UserError(f"{setting} cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        raise UserError(f"{setting} holds no settings; give one of the shipped names, such as zero2")
    return config


def start_deepspeed(arguments: "TrainingArguments") -> None:
    """Start DeepSpeed's own process group before a ZeRO-3 model is built.

    A ZeRO-3 model is sharded over DeepSpeed's processes while it is built; without this there would be one. Processes
    that share rows (sp) are grouped by DeepSpeed, too.
    """
    from transformers.integrations import is_deepspeed_zero3_enabled

    shared = getattr(arguments, "parallelism_config", None)
    if is_deepspeed_zero3_enabled() or (shared is not None and shared.sp_size > 1):
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo" if arguments.use_cpu else None)


def share_out(model, device):
    """Make the weights of a model one module after the other, and split each over the processes as ZeRO-3 does.

    DeepSpeed's own way (`zero.Init` around the constructor) draws them in another order.
    """
    import deepspeed
    from torch import nn
    from transformers.integrations.deepspeed import deepspeed_config

    from .late_weights import fill

    first = nn.Linear(1, 1)  # each weight of a split module can split others
    zero = deepspeed.zero.Init(module=first, config_dict_or_path=deepspeed_config())

    def split(made: list[nn.Parameter]) -> None:
        for parameter in made:
            parameter.data = parameter.data.to(zero.dtype)
        first.weight.convert_to_zero_parameters(param_list=made)

    fill(model, split)
    for module in model.modules():  # DeepSpeed leaves a split model where it is
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
    return model


@contextmanager
def whole_weights(arguments: "TrainingArguments"):
    """A block in which transformers builds a model as if there were no ZeRO-3, so that a seed gives the weights of DDP.

    Under ZeRO-3 it would initialise shards, in another order; `share_out` splits the model afterwards. transformers
    reads ZeRO-3 from a variable of a module alone, which is unset for the block.
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


def gather_experts_whole(model) -> None:
    """Under ZeRO-3, have the weights of a layer's experts gathered at once, not one expert at a time.

    Ranks choose different experts; where each gathers those that it uses, they wait for each other forever. Modules of
    experts are called ...Experts, in our models as in transformers' own.
    """
    from transformers.integrations import is_deepspeed_zero3_enabled

    classes = {type(module) for module in model.modules() if type(module).__name__.endswith("Experts")}
    if classes and is_deepspeed_zero3_enabled():
        from deepspeed.utils import set_z3_leaf_modules

        set_z3_leaf_modules(model, list(classes))
