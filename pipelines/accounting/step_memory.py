"""Bytes of a recipe's training step, counted on its model before it has weights.

The model is built on torch's meta device, which holds shapes alone: numbers of weights are exact, and tied and shared
weights are counted once.
"""

import itertools
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

import torch
import transformers
from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import image_sides
from torch import nn
from transformers import AutoConfig

from ..adapters import dtype_of_base, load_config
from ..backends import AUTO, attention_fault, backend_arguments
from ..errors import UserError, first_line, loading
from ..likelihoods.without_logits import NativeCausal, give_loss, without_logits
from ..objectives.base import Objective
from ..plugins import TEACHERS
from ..positions import check_rows
from ..precision import prefers_bf16
from ..recipes.checkpoint_overrides import with_fields
from ..recipes.deepspeed_settings import offloads
from ..recipes.introspection import OURS
from ..recipes.optimizer_rows import optimizer_of, own_optimizer
from ..recipes.parallelism import sharing_rows, words_of
from ..recipes.schema import Recipe, TrainingSection
from ..tokenizers.load import planned_size
from .activations import Activations, Batch, StepActivations
from .devices import Devices
from .flops import rows_and_length
from .frozen_base import frozen_bytes, mark_packed, packing_of
from .gathers import share_by_tp
from .layers import freeze
from .lora import plain, with_lora
from .memory import FP32, HALF, STAGES, TrainingStates

MOST_ROWS = 2**16


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step on one device, by its rows and by how states are shared.

    batch: the recipe's. activations: by whether FSDP2 gathers weights, whose gathered ones then count with them; empty
    if they cannot be counted. half: whether it computes in bf16 or fp16. parameters: of the model, or of a rank's part
    of it under tp. moments: bytes of the optimizer's states. block: as `largest_block`. average: whether a moving
    average of weights is kept. sequences: the number that the model reads for one row. frozen: parameters that are not
    trained, kept in `frozen_bytes`. adapted: whether they are an adapter's base, whose copies in half precision are
    activations. part: the model, or a rank's part of it.
    """

    batch: Batch
    activations: dict[bool, StepActivations]
    half: bool
    parameters: int
    moments: int
    block: int
    average: bool
    sequences: int = 1
    frozen: int = 0
    frozen_bytes: int = 0
    adapted: bool = False
    part: nn.Module | None = None

    def held(self, rows: int, checkpointing: bool, stage: str = "none") -> Activations:
        """The activations of a step with `rows` rows; 0 bytes if they cannot be counted."""
        counted = self.activations.get(STAGES[stage].gathers)
        return Activations(0, 0) if counted is None else counted.of_rows(rows * self.sequences, checkpointing)

    def states(self, stage: str, devices: int, accumulates: bool = False) -> TrainingStates:
        """The states that each of `devices` devices holds in a stage of STAGES.

        accumulates: whether a step has several micro-batches. accelerate lets FSDP2 reduce gradients in the last alone,
        and until then they are whole on each device.

        Formulas: Rajbhandari et al. 2020 (ZeRO), section 3 and figure 1. DeepSpeed keeps weights and gradients in the
        precision of the run, and fp32 copies of the weights in the optimizer; without it the weights are fp32. Frozen
        parameters have neither gradients nor such copies. FSDP2 leaves an adapter whole.
        """
        sharing, trained = STAGES[stage], self.parameters - self.frozen
        by_deepspeed = sharing.by_deepspeed
        width = HALF if by_deepspeed and self.half else FP32
        gradients = trained * width
        optimizer = self.moments + FP32 * trained * (by_deepspeed + self.average)
        beside = 0
        if by_deepspeed and sharing.weights and devices > 1:
            beside = 2 * self.block * (HALF if self.half else FP32)
        elif not by_deepspeed and not sharing.weights:
            cast = trained if self.adapted else self.parameters
            beside = HALF * cast * self.half + (gradients if devices > 1 else 0)
        elif sharing.gathers and accumulates and not self.adapted:
            beside = gradients

        def shared(size: int, splits: bool, is_base: bool = False) -> int:
            is_whole = self.adapted and not (by_deepspeed or is_base)
            return -(-size // devices) if splits and not is_whole else size

        frozen = shared(min(self.frozen_bytes, self.frozen * width), sharing.weights, is_base=True)
        return TrainingStates(
            stage,
            weights=frozen + shared(gradients, sharing.weights),
            gradients=shared(gradients, sharing.gradients),
            optimizer=shared(optimizer, sharing.optimizer),
            beside=beside,
        )

    def largest_rows(self, left: int, checkpointing: bool, stage: str = "none") -> int:
        """The most rows whose activations fit into `left` bytes, 0 if none; the recipe's rows if they are uncounted."""
        if not self.activations:
            return self.batch.rows // self.sequences if left >= 0 else 0
        return bisect_right(range(1, MOST_ROWS + 1), left, key=lambda rows: self.held(rows, checkpointing, stage).peak)


