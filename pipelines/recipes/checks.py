"""Checks of a recipe beyond types and bounds: settings that exclude each other, and the model's legality table.

These checks read only the recipe; what depends on data or checkpoints is checked where they are opened.
"""

import math
import re
from types import SimpleNamespace
from typing import Any

from anyformer.modeling.rules.legality import check_legal
from anyformer.modeling.rules.parts import rope_parameters_of

from ..backends import check_attention, check_backends, check_experts
from ..errors import UnknownName, UserError, did_you_mean, nearest
from ..metrics import of_validations
from ..plugins import OPTIMIZERS, SCHEDULES, objective_of
from ..positions import check_context, check_rows
from . import introspection
from .data_section import DERIVED_FROM_TEXT, check_clean, check_sections, reads_text, sections_of
from .introspection import bounds_of, check_beside
from .optimizer_rows import ROWS, optimizer_of
from .schema import MINIMAL_PAIRS, DataSection, Recipe, TrainingSection
from .types import convert, show, within_bounds

TRACKERS = ("wandb", "trackio", "tensorboard", "codecarbon")
# Schedules that lower the learning rate when validations stop improving.
FOLLOWS_VALIDATIONS = ("reduce_lr_on_plateau", "greedy")

# What to do instead of setting these TrainingArguments fields through `training`.
OWNED_ARGUMENTS = {
    argument: instead
    for instead, arguments in {
        "use evaluation.every_steps": ("eval_strategy", "evaluation_strategy", "eval_steps", "eval_delay"),
        "use evaluation.at_start": ("eval_on_start",),
        "use evaluation.best_metric": ("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
        "use training.save_steps; checkpoints are always complete": ("save_strategy", "save_only_model"),
        "use training.logging_steps": ("logging_strategy",),
        "training.bad_step says what happens at a NaN loss": ("logging_nan_inf_filter",),
        "use training.resume": ("resume_from_checkpoint", "ignore_data_skip", "overwrite_output_dir"),
        "callbacks of a resumed run restore their states themselves": ("restore_callback_states_from_checkpoint",),
        "it casts the trained weights; training.bf16 is for evaluations, too": ("fp16_full_eval", "bf16_full_eval"),
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
            "dataloader_drop_last",
            "prediction_loss_only",
            "disable_tqdm",
        ),
        "anyformer plan says how many rows fit": ("auto_find_batch_size",),
        "use training.warmup_steps; below 1 it is a share of all steps": ("warmup_ratio",),
        "use training.seed, the one seed": ("data_seed",),
        "SIGTERM always saves a checkpoint": ("enable_jit_checkpoint",),
        "use training.parallelism, such as {dp_shard: 8} for FSDP2": ("parallelism_config", "fsdp", "fsdp_config"),
        "set publish.repo_id: the finished model is published once, with its card": (
            "push_to_hub",
            "hub_model_id",
            "hub_strategy",
            "hub_always_push",
        ),
        "use publish.private": ("hub_private_repo",),
        "a recipe is published on main; anyformer publish --revision takes another branch": ("hub_revision",),
        "run `hf auth login` or set HF_TOKEN; a recipe is saved and published, and must hold no secret": ("hub_token",),
        "the launcher sets it": ("local_rank",),
    }.items()
    for argument in arguments
}

