"""The plan of a recipe's run, made without data or weights: parameters, bytes on each device, FLOPs, time, cost."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from anyformer.modeling.families import FAMILIES
from anyformer.modeling.lm_head import CHUNK_BYTES, CHUNK_SHARE
from anyformer.modeling.traits import PLAIN, attention_kinds

from ..errors import UserError
from ..interop.matching import our_config
from ..objectives.base import Objective
from ..plugins import objective_of
from ..recipes.global_batch import micro_batches, rows_per_step
from ..recipes.optimizer_rows import optimizer_of
from ..recipes.parallelism import MESH, RING, ULYSSES, engine_of, processes_of, sharing_rows, words_of
from ..recipes.recipe_files import shipped
from ..recipes.schema import DataSection, Recipe, TrainingSection
from ..recipes.stage_plan import Stage, stages_of
from ..words import short_number
from .activations import Activations, Batch
from .caches import CacheSize, cache_size, in_bits
from .devices import Devices
from .energy import JOULES, planned_power
from .flops import FlopCount, active_parameters, peak_flops
from .memory import FP32, HALF, STAGES, TrainingStates, check_stage
from .step_memory import (
    OFFLOAD,
    StepMemory,
    built_without_weights,
    computes_in_half,
    planned_batch,
    planned_config,
    step_memory,
)

CHINCHILLA = 20  # tokens for each parameter (Hoffmann et al. 2022, table 3)
SHOWN_STEPS = 1000  # if the recipe does not set the number
PER_NODE = 8  # devices of a machine
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
class Plan:
    """Bytes are of one device, times in seconds; `anyformer plan --json` prints `to_dict()`.

    host_memory: bytes that the processes of a node, one for each of its per_node devices, take while they make the
    model; None if the devices are the host, or ZeRO-3 loads a checkpoint in shards. host_words: what they make.
    by_stage: the plans of the recipe's stages (recipes/stage_plan.py), if any; steps and seconds are then of all
    stages, other fields of the one with most memory. watts: the maximum of all devices. hourly_price: of all devices;
    None: not given.
    """

    name: str
    model: str
    parameters: int
    trained_parameters: int
    active_parameters: int
    devices: str
    device_memory: int
    host_memory: int | None
    host_words: str
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
    logits: int
    logits_at_a_time: int
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
    watts: float
    watts_source: str
    hourly_price: float | None = None
    notes: list[str] = field(default_factory=list)
    by_stage: "list[Plan]" = field(default_factory=list)

    @property
    def tokens_of_run(self) -> int:
        return sum(part.tokens_per_step * part.steps for part in self.by_stage or [self])

    @property
    def kwh(self) -> float:
        """The estimated energy of the run."""
        return self.watts * self.seconds / JOULES

    @property
    def cost(self) -> float | None:
        """The cost of the run, in the currency of the price; None without a price."""
        return None if self.hourly_price is None else self.hourly_price * self.seconds / 3600

    @property
    def chosen(self) -> StagePlan:
        return next(row for row in self.stages if row.states.stage == self.stage)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, including the totals of the stages."""
        fields = asdict(self)
        for row, stage in zip(fields["stages"], self.stages):
            row["states"] |= {"total": stage.states.total, "words": stage.states.words}
        fields["by_stage"] = [plan.to_dict() for plan in self.by_stage]
        return fields | {"kwh": self.kwh, "cost": self.cost}


