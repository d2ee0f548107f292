"""What `training.parallelism` can be combined with: models, engines, numbers of processes. Standard library only."""

import math

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import ATTENTION_KINDS, PLAIN, POSITION_SCHEMES, attention_kinds, mlp_kinds

from ..errors import UserError
from ..plugins import OBJECTIVES, WHOLE_MODEL, WHOLE_ROWS, objective_of
from .data_section import sections_of
from .introspection import check_beside
from .optimizer_rows import optimizer_of
from .schema import ParallelismSettings, Recipe, TrainingSection

FIELD = "training.parallelism"
SHARDED = ("dp_replicate", "dp_shard")  # they split weights, not the computation of a row
COUNTED = ("dp_replicate", "dp_shard", "tp", "pp", "sp")  # their product is the number of processes
APART = {  # settings that are not wired beside others
    "pp": ("dp_replicate", "dp_shard", "tp", "sp", "ep"),
    "sp": ("tp", "ep"),
}
MESH, ULYSSES = "mesh", "zero3"  # values of --launch: transformers' device mesh, DeepSpeed for sp


def processes_of(settings: ParallelismSettings) -> int:
    return math.prod(getattr(settings, name) for name in COUNTED)


def sharing_rows(settings: ParallelismSettings | None) -> int:
    """The number of processes that read the same rows."""
    return 1 if settings is None else settings.tp * settings.pp * settings.sp


def reading_together(settings: ParallelismSettings | None) -> int:
    """The number of processes whose loaders give the same batch; those of sp get different parts of it."""
    return 1 if settings is None else settings.tp * settings.pp


def engine_of(settings: ParallelismSettings) -> str:
    """The engine that the settings need: MESH or ULYSSES."""
    return ULYSSES if settings.sp > 1 else MESH


def words_of(settings: ParallelismSettings) -> str:
    """The sizes above 1 as a recipe writes them, such as {tp: 2}."""
    names = [name for name in (*COUNTED, "ep") if getattr(settings, name) > 1]
    return "{" + ", ".join(f"{name}: {getattr(settings, name)}" for name in names) + "}"


def check_processes(settings: ParallelismSettings, count: int, asked_by: str) -> None:
    """Raise UserError unless the settings take `count` processes. asked_by: what set it, such as --nproc 4."""
    needed = processes_of(settings)
    if needed == count:
        return
    started = "one process was started" if count == 1 else f"{asked_by} starts {count}"
    raise UserError(
        f"{FIELD}={words_of(settings)} takes {needed} process{'es' if needed > 1 else ''}, the product of its numbers "
        f"but ep, and {started}; write anyformer train RECIPE --launch {engine_of(settings)} --nproc {needed}"
    )


def check_parallelism(recipe: Recipe, config) -> None:
    """Raise UserError for settings that contradict each other, the rest of the recipe, or the model.

    config: the family's config as a namespace; None for a checkpoint, whose config is checked when it is read.
    """
    settings = recipe.training.parallelism
    if processes_of(settings) == 1:
        raise UserError(f"{FIELD} shares nothing: all its numbers are 1; set one, such as {{tp: 2}}, or null")
    _check_one_another(settings, recipe.training)
    _check_training(settings, recipe)
    if config is not None:
        check_model_shares(settings, config)
    if sharing_rows(settings) > 1 and any(data.streaming for data in sections_of(objective_of(recipe))):
        words = f"{FIELD}={words_of(settings)}"
        raise UserError(f"data.streaming=true is not wired beside {words}, whose processes read the same rows")


def _check_one_another(settings: ParallelismSettings, training: TrainingSection) -> None:
    words = f"{FIELD}={words_of(settings)}"
    if settings.ep > 1 and (settings.ep % settings.tp or settings.dp_shard * settings.tp % settings.ep):
        raise UserError(f"{words}: ep must be a multiple of tp, and divide dp_shard x tp, whose processes it is among")
    for name, others in APART.items():
        beside = [other for other in others if getattr(settings, other) > 1]
        if getattr(settings, name) > 1 and beside:
            raise UserError(f"{words}: {name} is not wired beside {beside[0]}; set one of them to 1")
    gathers = engine_of(settings) == MESH and settings.dp_shard * settings.dp_replicate > 1
    why = "goes with dp_shard or dp_replicate under --launch mesh"
    check_beside(FIELD, settings, [("fsdp_cpu_offload=", not gathers, why)])
    rows = training.per_device_train_batch_size
    if settings.pp > 1 and rows < settings.pp:
        raise UserError(f"training.per_device_train_batch_size={rows} is less than the stages of {words}; raise it")
    if settings.sp > 1 and settings.dp_replicate > 1:
        raise UserError(f"{words}: DeepSpeed has no dp_replicate; count all processes beside sp in dp_shard")


