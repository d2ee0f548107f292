"""Build the model of a recipe: fresh weights of one of our families, or a checkpoint of any architecture."""

import copy
from functools import partial

import torch
import transformers
from transformers import AutoConfig

from .. import positions
from ..accounting.layers import freeze
from ..accounting.lora import left_by_all_linear, with_lora
from ..adapters import base_arguments, is_adapter, load_config, load_merged, words_of_base
from ..backends import AUTO, backend_arguments, check_got, explain
from ..errors import CANNOT_LOAD, UserError, first_line, loading_reason
from ..objectives.base import Objective
from ..objectives.data import Data, is_packed
from ..objectives.documents_apart import check_documents_apart
from ..objectives.learns import Learns
from ..open_tokenizer import vocabulary_size
from ..patches import write
from ..plugins import objective_of
from ..precision import computed_dtype
from ..recipes.base_width import base_fields, multipliers
from ..recipes.checkpoint_overrides import with_fields
from ..recipes.checks import check_token_ids
from ..recipes.introspection import OURS, family_config
from ..recipes.schema import Recipe
from ..transformers_logging import errors_only
from .engines.deepspeed_engine import gathered, whole_weights
from .engines.engine import Engine
from .engines.late_weights import built_late
from .engines.loaded_shares import load_shares, whole_on_cpu
from .transfer import Scale, scale_new_weights, scales_of


def model_config(recipe: Recipe, tokenizer, task_fields: dict):
    """The config of a fresh model; vocabulary and special tokens are the tokenizer's unless the recipe sets them.

    tokenizer: None for a model of images. task_fields: fields that the task adds, such as the names of the classes.
    Raises UserError if the model's vocabulary is smaller than the tokenizer's, or the config is illegal.
    """
    section = recipe.model
    recipe_fields = section.fields
    if recipe.training.transfer is not None:
        sizes = [family_config(section.family, fields) for fields in (recipe_fields, base_fields(recipe))]
        recipe_fields = recipe_fields | multipliers(*sizes)
    of_tokens = {}
    if tokenizer is not None:
        of_tokens = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        of_tokens["vocab_size"] = needed = vocabulary_size(tokenizer)
    fields = {**of_tokens, **task_fields, **recipe_fields}
    if tokenizer is not None and fields["vocab_size"] < needed:
        raise UserError(
            f"model.vocab_size={fields['vocab_size']} is smaller than the tokenizer's {needed} entries; "
            f"leave it out, or set at least {needed}"
        )
    if fields.get("vocab_size") is not None:
        check_token_ids(section.fields, fields["vocab_size"])
    try:
        return AutoConfig.for_model(OURS + section.family, **fields)
    except ValueError as error:
        raise UserError(f"model: {error}") from error


def build_model(recipe: Recipe, data: Data, arguments, engine: Engine, quiet: bool = False):
    """The model to train: fresh weights of the recipe's architecture, or the checkpoint `model.name_or_path`.

    In fp32, because autocast needs fp32 master weights: a checkpoint stored in bf16 would otherwise train in pure bf16.
    What an adapter leaves frozen may have fewer bits. data: whose objective decides which head the model gets.
    """
    objective, learns, speaks = data.objective, data.learns(), arguments.process_index == 0 and not quiet
    if recipe.model.name_or_path is None:
        config = model_config(recipe, data.tokenizer, learns.config_fields())
        chosen = chosen_backends(recipe, config, arguments, engine, is_packed(data))
        try:
            with whole_weights(arguments):
                build = partial(getattr(transformers, objective.auto_class).from_config, config, **chosen)
                model = built_late(build) if engine.builds_late else build()
                if recipe.training.transfer is not None:
                    scale_new_weights(model, transferred(recipe, data, model))
        except (ValueError, ImportError) as error:  # no such head in the family, or no such backend on the machine
            explain(error, chosen)
            raise UserError(
                f"model.family={recipe.model.family} has no head for {objective.setting}: {first_line(error)}"
            ) from error
    else:
        model, fresh = load_checkpoint(recipe, data, learns, arguments, engine, speaks)
        if is_packed(data):
            check_documents_apart(model, recipe.model.name_or_path, data, data.rows.values())
    model = engine.share(model, arguments.device)
    learns.adapt(model)
    freeze(model, recipe.training.freeze)
    lora = recipe.training.lora
    if lora is None:
        return model
    kept = words_of_base(model.config.to_dict())
    if kept != "float32" and speaks:
        stored = ", as they are saved" if lora.base == AUTO else ""
        print(f"training.lora: the weights of {recipe.model.name_or_path} are kept in {kept}{stored}")
    left = left_by_all_linear(model) if lora.target_modules == "all-linear" else []
    if left and speaks:
        print(f"training.lora: all-linear leaves {', '.join(left)} as they are, which are no linear layers")
    model.name_or_path = recipe.model.name_or_path  # a model that Mesh has split lost it
    return with_lora(model, lora, objective.auto_class, fresh, objective.unused_weights)


