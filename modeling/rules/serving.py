"""Which models a serving engine computes right: a sentence for each that it does not.

Standard library only. vLLM and SGLang build the base model, but replace each layer's attention, the experts and the
head by kernels of their own, made from the config: masks and score biases never reach these, and the text that comes
out is silently wrong. transformers' continuous batching puts the requests of all users into one row, with keys and
values in pages. Without the package, `unserved` in base.py decides what a model refuses.

The rules hold for vllm 0.32 (each was seen to give wrong numbers there), for sglang 0.5.23 by its source, and for
transformers 5.23.
"""

from collections.abc import Callable, Iterator

from ..families import DECODER, ENCODER, FAMILIES, MOE
from ..traits import ATTENTION_KINDS, POSITION_SCHEMES, attention_kinds, mlp_kinds
from .parts import rope_parameters_of

VLLM, SGLANG, CONTINUOUS_BATCHING = "vLLM", "SGLang", "continuous batching"
ENGINES = (VLLM, SGLANG, CONTINUOUS_BATCHING)
OTHERS_KERNELS = (VLLM, SGLANG)
FAMILIES_SERVED = {VLLM: (DECODER, MOE, ENCODER), SGLANG: (DECODER, MOE), CONTINUOUS_BATCHING: (DECODER, MOE)}
# Rotary frequencies that depend on the longest text so far, which may be another user's.
BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


def _kinds(c, unfit: Callable) -> list[str]:
    return [name for name in dict.fromkeys(attention_kinds(c)) if unfit(ATTENTION_KINDS[name])]


def _rope_types(c) -> set:
    if POSITION_SCHEMES[c.position_encoding].acts_on != "rotation":
        return set()
    return {each.get("rope_type") for each in rope_parameters_of(c).values() if each}


def refusals(c) -> Iterator[tuple[tuple[str, ...], str]]:
    """(engines that would compute something else, why) of a config."""
    yield from _of_attention(c)
    yield from _of_experts(c)
    yield from _of_text(c)


def _of_attention(c):
    if POSITION_SCHEMES[c.position_encoding].adds_to_scores:
        yield (
            OTHERS_KERNELS,
            f"position_encoding={c.position_encoding!r} adds to single scores, which its kernels do not do",
        )
    for name in _kinds(c, lambda kind: kind.own_scores or not kind.flash):  # more than causality and a window
        yield OTHERS_KERNELS, f"its kernels have no {name}"
    for name in _kinds(c, lambda kind: kind.keeps_states or kind.cache_values):
        yield (CONTINUOUS_BATCHING,), f"{name} keeps no keys and values, which its pages hold"
    for name in _kinds(c, lambda kind: kind.lookback is not None):
        yield (CONTINUOUS_BATCHING,), f"its pages have no {name}"
    if _kinds(c, lambda kind: kind.windowed and not kind.own_scores):
        if c.model_type == ENCODER:
            yield (VLLM,), f"it counts the query in sliding_window={c.sliding_window}, and an encoder's does not"
        yield (SGLANG,), f"it does not count the query in sliding_window={c.sliding_window}, and ours does"
    if c.attn_logit_softcapping is not None:
        yield (SGLANG,), f"it drops attn_logit_softcapping={c.attn_logit_softcapping}"
        if c.attn_logit_softcapping < 1:
            words = f"it computes attn_logit_softcapping={c.attn_logit_softcapping}, below 1, wrongly"
            yield (VLLM,), f"{words} (Gemma 2's, too)"
    if getattr(c, "differential_attention", False):
        yield ENGINES, "its cache is written by each call of a kernel, and differential_attention makes two in a layer"
    if getattr(c, "value_residual", False):
        yield (
            OTHERS_KERNELS,
            "it may split a model between layers or heads, and value_residual hands values from layer to layer",
        )
    if c.attention_sinks:
        yield OTHERS_KERNELS, "its kernels, made from the config, drop attention_sinks"
    for rope_type in sorted(_rope_types(c) & set(BATCH_DEPENDENT_ROPE)):
        yield ENGINES, f"rope_type={rope_type!r} turns by the longest text of all users"


def _of_experts(c):
    if getattr(c, "num_experts", None) is None or "sparse" not in mlp_kinds(c):
        return
    if not (c.mlp_type == "glu" and c.hidden_act in ("silu", "swish")):
        ours = f"mlp_type={c.mlp_type!r} with hidden_act={c.hidden_act!r}"
        yield OTHERS_KERNELS, f"its experts are gated silu, and ours {ours}"
    if c.mlp_bias:
        yield OTHERS_KERNELS, "its experts are made without biases (mlp_bias=True)"
    if c.apply_router_weight_on_input:
        yield (
            OTHERS_KERNELS,
            "its experts weigh outputs, and apply_router_weight_on_input=True weighs what they read",
        )
    if c.expert_capacity is not None:
        yield ENGINES, f"expert_capacity={c.expert_capacity} counts the tokens of a row, and its rows hold many texts"


def _of_text(c):
    """What a model reads, how its layers follow each other, and its head."""
    if getattr(c, "add_cross_attention", False):
        yield ENGINES, "it gives a decoder no encoder's tokens (add_cross_attention=True)"
    if getattr(c, "prefix_lm", False):
        yield ENGINES, "prefix_lm=True shows the tokens of a prompt those after them, and it hides the future from all"
    groups = getattr(c, "num_hidden_groups", None)
    if groups not in (None, c.num_hidden_layers):
        yield (
            OTHERS_KERNELS,
            f"layers share weights (num_hidden_groups={groups}), and it wants one module for each",
        )
    if getattr(c, "conv_kernel_size", 0) > 0:
        yield OTHERS_KERNELS, f"conv_kernel_size={c.conv_kernel_size} would mix the texts that share a row"
    outputs, inputs = getattr(c, "output_vocab_size", None), getattr(c, "vocab_size", None)
    if outputs not in (None, inputs):
        yield OTHERS_KERNELS, f"output_vocab_size={outputs} differs from vocab_size={inputs}"
    if c.model_type in (DECODER, MOE):
        if c.logit_multiplier != 1 and (c.final_logit_softcapping is not None or c.lm_head_bias):
            yield (
                (VLLM,),
                f"it multiplies by logit_multiplier={c.logit_multiplier} after the logits' bias and soft cap, ours "
                f"before",
            )
        if c.lm_head_bias:
            yield (SGLANG,), "it drops the head's bias (lm_head_bias=true)"


def refusal(config, engine: str) -> str | None:
    """Why an engine does not compute what a model of this config does, or None where it does. engine: of ENGINES."""
    if config.model_type not in FAMILIES_SERVED[engine]:
        return f"it does not serve {FAMILIES[config.model_type].words}"
    return _of_table(config, engine)


def explain_unserved(config, pages: bool) -> str | None:
    """As `refusal`, for a model that is built and then refused (base.py). pages: continuous batching, not vLLM."""
    return _of_table(config, CONTINUOUS_BATCHING if pages else VLLM)


def _of_table(config, engine: str) -> str | None:
    return next((reason for engines, reason in refusals(config) if engine in engines), None)
