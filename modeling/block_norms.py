"""Blocks that norm the outputs of attention and feed-forward."""

from .block import TransformerBlock, build_norm


class InsideNormBlock(TransformerBlock):
    """x + norm(part(x)): each part's output is normed before it is added (OLMo Team 2025, OLMo 2, section 3.2)."""

    def residual(self, norm, part, x_BTD, **context) -> tuple:
        out_BTD, extra = part(x_BTD, **context)
        return x_BTD + self.branch(norm(out_BTD)), extra


class SandwichBlock(TransformerBlock):
    """x + norm(part(norm(x))): norms before and behind each part (Ding et al. 2021, section 3.2; Gemma 2)."""

    def __init__(self, config, layer_idx, self_attn, cross_attn=None):
        super().__init__(config, layer_idx, self_attn, cross_attn)
        self.attention_output_layernorm = build_norm(config)
        self.cross_attention_output_layernorm = None if cross_attn is None else build_norm(config)
        self.mlp_output_layernorm = build_norm(config)

    def residual(self, norm, part, x_BTD, **context) -> tuple:
        out_BTD, extra = part(norm(x_BTD), **context)
        norms = {self.self_attn: self.attention_output_layernorm, self.mlp: self.mlp_output_layernorm}
        behind = norms.get(part, self.cross_attention_output_layernorm)
        return x_BTD + self.branch(behind(out_BTD)), extra
