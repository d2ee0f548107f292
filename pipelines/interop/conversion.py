"""Converts models from transformers' own classes to ours and back, in memory."""

import copy
import os
import warnings

import torch
import transformers
from anyformer.modeling.families import FAMILIES
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from ..errors import UserError, loading
from ..recipes.introspection import family_row
from .families import HEADS, WITHOUT_AUTO_CLASS, family_name, is_ours, native_class_names, native_classes
from .matching import ARCHITECTURES, architecture_of, native_config, our_config
from .weights import stack_slices, take

# Arguments of from_pretrained that locate a checkpoint, and so also its config.
WHERE = ("revision", "token", "cache_dir", "subfolder", "local_files_only", "trust_remote_code", "code_revision")


def from_native(model_or_path: PreTrainedModel | str | os.PathLike, **from_pretrained_kwargs) -> PreTrainedModel:
    """Return the anyformer twin of one of transformers' own models; the original is left as it is.

    A causal language model becomes an AnyformerDecoderForCausalLM, a base model or another head its counterpart in the
    family that its architecture belongs to. Weights keep their dtype and device, the config its token ids and labels,
    the model its generation config.

    Args:
        model_or_path: a model, or a folder or Hub repository with one.
        from_pretrained_kwargs: for loading it (`dtype`, `revision`, ...).

    Raises:
        UserError: an architecture, a head, or the value of a field that anyformer cannot express.
    """
    native = model_or_path
    if not isinstance(native, PreTrainedModel):
        native = load_model(native, **from_pretrained_kwargs)
    elif from_pretrained_kwargs:
        raise UserError(f"{next(iter(from_pretrained_kwargs))} has no effect on a model that is loaded already")
    if is_ours(native.config):
        raise UserError(f"{type(native).__name__} is an anyformer model already; to_native goes the other way")
    architecture = architecture_of(native.config)
    auto_class, row = auto_class_of(type(native).__name__, native.config), family_row(architecture.family)
    if auto_class not in row.heads:
        raise UserError(f"anyformer's {architecture.family} has no {auto_class}; it has {', '.join(row.heads)}")
    cls = row.load(row.heads[auto_class])
    _check_plain(native)
    config, source = our_config(native.config), native.state_dict()
    for field, value in architecture.class_fields.get(type(native).__name__, {}).items():
        setattr(config, field, value)
    if auto_class == "AutoModel" and architecture.family == "vit":
        config.add_pooling_layer = _has_pooler(native)
    names, tied = _parameter_names(cls, config)
    prefixes = _prefix(type(native), source), _prefix(cls, names)
    weights, copies = {}, []
    for name, row, ours in architecture.pairs(auto_class, source, *prefixes, config):
        if row.tied:
            copies.append((name, ours[0]))
        elif row.ours:
            weights |= zip(ours, row.split(source[name], config), strict=True)
    weights = stack_slices(weights)
    if getattr(native.config, "tie_word_embeddings", False):  # else the copies are separate weights, and unused
        for name, ours in copies:
            if source[name].data_ptr() != weights[ours].data_ptr() and not torch.equal(source[name], weights[ours]):
                raise UserError(f"{architecture.native} with {name} that differs from its twin has no anyformer twin")
    # Read from the weights: transformers leaves a separate head untied, whatever the config says.
    for name, other in tied.items():
        config.tie_word_embeddings = name not in weights or weights[name].data_ptr() == weights[other].data_ptr()
    return _build(cls, config, weights, names - (tied.keys() - weights.keys()), like=native)


def to_native(model: PreTrainedModel) -> PreTrainedModel:
    """Return the twin of an anyformer model in transformers' own classes; the original is left as it is.

    Raises:
        UserError: no native architecture computes the same (the sentence names the nearest and what differs), or it
            has no such head.
    """
    if not is_ours(model.config):
        raise UserError(f"{type(model).__name__} is no anyformer model; from_native goes the other way")
    _check_plain(model)
    auto_class, architecture, config, name = native_twin_of(type(model).__name__, model.config)
    cls, source = getattr(transformers, name), model.state_dict()
    if modules := getattr(model.config, "num_nextn_predict_layers", 0):
        warnings.warn(
            f"num_nextn_predict_layers={modules}: {name} has no such modules; they are left out", stacklevel=2
        )
    poolless = auto_class == "AutoModel" and architecture.family == "vit" and not _has_pooler(model)
    arguments = {"add_pooling_layer": False} if poolless else {}
    names, _ = _parameter_names(cls, config, **arguments)
    prefixes = _prefix(cls, names), _prefix(type(model), source)
    weights = {}
    for name, row, ours in architecture.pairs(auto_class, sorted(names), *prefixes, model.config):
        if row.tied or not row.ours:
            names.discard(name)  # transformers ties the former and computes the latter
        else:
            weights[name] = row.join([take(source, part) for part in ours], model.config)
    return _build(cls, config, weights, names, like=model, **arguments)


