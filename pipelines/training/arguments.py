"""transformers' TrainingArguments from a recipe's training section, with safe values for Trainer's other options."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import TrainingArguments

from ..accounting.lora import check_lora
from ..errors import UserError, first_line, need_package
from ..patches import write
from ..plugins import less_is_better
from ..precision import device_type, resolve_bf16
from ..recipes.checks import FOLLOWS_VALIDATIONS, check_schedule
from ..recipes.deepspeed_settings import deepspeed_config
from ..recipes.global_batch import micro_batches, rows_per_step
from ..recipes.optimizer_rows import optimizer_of
from ..recipes.parallelism import sharing_rows
from ..recipes.schema import PartNorms, Recipe, TrainingSection
from .compiled_layers import COMPILING
from .engines.asked import engine_for
from .engines.engine import Engine
from .engines.parts_of_rows import parallelism_config
from .learning_rate import schedule

# transformers < 5.23: activation_checkpointing was called gradient_checkpointing.
CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in TrainingArguments.__dataclass_fields__
)


def data_ranks(section: TrainingSection, world_size: int) -> int:
    """The number of processes, out of `world_size`, that read different rows."""
    return max(1, world_size // sharing_rows(section.parallelism))


def total_steps(section: TrainingSection, per_epoch: int | None) -> int | None:
    """Optimizer steps of the whole run, or None where neither max_steps nor the steps of an epoch are known."""
    if section.max_steps > 0:
        return section.max_steps
    if per_epoch is None:
        return None
    return int(-(-section.num_train_epochs * per_epoch // 1))


def rows_of(arguments: TrainingArguments) -> int:
    """The rows of one optimizer step over all processes."""
    ranks = max(1, arguments.world_size // getattr(arguments, "sharing_rows", 1))
    return arguments.train_batch_size * arguments.gradient_accumulation_steps * ranks


def training_arguments(recipe: Recipe, engine: Engine | None = None, per_step: int | None = None) -> TrainingArguments:
    """Build TrainingArguments, which starts the process group.

    engine: of the run; None: the one that recipe and launcher ask for. per_step: rows of a step of a resumed run, which
    may have had another number of processes; None: as the recipe says.

    Raises UserError for values that TrainingArguments refuses, such as unknown names.
    """
    section, device = recipe.training, device_type()
    trackers = [section.report_to] if isinstance(section.report_to, str) else section.report_to
    for tracker in set(trackers) - {"none"}:
        need_package(f"training.report_to={tracker}", tracker, None if tracker == "codecarbon" else tracker)
    check_lora(recipe)
    # Left out: Trainer would compile the whole model, which takes minutes (see compiled_layers.py).
    extra = {name: value for name, value in section.extra.items() if name not in COMPILING}
    if extra.get("fp16") and device == "cpu":
        raise UserError("training.fp16=true needs an accelerator, and this machine has none; set it to false")
    if extra.get("deepspeed") is not None:
        extra["deepspeed"] = deepspeed_config(extra["deepspeed"])
    devices = 0 if device == "cpu" else torch.accelerator.device_count()
    engine = engine or engine_for(section)
    engine.check(recipe, device, devices)
    processes = data_ranks(section, int(os.environ.get("WORLD_SIZE", 1)))
    per_step = per_step or rows_per_step(section, processes)
    micro_batch, accumulated = micro_batches(section, processes, per_step)
    total = total_steps(section, None)
    if total is not None:
        check_schedule(section, total)
    values = values_of(recipe, micro_batch, accumulated, total, device)
    values["accelerator_config"] = {
        "non_blocking": device == "cuda",
        "gradient_accumulation_kwargs": {"sync_each_batch": engine.reduces_each_batch},
    }
    with refusals():
        arguments = TrainingArguments(**(values | extra))
    if arguments.device.type == "cpu":
        write(arguments, "_setup_devices", torch.device("cpu"))
    arguments.sharing_rows = sharing_rows(section.parallelism)  # number of processes that read the same rows
    return arguments


def values_of(recipe: Recipe, micro_batch: int, accumulated: int, total: int | None, device: str) -> dict:
    """The values of TrainingArguments that follow from the recipe.

    micro_batch: rows of a forward pass. accumulated: forward passes of a step. total: steps of the run; None: unknown.
    """
    section = recipe.training
    (scheduler, scheduler_kwargs), less = schedule(section, total), less_is_better(recipe.evaluation.best_metric)
    if scheduler in FOLLOWS_VALIDATIONS:
        scheduler_kwargs = {"mode": "min" if less else "max"} | scheduler_kwargs
    values = {
        "output_dir": section.output_dir,
        "seed": section.seed,
        "data_seed": section.seed,
        "max_steps": section.max_steps,
        "num_train_epochs": known(section.num_train_epochs),
        "per_device_train_batch_size": micro_batch,
        "per_device_eval_batch_size": section.per_device_train_batch_size,
        "gradient_accumulation_steps": accumulated,
        "learning_rate": section.learning_rate,
        "optim": optimizer_of(section.optim).runs_as or section.optim,
        "weight_decay": section.weight_decay,
        "adam_beta2": section.adam_beta2,
        # With a norm for each part of the model the engine clips the gradients, and Trainer must not.
        "max_grad_norm": 0.0 if isinstance(section.max_grad_norm, PartNorms) else section.max_grad_norm,
        "lr_scheduler_type": scheduler,
        "lr_scheduler_kwargs": scheduler_kwargs,
        "warmup_steps": section.warmup_steps,
        "bf16": resolve_bf16(section, device),
        CHECKPOINTING: section.gradient_checkpointing,
        "logging_steps": section.logging_steps,
        "save_steps": known(section.save_steps),
        "save_total_limit": section.save_total_limit,
        "report_to": section.report_to,
        "run_name": os.path.basename(os.path.abspath(section.output_dir)),  # shown by trackers
        "eval_strategy": "no" if recipe.evaluation.every_steps is None else "steps",
        "eval_steps": known(recipe.evaluation.every_steps),
        "metric_for_best_model": recipe.evaluation.best_metric,
        "greater_is_better": not less,
        **safe_values(device),
    }
    if device == "cuda" and section.parallelism is not None and section.parallelism.fsdp_cpu_offload:
        values["ddp_backend"] = "cuda:nccl,cpu:gloo"  # gradients, and the sums of their norms, are on the CPU
    sharing = parallelism_config(recipe)
    if sharing is not None:
        values["parallelism_config"] = sharing
        values["dataloader_drop_last"] = True  # processes exchange their batches, which must be of one shape
    return values


def known(value):
    """The value; 1 for passes over the data and auto, whose numbers `settle` writes when the data is there."""
    return 1 if isinstance(value, str) else value


def settle(arguments: TrainingArguments, recipe: Recipe, *, validates: bool) -> None:
    """Write what the data has settled: the numbers of epochs and steps, and whether the start is validated.

    validates: whether there is validation data.
    """
    arguments.num_train_epochs = recipe.training.num_train_epochs
    arguments.save_steps = recipe.training.save_steps
    arguments.eval_steps = recipe.evaluation.every_steps
    asked, is_begun = recipe.evaluation.at_start, recipe.model.name_or_path is not None
    arguments.eval_on_start = validates and (is_begun if asked is None else asked)


def safe_values(device: str) -> dict:
    """Values of TrainingArguments that are the same in every run on a device."""
    return {
        # Needed without an accelerator, for a process group of gloo.
        "use_cpu": device == "cpu",
        # The default hides NaN in the logged loss; LossGuard stops the run instead.
        "logging_nan_inf_filter": False,
        # True costs a second traversal of the graph at every step, and every parameter gets a gradient anyway.
        "ddp_find_unused_parameters": False,
        # Rows hold the model's inputs and sample ids, which the trainer removes.
        "remove_unused_columns": False,
        "prediction_loss_only": True,
        "disable_tqdm": True,
        "logging_first_step": True,
        "dataloader_pin_memory": device == "cuda",
    }


@contextmanager
def refusals() -> Iterator[None]:
    """In the block, errors that transformers or torch raise for training settings become UserErrors."""
    try:
        yield
    except (ValueError, TypeError, ImportError, KeyError) as error:
        raise UserError(f"training: transformers refuses these settings: {first_line(error)}") from error
