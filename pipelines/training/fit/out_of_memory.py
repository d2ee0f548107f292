"""Out of memory: one sentence with the settings that make a run fit, and their values."""

import errno
import traceback
from dataclasses import replace

import torch
from accelerate.utils.memory import should_reduce_batch_size

from ...accounting.devices import CPU, Devices
from ...accounting.frozen_base import frozen_bytes
from ...accounting.host_memory import limit_of_process, memory_of_this_machine
from ...accounting.step_memory import StepMemory, built_without_weights, planned_config, step_memory
from ...adapters import NF4
from ...errors import UserError
from ...plugins import objective_of
from ...precision import device_type
from ...recipes.global_batch import rows_per_step
from ...recipes.schema import Recipe
from ...recipes.stage_plan import LENGTH
from ...words import counted
from ..engines.engine import Engine
from ..stages.stage_run import StageRun

# Error messages that accelerate does not know: of CUDA, of C++, and of a worker that cannot be started.
MESSAGES = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "std::bad_alloc", "Cannot allocate memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that memory of a device or of the host did not suffice."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if isinstance(error, RuntimeError) and (
            should_reduce_batch_size(error) or any(text in str(error) for text in MESSAGES)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def out_of_memory_sentence(recipe: Recipe, engine: Engine, error: BaseException, stage: StageRun | None = None) -> str:
    """The error message: where memory did not suffice, and two settings with values that need less.

    stage: the current one; None: the recipe has none. Evaluations are the same in all stages.
    """
    evaluates = any(frame.name == "evaluation_loop" for frame in traceback.extract_tb(error.__traceback__))
    traceback.clear_frames(error.__traceback__)  # they hold the activations; planning below needs some memory
    devices, where = this_device(), "training"
    if stage is not None and not evaluates:
        recipe = stage.stage.recipe.with_(training={"per_device_train_batch_size": stage.micro_batch})
        where = f"stages.{stage.stage.number}"
    rows = recipe.training.evaluation_rows if evaluates else recipe.training.per_device_train_batch_size
    ways = ways_out(recipe, engine, evaluates, devices, memory_of_recipe(recipe, engine, devices), where)
    what = "an evaluation" if evaluates else "training"
    return (
        f"out of memory ({devices.memory / 1e9:.1f} GB on {devices.name}) in {what} with {counted(rows, 'row')} at a "
        f"time; set {', or '.join(ways[:2])}"
    )


def this_device() -> Devices:
    """The device of this process. A CPU's memory is the limit of the machine, its container and its shell."""
    kind = device_type()
    if kind == CPU:
        return Devices(CPU, 1, min(memory_of_this_machine(), limit_of_process() or 2**63), None, None)
    if kind != "cuda":
        return Devices(kind, 1, memory_of_this_machine(), None, None)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Devices(properties.name, 1, properties.total_memory, None, None)


def memory_of_recipe(recipe: Recipe, engine: Engine, devices: Devices) -> StepMemory | None:
    """The memory of a step by `anyformer plan`; None where that is unknown: some architectures, shards."""
    if engine.splitter is not None:
        return None
    try:
        memory = step_memory(recipe, objective_of(recipe), planned_model(recipe, devices), devices, [])
        return memory if memory.activations else None
    except (UserError, TypeError):  # TypeError: rows whose length only the data know
        return None


def planned_model(recipe: Recipe, devices: Devices):
    """The recipe's model on the meta device. Raises UserError as `anyformer plan` does."""
    objective = objective_of(recipe)
    return built_without_weights(recipe, objective, planned_config(recipe, objective, []), devices)


def ways_out(
    recipe: Recipe,
    engine: Engine,
    evaluates: bool,
    devices: Devices,
    memory: StepMemory | None,
    where: str = "training",
) -> list[str]:
    """Settings with values that need less memory, the most effective first.

    memory: of a step by the plan; None: the number of rows is halved. where: section of the batch's settings, such as
    `stages.1`.
    """
    training, ways = recipe.training, []
    if evaluates:
        if (rows := recipe.training.evaluation_rows) > 1:
            ways.append(f"training.per_device_eval_batch_size={rows // 2} instead of {rows} (the results are the same)")
    else:
        bases = smaller_bases(recipe, engine, devices, memory)
        if not bases or memory is None or has_room(memory, devices):
            ways += fewer_rows(recipe, devices, memory, where)
            if not training.gradient_checkpointing:
                ways.append(f"training.gradient_checkpointing=true{saved_by_checkpointing(recipe, memory)}")
        ways += bases
    lengths = {name: length for name, length in objective_of(recipe).lengths().items() if (length or 0) > 1}
    if lengths:
        name = max(lengths, key=lengths.get)
        section = recipe.learned_section if where == "training" or name != LENGTH else where
        ways.append(f"{section}.{name}={lengths[name] // 2} instead of {lengths[name]}")
    if devices.name != CPU and training.bf16 is False and not training.extra.get("fp16"):
        ways.append("training.bf16=true, which keeps activations in half the bytes")
    if engine.splitter is None:
        ways.append(
            "--launch zero3_offload, which splits the states over processes and keeps them in the host's memory"
        )
    return [*ways, "a smaller model"]


def fewer_rows(recipe: Recipe, devices: Devices, memory: StepMemory | None, where: str) -> list[str]:
    """Fewer rows at a time and more gradient accumulation: the rows that fit by the plan, or else half of them."""
    training = recipe.training
    rows, times = training.per_device_train_batch_size, training.gradient_accumulation_steps
    if rows == 1:
        return []
    most = rows // 2
    if memory is not None:
        planned = memory.largest_rows(devices.memory - memory.states("none", 1).total, training.gradient_checkpointing)
        most = planned if 0 < planned < rows else most
    fewer = max(number for number in range(1, most + 1) if rows_per_step(training, 1) % number == 0)
    if training.global_batch_size is not None:  # gradient accumulation follows from it
        return [f"{where}.per_device_train_batch_size={fewer} instead of {rows} (the same global batch)"]
    return [
        f"training.per_device_train_batch_size={fewer} with training.gradient_accumulation_steps="
        f"{rows * times // fewer} instead of {rows} with {times} (the same global batch)"
    ]


def has_room(memory: StepMemory, devices: Devices) -> bool:
    """Whether the states leave room for one row with gradient checkpointing, by the plan."""
    return memory.largest_rows(devices.memory - memory.states("none", 1).total, True) > 0


def smaller_bases(recipe: Recipe, engine: Engine, devices: Devices, memory: StepMemory | None) -> list[str]:
    """The dtypes in which an adapter's frozen base is smaller, with the bytes of the weights by the plan."""
    lora, ways = recipe.training.lora, []
    if lora is None or memory is None:
        return []
    for base in {"float32": ("bfloat16", NF4), "bfloat16": (NF4,)}.get(lora.base, ()):
        if base == NF4 and engine.splits_weights is not None:
            continue
        model = planned_model(recipe.with_(training={"lora": replace(lora, base=base)}), devices)
        kept = (memory, replace(memory, frozen_bytes=frozen_bytes(model)))
        now, less = (each.states("none", 1).weights / 1e9 for each in kept)
        if less < now:
            ways.append(f"training.lora.base={base} (weights of {less:.2f} GB instead of {now:.2f}, by anyformer plan)")
    return ways


def saved_by_checkpointing(recipe: Recipe, memory: StepMemory | None) -> str:
    """The memory that gradient checkpointing saves by the plan, as words for the advice."""
    if memory is None:
        return ""
    whole, less = (memory.held(recipe.training.per_device_train_batch_size, way).peak / 1e9 for way in (False, True))
    return f" (activations of {less:.2f} GB instead of {whole:.2f}, by anyformer plan)"