def native_twin_of(class_name: str, ours) -> tuple:
    """(Auto class, architecture, native config, name of the native class) of a class and config of ours.

    Raises UserError as `to_native` does, before any weight is read.
    """
    auto_class = auto_class_of(class_name, ours)
    architecture, config = native_config(ours)
    name = native_class_names(architecture.native).get(auto_class)
    if name is None or auto_class not in architecture.heads:
        raise UserError(f"{architecture.native} has no counterpart of {class_name} in transformers")
    for other, fields in architecture.class_fields.items():
        if other in native_classes(architecture.native, auto_class) and fields.items() <= vars(ours).items():
            name = other
    return auto_class, architecture, config, name


def load_config(name_or_path: str | os.PathLike, **from_pretrained_kwargs) -> PreTrainedConfig:
    """Return the config of a checkpoint, ours or native; raise UserError for one without a twin."""
    where = {name: value for name, value in from_pretrained_kwargs.items() if name in WHERE}
    with loading(f"MODEL={name_or_path}"):
        config = AutoConfig.from_pretrained(name_or_path, **({"trust_remote_code": False} | where))
    if not is_ours(config):
        architecture_of(config)
    return config


def load_model(name_or_path: str | os.PathLike, **from_pretrained_kwargs) -> PreTrainedModel:
    """Load a checkpoint, ours or native, with the head it was saved with.

    A checkpoint that does not name its class is loaded with the pretraining head or, without weights for it, as a base
    model. Raises UserError if it cannot be loaded, has no twin, or lacks weights.
    """
    from_pretrained_kwargs = {"trust_remote_code": False} | from_pretrained_kwargs
    config = load_config(name_or_path, **from_pretrained_kwargs)
    family = family_name(config) if is_ours(config) else architecture_of(config).family
    heads = [family_row(family).pretraining, "AutoModel"]
    if config.architectures:
        heads = [_auto_class_named(config.architectures[0], config)]
        if heads[0] is None:
            raise UserError(f"a checkpoint of {config.architectures[0]} has no counterpart")
    for head in heads:
        auto_class = getattr(transformers, WITHOUT_AUTO_CLASS.get((config.model_type, head), head))
        with loading(f"MODEL={name_or_path}"):
            model, report = auto_class.from_pretrained(name_or_path, output_loading_info=True, **from_pretrained_kwargs)
        if not report["missing_keys"]:
            return model
    raise UserError(f"MODEL={name_or_path} lacks the weight {min(report['missing_keys'])}")


def auto_class_of(class_name: str, config) -> str:
    """Return the Auto class of a model's head; raise UserError for a head without counterpart."""
    name = _auto_class_named(class_name, config)
    if name is None:
        raise UserError(f"{class_name} has no counterpart; those of {', '.join(HEADS)} have one where both sides do")
    return name


def _auto_class_named(class_name: str, config) -> str | None:
    if is_ours(config):
        names = FAMILIES[config.model_type].heads
    else:
        heads = ARCHITECTURES[config.model_type].heads
        names = {auto: name for auto, name in native_class_names(config.model_type).items() if auto in heads}
        if class_name in ARCHITECTURES[config.model_type].class_fields:
            return next(auto for auto in names if class_name in native_classes(config.model_type, auto))
    return next((auto for auto, name in names.items() if name == class_name), None)


def _check_plain(model: PreTrainedModel) -> None:
    if getattr(model, "hf_quantizer", None) is not None or getattr(model.config, "quantization_config", None):
        raise UserError(f"{type(model).__name__} is quantised; convert the weights it was quantised from")
    if getattr(model, "peft_config", None):
        raise UserError(f"{type(model).__name__} carries an adapter; merge it first")


def _has_pooler(model) -> bool:
    return getattr(model, "pooler", None) is not None


def _parameter_names(cls, config, **arguments) -> tuple[set[str], dict[str, str]]:
    """The parameter names of a model of `cls`, and {tied name: the name it is tied to} where embeddings are tied."""
    config = copy.deepcopy(config)
    config.tie_word_embeddings = True
    with torch.device("meta"):
        model = cls(config, **arguments)
    return set(model.state_dict()), dict(model.all_tied_weights_keys)


def _prefix(cls, names) -> str:
    """The attribute of a class that holds its base model, with a dot; "" for base models and classes without one."""
    prefixes = (f"{cls.base_model_prefix}.", "model.")  # Llama 4's class says "language_model", but has no such part
    return next((prefix for prefix in prefixes if any(name.startswith(prefix) for name in names)), "")


def _build(
    cls, config, weights: dict[str, torch.Tensor], names: set[str], like: PreTrainedModel, **arguments
) -> PreTrainedModel:
    """A model of `cls` with copies of `weights`, and with the dtype, device, mode and generation config of `like`."""
    if weights.keys() != names:
        odd = sorted(weights.keys() ^ names)[0]
        raise UserError(f"{type(like).__name__} and {cls.__name__} disagree about the parameter {odd}")
    # Copies: the twin must not share memory with the original.
    weights = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()}
    model = cls.from_pretrained(None, config=config, state_dict=dict(weights), dtype=like.dtype, **arguments)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in weights:
            tensor.data = weights[name]  # a checkpoint may mix dtypes; from_pretrained casts to one
    if model.can_generate() and like.can_generate():
        model.generation_config = copy.deepcopy(like.generation_config)
    return model.to(like.device).train(like.training)