def transferred(recipe: Recipe, data: Data, model) -> dict[str, Scale]:
    """{name: Scale} of the model's weights, by training.transfer."""
    sizes, objective = base_fields(recipe), data.objective
    layers = family_config(recipe.model.family, recipe.model.fields).num_hidden_layers
    base_layers = family_config(recipe.model.family, sizes).num_hidden_layers
    narrow = recipe.with_(model={"fields": sizes | {"num_hidden_layers": layers}}, training={"transfer": None})
    config = model_config(narrow, data.tokenizer, data.learns().config_fields())
    with torch.device("meta"):
        smaller = getattr(transformers, objective.auto_class).from_config(config)
    return scales_of(model, smaller, layers / base_layers)


def chosen_backends(recipe: Recipe, config, arguments, engine: Engine, packed: bool) -> dict[str, str]:
    """The arguments that build a model with the recipe's backends. packed: whether its rows hold several documents.

    Raises UserError for flex_attention on a CPU, where torch has no gradients for it.
    """
    section, half = recipe.model, arguments.bf16 or arguments.fp16
    if section.attn_implementation == "flex_attention" and arguments.device.type == "cpu":
        raise UserError("model.attn_implementation=flex_attention has no gradients on a CPU; train with sdpa or eager")
    attention = section.attn_implementation
    if attention == AUTO:
        attention = engine.attention or AUTO
    return backend_arguments(attention, section.experts_implementation, config, half, packed)