def step_memory(
    recipe: Recipe,
    objective: Objective,
    model,
    devices: Devices,
    notes: list[str],
    stages: Collection[str] = ("none",),
) -> StepMemory:
    """The memory of a step of the recipe. notes: approximations are appended to them.

    model: by built_without_weights; it is made one that makes its loss without logits where training makes it one.
    stages: those for which activations are counted.
    """
    section = recipe.training
    freeze(model, section.freeze)
    if (why := without_logits(model)) is not None:
        notes.append(why)
    if section.freeze:
        notes.append("training.freeze: activations and FLOPs are counted as if gradients passed through frozen layers")
    tp = 1 if section.parallelism is None else section.parallelism.tp
    if sharing_rows(section.parallelism) > tp or (tp > 1 and section.parallelism.ep > tp):
        words = words_of(section.parallelism)
        notes.append(f"training.parallelism={words}: of it tp and dp_shard are counted, as if the rest shared nothing")
    if offloads(section):
        notes.append("what training.deepspeed keeps in the host's memory is counted as if it were on the devices")
    if recipe.teacher is not None:
        notes += TEACHERS[objective.taught](objective.Reads(objective)).further_costs()
    batch = planned_batch(recipe, objective, model)
    part = model if tp == 1 else share_by_tp(built_without_weights(recipe, objective, model.config, devices), tp)
    return StepMemory(
        batch=batch,
        activations=step_activations(recipe, objective, (model, part), devices, batch, notes, stages),
        half=planned_dtype(section, devices) != torch.float32,
        parameters=part.num_parameters(),
        moments=optimizer_bytes(section, part, notes),
        block=largest_block(model),
        average=section.ema_decay is not None,
        sequences=objective.planned().sequences,
        frozen=sum(p.numel() for p in part.parameters() if not p.requires_grad),
        frozen_bytes=frozen_bytes(part),
        adapted=section.lora is not None,
        part=part,
    )


def step_activations(
    recipe: Recipe, objective: Objective, models: tuple, devices: Devices, batch: Batch, notes: list[str], stages
) -> dict[bool, StepActivations]:
    """The activations of the recipe's step, by whether FSDP2 gathers weights; {} and a note, if the model does not run
    on shapes alone. models: the whole one, and a rank's part of it under tp."""
    section, (model, part) = recipe.training, models
    backend = counted_backend(recipe, model.config, devices.is_cpu)

    def build(config):
        shallow = built_without_weights(recipe, objective, config, devices, **backend)
        if isinstance(model, NativeCausal):
            give_loss(shallow, model.finish)
        return shallow if part is model else share_by_tp(shallow, section.parallelism.tp)

    added = (str(section.lora), str(backend))
    half = planned_dtype(section, devices) != torch.float32
    counted = {
        gathered: StepActivations(part, build, batch, half, devices.is_cpu, gathered, added)
        for gathered in dict.fromkeys(STAGES[stage].gathers for stage in stages)
    }
    try:
        for activations, checkpointing in itertools.product(counted.values(), (False, True)):
            activations.of_rows(batch.rows, checkpointing)
    except Exception as error:  # the code of an architecture may raise any error
        notes.append(
            f"activations are not counted, as {type(model).__name__} does not run on shapes alone "
            f"({type(error).__name__}: {first_line(error)})"
        )
        return {}
    return counted


def counted_backend(recipe: Recipe, config, on_cpu: bool) -> dict[str, str]:
    """The argument for the attention backend to count with; flash kernels keep the same tensors as torch's sdpa."""
    backend, is_ours = recipe.model.attn_implementation, config.model_type in FAMILIES
    if backend in ("eager", "sdpa"):
        return {"attn_implementation": backend}
    if on_cpu:
        return backend_arguments(backend if backend == "anyformer" else AUTO, AUTO, config, half=False)
    return {"attn_implementation": "sdpa"} if is_ours and attention_fault("sdpa", config) is None else {}


# ------------------------------------------------------------------------------------------------- the model


def planned_config(recipe: Recipe, objective: Objective, notes: list[str]):
    """The config that the recipe describes; values that depend on the data are assumed, and noted."""
    section = recipe.model
    if section.name_or_path is not None:
        return checkpoint_config(recipe)
    fields = {**objective.planned().fields, **section.fields}
    if "vocab_size" not in fields and objective.tokens is not None:
        fields["vocab_size"] = planned_vocabulary(recipe, objective, notes)
    if "num_labels" not in fields and objective.auto_class.endswith("Classification"):
        notes.append("2 classes are assumed: how many there are, the data say")
    try:
        return AutoConfig.for_model(OURS + section.family, **fields)
    except ValueError as error:
        raise UserError(f"model: {error}") from error


