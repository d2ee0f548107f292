"""What a recipe's run would take: parameters, bytes on each device, FLOPs and days, before any data or weights exist.

The model is built on torch's meta device, which holds shapes alone: every number of weights is exact, tied and shared
ones counted once. What it means in bytes and seconds stands in accounting/.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import transformers
from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import ATTENTION_KINDS, POSITION_SCHEMES
from transformers import AutoConfig

import anyformer

from ..accounting.activations import Activations, Batch, How, activations
from ..accounting.caches import CacheSize, cache_size
from ..accounting.devices import Devices
from ..accounting.flops import FlopCount, active_parameters, measured_flops
from ..accounting.memory import FP32, HALF, MOMENTS, STAGES, TrainingStates, check_stage, training_states
from ..accounting.precision import prefers_bf16
from ..adapters import load_config
from ..data.batch_keys import IGNORE_INDEX
from ..errors import UserError, loading_reason
from ..objectives.base import Objective
from ..plugins import objective_of
from ..recipes.checkpoint_overrides import with_fields
from ..recipes.introspection import OURS
from ..recipes.parallelism import MESH, RING, ULYSSES, engine_of, processes_of, sharing_rows, words_of
from ..recipes.recipe_files import shipped
from ..recipes.schema import Recipe
from .engines.global_batch import micro_batches, rows_per_step
from .optimizers import muon_parameter_names

CHINCHILLA = 20  # tokens for each parameter (Hoffmann et al. 2022, table 3)
SHOWN_STEPS = 1000  # where nothing says how many there are
MOST_ROWS = 2**16
PER_NODE = 8  # devices of a machine
STAGES_TO_TRY = ("none", "zero2", "zero3")
STAGES_OF_MUON = ("none", "fsdp")  # DeepSpeed flattens the matrices that Muon needs whole
OFFLOAD = "_offload"  # the end of an engine's name that keeps states in the host's memory


@dataclass(frozen=True)
class StagePlan:
    """A way to share a run's states among devices. total: bytes on each device with the recipe's rows. largest_rows:
    the most rows per device that fit, 0 if none; largest_rows_checkpointed: with gradient checkpointing."""

    states: TrainingStates
    total: int
    fits: bool
    largest_rows: int
    largest_rows_checkpointed: int


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step on one device, by its rows and by how states are shared.

    batch: of which the rows are left open. moments: bytes of the optimizer's states. block: parameters of the largest.
    sequences: that the model reads for a row.
    """

    config: Any
    batch: Batch
    on_cpu: bool
    half: bool
    eager: bool
    parameters: int
    moments: int
    block: int
    average: bool
    sequences: int = 1

    def held(self, rows: int, checkpointing: bool) -> Activations:
        """Beside the states."""
        how = How(self.half, self.on_cpu, checkpointing, self.eager)
        return activations(self.config, replace(self.batch, rows=rows * self.sequences), how)

    def states(self, stage: str, devices: int) -> TrainingStates:
        return training_states(stage, self.parameters, self.moments, devices, self.half, self.block, self.average)

    def largest_rows(self, left: int, checkpointing: bool) -> int:
        """The most rows whose activations fit into so many bytes."""
        return largest_rows(lambda rows: self.held(rows, checkpointing).peak, left)