def plan_run(
    recipe: Recipe,
    devices: Devices,
    *,
    stage: str | None = None,
    context: int | None = None,
    cache_bits: int | None = None,
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
        cache_bits: bits of a value in a quantised cache; None: the cache is not quantised.
        mfu: model FLOPs utilization, the share of the devices' peak that the run reaches.
        per_node: devices of a machine, each with a process that makes the model, or its share, in the machine's memory.
        price: of one device for an hour; None: no cost is computed.
        until_trained: if the recipe sets no steps, plan for 20 tokens per parameter (for presets).
    """
    if recipe.stages:
        how = {"context": context, "cache_bits": cache_bits, "mfu": mfu, "per_node": per_node, "price": price}
        return plan_stages(recipe, partial(plan_run, devices=devices, until_trained=until_trained, **how), stage)
    stage = stage or stage_of_recipe(recipe)
    check_stage(stage, recipe.training.optim)
    objective, section, notes = objective_of(recipe), recipe.training, []
    check_devices(section.parallelism, devices)
    model = built_without_weights(recipe, objective, planned_config(recipe, objective, notes))
    cache = planned_cache(recipe, objective, model, devices, context, cache_bits, notes)  # first: may raise UserError
    memory = step_memory(recipe, objective, model, devices, notes)
    ranks = devices.count // sharing_rows(section.parallelism)  # devices that read different rows
    rows, accumulated = micro_batches(section, ranks, rows_per_step(section, ranks))
    stages = planned_stages(memory, section, devices, rows)
    chosen = stage or first_that_fits(stages, tried_stages(section))
    per_node = min(per_node, devices.count)
    time = planned_time(section, model, memory, devices, rows * accumulated * ranks, mfu, until_trained)
    notes += planned_sources(recipe.data, time["tokens_per_step"] * time["steps"])
    return Plan(
        name=recipe.name,
        **planned_sizes(model, memory, devices, price),
        **dict(zip(("host_memory", "host_words"), memory_of_making(recipe, memory, devices, chosen, per_node))),
        per_node=per_node,
        rows=rows,
        accumulation=accumulated,
        checkpointing=section.gradient_checkpointing,
        **{name: memory.held(rows, name == "checkpointed") for name in ("plain", "checkpointed")},
        stages=list(stages.values()),
        stage=chosen,
        advice=advise(recipe, memory, stages[chosen], devices, rows, per_node),
        cache=cache,
        notes=notes,
        **planned_logits(model, memory.batch, rows * memory.sequences),
        **time,
    )


def planned_sizes(model, memory: StepMemory, devices: Devices, price: float | None) -> dict[str, Any]:
    """Parameters and precision of the model; names, memory, power and price of the devices."""
    watts, source = planned_power(devices.name, devices.count)
    return {
        "model": type(model).__name__,
        "half": memory.half,
        "parameters": memory.parameters,
        "trained_parameters": memory.parameters - memory.frozen,
        "active_parameters": active_parameters(model),
        "devices": str(devices),
        "device_memory": devices.memory,
        "watts": watts,
        "watts_source": source,
        "hourly_price": None if price is None else price * devices.count,
    }


def plan_stages(recipe: Recipe, plan: Callable[..., Plan], stage: str | None) -> Plan:
    """The plan of a recipe with stages, from the plan of each. stage: as in plan_run, the same for all of them."""
    plans = [plan(planned_stage(part), stage=stage) for part in stages_of(recipe)]
    largest = max(plans, key=lambda one: one.chosen.total)
    if any(one.stage != largest.stage for one in plans):
        return plan_stages(recipe, plan, largest.stage)
    notes = [
        note if all(note in other.notes for other in plans) else f"stage {number}: {note}"
        for number, one in enumerate(plans, 1)
        for note in one.notes
    ]
    of_run = {"steps": recipe.training.max_steps, "seconds": sum(one.seconds for one in plans)}
    return replace(largest, by_stage=plans, notes=list(dict.fromkeys(notes)), **of_run)


def planned_stage(stage: Stage) -> Recipe:
    """The recipe of a run that consists of this stage alone."""
    recipe, weights = stage.recipe, stage.section.mixture
    if weights is not None:
        named = [replace(source, weight=weights.get(source.name, 0.0)) for source in recipe.data.mixture]
        recipe = recipe.with_(data={"mixture": [source for source in named if source.weight]})
    return recipe.with_(training={"max_steps": stage.steps})


def planned_stages(memory: StepMemory, section: TrainingSection, devices: Devices, rows: int) -> dict[str, StagePlan]:
    """The plans of all ways to share states among the devices, by name."""
    sharers, plans = sharers_of(section, devices), {}
    for name in STAGES:
        states = memory.states(name, sharers)
        total = states.total + memory.held(rows, section.gradient_checkpointing).peak
        most = [memory.largest_rows(devices.memory - states.total, way) for way in (False, True)]
        plans[name] = StagePlan(states, total, total <= devices.memory, *most)
    return plans


def memory_of_making(
    recipe: Recipe, memory: StepMemory, devices: Devices, stage: str, per_node: int
) -> tuple[int | None, str]:
    """(host_memory, host_words) of Plan; training/engines/ decides which engines initialise weights in shares."""
    section, is_fresh = recipe.training, recipe.model.name_or_path is None
    if devices.is_cpu or (stage == "zero3" and not is_fresh):
        return None, ""
    whole = FP32 * memory.parameters
    share = FP32 * (-(-memory.parameters // sharers_of(section, devices)) + memory.block)
    on_mesh = section.parallelism is not None and engine_of(section.parallelism) == MESH
    if is_fresh and (on_mesh or stage == "zero3"):
        return per_node * share, "whose processes each draw one layer at a time in fp32 and keep their shares"
    if is_fresh and stage == "fsdp" and section.lora is None:
        words = "of which the first process makes the whole model in fp32 and sends the others their shares"
        return whole + (per_node - 1) * share, words
    return per_node * whole, "whose processes each make the whole model in fp32"


def sharers_of(section: TrainingSection, devices: Devices) -> int:
    """How many devices share states."""
    return devices.count if section.parallelism is None else devices.count // section.parallelism.dp_replicate


def first_that_fits(stages: dict[str, StagePlan], tried: Sequence[str]) -> str:
    return next((name for name in tried if stages[name].fits), tried[-1])


def tried_stages(section: TrainingSection) -> tuple[str, ...]:
    """The ways to share states that are tried: the first that fits is taken, else the last."""
    return STAGES_OF_MATRICES if optimizer_of(section.optim).whole_matrices else STAGES_TO_TRY


def planned_cache(
    recipe: Recipe,
    objective: Objective,
    model,
    devices: Devices,
    context: int | None,
    bits: int | None,
    notes: list[str],
) -> CacheSize | None:
    """The cache of generation; for a native model, that of our model with the same maths.

    Raises UserError for a context that the model has no positions or no cache for, and for bits if transformers
    cannot quantise the model's cache.
    """
    config, batch = model.config, planned_batch(recipe, objective, model)
    half = computes_in_half(recipe.training, devices)
    try:
        config = config if config.model_type in FAMILIES else our_config(config)
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
    if bits is None:
        return size
    if size is None or size.source_token or set(attention_kinds(config)) != {PLAIN}:
        raise UserError(
            f"--cache-bits={bits} is for decoders all of whose layers are full attention, which {type(model).__name__} "
            f"is not: transformers quantises no other cache; remove it"
        )
    return in_bits(size, bits, width)


def planned_logits(model, batch: Batch, rows: int) -> dict[str, int]:
    """Bytes in fp32 of the logits of `rows` rows, and of the part of them that exists at a time."""
    labelled = rows * round((batch.targets or batch.tokens) * batch.labelled)
    logits = chunk = FP32 * labelled * batch.vocabulary
    if model.config.model_type in FAMILIES:
        chunk = min(logits, max(CHUNK_BYTES, logits // CHUNK_SHARE))
    return {"logits": logits, "logits_at_a_time": chunk}


def planned_sources(data: DataSection, tokens: int) -> list[str]:
    """How many of the run's tokens come from each source; how often each is repeated depends on the data."""
    if not data.mixture or data.weights_by != "tokens":
        return []
    whole = sum(source.weight for source in data.mixture)
    named = ((one.name or one.source or one.dataset or one.files, one.weight / whole) for one in data.mixture)
    words = ", ".join(f"{name} {share:.1%} ({short_number(round(tokens * share))} tokens)" for name, share in named)
    return [f"sources: {words}; anyformer prepare says how often each comes again"]


def planned_time(
    section: TrainingSection,
    model,
    memory: StepMemory,
    devices: Devices,
    rows_per_step: int,
    mfu: float,
    until_trained: bool,
) -> dict[str, Any]:
    """Tokens, FLOPs and seconds of a step and of the run, as fields of Plan."""
    batch = replace(memory.batch, rows=1)
    per_row = float(FlopCount(model).of_batch(batch.inputs(model))) * memory.sequences
    tokens_per_row = (batch.tokens + batch.targets) * memory.sequences
    tokens_per_step = rows_per_step * tokens_per_row
    rate, source = peak_rate(devices, memory.half)
    steps, why = planned_steps(section, memory.parameters, tokens_per_step, until_trained)
    step_seconds = per_row * rows_per_step / (rate * mfu)
    return {
        "tokens": batch.tokens,
        "targets": batch.targets,
        "tokens_per_step": tokens_per_step,
        "flops_per_token": round(per_row / tokens_per_row),
        "peak_flops": rate,
        "peak_source": source,
        "mfu": mfu,
        "step_seconds": step_seconds,
        "steps": steps,
        "steps_source": why,
        "seconds": steps * step_seconds,
    }


# ------------------------------------------------------------------------------------------- devices and time


def stage_of_recipe(recipe: Recipe) -> str | None:
    """How the recipe itself shares states, by training.deepspeed, .fsdp or .parallelism; None if it sets none."""
    extra, parallelism = recipe.training.extra, recipe.training.parallelism
    if parallelism is not None and (engine := engine_of(parallelism)) == ULYSSES:
        return ULYSSES
    if parallelism is not None:
        return "fsdp" if engine == RING or parallelism.dp_shard > 1 else "none"
    if extra.get("fsdp"):
        return "fsdp"
    deepspeed = extra.get("deepspeed")
    if isinstance(deepspeed, str) and deepspeed.removesuffix(OFFLOAD) in STAGES:
        return deepspeed.removesuffix(OFFLOAD)
    if isinstance(deepspeed, str) and Path(deepspeed).is_file():
        try:
            deepspeed = json.loads(Path(deepspeed).read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"training.deepspeed={deepspeed!r} cannot be read as JSON ({error})") from error
    if isinstance(deepspeed, dict):
        stage = (deepspeed.get("zero_optimization") or {}).get("stage", 0)
        return f"zero{stage}" if stage else "none"
    return None


def check_devices(parallelism, devices: Devices) -> None:
    """Raise UserError unless the devices are as many as training.parallelism takes."""
    if parallelism is not None and processes_of(parallelism) != devices.count:
        raise UserError(
            f"--devices={devices.count}x{devices.name}: training.parallelism={words_of(parallelism)} takes "
            f"{processes_of(parallelism)} devices, the product of its numbers but ep"
        )


def launch_command(name: str, parallelism, stage: str, devices: Devices, per_node: int) -> str:
    """The command that trains a recipe this way; on several machines, the one to run on each."""
    if devices.count == 1:
        return f"anyformer train {name}"
    engine = {"none": "ddp", "fsdp": "ddp" if devices.is_cpu else "fsdp2"}.get(stage, stage)
    engine = engine if parallelism is None else engine_of(parallelism)
    if devices.count <= per_node:
        return f"anyformer train {name} --launch {engine} --nproc {devices.count}"
    file = "ddp" if engine == MESH else engine  # of configs/accelerate
    machines = f"--num_machines {-(-devices.count // per_node)} --num_processes {devices.count}"
    return f"accelerate launch --config_file configs/accelerate/{file}.yaml {machines} scripts/train.py {name}"


def advise(recipe: Recipe, memory: StepMemory, plan: StagePlan, devices: Devices, rows: int, per_node: int) -> str:
    """What to launch the run with, in a sentence."""
    section = recipe.training
    name = recipe.name if recipe.name in shipped("recipes") else "RECIPE"  # presets are no runs, files have paths
    how = launch_command(name, section.parallelism, plan.states.stage, devices, per_node)
    most = plan.largest_rows_checkpointed if section.gradient_checkpointing else plan.largest_rows
    if most == 0 and plan.largest_rows_checkpointed == 0:
        stage, left = tried_stages(section)[-1], devices.memory - memory.held(1, True).peak
        needed = next((2**n for n in range(21) if memory.states(stage, 2**n).total <= left), None)
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
