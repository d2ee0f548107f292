"""How a model is split over ranks: transformers' plans of tensor, expert and pipeline parallelism for a config."""

import importlib.util

from .traits import ATTENTION_KINDS, PARTS, POSITION_SCHEMES


def tensor_parallel_plan(config, attentions=("self_attn",)) -> dict[str, str]:
    """transformers' style for each module of a stack that is split over ranks: attention by heads, MLPs by channels.

    attentions: names of the attention modules in a layer.
    """
    plan = feed_forward_plan(config)
    # Not split by heads: biases, gates, sinks and wide norms hold all heads at once, global tokens read whole rows.
    parts = POSITION_SCHEMES[config.position_encoding], *(ATTENTION_KINDS[kind] for kind in config.attention_kinds)
    names = ("qk_norm_width", "attention_gate", "attention_sinks", "differential_attention")
    if any(getattr(config, name, None) for name in names) or not all(part.splits_heads for part in parts):
        return plan
    heads = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
    if config.qk_norm:  # a rank's gradient covers its own heads only
        heads |= {f"{name}_norm": "replicated_with_grad_allreduce" for name in "qk"}
    if getattr(config, "value_residual", False):
        heads["value_mix"] = "replicated_with_grad_allreduce"
    attentions = attentions + ("cross_attn",) * getattr(config, "add_cross_attention", False)
    return plan | {f"layers.*.{attention}.{name}": style for attention in attentions for name, style in heads.items()}


def feed_forward_plan(config) -> dict[str, str]:
    """The feed-forward part of tensor_parallel_plan: dense layers, experts (each of them split), a shared expert."""
    is_gated = PARTS.mlp_type[config.mlp_type].gated
    mlp = {"up_proj": "colwise", "down_proj": "rowwise"} | ({"gate_proj": "colwise"} if is_gated else {})
    plan, kinds = {}, config.mlp_kinds
    if "dense" in kinds:
        plan |= {f"layers.*.mlp.{name}": style for name, style in mlp.items()}
    if "sparse" in kinds:
        up = {"gate_up_proj": "packed_colwise"} if is_gated else {"up_proj": "colwise"}
        experts = up | {"down_proj": "rowwise"}
        if not config.mlp_bias:  # each rank would add the whole bias to its part of a product
            plan |= {f"layers.*.mlp.experts.{name}": style for name, style in experts.items()}
            plan["layers.*.mlp.experts"] = "moe_tp_experts"
        if config.shared_expert_intermediate_size:
            plan |= {f"layers.*.mlp.shared_expert.{name}": style for name, style in mlp.items()}
    return plan


def expert_parallel_plan(config) -> dict[str, str] | None:
    """Whole experts on each rank, or None: without experts, or with a transformers that lacks these styles."""
    has_styles = importlib.util.find_spec("transformers.distributed.expert_parallel")  # transformers < 5.23
    if "sparse" not in config.mlp_kinds or not has_styles:
        return None
    up = "gate_up_proj" if PARTS.mlp_type[config.mlp_type].gated else "up_proj"
    names = [f"{name}{kind}" for name in (up, "down_proj") for kind in (("", "_bias") if config.mlp_bias else ("",))]
    experts = {f"layers.*.mlp.experts.{name}": "grouped_gemm" for name in names}
    return experts | {"layers.*.mlp.experts": "ep_dispatch_experts"}


def pipeline_parallel_plan(config) -> dict[str, tuple[list[str], list[str]]] | None:
    """(Inputs, outputs) of each part of a pipeline, or None.

    Later stages receive the hidden states as `inputs_embeds`, so nothing may act on embeddings before the layers.
    transformers' pipeline runs causal models only: it sends on the `past_key_values` that every head has to return.
    """
    if (
        not config.is_causal
        or POSITION_SCHEMES[config.position_encoding].acts_on == "embeddings"
        or config.embedding_norm
        or config.embedding_multiplier != 1
        or getattr(config, "add_cross_attention", False)
        or getattr(config, "num_nextn_predict_layers", 0)
        or getattr(config, "value_residual", False)  # which later stages do not receive
    ):
        return None
    return {
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }
