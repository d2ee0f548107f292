"""Backends of attention and of experts' matrix products, by the names that recipes and commands take.

A backend that would leave out a part of the model is refused before torch is imported: the checks of names and configs
need only the standard library.
"""

import re
import sys

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import ATTENTION_KINDS, POSITION_SCHEMES, attention_kinds, has_experts

from .errors import UserError, did_you_mean, first_line

AUTO, PAGED = "auto", "paged|"
ATTENTION = (
    AUTO,
    "anyformer",
    "eager",
    "sdpa",
    "flex_attention",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
)
EXPERTS = (AUTO, "eager", "anyformer_grouped", "grouped_mm", "batched_mm")
# A kernel of the Hub as transformers reads it: owner/name, then a revision (@) and one of its functions (:).
HUB_KERNEL = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?(:[\w.-]+)?")
LEAST_FLEX_HEAD = 16  # channels of a head, the fewest that a GPU's matrix units multiply (torch's flex_attention)

# Words in errors of transformers and torch that are about backends.
ABOUT_BACKENDS = re.compile(r"(attn|attention|experts)[ _]implementation|flash|flex|grouped_mm|kernel", re.IGNORECASE)


def is_flash(name: str) -> bool:
    """Whether a backend is a flash kernel, installed or from the Hub: as for transformers, its name says "flash"."""
    return "flash" in name


def check_attention(name: str, where: str = "model.attn_implementation") -> None:
    """Raise UserError for a name that no backend of attention has."""
    if name.startswith(PAGED):
        plain = name.removeprefix(PAGED)
        raise UserError(f"{where}={name!r} is for continuous batching, where generate_batch sets it; name {plain!r}")
    if name not in ATTENTION and not HUB_KERNEL.fullmatch(name) and not _is_registered(name):
        raise UserError(
            f"{where}={name!r} is not known{did_you_mean(name, ATTENTION, '')} (or a kernel of the Hub: owner/name)"
        )


def _is_registered(name: str) -> bool:
    """Whether a plug-in has given the name to transformers' AttentionInterface."""
    modeling = sys.modules.get("transformers.modeling_utils")
    return modeling is not None and name in modeling.ALL_ATTENTION_FUNCTIONS.valid_keys()


def check_experts(name: str, where: str = "model.experts_implementation") -> None:
    """Raise UserError for a name that no backend of experts has."""
    if name not in EXPERTS:
        raise UserError(f"{where}={name!r} is not known{did_you_mean(name, EXPERTS, '')}")


def attention_fault(name: str, config) -> str | None:
    """What the backend `name` cannot compute of a model of ours, and which backends can; None: it computes all.

    config: the model's, or a namespace with its fields.
    """
    if is_flash(name):
        others = "anyformer, sdpa, flex_attention and eager can"
        if POSITION_SCHEMES[config.position_encoding].adds_to_scores:
            return f"model.position_encoding={config.position_encoding!r}, which adds to the scores; {others}"
        if getattr(config, "attention_sinks", False):
            return f"model.attention_sinks=True, which installed kernels drop; {others}"
        unfit = [kind for kind in attention_kinds(config) if not ATTENTION_KINDS[kind].flash]
        return f"{unfit[0]}; {others}" if unfit else None
    if name == "sdpa" and getattr(config, "attn_logit_softcapping", None) is not None:
        return f"model.attn_logit_softcapping={config.attn_logit_softcapping}; anyformer and eager can"
    return None


def experts_fault(name: str, config) -> str | None:
    """As `attention_fault`, for a backend of experts."""
    if name == AUTO:
        return None
    if not has_experts(config):
        return "a model without experts; leave it out"
    if name != "grouped_mm":
        return None
    from anyformer.modeling.experts_sizes import CHANNELS, odd_sizes

    odd = odd_sizes(config)
    return None if odd is None else f"model.{odd}, which is no multiple of {CHANNELS}; anyformer_grouped and eager can"


def check_backends(attention: str, experts: str, config) -> None:
    """Raise UserError for a recipe's backend that cannot compute its model. config: as for `attention_fault`."""
    fault = attention_fault(attention, config)
    if fault is not None:
        raise UserError(f"model.attn_implementation={attention} cannot compute {fault}")
    fault = experts_fault(experts, config)
    if fault is not None:
        raise UserError(f"model.experts_implementation={experts} cannot compute {fault}")


