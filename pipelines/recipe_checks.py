"""What a recipe's settings allow beside their types: ranges, exclusions, and the model's legality table.

Everything here reads the recipe alone; what depends on data or checkpoints is checked where they are opened.
"""

import re
from types import SimpleNamespace
from typing import Any

from . import source_fields
from .errors import UserError, did_you_mean
from .recipe_types import show
from .schema import MixtureSource, Recipe, SourceSection

# (dotted name, smallest value, whether the smallest itself is allowed)
LOWER_BOUNDS = [
    ("tokenizer.vocab_size", 2, True),
    ("tokenizer.min_frequency", 1, True),
    ("tokenizer.max_training_bytes", 1, True),
    ("data.max_documents", 1, True),
    ("data.max_document_bytes", 1, True),
    ("data.max_line_bytes", 1, True),
    ("data.validation_fraction", 0, True),
    ("objective.sequence_length", 2, True),
    ("training.seed", 0, True),
    ("training.num_train_epochs", 0, False),
    ("training.per_device_train_batch_size", 1, True),
    ("training.gradient_accumulation_steps", 1, True),
    ("training.learning_rate", 0, False),
    ("training.muon_learning_rate", 0, False),
    ("training.weight_decay", 0, True),
    ("training.adam_beta2", 0, True),
    ("training.max_grad_norm", 0, True),
    ("training.warmup_steps", 0, True),
    ("training.decay_steps", 0, False),
    ("training.logging_steps", 1, True),
    ("training.save_steps", 1, True),
    ("training.save_total_limit", 2, True),
    ("evaluation.every_steps", 1, True),
    ("evaluation.max_rows", 1, True),
    ("evaluation.sample_tokens", 1, True),
]
BELOW_ONE = ["data.validation_fraction", "training.adam_beta2"]
TRACKERS = ("wandb", "trackio", "tensorboard")
OWN_OPTIMIZERS = ("adamw", "muon")
OWN_SCHEDULES = ("wsd",)

# What to do instead of setting these TrainingArguments fields through `training`.
OWNED_ARGUMENTS = {
    argument: instead
    for instead, arguments in {
        "use evaluation.every_steps": ("eval_strategy", "evaluation_strategy", "eval_steps", "eval_delay"),
        "use training.save_steps; checkpoints are always complete": ("save_strategy", "save_only_model"),
        "use training.logging_steps": ("logging_strategy",),
        "a NaN loss always stops the run": ("logging_nan_inf_filter",),
        "use training.resume": ("resume_from_checkpoint", "ignore_data_skip", "overwrite_output_dir"),
        "use training.gradient_checkpointing": ("activation_checkpointing",),
        "use training.gradient_checkpointing_kwargs": ("activation_checkpointing_kwargs",),
        "a recipe always trains, then evaluates": ("do_train", "do_eval", "do_predict"),
        "the trainer sets it itself": (
            "remove_unused_columns",
            "label_names",
            "include_num_input_tokens_seen",
            "train_sampling_strategy",
            "length_column_name",
            "ddp_find_unused_parameters",
            "prediction_loss_only",
            "disable_tqdm",
        ),
        "use training.per_device_train_batch_size": ("per_gpu_train_batch_size",),
        "use training.per_device_eval_batch_size": ("per_gpu_eval_batch_size",),
        "use training.per_device_train_batch_size; a changing batch would change the run": ("auto_find_batch_size",),
        "use training.warmup_steps; below 1 it is a share of all steps": ("warmup_ratio",),
        "use training.seed, the one seed": ("data_seed",),
        "SIGTERM always saves a checkpoint": ("enable_jit_checkpoint",),
        "give it to accelerate launch": ("parallelism_config",),
        "the launcher sets it": ("local_rank",),
    }.items()
    for argument in arguments
}


def _get(recipe: Recipe, path: str) -> Any:
    section, name = path.split(".")
    return getattr(getattr(recipe, section), name)


def check_recipe(recipe: Recipe) -> None:
    """Raise UserError for the first setting that cannot be run, before anything heavy is imported."""
    _check_ranges(recipe)
    _check_training(recipe)
    _check_data(recipe)
    _check_tokenizer(recipe)
    _check_positions(recipe)


def _check_ranges(recipe: Recipe) -> None:
    rows = [(path, _get(recipe, path), low, allowed) for path, low, allowed in LOWER_BOUNDS]
    for i, source in enumerate(recipe.data.mixture):
        rows.append((f"data.mixture.{i}.weight", source.weight, 0, False))
        rows.append((f"data.mixture.{i}.max_documents", source.max_documents, 1, True))
    for path, value, low, allowed in rows:
        if value is not None and (value < low or (value == low and not allowed)):
            raise UserError(f"{path}={show(value)} must be {f'at least {low}' if allowed else f'above {low}'}")
    for path in BELOW_ONE:
        if _get(recipe, path) >= 1:
            raise UserError(f"{path}={show(_get(recipe, path))} must be below 1")


