"""Names of a config's fields: an unknown one is refused with the nearest, or with the families that have it."""

import difflib
import importlib
import warnings

from ..traits import own_fields

# What transformers takes beside fields and their old spellings; generation's settings are added below.
OF_TRANSFORMERS = {"attn_implementation", "experts_implementation", "torch_dtype", "per_layer_config", "auto_map"}
OF_TRANSFORMERS |= {"rope_theta", "rope_scaling", "partial_rotary_factor", "quantization_config", "output_attentions"}
# Fields that older versions wrote into the configs of composed models.
OF_TRANSFORMERS |= {"is_decoder", "cross_attention_hidden_size", "tie_encoder_decoder"}
# Fields of conversions (pipelines/interop): a model's origin, and settings of a cross-encoder's scores.
OF_CONVERSIONS = {"native_model_type", "sentence_transformers"}
# Known to every family: legality.py has a sentence for those without experts.
OF_EXPERTS = {"num_experts", "output_router_logits"}


def _families_with() -> dict[str, list[str]]:
    """{field: names of the families whose config has it}."""
    modeling = importlib.import_module(__package__.rpartition(".")[0])
    families = {}
    for config_class in (getattr(modeling, name) for name in modeling.__all__ if name.endswith("Config")):
        for name in config_class.__dataclass_fields__:
            families.setdefault(name, []).append(config_class.model_type.removeprefix("anyformer_"))
    return families


def _unknown(config_class: type, names) -> list[str]:
    known = config_class.__dataclass_fields__.keys() | OF_TRANSFORMERS | OF_CONVERSIONS | OF_EXPERTS
    names = [name for name in names if name not in known and name[:1] != "_" and not hasattr(config_class, name)]
    names = [name for name in names if not name.endswith("_token_id")]  # transformers once had them in every config
    if not names:  # the usual case; the rest is slower
        return []
    from transformers import GenerationConfig

    of_plugins = own_fields() - _families_with().keys()
    others = of_plugins | GenerationConfig._get_default_generation_params().keys()
    return [name for name in names if name not in others]


def check_names(config, names) -> None:
    """Check the names of arguments that are no fields of `config`, which is being built from them.

    Raises ValueError for an unknown one. Only warns if a saved config is read (it has a type, a class or a version of
    transformers): a later version may have written the field, and transformers keeps it.
    """
    sentences = [_sentence(type(config), name) for name in _unknown(type(config), names)]
    if "model_type" in names or config.transformers_version is not None or config.architectures is not None:
        for sentence in sentences:
            warnings.warn(sentence, stacklevel=2)
    elif sentences:
        raise ValueError(sentences[0])


def _sentence(config_class: type, name: str) -> str:
    """The sentence that a field is unknown, and what may be meant."""
    sentence = f"{config_class.__name__} has no field {name}"
    families = _families_with().get(name)
    if families:
        return f"{sentence}; families that have it: {', '.join(families)}"
    near = difflib.get_close_matches(name, config_class.__dataclass_fields__, n=1)
    return f"{sentence}; did you mean {near[0]}?" if near else sentence