def is_half(dtype) -> bool:
    """Whether a dtype of torch is one that flash kernels compute in."""
    import torch

    return dtype in (torch.bfloat16, torch.float16)


def backend_arguments(attention: str, experts: str, config, half: bool, packed: bool = False) -> dict[str, str]:
    """The arguments that choose a model's backends; none where transformers' own choice is taken.

    attention, experts: as a recipe's model section names them. config: the model's, ours or native. half: whether it
    computes in bf16 or fp16. packed: whether its rows hold several documents.
    """
    attention = fastest_attention(config, half, packed) if attention == AUTO else attention
    chosen = {"attn_implementation": attention, "experts_implementation": None if experts == AUTO else experts}
    return {name: value for name, value in chosen.items() if value is not None}


def fastest_attention(config, half: bool, packed: bool = False) -> str | None:
    """Return the fastest backend of attention; None: the default of the model's class.

    On a GPU: an installed flash kernel that can compute the model in half precision; else, for packed rows, flex, whose
    mask has a bit for blocks of tokens, where that of sdpa has one for each pair of tokens; else None, `anyformer` for
    models of ours, and for native models, of which packed rows alone are looked at, sdpa, or eager without sdpa.
    Without a GPU: `anyformer`, also for native models if their class can use it.
    """
    import torch
    from anyformer.modeling.kernels import computes
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    is_ours = config.model_type in FAMILIES
    packed = packed and not config.is_encoder_decoder  # not tried
    if not torch.cuda.is_available():
        known = not is_ours and computes(type(config)) and not config.is_encoder_decoder  # not measured for these
        return "anyformer" if known else None
    if not is_ours and not packed:
        return None
    if is_ours and attention_fault("flash_attention_2", config):  # then flex, too, would need a score of each pair
        return None
    hopper = torch.cuda.get_device_capability()[0] == 9  # the kernels of version 3 are written for it
    installed = {"flash_attention_3": hopper and is_flash_attn_3_available()}
    installed["flash_attention_2"] = is_flash_attn_2_available()
    if half and (is_ours or computes(type(config), "_supports_flash_attn")):
        chosen = next((name for name, is_there in installed.items() if is_there), None)
        if chosen is not None:
            return chosen
    by_flex = packed and (is_ours or computes(type(config), "_supports_flex_attn")) and flex_computes(config)
    return "flex_attention" if by_flex else None


def flex_computes(config) -> bool:
    """Whether flex has kernels for the heads of a model, which it trains without dropout of attention weights."""
    text = config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    drops = any("att" in name and "drop" in name and value for name, value in text.to_dict().items())
    return head >= LEAST_FLEX_HEAD and not drops


def explain(error: Exception, chosen: dict[str, str], section: str = "model.") -> None:
    """Raise UserError if a model could not be built because one of the `chosen` backends cannot be used."""
    if chosen and ABOUT_BACKENDS.search(str(error)):
        named = " and ".join(f"{_setting(name, section)}={value}" for name, value in chosen.items())
        raise UserError(f"{named} cannot be used here: {first_line(error)}") from error


def check_got(model, chosen: dict[str, str], section: str = "model.") -> None:
    """Raise UserError for a chosen backend of experts that the model's class ignores, because it has no such choice."""
    experts = chosen.get("experts_implementation")
    if experts is not None and not model._can_set_experts_implementation():
        setting = _setting("experts_implementation", section)
        raise UserError(f"{setting}={experts} has no effect on {type(model).__name__}, which has no choice; remove it")


def _setting(name: str, section: str) -> str:
    """model.attn_implementation, or --attn-implementation."""
    return section + (name.replace("_", "-") if section == "--" else name)


def backends_of(model) -> dict[str, str]:
    """{"attention": name, "experts": name}, the latter only for models with experts."""
    config, backends = model.config, {"attention": model.config._attn_implementation}
    if getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None):
        backends["experts"] = config._experts_implementation
    return backends
