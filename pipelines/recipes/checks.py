"""What a recipe's settings allow beside their types: ranges, exclusions, and the model's legality table.

Everything here reads the recipe alone; what depends on data or checkpoints is checked where they are opened.
"""

import re
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from ..errors import UserError, did_you_mean
from ..metrics import check_metrics
from . import introspection
from .image_checks import METRICS_OF_IMAGES, check_examples, check_images, check_no_tokenizer, sees_images
from .objective_checks import check_framing, check_objective, smallest_vocabulary
from .schema import MixtureSource, Recipe, SourceSection, TaskSection
from .types import show

# (dotted name, smallest value, whether the smallest itself is allowed)
LOWER_BOUNDS = [
    ("tokenizer.vocab_size", 2, True),
    ("tokenizer.min_frequency", 1, True),
    ("tokenizer.max_training_bytes", 1, True),
    ("data.max_documents", 1, True),
    ("data.max_document_bytes", 1, True),
    ("data.max_line_bytes", 1, True),
    ("data.validation_fraction", 0, True),
    ("tokenizer.sentinels", 0, True),
    ("objective.sequence_length", 2, True),
    ("objective.mask_probability", 0, False),
    ("objective.mask_replace", 0, True),
    ("objective.random_replace", 0, True),
    ("objective.noise_density", 0, False),
    ("objective.mean_span_length", 1, True),
    ("task.max_length", 2, True),
    ("task.max_target_length", 2, True),
    ("task.num_beams", 1, True),
    ("task.max_new_tokens", 1, True),
    ("objective.image_size", 2, True),
    ("objective.clusters", 2, True),
    ("objective.probe_layer", 0, True),
    ("objective.mask_ratio", 0, False),
    ("evaluation.sample_images", 0, True),
    ("task.crop_padding", 0, True),
    ("task.horizontal_flip", 0, True),
    ("task.mixup_alpha", 0, True),
    ("task.cutmix_alpha", 0, True),
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
    ("evaluation.average_checkpoints", 2, True),
    ("evaluation.sample_tokens", 1, True),
    ("evaluation.sample_top_p", 0, False),
]
BELOW_ONE = [
    "data.validation_fraction",
    "training.adam_beta2",
    "objective.mask_probability",
    "objective.noise_density",
    "objective.mask_ratio",
]
# What each task predicts, in the words of the metrics' table, and what is reported where the recipe does not say.
COMPARES = {"sequence_classification": "classes", "translation": "texts", "image_classification": "classes"}
DEFAULT_METRICS = {
    "sequence_classification": ["accuracy"],
    "translation": ["bleu"],
    "image_classification": ["accuracy"],
    "pixels": ["bits_per_pixel"],
    "masked_image": [],
}  # of all others perplexity
PERPLEXITIES = ("perplexity", "unigram_perplexity", "word_perplexity")
# The fields of the task section that each task reads, beside its name; the others have no effect with it.
TASK_FIELDS = {
    "sequence_classification": ("text_field", "text_pair_field", "label_field", "label_names", "max_length"),
    "translation": (
        *("source_field", "target_field", "max_length", "max_target_length"),
        *("num_beams", "length_penalty", "max_new_tokens"),
    ),
    "image_classification": (
        *("image_field", "label_field", "label_names", "image_mean", "image_std"),
        *("crop_padding", "horizontal_flip", "mixup_alpha", "cutmix_alpha"),
    ),
}
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
    """A setting by its dotted name; None where the recipe has no such section (objective or task)."""
    section, name = path.split(".")
    return getattr(getattr(recipe, section), name, None)


def check_recipe(recipe: Recipe) -> None:
    """Raise UserError for the first setting that cannot be run, before anything heavy is imported."""
    _check_ranges(recipe)
    _check_training(recipe)
    _check_data(recipe)
    _check_tokenizer(recipe)
    _check_positions(recipe)
    _check_evaluation(recipe)
    if recipe.task is not None:
        _check_task(recipe)
    elif sees_images(recipe):
        check_images(recipe)
    else:
        check_objective(recipe)


def _check_ranges(recipe: Recipe) -> None:
    rows = [(path, _get(recipe, path), low, allowed) for path, low, allowed in LOWER_BOUNDS]
    for i, source in enumerate(recipe.data.mixture):
        rows.append((f"data.mixture.{i}.weight", source.weight, 0, False))
        rows.append((f"data.mixture.{i}.max_documents", source.max_documents, 1, True))
    for path, value, low, allowed in rows:
        if value is not None and (value < low or (value == low and not allowed)):
            raise UserError(f"{path}={show(value)} must be {f'at least {low}' if allowed else f'above {low}'}")
    for path in BELOW_ONE:
        if (_get(recipe, path) or 0) >= 1:
            raise UserError(f"{path}={show(_get(recipe, path))} must be below 1")