# Bounds of TrainingArguments fields that a recipe may set and TrainingSection lacks. transformers checks few of them,
# and only after the data has been prepared.
ARGUMENT_BOUNDS = {
    "adam_beta1": bounds_of(at_least=0, below=1),
    "adam_epsilon": bounds_of(above=0, at_most=1),
    "label_smoothing_factor": bounds_of(at_least=0, below=1),
    "neftune_noise_alpha": bounds_of(at_least=0, at_most=1000),
    "torch_empty_cache_steps": bounds_of(at_least=1),
    "per_device_eval_batch_size": bounds_of(at_least=1, at_most=2**20),
    "eval_accumulation_steps": bounds_of(at_least=1),
    "dataloader_num_workers": bounds_of(at_least=0, at_most=1024),
    "dataloader_prefetch_factor": bounds_of(at_least=1, at_most=10_000),
    "ddp_bucket_cap_mb": bounds_of(at_least=1, at_most=100_000),
    "ddp_timeout": bounds_of(at_least=1, at_most=10**8),
}
# Bounds of training.lr_scheduler_kwargs, for all schedules of transformers.
SCHEDULE_BOUNDS = {
    **dict.fromkeys(("min_lr_rate", "min_lr_ratio", "warmup_lr_rate"), bounds_of(at_least=0, at_most=1)),
    **dict.fromkeys(("min_lr", "lr_end", "num_stable_steps", "patience", "cooldown"), bounds_of(at_least=0)),
    "power": bounds_of(at_least=0.01, at_most=100),
    "num_cycles": bounds_of(above=0, at_most=100_000),
    "timescale": bounds_of(at_least=1),
    "num_decay_steps": bounds_of(above=0),
    "factor": bounds_of(above=0, below=1),
}
# Arguments that need another setting: without it they do nothing, or are refused after the data has been prepared.
READ_WITH = {
    "dataloader_prefetch_factor": "dataloader_num_workers",
    "dataloader_persistent_workers": "dataloader_num_workers",
    "gradient_checkpointing_kwargs": "gradient_checkpointing",
    "liger_kernel_config": "use_liger_kernel",
}


def check_recipe(recipe: Recipe) -> None:
    """Raise UserError for the first setting that cannot be run, before torch is imported.

    Types and bounds of single settings were checked when they were read (types.build).
    """
    objective = objective_of(recipe)
    _check_training(recipe)
    _check_parallelism(recipe)
    if recipe.training.transfer is not None:
        from .base_width import check_transfer

        check_transfer(recipe, config_namespace(recipe))
    check_sections(objective)
    _check_derived(objective)
    if any(data.streaming for data in sections_of(objective)):
        if recipe.training.max_steps < 1:
            raise UserError("data.streaming=true needs training.max_steps, because a stream has no known length")
        from .usual_rates import in_steps

        in_steps(recipe, None)
    _check_family(objective)
    objective.check_tokenizer()
    _check_positions(recipe, objective)
    _check_heads(recipe, objective)
    objective.check_metrics()
    _check_evaluation(recipe, objective)
    objective.check()
    if recipe.stages:
        from .stage_plan import check_stages

        check_stages(recipe, _check_stage)


def _check_family(objective) -> None:
    """Raise UserError for a family of models that the objective, or one of its parts, does not train."""
    if objective.parts and objective.section == "objective":
        objective.of_each(_check_family)
        return
    family = objective.recipe.model.family
    if family is not None and family not in objective.families:
        raise UserError(
            f"model.family={family} does not go with {objective.setting}; it takes {' or '.join(objective.families)}"
        )


def _check_stage(recipe: Recipe) -> None:
    """Raise UserError if the recipe of a stage cannot be run."""
    objective = objective_of(recipe)
    _check_positions(recipe, objective)
    objective.check()
    _check_parallelism(recipe)


def _check_parallelism(recipe: Recipe) -> None:
    if recipe.training.parallelism is not None:
        from .parallelism import check_parallelism

        check_parallelism(recipe, config_namespace(recipe))


def _check_derived(objective) -> None:
    """Raise UserError for settings of examples, cleaning or derived data that do not apply to the objective's data."""
    for data in sections_of(objective):
        why = f"has no effect with {objective.setting}; documents that cannot be used are skipped and counted anyway"
        check_beside("data", data, [("bad_rows=", reads_text(objective), why)])
        _check_parts(objective, data)
        if data.clean is not None:
            check_clean(objective, data)
        if data.derive is not None and objective.section != "task":
            raise UserError(
                f"data.derive={data.derive} makes examples of a task, and {objective.setting} learns from the data as "
                f"they are; remove it"
            )
        if data.derive is not None and data.streaming:
            raise UserError(f"data.derive={data.derive} reads stored data; set data.streaming=false")


