"""Which models an engine for serving computes right: one table of refusals, each with the sentence a user reads.

Standard library only. vLLM and SGLang build the base model, but answer each layer's attention, the experts and the head
by kernels of their own, made from the config: whatever is said by a mask or a score bias never reaches them, and the
text that comes out is wrong without a word. transformers' continuous batching lays the requests of all users in one
row, with keys and values in pages. What a model refuses by itself, without the package, is base.py's `unserved`.

The rules are of vllm 0.32 (each was seen to give wrong numbers there), of the source of sglang 0.5.23, and of
transformers 5.23.
"""

from collections.abc import Callable

from ..families import DECODER, ENCODER, FAMILIES, MOE
from ..traits import ATTENTION_KINDS, POSITION_SCHEMES, attention_kinds, mlp_kinds

VLLM, SGLANG, CONTINUOUS_BATCHING = "vLLM", "SGLang", "continuous batching"
ENGINES = (VLLM, SGLANG, CONTINUOUS_BATCHING)
OTHERS_KERNELS = (VLLM, SGLANG)
FAMILIES_SERVED = {VLLM: (DECODER, MOE, ENCODER), SGLANG: (DECODER, MOE), CONTINUOUS_BATCHING: (DECODER, MOE)}
# Frequencies that depend on the longest text so far, which among many users is another's.
BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


def _kinds(c, unfit: Callable) -> list[str]:
    return [name for name in dict.fromkeys(attention_kinds(c)) if unfit(ATTENTION_KINDS[name])]


def _not_of_kernels(c) -> list[str]:
    """Kinds of attention that are more than causality and a window."""
    return _kinds(c, lambda kind: kind.own_scores or not kind.flash)


def _windows(c) -> list[str]:
    return _kinds(c, lambda kind: kind.windowed and not kind.own_scores)


def _without_keys(c) -> list[str]:
    return _kinds(c, lambda kind: kind.keeps_states or kind.cache_values)


def _rope_types(c) -> set:
    rope = c.rope_parameters or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return (
        {flat.get("rope_type") for flat in nested or [rope]}
        if POSITION_SCHEMES[c.position_encoding].acts_on == "rotation"
        else set()
    )


def _has_experts(c) -> bool:
    return getattr(c, "num_experts", None) is not None and "sparse" in mlp_kinds(c)


