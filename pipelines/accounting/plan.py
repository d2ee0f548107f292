"""The plan of a recipe's run, made without data or weights: parameters, bytes on each device, FLOPs, time, cost."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from anyformer.modeling.families import FAMILIES

from ..adapters import NF4
from ..data.token_store import token_dtype
from ..errors import UserError
from ..objectives.base import Objective
from ..plugins import objective_of
from ..recipes.global_batch import micro_batches, rows_per_step
from ..recipes.optimizer_rows import optimizer_of
from ..recipes.parallelism import MESH, engine_of, processes_of, sharing_rows, words_of
from ..recipes.recipe_files import shipped
from ..recipes.schema import DataSection, ParallelismSettings, Recipe, TrainingSection
from ..recipes.stage_plan import Stage, stages_of
from ..words import counted, short_number
from .activations import Activations
from .caches import CacheSize, cache_size
from .collectives import Collective, planned_messages
from .devices import Devices
from .flops import FlopCount, active_parameters, peak_flops
from .lora import check_lora, with_base
from .memory import FP32, HALF, STAGES, TrainingStates, check_stage, stage_of
from .step_memory import (
    StepMemory,
    built_without_weights,
    optimizer_bytes,
    planned_batch,
    planned_config,
    planned_dtype,
    step_memory,
)

CHINCHILLA = 20  # tokens for each parameter (Hoffmann et al. 2022, table 3)
SHOWN_STEPS = 1000  # if the recipe does not set the number
PER_NODE = 8  # devices of a machine
TOKENS_PER_SECOND = 220_000  # of byte-level BPE (8,192 tokens): 0.84 MB of code a second, on a busy core with AVX2
STAGES_TO_TRY = ("none", "zero2", "zero3")
STAGES_OF_MATRICES = ("none", "fsdp")  # DeepSpeed flattens the matrices that optimizers such as Muon need whole


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
class Sizes:
    """The model, and a step of its training. tokens: of a row; targets: that a row writes; half: bf16 or fp16."""

    model: str
    parameters: int
    trained_parameters: int
    active_parameters: int
    half: bool
    rows: int
    accumulation: int
    tokens: int
    targets: int
    tokens_per_step: int


@dataclass(frozen=True)
class Memory:
    """Bytes of one device, and of a machine.

    host_memory: what the processes of a machine, one for each of its per_node devices, take while they make the model,
    or their shares of it one layer at a time; None if the devices are the host. plain, checkpointed: activations
    without and with gradient checkpointing. stages: the ways to share the states that are compared. stage: the one that
    is planned for.
    """

    device_memory: int
    host_memory: int | None
    per_node: int
    checkpointing: bool
    plain: Activations
    checkpointed: Activations
    stages: list[StagePlan]
    stage: str

    @property
    def chosen(self) -> StagePlan:
        return next(row for row in self.stages if row.states.stage == self.stage)


@dataclass(frozen=True)
class Time:
    """FLOPs, and seconds of a step and of the run."""

    flops_per_token: int
    peak_flops: float
    peak_source: str
    mfu: float
    step_seconds: float
    steps: int
    steps_source: str
    seconds: float


@dataclass(frozen=True)
class Disk:
    """Bytes. checkpoint: the saved weights and the optimizer's states, whole. checkpoints: all that are kept at a time.

    token_store: of the tokens of the run; 0 for objectives without text. tokenising_hours: of one core, at
    TOKENS_PER_SECOND.
    """

    checkpoint: int
    checkpoints: int
    token_store: int
    tokenising_hours: float


@dataclass(frozen=True)
class Plan:
    """The plan of a run; `anyformer plan --json` prints `to_dict()`.

    by_stage: the plans of the recipe's stages (recipes/stage_plan.py), if any; steps and seconds are then of all
    stages, other fields of the one with most memory. hourly_price: of all devices; None: not given.
    """

    name: str
    devices: str
    sizes: Sizes
    memory: Memory
    time: Time
    disk: Disk
    messages: list[Collective]
    cache: CacheSize | None
    advice: str
    hourly_price: float | None = None
    notes: list[str] = field(default_factory=list)
    by_stage: "list[Plan]" = field(default_factory=list)

    @property
    def tokens_of_run(self) -> int:
        return sum(part.sizes.tokens_per_step * part.time.steps for part in self.by_stage or [self])

    @property
    def cost(self) -> float | None:
        """The cost of the run, in the currency of the price; None without a price."""
        return None if self.hourly_price is None else self.hourly_price * self.time.seconds / 3600

    def to_dict(self) -> dict[str, Any]:
        """Plain data without the groups of fields, including the totals of the stages."""
        fields = asdict(self)
        for group in ("sizes", "memory", "time", "disk"):
            fields |= fields.pop(group)
        for row, stage in zip(fields["stages"], self.memory.stages):
            row["states"] |= {"total": stage.states.total, "words": stage.states.words}
        for message in fields["messages"]:
            message["ranks"] = len(message["ranks"])
        fields["by_stage"] = [plan.to_dict() for plan in self.by_stage]
        return fields | {"cost": self.cost}


def plan_run(
    recipe: Recipe,
    devices: Devices,
    *,
    stage: str | None = None,
    context: int | None = None,
    mfu: float = 0.4,
    per_node: int = PER_NODE,
    until_trained: bool = False,
    price: float | None = None,
) -> Plan:
    """The plan of a recipe. At most the config of the checkpoint that it starts from is read; nothing is written.
    Raises UserError if that config cannot be read, and for settings that do not go together.

    Args:
        stage: how states are shared, a name of accounting.memory.STAGES; None: the recipe's, else the first that fits.
        context: tokens that the cache holds; None: as many as the model has positions, else the tokens of a row.
        mfu: model FLOPs utilization, the share of the devices' peak that the run reaches.
        per_node: devices of a machine, each with a process that makes the model, or its share, in the machine's memory.
        price: of one device for an hour; None: no cost is computed.
        until_trained: if the recipe sets no steps, plan for 20 tokens per parameter (for presets).
    """
    if recipe.stages:
        how = {"context": context, "mfu": mfu, "per_node": per_node, "price": price}
        return plan_stages(recipe, partial(plan_run, devices=devices, until_trained=until_trained, **how), stage)
    check_lora(recipe)
    recipe = with_base(recipe, planned_dtype(recipe.training, devices))
    stage = stage or stage_of(recipe.training)
    check_stage(stage, recipe.training.optim)
    objective, section, notes = objective_of(recipe), recipe.training, []
    check_devices(section.parallelism, devices)
    model = built_without_weights(recipe, objective, planned_config(recipe, objective, notes), devices)
    cache = planned_cache(recipe, objective, model, devices, context, notes)  # first: may raise UserError
    names = stages_to_show(section, devices, stage)
    step = step_memory(recipe, objective, model, devices, notes, names)
    ranks = devices.count // sharing_rows(section.parallelism)  # devices that read different rows
    sizes = planned_sizes(section, model, step, ranks)
    stages = planned_stages(step, section, devices, sizes, names)
    stage = stage or first_that_fits(stages, tried_stages(section))
    memory = planned_memory(recipe, step, devices, sizes.rows, (stages, stage), min(per_node, devices.count))
    time = planned_time(section, model, step, devices, sizes, mfu, until_trained)
    if section.gradient_checkpointing and memory.chosen.fits and memory.chosen.largest_rows >= sizes.rows:
        notes.append(f"training.gradient_checkpointing=true is not needed for {counted(sizes.rows, 'row')}")
    notes += planned_sources(recipe.data, sizes.tokens_per_step * time.steps)
    return Plan(
        name=recipe.name,
        devices=str(devices),
        sizes=sizes,
        memory=memory,
        time=time,
        disk=planned_disk(section, objective, model, sizes.tokens_per_step * time.steps),
        messages=messages_of(section, step, sizes, stage, devices),
        cache=cache,
        advice=advise(recipe, step, memory, devices, sizes.rows),
        hourly_price=None if price is None else price * devices.count,
        notes=notes,
    )


def planned_sizes(section: TrainingSection, model, step: StepMemory, ranks: int) -> Sizes:
    """The sizes of the model and of a step. ranks: devices that read different rows."""
    rows, accumulated = micro_batches(section, ranks, rows_per_step(section, ranks))
    tokens_per_row = (step.batch.tokens + step.batch.targets) * step.sequences
    return Sizes(
        model=type(model).__name__,
        parameters=model.num_parameters(),
        trained_parameters=model.num_parameters(only_trainable=True),
        active_parameters=active_parameters(model),
        half=step.half,
        rows=rows,
        accumulation=accumulated,
        tokens=step.batch.tokens,
        targets=step.batch.targets,
        tokens_per_step=rows * accumulated * ranks * tokens_per_row,
    )


def planned_memory(
    recipe: Recipe, step: StepMemory, devices: Devices, rows: int, chosen: tuple[dict, str], per_node: int
) -> Memory:
    """The memory of a step with `rows` rows on each device. chosen: by planned_stages, and the one that is taken."""
    section, (stages, stage) = recipe.training, chosen
    whole, is_split = step.states("none", 1).weights, STAGES[stage].weights or section.parallelism is not None
    share = -(-whole // sharers_of(section, devices)) + FP32 * step.block
    return Memory(
        device_memory=devices.memory,
        host_memory=None if devices.is_cpu else per_node * (share if is_split else whole),
        per_node=per_node,
        checkpointing=section.gradient_checkpointing,
        plain=step.held(rows, False, stage),
        checkpointed=step.held(rows, True, stage),
        stages=list(stages.values()),
        stage=stage,
    )


def plan_stages(recipe: Recipe, plan: Callable[..., Plan], stage: str | None) -> Plan:
    """The plan of a recipe with stages, from the plan of each. stage: as in plan_run, the same for all of them."""
    plans = [plan(planned_stage(part), stage=stage) for part in stages_of(recipe)]
    largest = max(plans, key=lambda one: one.memory.chosen.total)
    if any(one.memory.stage != largest.memory.stage for one in plans):
        return plan_stages(recipe, plan, largest.memory.stage)
    notes = [
        note if all(note in other.notes for other in plans) else f"stage {number}: {note}"
        for number, one in enumerate(plans, 1)
        for note in one.notes
    ]
    time = replace(largest.time, steps=recipe.training.max_steps, seconds=sum(one.time.seconds for one in plans))
    return replace(largest, by_stage=plans, notes=list(dict.fromkeys(notes)), time=time)


def planned_stage(stage: Stage) -> Recipe:
    """The recipe of a run that consists of this stage alone."""
    recipe, weights = stage.recipe, stage.section.mixture
    if weights is not None:
        named = [replace(source, weight=weights.get(source.name, 0.0)) for source in recipe.data.mixture]
        recipe = recipe.with_(data={"mixture": [source for source in named if source.weight]})
    return recipe.with_(training={"max_steps": stage.steps})


def stages_to_show(section: TrainingSection, devices: Devices, stage: str | None) -> tuple[str, ...]:
    """The ways to share states that are compared: those that the devices can take, beside the one that is asked for."""
    if section.parallelism is not None:
        return (stage,)
    return tuple(STAGES) if devices.count > 1 else tuple(dict.fromkeys(("none", stage or "none")))


def planned_stages(
    step: StepMemory, section: TrainingSection, devices: Devices, sizes: Sizes, names: Sequence[str]
) -> dict[str, StagePlan]:
    """The plans of these ways to share states among the devices, by name."""
    sharers, plans = sharers_of(section, devices), {}
    for name in names:
        states = step.states(name, sharers)
        total = states.total + step.held(sizes.rows, section.gradient_checkpointing, name).peak
        most = [step.largest_rows(devices.memory - states.total, way, name) for way in (False, True)]
        plans[name] = StagePlan(states, total, total <= devices.memory, *most)
    return plans


def sharers_of(section: TrainingSection, devices: Devices) -> int:
    """How many devices share states."""
    settings = section.parallelism
    if settings is None:
        return devices.count
    return settings.dp_shard if engine_of(settings) == MESH else devices.count // settings.dp_replicate


def first_that_fits(stages: dict[str, StagePlan], tried: Sequence[str]) -> str:
    """The first of these ways that fits, else the last that is there."""
    there = [name for name in tried if name in stages]
    return next((name for name in there if stages[name].fits), there[-1])


def tried_stages(section: TrainingSection) -> tuple[str, ...]:
    """The ways to share states that are tried: the first that fits is taken, else the last."""
    tried = STAGES_OF_MATRICES if optimizer_of(section.optim).whole_matrices else STAGES_TO_TRY
    splits_weights = section.lora is None or section.lora.base not in ("auto", NF4)
    return tuple(name for name in tried if splits_weights or not STAGES[name].weights)


def planned_cache(
    recipe: Recipe,
    objective: Objective,
    model,
    devices: Devices,
    context: int | None,
    notes: list[str],
) -> CacheSize | None:
    """The cache of generation; for a native model, that of our model with the same maths.

    Raises UserError for a context that the model has no positions or no cache for.
    """
    config, batch = model.config, planned_batch(recipe, objective, model)
    half = planned_dtype(recipe.training, devices) != torch.float32
    if config.model_type not in FAMILIES:
        from ..interop.matching import our_config

        try:
            config = our_config(config)
        except UserError as error:
            notes.append(f"the cache of generation is not counted: {error}")
            return None
    own = getattr(config, "max_position_embeddings", None) or max(batch.tokens, batch.targets)
    width = HALF if half else FP32
    size = cache_size(config, context or own, width, batch.tokens if batch.targets else 0)
    if size is not None and getattr(config, "position_encoding", None) == "learned" and (context or 0) > own:
        raise UserError(
            f"--context={context} is longer than the model's max_position_embeddings={own}: learned positions need one "
            f"for each token"
        )
    if context is not None and size is None:
        raise UserError(f"--context={context} is of a cache, and {type(model).__name__} generates nothing; remove it")
    return size


def planned_disk(section: TrainingSection, objective: Objective, model, tokens: int) -> Disk:
    """What a run writes. tokens: of the run, as if none came twice."""
    saved = model.num_parameters(only_trainable=section.lora is not None)
    checkpoint = FP32 * saved * (1 + (section.ema_decay is not None)) + optimizer_bytes(section, model, [])
    vocabulary = model.config.get_text_config().vocab_size if objective.tokens is not None else 0
    return Disk(
        checkpoint=checkpoint,
        checkpoints=section.save_total_limit * checkpoint,
        token_store=tokens * np.dtype(token_dtype(vocabulary)).itemsize if vocabulary else 0,
        tokenising_hours=tokens / TOKENS_PER_SECOND / 3600 if vocabulary else 0.0,
    )


def messages_of(section: TrainingSection, step: StepMemory, sizes: Sizes, stage: str, devices: Devices) -> list:
    """The collectives of a step; none are counted of DeepSpeed and of a pipeline."""
    if STAGES[stage].by_deepspeed or sharing_rows(section.parallelism) > getattr(section.parallelism, "tp", 1):
        return []
    by_stage = {"dp_shard" if STAGES[stage].gathers else "dp_replicate": devices.count}
    settings = section.parallelism or ParallelismSettings(**by_stage)
    hidden = sizes.rows * step.sequences * sizes.tokens * getattr(step.part.config.get_text_config(), "hidden_size", 0)
    width = HALF if step.half else FP32
    return planned_messages(
        step.part, settings, step.half, hidden * width, section.gradient_checkpointing, sizes.accumulation
    )


def planned_sources(data: DataSection, tokens: int) -> list[str]:
    """How many of the run's tokens come from each source; how often each is repeated depends on the data."""
    if not data.mixture or data.weights_by != "tokens":
        return []
    whole = sum(source.weight for source in data.mixture)
    named = ((one.name or one.source or one.dataset or one.files, one.weight / whole) for one in data.mixture)
    words = ", ".join(f"{name} {share:.1%} ({short_number(round(tokens * share))} tokens)" for name, share in named)
    return [f"sources: {words}; anyformer prepare says how often each comes again"]