def checkpoint_config(recipe: Recipe):
    """The config of `model.name_or_path`, ours or native."""
    name = recipe.model.name_or_path
    with loading(f"model.name_or_path={name!r}"):
        return with_fields(load_config(name, trust_remote_code=recipe.trust_remote_code), recipe.model.fields, name)


def planned_vocabulary(recipe: Recipe, objective: Objective, notes: list[str]) -> int:
    """The vocabulary size of the recipe's tokenizer. Raises UserError if it is unknown before loading."""
    size = planned_size(objective.recipe.tokenizer)
    if size is None:
        raise UserError(
            f"model.vocab_size is not set, and the size of tokenizer.name_or_path={recipe.tokenizer.name_or_path!r} is "
            f"known only when it is loaded; set model.vocab_size"
        )
    if recipe.tokenizer.vocab_size is None:
        notes.append(f"a vocabulary of {size:,} is assumed; tokenizer.vocab_size sets it")
    return size


def built_without_weights(recipe: Recipe, objective: Objective, config, devices: Devices, **backend: str):
    """The recipe's model on the meta device, with the adapter of training.lora in it.

    Raises UserError for a model without the objective's head, and as with_lora does.
    """
    lora, computed = recipe.training.lora, planned_dtype(recipe.training, devices)
    dtype = torch.float32 if lora is None else dtype_of_base(lora.base, computed)
    try:
        with torch.device("meta"):
            auto_class = getattr(transformers, objective.auto_class)
            model = auto_class.from_config(config, dtype=dtype, trust_remote_code=recipe.trust_remote_code, **backend)
    except ValueError as error:
        name = recipe.model.name_or_path
        setting = f"model.family={recipe.model.family}" if name is None else f"model.name_or_path={name!r}"
        raise UserError(f"{setting} has no head for {objective.setting}") from error
    if lora is None:
        return model
    if (packing := packing_of(lora, config)) is not None:
        mark_packed(model, packing, torch.bfloat16 if computed.itemsize == HALF else computed)
    is_whole = type(model).__name__ in (config.architectures or ())  # else the checkpoint lacks a head
    fresh = [name for name, _ in model.named_parameters() if not name.startswith(f"{model.base_model_prefix}.")]
    with torch.device("meta"):
        return plain(with_lora(model, lora, objective.auto_class, [] if is_whole else fresh, objective.unused_weights))


def largest_block(model) -> int:
    """Parameters of the largest layer or embedding table, which engines that shard weights gather at once."""
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    parts = [layer for stack in stacks for layer in stack]
    parts += [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return max((sum(p.numel() for p in part.parameters()) for part in parts), default=0)


def optimizer_bytes(section: TrainingSection, model, notes: list[str]) -> int:
    """Bytes of the optimizer's states of all trained parameters, without copies of the weights."""
    optimizer, per_parameter = own_optimizer(section), optimizer_of(section.optim).bytes_per_parameter
    if optimizer is not None:
        return optimizer.state_bytes(model)
    if per_parameter is None:
        notes.append(f"training.optim={section.optim}: its states are counted as AdamW's, 8 bytes for each parameter")
    return model.num_parameters(only_trainable=True) * (8 if per_parameter is None else per_parameter)


def planned_dtype(section: TrainingSection, devices: Devices) -> torch.dtype:
    """What the run computes in on these devices; `bf16: auto` is yes on the GPUs that plan knows."""
    if section.extra.get("fp16"):
        return torch.float16
    is_half = section.bf16
    if is_half == "auto":
        is_half = prefers_bf16("cpu") if devices.is_cpu else True
    return torch.bfloat16 if is_half else torch.float32


# ------------------------------------------------------------------------------------------------- the batch


def planned_batch(recipe: Recipe, objective: Objective, model) -> Batch:
    """The recipe's batch. Raises UserError for rows that are longer than the model has positions."""
    config, planned = model.config, objective.planned()
    tokens, targets = planned.lengths
    if model.main_input_name == "pixel_values":
        pixels = torch.empty(1, config.num_channels, *image_sides(config), device="meta")
        tokens, targets = rows_and_length({"pixel_values": pixels}, config)[1], 0
    else:
        most = getattr(config, "max_position_embeddings", None)
        if most is not None and getattr(config, "position_encoding", None) == "learned":
            check_rows(objective, most)
        tokens, targets = (length or most for length in (tokens, targets))
    head = model.get_output_embeddings()
    vocabulary = 0 if head is None else head.weight.shape[0]
    rows = recipe.training.per_device_train_batch_size * planned.sequences
    return Batch(rows, tokens, targets if config.is_encoder_decoder else 0, planned.labelled, vocabulary)