# (engines, condition on the config, the sentence a user reads)
REFUSALS = (
    (
        OTHERS_KERNELS,
        lambda c: POSITION_SCHEMES[c.position_encoding].adds_to_scores,
        lambda c: f"position_encoding={c.position_encoding!r} adds to single scores, which its kernels do not do",
    ),
    (
        OTHERS_KERNELS,
        lambda c: _not_of_kernels(c),
        lambda c: f"its kernels have no {_not_of_kernels(c)[0]}",
    ),
    (
        ENGINES,
        lambda c: getattr(c, "add_cross_attention", False),
        lambda c: "it gives a decoder no encoder's tokens (add_cross_attention=True)",
    ),
    (
        (CONTINUOUS_BATCHING,),
        lambda c: _without_keys(c),
        lambda c: f"{_without_keys(c)[0]} keeps no keys and values, which its pages hold",
    ),
    (
        (CONTINUOUS_BATCHING,),
        lambda c: _kinds(c, lambda kind: kind.lookback is not None),
        lambda c: f"its pages have no {_kinds(c, lambda kind: kind.lookback is not None)[0]}",
    ),
    (
        (VLLM,),
        lambda c: c.model_type == ENCODER and _windows(c),
        lambda c: f"it counts the query in sliding_window={c.sliding_window}, and an encoder's does not",
    ),
    (
        (SGLANG,),
        lambda c: _windows(c),
        lambda c: f"it does not count the query in sliding_window={c.sliding_window}, and ours does",
    ),
    (
        (SGLANG,),
        lambda c: c.attn_logit_softcapping is not None,
        lambda c: f"it drops attn_logit_softcapping={c.attn_logit_softcapping}",
    ),
    (
        ENGINES,
        lambda c: getattr(c, "differential_attention", False),
        lambda c: "its cache is written by each call of a kernel, and differential_attention makes two in a layer",
    ),
    (
        OTHERS_KERNELS,
        lambda c: getattr(c, "value_residual", False),
        lambda c: "it may split a model between layers or heads, and value_residual hands values from layer to layer",
    ),
    (
        OTHERS_KERNELS,
        lambda c: c.attention_sinks,
        lambda c: "its kernels, made from the config, drop attention_sinks",
    ),
    (
        (VLLM,),
        lambda c: (c.attn_logit_softcapping or 1) < 1,
        lambda c: f"it computes attn_logit_softcapping={c.attn_logit_softcapping}, below 1, wrongly (Gemma 2's, too)",
    ),
    (
        ENGINES,
        lambda c: _rope_types(c) & set(BATCH_DEPENDENT_ROPE),
        lambda c: (
            f"rope_type={min(_rope_types(c) & set(BATCH_DEPENDENT_ROPE))!r} turns by the longest text of all users"
        ),
    ),
    (
        OTHERS_KERNELS,
        lambda c: _has_experts(c) and not (c.mlp_type == "glu" and c.hidden_act in ("silu", "swish")),
        lambda c: f"its experts are gated silu, and ours mlp_type={c.mlp_type!r} with hidden_act={c.hidden_act!r}",
    ),
    (
        OTHERS_KERNELS,
        lambda c: _has_experts(c) and c.mlp_bias,
        lambda c: "its experts are made without biases (mlp_bias=True)",
    ),
    (
        OTHERS_KERNELS,
        lambda c: _has_experts(c) and c.apply_router_weight_on_input,
        lambda c: "its experts weigh outputs, and apply_router_weight_on_input=True weighs what they read",
    ),
    (
        ENGINES,
        lambda c: _has_experts(c) and c.expert_capacity is not None,
        lambda c: f"expert_capacity={c.expert_capacity} counts the tokens of a row, and its rows hold many texts",
    ),
    (
        ENGINES,
        lambda c: getattr(c, "prefix_lm", False),
        lambda c: "prefix_lm=True shows the tokens of a prompt those after them, and it hides the future from all",
    ),
    (
        OTHERS_KERNELS,
        lambda c: getattr(c, "num_hidden_groups", None) not in (None, c.num_hidden_layers),
        lambda c: f"layers share weights (num_hidden_groups={c.num_hidden_groups}), and it wants one module for each",
    ),
    (
        OTHERS_KERNELS,
        lambda c: getattr(c, "conv_kernel_size", 0) > 0,
        lambda c: f"conv_kernel_size={c.conv_kernel_size} would mix the texts that share a row",
    ),
    (
        OTHERS_KERNELS,
        lambda c: getattr(c, "output_vocab_size", None) not in (None, getattr(c, "vocab_size", None)),
        lambda c: f"output_vocab_size={c.output_vocab_size} differs from vocab_size={c.vocab_size}",
    ),
    (
        (VLLM,),
        lambda c: (
            c.model_type in (DECODER, MOE)
            and c.logit_multiplier != 1
            and (c.final_logit_softcapping is not None or c.lm_head_bias)
        ),
        lambda c: (
            f"it multiplies by logit_multiplier={c.logit_multiplier} after the logits' bias and soft cap, ours before"
        ),
    ),
    (
        (SGLANG,),
        lambda c: c.model_type in (DECODER, MOE) and c.lm_head_bias,
        lambda c: "it drops the head's bias (lm_head_bias=true)",
    ),
)


def refusal(config, engine: str) -> str | None:
    """Why an engine does not compute what a model of this config does, or None where it does. engine: of ENGINES."""
    if config.model_type not in FAMILIES_SERVED[engine]:
        return f"it does not serve {FAMILIES[config.model_type].words}"
    return _of_table(config, engine)


def explain_unserved(config, pages: bool) -> str | None:
    """As `refusal`, of a model that is built and then refused (base.py). pages: by continuous batching, not vLLM."""
    return _of_table(config, CONTINUOUS_BATCHING if pages else VLLM)


def _of_table(config, engine: str) -> str | None:
    return next((say(config) for engines, unfit, say in REFUSALS if engine in engines and unfit(config)), None)