def planned_time(
    section: TrainingSection, model, step: StepMemory, devices: Devices, sizes: Sizes, mfu: float, until_trained: bool
) -> Time:
    """FLOPs and seconds of a step and of the run. mfu, until_trained: as in plan_run."""
    batch = replace(step.batch, rows=1)
    per_row = float(FlopCount(model).of_batch(batch.inputs(model))) * step.sequences
    tokens_per_row = (batch.tokens + batch.targets) * step.sequences
    rate, source = peak_rate(devices, step.half)
    steps, why = planned_steps(section, sizes.parameters, sizes.tokens_per_step, until_trained)
    step_seconds = per_row * (sizes.tokens_per_step // tokens_per_row) / (rate * mfu)
    return Time(
        flops_per_token=round(per_row / tokens_per_row),
        peak_flops=rate,
        peak_source=source,
        mfu=mfu,
        step_seconds=step_seconds,
        steps=steps,
        steps_source=why,
        seconds=steps * step_seconds,
    )


# ------------------------------------------------------------------------------------------- devices and time


def check_devices(parallelism, devices: Devices) -> None:
    """Raise UserError unless the devices are as many as training.parallelism takes."""
    if parallelism is not None and processes_of(parallelism) != devices.count:
        raise UserError(
            f"--devices={devices.count}x{devices.name}: training.parallelism={words_of(parallelism)} takes "
            f"{processes_of(parallelism)} devices, the product of its numbers but ep"
        )


def launch_command(name: str, section: TrainingSection, memory: Memory, devices: Devices) -> str:
    """The command that trains a recipe this way; on several machines, the one to run on each."""
    if devices.count == 1:
        return f"anyformer train {name}"
    machines = -(-devices.count // memory.per_node)
    engine = STAGES[memory.stage].launched_by if section.parallelism is None else engine_of(section.parallelism)
    if machines == 1:
        return f"anyformer train {name} --launch {engine} --nproc {devices.count}"
    numbers = f"--num_machines {machines} --num_processes {devices.count}"
    engine = "ddp" if engine == MESH else engine
    return f"accelerate launch --config_file configs/accelerate/{engine}.yaml {numbers} scripts/train.py {name}"


def advise(recipe: Recipe, step: StepMemory, memory: Memory, devices: Devices, rows: int) -> str:
    """What to launch the run with, in a sentence."""
    section, plan = recipe.training, memory.chosen
    name = recipe.name if recipe.name in shipped("recipes") else "RECIPE"  # presets are no runs, files have paths
    how = launch_command(name, section, memory, devices)
    most = plan.largest_rows_checkpointed if section.gradient_checkpointing else plan.largest_rows
    if most == 0 and plan.largest_rows_checkpointed == 0:
        stage = tried_stages(section)[-1] if section.parallelism is None else memory.stage
        left = devices.memory - step.held(1, True, stage).peak
        needed = next((2**n for n in range(21) if step.states(stage, 2**n).total <= left), None)
        if needed is None:
            return "a single row does not fit on any number of these devices: shorten the rows, or split the model"
        return f"does not fit; with weights shared, {needed} x {devices.name} hold a row with gradient checkpointing"
    if plan.fits:
        return how
    if most == 0:
        return f"{how}, with training.gradient_checkpointing=true"
    return f"{how}, with training.per_device_train_batch_size={most} instead of {rows}"


def peak_rate(devices: Devices, half: bool) -> tuple[float, str]:
    """(peak FLOP/s of all devices, the source of the number)."""
    dtype = torch.bfloat16 if half else torch.float32
    if devices.is_cpu:
        return peak_flops(torch.device("cpu"), dtype)[0], f"a {dtype} matrix product timed on this machine"
    return devices.count * (devices.bf16 if half else devices.fp32), "data sheet, dense"


def planned_steps(section, parameters: int, tokens_per_step: int, until_trained: bool) -> tuple[int, str]:
    """(optimizer steps, the source of the number)."""
    if section.max_steps > 0:
        return section.max_steps, "training.max_steps"
    if until_trained:
        return -(-CHINCHILLA * parameters // tokens_per_step), f"{CHINCHILLA} tokens for each parameter"
    return SHOWN_STEPS, "how many there are, the data or training.max_steps say"