def _check_parts(objective, data: DataSection) -> None:
    """Raise UserError for settings of the splits of labelled examples that have no effect."""
    names = [name for name in ("test_fraction", "stratify", "group_field") if getattr(data, name)]
    if names and (reads_text(objective) or data.derive in DERIVED_FROM_TEXT):
        raise UserError(
            f"data.{names[0]}={show(getattr(data, names[0]))} divides labelled examples or images, and "
            f"{objective.setting} reads plain text here; remove it"
        )
    has_test = bool(data.test_files or data.test_split)
    why = "has no effect with test data of its own; keep one of them"
    check_beside("data", data, [("test_fraction", has_test, why)])
    held = 0 if data.validation_files or data.validation_split else data.share_held_back
    if held + (data.test_fraction or 0) >= 1:
        raise UserError(
            f"data.validation_fraction={held} and data.test_fraction={data.test_fraction} leave nothing for training"
        )
    why = "has no effect where no fraction is held back; set data.validation_fraction"
    check_beside("data", data, [(name, not held and data.test_fraction is None, why) for name in names])
    if data.stratify and objective.settings.stratified_by is None:
        raise UserError(f"data.stratify=true is of one class for each example, which {objective.setting} has not")


def _check_heads(recipe: Recipe, objective) -> None:
    """Raise UserError for parts of a model that nothing in the run would train."""
    fields = recipe.model.fields
    if fields.get("add_cross_attention"):
        raise UserError(
            "model.add_cross_attention=true attends to an encoder, which a recipe does not give; family seq2seq has "
            "both, and docs/convert.md joins two models"
        )
    modules = fields.get("num_nextn_predict_layers")
    smoothing = recipe.training.extra.get("label_smoothing_factor")
    if modules and objective.auto_class != "AutoModelForCausalLM":
        raise UserError(f"model.num_nextn_predict_layers={modules} predicts next tokens, unlike {objective.setting}")
    if modules and smoothing:
        raise UserError(
            f"training.label_smoothing_factor={smoothing} leaves out model.num_nextn_predict_layers={modules}; remove "
            f"one of them"
        )


def _check_training(recipe: Recipe) -> None:
    training = recipe.training
    if not training.output_dir:
        raise UserError("training.output_dir is not set; it is the folder of the run, such as runs/mine")
    if training.max_steps != -1 and training.max_steps < 1:
        raise UserError(f"training.max_steps={training.max_steps} must be at least 1, or -1 for num_train_epochs")
    for field, known, added in (
        ("optim", {*ROWS, *introspection.enum_values("training_args.py", "OptimizerNames")}, OPTIMIZERS),
        ("lr_scheduler_type", {"wsd", *introspection.enum_values("trainer_utils.py", "SchedulerType")}, SCHEDULES),
    ):
        name = getattr(training, field)
        if name not in known and name not in added:
            raise UnknownName(f"training.{field}={name!r} is not known{did_you_mean(name, {*known, *added})}")
    trackers = [training.report_to] if isinstance(training.report_to, str) else training.report_to
    for name in trackers:
        if name not in TRACKERS and not (name == "none" and len(trackers) == 1):
            shown = show(training.report_to)
            raise UserError(f"training.report_to={shown} must be none, or any of {', '.join(TRACKERS)}")
    if training.restarts != sorted({step for step in training.restarts if step > 0}):
        raise UserError(f"training.restarts={show(training.restarts)} must be steps above 0 that rise")
    for name in SCHEDULE_BOUNDS.keys() & training.lr_scheduler_kwargs.keys():
        where = f"training.lr_scheduler_kwargs.{name}"
        value = training.lr_scheduler_kwargs[name]
        within_bounds(convert(value, float | None, where), SCHEDULE_BOUNDS[name], where)
        if name in ("min_lr", "lr_end") and (value or 0) > training.learning_rate:
            raise UserError(f"{where}={show(value)} is above training.learning_rate={training.learning_rate}")
    if training.max_steps > 0:
        check_schedule(training, training.max_steps)
    optim, schedule = training.optim, training.lr_scheduler_type
    is_fresh = recipe.model.name_or_path is None
    is_unshaped = schedule in ("constant", "constant_with_warmup")
    reads_no_arguments = not optimizer_of(optim).reads_arguments
    is_without = {name: not getattr(training, name, training.extra.get(name)) for name in READ_WITH.values()}
    rows = [
        ("lr_scheduler_kwargs=", is_unshaped, f"has no effect with training.lr_scheduler_type={schedule}; remove it"),
        *(
            (name, is_without[other], f"has no effect without training.{other}; set both")
            for name, other in READ_WITH.items()
        ),
        ("optim_args", reads_no_arguments, f"has no effect with training.optim={optim}; remove it"),
        ("lora", is_fresh, "adapts weights, and this model's are fresh; set model.name_or_path"),
        ("freeze", is_fresh, "keeps weights, and this model's are fresh; set model.name_or_path"),
        (
            "freeze",
            training.lora is not None,
            "has no effect with training.lora, which freezes the checkpoint; keep one",
        ),
        ("fp16=", training.bf16 is True, "and training.bf16=true exclude each other; keep one"),
        ("ema_warmup", training.ema_decay is None, "has no effect without training.ema_decay, such as 0.999; set both"),
    ]
    check_beside("training", training, rows)