def _check_training(recipe: Recipe) -> None:
    training = recipe.training
    if not training.output_dir:
        raise UserError("training.output_dir is not set; it is the folder of the run, such as runs/mine")
    if training.max_steps != -1 and training.max_steps < 1:
        raise UserError(
            f"training.max_steps={training.max_steps} must be at least 1, or -1 for training.num_train_epochs"
        )
    if training.optim not in OWN_OPTIMIZERS and training.optim not in source_fields.optimizer_names():
        known = {*OWN_OPTIMIZERS, *source_fields.optimizer_names()}
        raise UserError(f"training.optim={training.optim!r} is not known{did_you_mean(training.optim, known)}")
    schedule = training.lr_scheduler_type
    if schedule not in OWN_SCHEDULES and schedule not in source_fields.schedule_names():
        known = {*OWN_SCHEDULES, *source_fields.schedule_names()}
        raise UserError(f"training.lr_scheduler_type={schedule!r} is not known{did_you_mean(schedule, known)}")
    trackers = [training.report_to] if isinstance(training.report_to, str) else training.report_to
    for name in trackers:
        if name not in TRACKERS and not (name == "none" and len(trackers) == 1):
            raise UserError(
                f"training.report_to={show(training.report_to)} must be none, or any of {', '.join(TRACKERS)}"
            )
    if training.bf16 is True and training.extra.get("fp16"):
        raise UserError("training.bf16=true and training.fp16=true exclude each other; keep one")


def _check_source(source: SourceSection, path: str, mixture: list[MixtureSource]) -> None:
    given = [name for name in ("source", "files", "dataset") if getattr(source, name) is not None]
    given += ["mixture"] if mixture else []
    among = "source, files, dataset" + (" and mixture" if path == "data" else "")
    if not given:
        raise UserError(f"{path} names no data; set one of {among}")
    if len(given) > 1:
        names = [f"{path}.{name}" for name in given]
        raise UserError(f"{' and '.join(names)} are both set; keep one and set the other to null")
    if source.files is not None and not all([source.files] if isinstance(source.files, str) else source.files or [""]):
        raise UserError(f"{path}.files={show(source.files)} names no file")
    for name in ("config_name", "revision"):
        if getattr(source, name) is not None and source.dataset is None:
            raise UserError(f"{path}.{name}={show(getattr(source, name))} has no effect without {path}.dataset")


def _check_data(recipe: Recipe) -> None:
    data = recipe.data
    _check_source(data, "data", data.mixture)
    for i, source in enumerate(data.mixture):
        _check_source(source, f"data.mixture.{i}", [])
    for name in ("validation_split", "test_split"):
        if getattr(data, name) is not None and data.dataset is None:
            raise UserError(f"data.{name}={show(getattr(data, name))} has no effect without data.dataset")
    for part in ("validation", "test"):
        if getattr(data, f"{part}_split") is not None and getattr(data, f"{part}_files") is not None:
            raise UserError(f"data.{part}_split and data.{part}_files are both set; keep one and set the other to null")
    if data.streaming:
        if data.dataset is None and not (data.mixture and all(source.dataset for source in data.mixture)):
            raise UserError("data.streaming=true needs data.dataset; other sources are not streamed")
        if recipe.training.max_steps < 1:
            raise UserError("data.streaming=true needs training.max_steps, because a stream has no known length")


def _check_tokenizer(recipe: Recipe) -> None:
    tokenizer = recipe.tokenizer
    if tokenizer.name_or_path is not None:
        return
    if recipe.model.name_or_path is not None:
        raise UserError(
            "tokenizer is trained anew, but model.name_or_path brings its own; remove the tokenizer section"
        )
    size = tokenizer.vocab_size
    if size is None:
        if tokenizer.type != "char":
            raise UserError(f"tokenizer.vocab_size is not set; tokenizer.type={tokenizer.type} needs it, such as 8192")
        return
    smallest = 256 + 3 + len(tokenizer.special_tokens)
    if tokenizer.type == "byte_bpe" and size < smallest:
        raise UserError(f"tokenizer.vocab_size={size} must be at least {smallest}: 256 bytes and the special tokens")
    rows = recipe.model.fields.get("vocab_size")
    if rows is not None and rows < size:
        raise UserError(f"model.vocab_size={rows} is smaller than tokenizer.vocab_size={size}; remove model.vocab_size")


def _check_positions(recipe: Recipe) -> None:
    config, length = config_namespace(recipe), recipe.objective.sequence_length
    if config and config.position_encoding == "learned" and length > config.max_position_embeddings:
        raise UserError(
            f"objective.sequence_length={length} is longer than "
            f"model.max_position_embeddings={config.max_position_embeddings}; learned positions need one for each token"
        )


def config_namespace(recipe: Recipe) -> SimpleNamespace | None:
    """The family's config as a namespace: defaults, then the recipe's fields. None for a checkpoint."""
    if recipe.model.family is None:
        return None
    defaults = {name: field.default for name, field in source_fields.family_fields(recipe.model.family).items()}
    return SimpleNamespace(model_type=f"anyformer_{recipe.model.family}", **(defaults | recipe.model.fields))


def check_model(recipe: Recipe) -> None:
    """Run the legality table of modeling/legality.py over the recipe's model."""
    from anyformer.modeling.legality import check_legal

    config = config_namespace(recipe)
    if config is None:
        return
    if config.hidden_act not in source_fields.activation_names():
        near = did_you_mean(config.hidden_act, source_fields.activation_names(), "")
        raise UserError(f"model.hidden_act={config.hidden_act!r} is not known{near}")
    try:
        check_legal(config)
    except ValueError as error:
        names = "|".join(vars(config))
        sentence = re.sub(rf"(?<![\w.])({names})(?==|\.\w+=)", r"model.\1", str(error))
        raise UserError(sentence if sentence.startswith("model.") else f"model.{sentence}") from None