@dataclass(frozen=True)
class Plan:
    """Bytes are of one device, times in seconds; `asdict` of it is what `anyformer plan --output` writes.

    host_memory: bytes that the processes of a node, one for each of its per_node devices, take while the model is made;
    None where the devices are the host, or ZeRO-3 loads a checkpoint in shards.
    """

    name: str
    model: str
    parameters: int
    active_parameters: int
    devices: str
    device_memory: int
    host_memory: int | None
    per_node: int
    half: bool
    rows: int
    accumulation: int
    tokens: int
    targets: int
    tokens_per_step: int
    checkpointing: bool
    plain: Activations
    checkpointed: Activations
    stages: list[StagePlan]
    stage: str
    advice: str
    cache: CacheSize | None
    flops_per_token: int
    peak_flops: float
    peak_source: str
    mfu: float
    step_seconds: float
    steps: int
    steps_source: str
    seconds: float
    notes: list[str] = field(default_factory=list)

    @property
    def chosen(self) -> StagePlan:
        return next(row for row in self.stages if row.states.stage == self.stage)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the totals of the stages included."""
        found = asdict(self)
        for row, stage in zip(found["stages"], self.stages):
            row["states"] |= {"total": stage.states.total, "words": stage.states.words}
        return found


def plan_run(
    recipe: Recipe,
    devices: Devices,
    *,
    stage: str | None = None,
    context: int | None = None,
    mfu: float = 0.4,
    per_node: int = PER_NODE,
    until_trained: bool = False,
) -> Plan:
    """The plan of a recipe; nothing is read or written but the config of a checkpoint that it starts from.

    Args:
        stage: how states are shared, a name of accounting.memory.STAGES; None: the recipe's, else the first that fits.
        context: tokens that the cache holds; None: as many as the model has positions, else a row's.
        mfu: model FLOPs utilization, the share of the devices' peak that the run reaches.
        per_node: devices of a machine, each with a process that makes the whole model in its memory.
        until_trained: where the recipe sets no steps, count those of 20 tokens per parameter (a preset's).

    Raises:
        UserError: a native model that cannot be converted, or settings that do not go together.
    """
    stage = stage or stage_of_recipe(recipe)
    check_stage(stage, recipe.training.optim)
    anyformer.register()
    objective, section, notes = objective_of(recipe), recipe.training, []
    config = planned_config(recipe, objective, notes)
    model = built_without_weights(recipe, objective, config)
    memory = step_memory(recipe, objective, model, devices, notes)
    batch, parameters, half, held = memory.batch, memory.parameters, memory.half, memory.held
    check_devices(section.parallelism, devices)
    ranks = devices.count // sharing_rows(section.parallelism)  # devices that read rows of their own
    rows, accumulated = micro_batches(section, ranks, rows_per_step(section, ranks))
    checkpointing = section.gradient_checkpointing

    sharers = devices.count if section.parallelism is None else devices.count // section.parallelism.dp_replicate

    def staged(name: str, count: int = sharers) -> TrainingStates:
        return memory.states(name, count)

    def planned(name: str) -> StagePlan:
        states = staged(name)
        total, left = states.total + held(rows, checkpointing).peak, devices.memory - states.total
        most = [memory.largest_rows(left, way) for way in (False, True)]
        return StagePlan(states, total, total <= devices.memory, *most)

    tried = STAGES_OF_MUON if section.optim == "muon" else STAGES_TO_TRY
    stages = [planned(name) for name in STAGES]
    by_name = {row.states.stage: row for row in stages}
    chosen = stage or next((name for name in tried if by_name[name].fits), tried[-1])
    needed = devices_needed(staged, held(1, True).peak, tried[-1], devices.memory)
    per_node = min(per_node, devices.count)
    name = recipe.name if recipe.name in shipped("recipes") else "RECIPE"  # a preset is no run; a file has a path
    how = launch_command(name, section.parallelism, chosen, devices, per_node)
    advice = advise(by_name[chosen], devices, rows, checkpointing, needed, how)

    per_row = flops_of_row(model, config, batch) * memory.sequences
    tokens_per_row = (batch.tokens + batch.targets) * memory.sequences
    tokens_per_step = rows * accumulated * ranks * tokens_per_row
    rate, source = peak_rate(devices, half)
    step_seconds = per_row * (tokens_per_step / tokens_per_row) / (rate * mfu)
    steps, why = planned_steps(section, parameters, tokens_per_step, until_trained)
    own = getattr(config, "max_position_embeddings", None) or max(batch.tokens, batch.targets)
    size = cache_size(config, context or own, HALF if half else FP32, batch.tokens if batch.targets else 0)
    in_shards = devices.is_cpu or (recipe.model.name_or_path is not None and chosen == "zero3")
    learned = getattr(config, "position_encoding", None) == "learned"
    if size is not None and learned and (context or 0) > own:
        raise UserError(
            f"--context={context} is longer than the model's max_position_embeddings={own}: learned positions need one "
            f"for each token"
        )
    if context is not None and size is None:
        raise UserError(f"--context={context} is of a cache, and {type(model).__name__} generates nothing; remove it")
    return Plan(
        name=recipe.name,
        model=type(model).__name__,
        parameters=parameters,
        active_parameters=active_parameters(model),
        devices=str(devices),
        device_memory=devices.memory,
        host_memory=None if in_shards else FP32 * parameters * per_node,
        per_node=per_node,
        half=half,
        rows=rows,
        accumulation=accumulated,
        tokens=batch.tokens,
        targets=batch.targets,
        tokens_per_step=tokens_per_step,
        checkpointing=checkpointing,
        plain=held(rows, False),
        checkpointed=held(rows, True),
        stages=stages,
        stage=chosen,
        advice=advice,
        cache=size,
        flops_per_token=round(per_row / tokens_per_row),
        peak_flops=rate,
        peak_source=source,
        mfu=mfu,
        step_seconds=step_seconds,
        steps=steps,
        steps_source=why,
        seconds=steps * step_seconds,
        notes=notes,
    )


def step_memory(recipe: Recipe, objective: Objective, model, devices: Devices, notes: list[str]) -> StepMemory:
    """What a step of the recipe takes. model: one of ours, of which shapes alone are read. notes: get what is rough."""
    section, config = recipe.training, model.config
    if section.lora is not None:
        notes.append("training.lora is not counted: gradients and optimizer states are those of all weights")
    if sharing_rows(section.parallelism) > 1:
        notes.append(
            f"training.parallelism={words_of(section.parallelism)}: activations are counted whole on each device, and "
            f"so are weights where dp_shard is 1"
        )
    if str(section.extra.get("deepspeed")).endswith(OFFLOAD):
        notes.append("what training.deepspeed keeps in the host's memory is counted as if it were on the devices")
    moments = optimizer_bytes(section.optim, model, notes)
    notes += [f"activations of {kind} are a rough estimate" for kind in kinds_of_their_own(config)]
    return StepMemory(
        config=config,
        batch=planned_batch(recipe, objective, config, model),
        on_cpu=devices.is_cpu,
        half=computes_in_half(section, devices),
        eager=recipe.model.attn_implementation == "eager",
        parameters=model.num_parameters(),
        moments=moments,
        block=largest_block(model),
        average=section.ema_decay is not None,
        sequences=objective.sequences_per_row,
    )


# ------------------------------------------------------------------------------------------------- the model


def planned_config(recipe: Recipe, objective: Objective, notes: list[str]):
    """The config as far as the recipe says it; what only data would tell is assumed, and noted."""
    section = recipe.model
    if section.name_or_path is not None:
        return checkpoint_config(recipe, notes)
    fields = objective.planned_fields() | section.fields
    if "vocab_size" not in fields and objective.special_tokens is not None:
        fields["vocab_size"] = planned_vocabulary(recipe, objective, notes)
    if "num_labels" not in fields and objective.auto_class.endswith("Classification"):
        notes.append("2 classes are assumed: how many there are, the data say")
    try:
        return AutoConfig.for_model(OURS + section.family, **fields)
    except ValueError as error:
        raise UserError(f"model: {error}") from error


def checkpoint_config(recipe: Recipe, notes: list[str]):
    """The config of `model.name_or_path`; of a native model that of ours with the same maths and weights."""
    from ..interop.matching import our_config

    name = recipe.model.name_or_path
    try:
        config = with_fields(load_config(name, trust_remote_code=recipe.trust_remote_code), recipe.model.fields, name)
    except (OSError, ValueError) as error:
        raise UserError(f"model.name_or_path={name!r} cannot be loaded: {loading_reason(error)}") from error
    if config.model_type in FAMILIES:
        return config
    notes.append(f"{name} is a native {config.model_type}: counted is the model of ours with its maths and weights")
    try:
        return our_config(config)
    except UserError as error:
        raise UserError(f"model.name_or_path={name!r} cannot be planned, as it cannot be converted: {error}") from error


def planned_vocabulary(recipe: Recipe, objective: Objective, notes: list[str]) -> int:
    """Entries of the recipe's tokenizer."""
    size = objective.planned_vocabulary()
    if size is None:
        raise UserError(
            f"model.vocab_size is not set, and the size of tokenizer.name_or_path={recipe.tokenizer.name_or_path!r} is "
            f"known only when it is loaded; set model.vocab_size"
        )
    if recipe.tokenizer.vocab_size is None:
        notes.append(f"a vocabulary of {size:,} is assumed; tokenizer.vocab_size sets it")
    return size


def built_without_weights(recipe: Recipe, objective: Objective, config):
    """The recipe's model on the meta device."""
    try:
        with torch.device("meta"):
            return getattr(transformers, objective.auto_class).from_config(config)
    except ValueError as error:
        raise UserError(f"model.family={recipe.model.family} has no head for {objective.setting}") from error


def largest_block(model) -> int:
    """Parameters of the largest layer or embedding table: what engines that share weights make whole at once."""
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    parts = [layer for stack in stacks for layer in stack]
    parts += [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return max((sum(p.numel() for p in part.parameters()) for part in parts), default=0)


def optimizer_bytes(name: str, model, notes: list[str]) -> int:
    """Bytes of an optimizer's states of all parameters, beside the weights."""
    if name == "muon":
        matrices = muon_parameter_names(model)
        return sum(p.numel() * (4 if n in matrices else 8) for n, p in model.named_parameters())
    if name not in MOMENTS:
        notes.append(f"training.optim={name}: its states are counted as AdamW's, 8 bytes for each parameter")
    return model.num_parameters() * MOMENTS.get(name, MOMENTS["adamw"])


def computes_in_half(section, devices: Devices) -> bool:
    """Whether the run computes in bf16 or fp16 on these devices; `bf16: auto` is yes on the GPUs that plan knows."""
    if section.extra.get("fp16"):
        return True
    if section.bf16 == "auto":
        return prefers_bf16("cpu") if devices.is_cpu else True
    return bool(section.bf16)


def kinds_of_their_own(config) -> list[str]:
    """What computes attention by a class of its own in this model, of whose activations there is no exact count."""
    kinds = [kind for kind in dict.fromkeys(config.attention_kinds) if ATTENTION_KINDS[kind].own_scores]
    acts_on = POSITION_SCHEMES[config.position_encoding].acts_on
    return kinds + ([f"{config.position_encoding} attention"] if acts_on == "attention" else [])


# ------------------------------------------------------------------------------------------------- the batch


def planned_batch(recipe: Recipe, objective: Objective, config, model) -> Batch:
    """Tokens of a row and what its head predicts. Raises UserError for rows that the model has no positions for."""
    tokens, targets = objective.row_lengths()
    if getattr(config, "patch_size", None) is not None:
        tokens, targets = math.prod(config.grid) + config.num_prefix_tokens, 0
    else:
        most = getattr(config, "max_position_embeddings", None)
        if most is not None and getattr(config, "position_encoding", None) == "learned":
            objective.check_length(most)
        tokens, targets = (length or most for length in (tokens, targets))
    head = model.get_output_embeddings()
    vocabulary = 0 if head is None else head.weight.shape[0]
    pair = config.is_encoder_decoder
    rows = recipe.training.per_device_train_batch_size
    return Batch(rows, tokens, targets if pair else 0, objective.labelled_share(), vocabulary)


def flops_of_row(model, config, batch: Batch) -> float:
    """FLOPs of training on one row, forward and backward."""
    labels = torch.zeros(1, batch.targets or batch.tokens, dtype=torch.long)
    labels[:, round(labels.shape[1] * batch.labelled) :] = IGNORE_INDEX
    inputs = {"labels": labels, "input_ids": torch.zeros(1, batch.tokens, dtype=torch.long)}
    if getattr(config, "patch_size", None) is not None:
        sides = (side * config.patch_size for side in config.grid)
        inputs = {"labels": labels, "pixel_values": torch.empty(1, config.num_channels, *sides, device="meta")}
    return float(FlopCount(model).of_batch(inputs))


# ------------------------------------------------------------------------------------------- devices and time


def largest_rows(peak: Callable[[int], int], memory: int) -> int:
    """The most rows whose activations fit into so many bytes, at most MOST_ROWS; 0: not even one."""
    low, high = 0, MOST_ROWS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= memory else (low, middle)
    return low


def stage_of_recipe(recipe: Recipe) -> str | None:
    """How the recipe itself says that states are shared: training.deepspeed, training.fsdp or training.parallelism."""
    extra, parallelism = recipe.training.extra, recipe.training.parallelism
    if parallelism is not None and (engine := engine_of(parallelism)) == ULYSSES:
        return ULYSSES
    if parallelism is not None:
        return "fsdp" if engine == RING or parallelism.dp_shard > 1 else "none"
    if extra.get("fsdp"):
        return "fsdp"
    engine = extra.get("deepspeed")
    return engine.removesuffix(OFFLOAD) if isinstance(engine, str) and engine.removesuffix(OFFLOAD) in STAGES else None


def check_devices(parallelism, devices: Devices) -> None:
    """Raise UserError unless the devices are as many as training.parallelism takes."""
    if parallelism is not None and processes_of(parallelism) != devices.count:
        raise UserError(
            f"--devices={devices.count}x{devices.name}: training.parallelism={words_of(parallelism)} takes "
            f"{processes_of(parallelism)} devices, the product of its numbers but ep"
        )


def devices_needed(staged: Callable[[str, int], TrainingStates], one_row: int, stage: str, memory: int) -> int | None:
    """The fewest devices, by doubling, on which a row with gradient checkpointing fits; None: on no number."""
    for power in range(21):
        if staged(stage, 2**power).total + one_row <= memory:
            return 2**power
    return None


def launch_command(name: str, parallelism, stage: str, devices: Devices, per_node: int) -> str:
    """The command that trains a recipe so; of several machines that of each."""
    if devices.count == 1:
        return f"anyformer train {name}"
    engine = {"none": "ddp", "fsdp": "ddp" if devices.is_cpu else "fsdp2"}.get(stage, stage)
    engine = engine if parallelism is None else engine_of(parallelism)
    if devices.count <= per_node:
        return f"anyformer train {name} --launch {engine} --nproc {devices.count}"
    file = "ddp" if engine == MESH else engine  # of configs/accelerate
    machines = f"--num_machines {-(-devices.count // per_node)} --num_processes {devices.count}"
    return f"accelerate launch --config_file configs/accelerate/{file}.yaml {machines} scripts/train.py {name}"


def advise(plan: StagePlan, devices: Devices, rows: int, checkpointing: bool, needed: int | None, how: str) -> str:
    """What to launch the run with, in a sentence. how: the command."""
    most = plan.largest_rows_checkpointed if checkpointing else plan.largest_rows
    if most == 0 and plan.largest_rows_checkpointed == 0:
        if needed is None:
            return "a single row does not fit on any number of these devices: shorten the rows, or split the model"
        return f"does not fit; with weights shared, {needed} x {devices.name} hold a row with gradient checkpointing"
    if plan.fits:
        return how
    if most == 0:
        return f"{how}, with training.gradient_checkpointing=true"
    return f"{how}, with training.per_device_train_batch_size={most} instead of {rows}"


def peak_rate(devices: Devices, half: bool) -> tuple[float, str]:
    """(peak FLOP/s of all devices, where the number is from)."""
    dtype = torch.bfloat16 if half else torch.float32
    if devices.is_cpu:
        return measured_flops(torch.device("cpu"), dtype), f"a {dtype} matrix product timed on this machine"
    return devices.count * (devices.bf16 if half else devices.fp32), "data sheet, dense"


def planned_steps(section, parameters: int, tokens_per_step: int, until_trained: bool) -> tuple[int, str]:
    """(optimizer steps, who says so)."""
    if section.max_steps > 0:
        return section.max_steps, "training.max_steps"
    if until_trained:
        return -(-CHINCHILLA * parameters // tokens_per_step), f"{CHINCHILLA} tokens for each parameter"
    return SHOWN_STEPS, "how many there are, the data or training.max_steps say"