def _check_training(recipe: Recipe) -> None:
    training = recipe.training
    if not training.output_dir:
        raise UserError("training.output_dir is not set; it is the folder of the run, such as runs/mine")
    if training.max_steps != -1 and training.max_steps < 1:
        raise UserError(
            f"training.max_steps={training.max_steps} must be at least 1, or -1 for training.num_train_epochs"
        )
    if training.optim not in OWN_OPTIMIZERS and training.optim not in introspection.optimizer_names():
        known = {*OWN_OPTIMIZERS, *introspection.optimizer_names()}
        raise UserError(f"training.optim={training.optim!r} is not known{did_you_mean(training.optim, known)}")
    schedule = training.lr_scheduler_type
    if schedule not in OWN_SCHEDULES and schedule not in introspection.schedule_names():
        known = {*OWN_SCHEDULES, *introspection.schedule_names()}
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
    if sees_images(recipe):
        check_no_tokenizer(recipe)
        return
    check_framing(recipe)
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
    smallest = smallest_vocabulary(recipe)
    if tokenizer.type == "byte_bpe" and size < smallest:
        raise UserError(f"tokenizer.vocab_size={size} must be at least {smallest}: 256 bytes and the special tokens")
    rows = recipe.model.fields.get("vocab_size")
    if rows is not None and rows < size:
        raise UserError(f"model.vocab_size={rows} is smaller than tokenizer.vocab_size={size}; remove model.vocab_size")


def _check_positions(recipe: Recipe) -> None:
    config = config_namespace(recipe)
    if config is None or config.position_encoding != "learned" or not hasattr(config, "max_position_embeddings"):
        return
    for path in ("objective.sequence_length", "task.max_length", "task.max_target_length"):
        length = None if sees_images(recipe) else _get(recipe, path)
        if length is not None and length > config.max_position_embeddings:
            raise UserError(
                f"{path}={length} is longer than model.max_position_embeddings={config.max_position_embeddings}; "
                f"learned positions need one for each token"
            )


def _check_evaluation(recipe: Recipe) -> None:
    section, task = recipe.evaluation, recipe.task.name if recipe.task else None
    if task is not None:
        classes = len(recipe.task.label_names) if recipe.task.label_names else None
        check_metrics(section.metrics, COMPARES[task], "evaluation.metrics", classes)
    if task is None:
        known = metrics_of_objective(recipe)
        for name in section.metrics:
            if name not in known:
                near = did_you_mean(name, known) if known else "; only the loss is measured"
                raise UserError(f"evaluation.metrics={name!r} is not for objective.name={recipe.objective.name}{near}")
    if section.sample_top_p is not None and section.sample_top_p > 1:
        raise UserError(f"evaluation.sample_top_p={section.sample_top_p} must be at most 1")
    if section.sample_prompts and COMPARES.get(task) == "classes":
        raise UserError(f"evaluation.sample_prompts has no effect with task.name={task}; remove it")
    if section.best_metric is not None:
        known = ["loss", *(section.metrics if COMPARES.get(task) == "classes" else [])]
        if section.best_metric not in known:
            raise UserError(
                f"evaluation.best_metric={section.best_metric!r} is not measured during training"
                f"{did_you_mean(section.best_metric, known)}"
            )
        if section.every_steps is None:
            raise UserError("evaluation.best_metric needs evaluation.every_steps, the steps between two validations")
        if section.average_checkpoints is not None:
            raise UserError("evaluation.best_metric and evaluation.average_checkpoints exclude each other; keep one")
    if (section.average_checkpoints or 0) > recipe.training.save_total_limit:
        raise UserError(
            f"evaluation.average_checkpoints={section.average_checkpoints} needs so many checkpoints; set "
            f"training.save_total_limit to at least {section.average_checkpoints}"
        )


def metrics_of_objective(recipe: Recipe) -> tuple[str, ...]:
    """Names of what can be measured beside the loss of the recipe's objective."""
    return METRICS_OF_IMAGES.get(recipe.objective.name, PERPLEXITIES)


def _check_task(recipe: Recipe) -> None:
    task, data = recipe.task, recipe.data
    for field in fields(TaskSection):
        if field.name == "name" or field.name in TASK_FIELDS[task.name]:
            continue
        if getattr(task, field.name) != field.default:
            raise UserError(f"task.{field.name} has no effect with task.name={task.name}; remove it")
    if sees_images(recipe):
        check_images(recipe)
    names = task.label_names
    if names is not None and (len(names) < 2 or len(set(names)) < len(names)):
        raise UserError(f"task.label_names={show(names)} must be two or more different names")
    if task.name == "translation":
        for name in ("source_field", "target_field"):
            if not getattr(task, name):
                raise UserError(f"task.{name} is not set; translation needs the column of each language, such as en")
        if recipe.model.family not in (None, "seq2seq"):
            raise UserError(f"model.family={recipe.model.family} cannot translate; set it to seq2seq")
    check_examples(data, "task")


def config_namespace(recipe: Recipe) -> SimpleNamespace | None:
    """The family's config as a namespace: defaults, then the recipe's fields. None for a checkpoint."""
    if recipe.model.family is None:
        return None
    defaults = {name: field.default for name, field in introspection.family_fields(recipe.model.family).items()}
    return SimpleNamespace(model_type=f"anyformer_{recipe.model.family}", **(defaults | recipe.model.fields))


def check_model(recipe: Recipe) -> None:
    """Run the legality table of modeling/legality.py over the recipe's model."""
    from anyformer.modeling.legality import check_legal

    config = config_namespace(recipe)
    if config is None:
        return
    for name in ("hidden_act", "head_act", "conv_act", "pooler_act"):
        value = getattr(config, name, None)
        if value is not None and value not in introspection.activation_names():
            near = did_you_mean(value, introspection.activation_names(), "")
            raise UserError(f"model.{name}={value!r} is not known{near}")
    try:
        check_legal(config)
    except ValueError as error:
        names = "|".join(vars(config))
        sentence = re.sub(rf"(?<![\w.])({names})(?==|\.\w+=)", r"model.\1", str(error))
        raise UserError(sentence if sentence.startswith("model.") else f"model.{sentence}") from None