def _check_training(settings: ParallelismSettings, recipe: Recipe) -> None:
    training = recipe.training
    words = f"{FIELD}={words_of(settings)}"
    kind = engine_of(settings)
    other = f"and {words} exclude each other; set one of them to null"
    check_beside("training", training, [("deepspeed=", kind != ULYSSES, other)])
    optimizer = optimizer_of(training.optim)
    if not (optimizer.elementwise or optimizer.gathers):
        raise UserError(f"training.optim={training.optim} looks at whole matrices, which {words} shares; set adamw")
    if training.lora is not None:
        odd = [name for name in (*COUNTED, "ep") if name not in SHARDED and getattr(settings, name) > 1]
        if odd:  # FSDP2 splits the frozen weights but not the adapter
            raise UserError(f"training.lora goes with dp_shard and dp_replicate of {FIELD} alone; {words} has {odd[0]}")
        if training.lora.merge:
            raise UserError(f"training.lora.merge=true needs whole weights; {words} shares them; use anyformer merge")
    if recipe.evaluation.average_checkpoints is not None:
        raise UserError(f"evaluation.average_checkpoints is not wired beside {words}; set one of them to null")
    shares_rows = settings.sp > 1
    is_pipeline = settings.pp > 1
    apart = f"is not wired beside {words}; leave it out"
    rows = [
        ("ema_decay=", True, f"needs whole weights, and {words} shares them"),
        ("torch_compile=", settings.pp > 1, f"is not wired beside {words}; set it to false"),
        ("audit_samples=", shares_rows, f"is not wired beside {words}, whose rows lose their numbers"),
        ("label_smoothing_factor=", shares_rows or is_pipeline, apart),
        *((f"{name}=", is_pipeline, apart) for name in ("gradient_checkpointing", "fp16", "neftune_noise_alpha")),
    ]
    check_beside("training", training, rows)
    if is_pipeline and WHOLE_MODEL in OBJECTIVES[recipe.learned.name].needs:
        raise UserError(f"{words} trains {_all_without(WHOLE_MODEL)} alone, not {recipe.learned.name}; set pp to 1")
    if is_pipeline and recipe.data.mixture:
        raise UserError(f"data.mixture is not wired beside {words}, whose last stage has no loss of each part")
    if shares_rows:
        _check_shared_rows(settings, words, recipe)


def _check_shared_rows(settings: ParallelismSettings, words: str, recipe: Recipe) -> None:
    if WHOLE_ROWS in OBJECTIVES[recipe.learned.name].needs:
        raise UserError(f"{words} is not wired with {recipe.learned.name}, but with {_all_without(WHOLE_ROWS)}")
    length = recipe.learned.sequence_length
    if length % settings.sp:
        raise UserError(f"{words}: {settings.sp} parts of equal length do not make objective.sequence_length={length}")
    attention = recipe.model.attn_implementation
    if attention not in ("auto", "sdpa"):
        raise UserError(f"{words} replaces sdpa alone, and model.attn_implementation={attention}; set it to sdpa")


def _all_without(need: str) -> str:
    """The names of the objectives that do not need something."""
    return " and ".join(sorted(name for name, learned in OBJECTIVES.items() if need not in learned.needs))


def check_model_shares(settings: ParallelismSettings, config) -> None:
    """Raise UserError for a model that the settings cannot split. config: ours or native, or a namespace."""
    words = f"{FIELD}={words_of(settings)}"
    ours = getattr(config, "model_type", None) in FAMILIES
    if settings.tp > 1:
        of_heads = ("num_attention_heads", "num_key_value_heads") if not ours or _splits_heads(config) else ()
        _check_divides(config, (*of_heads, "intermediate_size", "moe_intermediate_size"), "tp", settings.tp, words)
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if settings.ep > 1:
        if not experts or (ours and "sparse" not in mlp_kinds(config)):
            raise UserError(f"{words}: the model has no experts to share; set ep to 1, or model.family to moe")
        if experts % settings.ep:
            raise UserError(f"{words}: ep does not divide the {experts} experts of the model")
    if settings.pp > 1:
        _check_stages(settings.pp, config, ours, experts, words)
    if settings.sp > 1:
        _check_along_rows(settings.sp, config, ours, words)


def _check_divides(config, names: tuple[str, ...], name: str, size: int, words: str) -> None:
    for field in names:
        value = getattr(config, field, None)
        if value is not None and value % size:
            raise UserError(f"{words}: {name} does not divide model.{field}={value}")


def _splits_heads(config) -> bool:
    """Whether tensor parallelism splits the attention heads; otherwise each process computes all of them."""
    scheme = POSITION_SCHEMES[config.position_encoding]
    return scheme.splits_heads and all(ATTENTION_KINDS[kind].splits_heads for kind in attention_kinds(config))


def _check_stages(stages: int, config, ours: bool, experts, words: str) -> None:
    layers = config.num_hidden_layers
    if layers % stages:
        raise UserError(f"{words}: pp does not divide model.num_hidden_layers={layers}, and stages have as many each")
    if experts:
        raise UserError(f"{words}: experts are not wired beside pp, since their routers' losses are computed together")
    if ours and config.model_type != "anyformer_decoder":
        raise UserError(f"{words}: stages are cut out of decoders alone; set pp to 1")
    if not ours:
        return
    is_added = POSITION_SCHEMES[config.position_encoding].acts_on == "embeddings"
    faults = {
        f"model.position_encoding={config.position_encoding!r}, which is added to them": is_added,
        "model.embedding_norm": config.embedding_norm,
        "model.embedding_multiplier": config.embedding_multiplier != 1,
    }
    for fault, is_there in faults.items():
        if is_there:
            raise UserError(f"{words}: later stages get hidden states as embeddings, and {fault} acts on embeddings")


def _check_along_rows(size: int, config, ours: bool, words: str) -> None:
    """Raise UserError for a model with windows or score biases: sp splits only attention to whole rows."""
    if not ours:
        return
    if config.model_type != "anyformer_decoder":
        raise UserError(f"{words}: sp is wired for decoders alone; set it to 1")
    scheme = POSITION_SCHEMES[config.position_encoding]
    if scheme.adds_to_scores:
        raise UserError(f"{words}: model.position_encoding={config.position_encoding!r} adds to scores of whole rows")
    unfit = sorted({kind for kind in attention_kinds(config) if kind != PLAIN})
    if unfit:
        raise UserError(f"{words}: sp needs attention to the whole row, and the model has {unfit[0]}")
    _check_divides(config, ("num_attention_heads", "num_key_value_heads"), "sp", size, words)