def check_schedule(training: TrainingSection, total: int) -> None:
    """Raise UserError where the phases of the learning rate take more than the `total` steps of the run."""
    if training.restarts and training.restarts[-1] >= total:
        raise UserError(
            f"training.restarts={show(training.restarts)} begins anew at step {training.restarts[-1]}, but the run has "
            f"{total} steps; set training.max_steps above it"
        )
    starts = [0, *training.restarts]
    total = min(end - start for start, end in zip(starts, [*training.restarts, total]))  # of the shortest part
    warmup = training.warmup_steps
    if warmup >= 1 and warmup > total:
        raise UserError(f"training.warmup_steps={show(warmup)} is more than all {total} steps; below 1 it is a share")
    if training.lr_scheduler_type not in ("wsd", "warmup_stable_decay"):
        return
    decay = training.lr_scheduler_kwargs.get("num_decay_steps", training.decay_steps)
    if not isinstance(decay, int | float):
        raise UserError(f"training.lr_scheduler_kwargs.num_decay_steps={show(decay)} is not a number of steps")
    steps = [share if share >= 1 else share * total for share in (warmup, decay)]
    if sum(steps) > total:
        raise UserError(
            f"training.warmup_steps={show(warmup)} and training.decay_steps={show(decay)} take {round(sum(steps))} of "
            f"{total} steps; numbers below 1 are shares of them"
        )
    stable, floor = (training.lr_scheduler_kwargs.get(name) for name in ("num_stable_steps", "min_lr_ratio"))
    if stable is not None and not floor and math.ceil(steps[0]) + stable + round(steps[1]) < total:
        raise UserError(
            f"training.lr_scheduler_kwargs.num_stable_steps={stable} ends the decay before the last of {total} steps, "
            f"and the rest would be trained at rate 0; remove it, or set num_decay_steps alone"
        )


def _check_positions(recipe: Recipe, objective) -> None:
    config = config_namespace(recipe)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return
    if config.position_encoding == "learned":
        check_rows(objective, positions, "model.max_position_embeddings")
    else:
        check_context(objective, positions)