def load_checkpoint(recipe: Recipe, data: Data, learns: Learns, arguments, engine: Engine, speaks: bool):
    """(the checkpoint with the objective's head, names of the weights that the checkpoint lacks, which are printed).

    A LoRA adapter is merged into its base. Raises UserError if the checkpoint cannot be loaded, cannot take a field
    that the recipe sets, or has too small a vocabulary.
    """
    name, objective, tokenizer, chosen = recipe.model.name_or_path, data.objective, data.tokenizer, {}
    auto_class = getattr(transformers, objective.auto_class)
    try:
        with errors_only():  # transformers would print a table of missing weights; our line sums it up
            trust = {"trust_remote_code": recipe.trust_remote_code}
            config = with_fields(load_config(name, **trust), recipe.model.fields, name)
            for field, value in learns.config_fields().items():
                if field != "decoder_start_token_id" or getattr(config, field, None) is None:
                    setattr(config, field, value)
            lora = recipe.training.lora
            dtypes = base_arguments("float32" if lora is None else lora.base, computed_dtype(recipe.training))
            options = {"config": config, "ignore_mismatched_sizes": True, **dtypes}
            chosen = chosen_backends(recipe, config, arguments, engine, is_packed(data))
            options |= trust | chosen
            if is_adapter(name):
                model, fresh = load_merged(auto_class, name, **options)
                missing = fresh
            else:
                with engine.loading(config, arguments.device) as distributed:
                    model, missing, fresh = load_shares(auto_class, name, distributed, **options)
            why = getattr(learns.data.labels, "new_head", "")  # in words
            head = head_of_classes(auto_class, config, arguments, trust) - missing if why else set()
            draw_anew(model, head - fresh)
            fresh |= head
    except CANNOT_LOAD as error:
        explain(error, chosen)
        raise UserError(f"model.name_or_path={name!r} cannot be loaded: {loading_reason(error)}") from error
    check_got(model, chosen)
    missed = sorted(key for key in fresh if not key.startswith(objective.unused_weights))
    if missed and speaks:
        print(f"new weights, not taken from {name}: {', '.join(missed[:12])}{', ...' if len(missed) > 12 else ''}")
    if head and speaks:
        print(f"a new head: {why}")
    if tokenizer is None:
        return model, fresh
    padding = model.config.get_text_config().pad_token_id
    if speaks and padding not in (None, tokenizer.pad_token_id) and positions.counts_from_padding(model):
        print(
            f"positions of {name} are counted from its pad_token_id={padding}, which stays; rows are padded with the "
            f"tokenizer's {tokenizer.pad_token_id}"
        )
    table = model.get_input_embeddings().weight
    size = getattr(table, "ds_shape", table.shape)[0]  # under ZeRO-3 the weight itself is an empty tensor
    if size < (needed := vocabulary_size(tokenizer)):
        raise UserError(
            f"model.name_or_path={name!r} has a vocabulary of {size}, and the tokenizer has ids up to {needed - 1}; "
            f"set tokenizer.name_or_path={name!r}"
        )
    return model, fresh


def check_rows_fit(recipe: Recipe) -> None:
    """Raise UserError if the recipe's rows are longer than its checkpoint's positions, before any data is read."""
    name = recipe.model.name_or_path
    try:
        with errors_only():
            config = load_config(name, trust_remote_code=recipe.trust_remote_code)
    except CANNOT_LOAD:
        return  # load_checkpoint says why in a sentence
    check_length(objective_of(recipe), with_fields(config, recipe.model.fields, name), trains=True)


def head_of_classes(auto_class, config, arguments, trust: dict[str, bool]) -> set[str]:
    """The names of the weights whose shape depends on the number of classes. trust: as `from_config` takes it."""
    shapes = []
    for more in (0, 1):
        config = copy.deepcopy(config)
        config.num_labels += more
        with whole_weights(arguments), torch.device("meta"):
            shapes.append({(name, x.shape) for name, x in auto_class.from_config(config, **trust).named_parameters()})
    return {name for name, _ in shapes[0] - shapes[1]}


def draw_anew(model, names: set[str]) -> None:
    """Draw loaded weights of a model from its initial distribution."""
    weights = {name: model.get_parameter(name) for name in sorted(names)}
    owners = {id(owner): owner for name in weights if (owner := model.get_submodule(name.rpartition(".")[0]))}
    for loaded in (*weights.values(), *owners.values()):
        write(loaded, "_is_hf_initialized", False)
    with gathered([*weights.values()]), whole_on_cpu(model, names), torch.no_grad():
        for owner in owners.values():
            model._init_weights(owner)


def check_length(objective: Objective, config, trains: bool = False, data: Data | None = None) -> None:
    """Raise UserError if the objective's rows are longer than the model's learned position embeddings.

    trains: also refuse rows longer than a rotary model's context. It can be evaluated on them, but if it were trained
    on them, its saved config would say too short a context. data: once there are data, prompts are checked, too.
    """
    most = positions.most_positions(config)
    if most is None:
        return
    if positions.learns_positions(config):
        if most != getattr(config, "max_position_embeddings", None):
            positions.check_rows(objective, most, "the model's usable positions")
        positions.check_rows(objective, most)
        if data is not None:
            data.answers().check_prompts(most)
    elif positions.position_scheme(config) == "rotary" and trains:
        positions.check_context(objective, most)
