"""TrainingArguments of transformers from a recipe's training section, with safe values for Trainer's other options."""

import importlib.util
import os
from contextlib import contextmanager
from importlib import resources

import torch
from transformers import TrainingArguments

from ..accounting.flops import prefers_bf16
from ..errors import UserError, did_you_mean, first_line
from ..recipes.schema import Recipe, TrainingSection

SCHEDULES = {"wsd": "warmup_stable_decay"}
OWN_OPTIMIZERS = {"adamw": "adamw_torch_fused", "muon": "adamw_torch_fused"}
# transformers < 5.23: activation_checkpointing was called gradient_checkpointing.
CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in TrainingArguments.__dataclass_fields__
)
# min_lr_rate turns plain cosine into transformers' cosine with a floor.
COSINE_FLOORS = {"min_lr", "min_lr_rate"}


def schedule(section: TrainingSection, total_steps: int | None) -> tuple[str, dict]:
    """(transformers' name, its arguments) of the schedule; `wsd` decays over the last `decay_steps` of all steps."""
    name, kwargs = section.lr_scheduler_type, dict(section.lr_scheduler_kwargs)
    if name == "cosine" and COSINE_FLOORS & kwargs.keys():
        name = "cosine_with_min_lr"
    name = SCHEDULES.get(name, name)
    if name == "warmup_stable_decay" and "num_decay_steps" not in kwargs:
        share = section.decay_steps
        if share < 1 and total_steps is None:
            raise UserError("training.decay_steps below 1 is a share of training.max_steps, which is not set")
        kwargs["num_decay_steps"] = round(share * total_steps) if share < 1 else int(share)
    return name, kwargs


def resolve_bf16(section: TrainingSection, device_type: str) -> bool:
    """Whether training runs under bfloat16 autocast."""
    return prefers_bf16(device_type) if section.bf16 == "auto" else section.bf16


def device_type() -> str:
    accelerator = torch.accelerator.current_accelerator()
    return "cpu" if accelerator is None or not torch.accelerator.is_available() else accelerator.type


def deepspeed_config(value):
    """A path or dict as it is; a name such as `zero2` as the shipped configs/deepspeed/zero2.json."""
    if not isinstance(value, str) or os.path.exists(value):
        return value
    folder = resources.files("anyformer.configs") / "deepspeed"
    shipped = {f.name.removesuffix(".json"): f for f in folder.iterdir() if f.name.endswith(".json")}
    if value not in shipped:
        raise UserError(f"training.deepspeed={value!r} is neither a file nor shipped{did_you_mean(value, shipped)}")
    return str(shipped[value])


def total_steps(section: TrainingSection, rows: int | None, world_size: int) -> int | None:
    """Optimizer steps of the whole run, or None where neither max_steps nor the number of rows is known."""
    if section.max_steps > 0:
        return section.max_steps
    if rows is None:
        return None
    batches = -(-rows // (section.per_device_train_batch_size * world_size))
    per_epoch = max(1, -(-batches // section.gradient_accumulation_steps))
    return int(-(-section.num_train_epochs * per_epoch // 1))


def training_arguments(recipe: Recipe, rows: int | None = None) -> TrainingArguments:
    """Build TrainingArguments; `rows` (training rows) is needed where a schedule depends on the length of the run.

    Raises UserError for values that TrainingArguments refuses, such as unknown names.
    """
    section, device = recipe.training, device_type()
    if device == "cpu":  # accelerate imports DeepSpeed where it is installed, and DeepSpeed searches for an accelerator
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    trackers = [section.report_to] if isinstance(section.report_to, str) else section.report_to
    for tracker in set(trackers) & {"wandb", "trackio", "tensorboard"}:
        if importlib.util.find_spec(tracker) is None:
            raise UserError(f"training.report_to={tracker} needs the package {tracker}; install anyformer[{tracker}]")
    extra = dict(section.extra)
    if extra.get("deepspeed") is not None:
        extra["deepspeed"] = deepspeed_config(extra["deepspeed"])
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    scheduler, scheduler_kwargs = schedule(section, total_steps(section, rows, world_size))
    values = {
        "output_dir": section.output_dir,
        "seed": section.seed,
        "data_seed": section.seed,
        "max_steps": section.max_steps,
        "num_train_epochs": section.num_train_epochs,
        "per_device_train_batch_size": section.per_device_train_batch_size,
        "per_device_eval_batch_size": section.per_device_train_batch_size,
        "gradient_accumulation_steps": section.gradient_accumulation_steps,
        "learning_rate": section.learning_rate,
        "optim": OWN_OPTIMIZERS.get(section.optim, section.optim),
        "weight_decay": section.weight_decay,
        "adam_beta2": section.adam_beta2,
        "max_grad_norm": section.max_grad_norm,
        "lr_scheduler_type": scheduler,
        "lr_scheduler_kwargs": scheduler_kwargs,
        "warmup_steps": section.warmup_steps,
        "bf16": resolve_bf16(section, device),
        CHECKPOINTING: section.gradient_checkpointing,
        "torch_compile": section.torch_compile,
        "logging_steps": section.logging_steps,
        "save_steps": section.save_steps,
        "save_total_limit": section.save_total_limit,
        "report_to": section.report_to,
        "eval_strategy": "no" if recipe.evaluation.every_steps is None else "steps",
        "eval_steps": recipe.evaluation.every_steps,
        "metric_for_best_model": recipe.evaluation.best_metric,
        "greater_is_better": recipe.evaluation.best_metric != "loss",
        # Without an accelerator the process group must be gloo; with one this stays off.
        "use_cpu": device == "cpu",
        # Trainer's default leaves NaN out of the logged loss; LossGuard stops the run instead.
        "logging_nan_inf_filter": False,
        # True costs a second traversal of the graph at every step; none of our parameters stays unused.
        "ddp_find_unused_parameters": False,
        # Rows hold the model's inputs and their sample ids, which the trainer takes out.
        "remove_unused_columns": False,
        "prediction_loss_only": True,
        "disable_tqdm": True,
        "logging_first_step": True,
        "dataloader_pin_memory": device == "cuda",
    }
    if device == "cuda":
        values["accelerator_config"] = {"non_blocking": True}
    try:
        return TrainingArguments(**(values | extra))
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(f"training: transformers refuses these settings: {first_line(error)}") from error


def start_deepspeed(arguments: TrainingArguments) -> None:
    """Start DeepSpeed's own process group before a ZeRO-3 model is built.

    A ZeRO-3 model is sharded over DeepSpeed's processes while it is built; without this there would be one.
    """
    from transformers.integrations import is_deepspeed_zero3_enabled

    if is_deepspeed_zero3_enabled():
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo" if arguments.use_cpu else None)


@contextmanager
def whole_weights(arguments: TrainingArguments):
    """Build fresh models whole on every process, also under ZeRO-3, which would build them in shards.

    Shards are initialised in another order, so that a seed would give other weights than under DDP. This costs host
    memory for the whole model on each process; a checkpoint is still loaded in shards.

    transformers reads ZeRO-3 from a module-level variable (5.23: integrations/deepspeed.py, line 267), and no argument
    overrides it: it is unset for the block and set again.
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