def _check_evaluation(recipe: Recipe, objective) -> None:
    section = recipe.evaluation
    if section.minimal_pairs is not None:
        section.minimal_pairs.check("evaluation.minimal_pairs")
        if objective.tokens is None or not objective.auto_class.endswith(("LM", "PreTraining")):
            raise UserError(
                f"evaluation.minimal_pairs asks a model how likely texts are, and {objective.setting} trains none that "
                f"predicts their tokens; leave it out"
            )
    if section.best_metric is not None:
        known = ["loss", *of_validations(objective), *objective.metrics_of_answers()]
        known += [MINIMAL_PAIRS] if section.minimal_pairs is not None else []
        if section.best_metric not in known:  # metrics of whole splits are measured on the finished model alone
            raise UserError(
                f"evaluation.best_metric={section.best_metric!r} is not measured during training"
                f"{did_you_mean(section.best_metric, known)}"
            )
    schedule = recipe.training.lr_scheduler_type
    if schedule in FOLLOWS_VALIDATIONS and section.best_metric is None:
        raise UserError(
            f"training.lr_scheduler_type={schedule} follows a metric of the validations; set evaluation.best_metric, "
            f"such as loss, and evaluation.every_steps"
        )
    validates, averages = section.every_steps is not None, section.average_checkpoints is not None
    rows = [
        ("best_metric", not validates, "needs evaluation.every_steps, the steps between two validations"),
        ("best_metric", averages, "and evaluation.average_checkpoints exclude each other; keep one"),
        ("patience", section.best_metric is None, "needs evaluation.best_metric, such as loss, which has to improve"),
    ]
    check_beside("evaluation", section, rows)
    why = "and evaluation.average_checkpoints are two averages; keep one"
    check_beside("training", recipe.training, [("ema_decay", averages, why)])
    if (section.average_checkpoints or 0) > recipe.training.save_total_limit:
        raise UserError(
            f"evaluation.average_checkpoints={section.average_checkpoints} needs so many checkpoints; set "
            f"training.save_total_limit to at least {section.average_checkpoints}"
        )


def config_namespace(recipe: Recipe) -> SimpleNamespace | None:
    """The family's config as a namespace: defaults, then the recipe's fields. None for a checkpoint."""
    if recipe.model.family is None:
        return None
    return introspection.family_config(recipe.model.family, recipe.model.fields)


def check_token_ids(fields: dict[str, Any], size: int | None) -> None:
    """Raise UserError for a token id that a vocabulary of `size` entries lacks. size None: not known."""
    for name, value in fields.items():
        ids = value if isinstance(value, list) else [value]
        if name.endswith("_token_id") and not all(i is None or 0 <= i < (size or i + 1) for i in ids):
            has = f", which has {size} entries, counted from 0" if size else ""
            raise UserError(f"model.{name}={show(value)} is no entry of the vocabulary{has}; leave it to the tokenizer")


def check_model(recipe: Recipe) -> None:
    """Run the legality table of modeling/rules/legality.py over the recipe's model."""
    check_attention(recipe.model.attn_implementation)
    check_experts(recipe.model.experts_implementation)
    config = config_namespace(recipe)
    if config is None:
        return
    # A tokenizer that is yet to be trained may turn out smaller.
    check_token_ids(recipe.model.fields, recipe.model.fields.get("vocab_size") or recipe.tokenizer.vocab_size)
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
        raise UnknownName(with_nearest(sentence if sentence.startswith("model.") else f"model.{sentence}")) from None
    # Not in the legality table, which also checks models that are loaded: what nothing reads is no harm there.
    for kind, parameters in rope_parameters_of(config).items():
        check_rope_keys(parameters, f"model.rope_parameters{'.' if kind else ''}{kind}")
    for name in ("attention_pattern", "mlp_pattern"):
        pattern = getattr(config, name, None) or ()
        layers = config.num_hidden_layers
        if len(pattern) > layers:
            raise UserError(f"model.{name} names {len(pattern)} layers, and there are model.num_hidden_layers={layers}")
    check_backends(recipe.model.attn_implementation, recipe.model.experts_implementation, config)


def check_rope_keys(value: dict, where: str) -> None:
    """Raise UserError for a setting of rotary positions that nothing reads. where: the mapping's dotted name."""
    known = introspection.rope_keys()
    for key in value or ():
        if key not in known:
            raise UserError(f"{where}.{key}: no such setting{did_you_mean(str(key), known, where + '.')}")


def with_nearest(sentence: str) -> str:
    """The error for an unknown name, with the nearest known name, if there is one, in place of the whole list."""
    match = re.fullmatch(r"(\S+='(.+)' is not known); known: (.+)", sentence)
    near = None if match is None else nearest(match[2], match[3].split(", "))
    return sentence if near is None else f"{match[1]}; did you mean {near}?"
