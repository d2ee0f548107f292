"""The parts of a layer and the layer itself: norms, feed-forwards, and the block that combines them with attention.

A feed-forward maps (..., D) to (..., D), position by position, and returns (output, None); one with experts returns
its Routing in place of None (experts.py).
"""

import torch
from torch import nn
from torch.nn.functional import rms_norm
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from .traits import PARTS, RULES, SPARSE, adjustments, block_forms, block_part


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019, eq. 4), in fp32 at least.

    The class's name matters: transformers initialises norms as such if it contains LayerNorm or RMSNorm.
    """

    def forward(self, x, weight=None):
        """(..., D) -> (..., D), in the input's dtype. weight: (D,), in place of its own."""
        weight = self.weight if weight is None else weight
        if x.dtype != weight.dtype:  # torch's function takes one dtype
            wide = torch.promote_types(x.dtype, weight.dtype)
            return self.forward(x.to(wide), weight.to(wide)).to(x.dtype)
        return RULES.get("rms_norm", rms_norm)(x, self.normalized_shape, weight, self.eps)


def build_norm(config, size: int | None = None) -> nn.Module:
    """The norm over the last axis that `norm_type` names: LayerNorm (Ba et al. 2016), RMSNorm or a registered class.

    `size` is the length of that axis; None: `hidden_size`.
    """
    size = config.hidden_size if size is None else size
    if config.norm_type == "rmsnorm":
        return RMSNorm(size, eps=config.norm_eps)
    if config.norm_type == "layernorm":
        return nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm_bias)
    return PARTS.norm_type[config.norm_type].load()(config, size)


class MLP(nn.Module):
    """down(act(up(x))), Vaswani et al. 2017, eq. 2, with any activation of transformers.

    `channels` is the inner width; None: the config's `intermediate_size`.
    """

    def __init__(self, config, channels: int | None = None):
        super().__init__()
        channels = config.intermediate_size if channels is None else channels
        self.up_proj = nn.Linear(config.hidden_size, channels, bias=config.mlp_bias)
        self.down_proj = nn.Linear(channels, config.hidden_size, bias=config.mlp_bias)
        self.down_proj.writes_residual = True
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x_BTD) -> tuple:
        return self.down_proj(self.act_fn(self.up_proj(x_BTD))), None


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), Shazeer 2020, eq. 6; SwiGLU with hidden_act='silu'."""

    def __init__(self, config, channels: int | None = None):
        super().__init__()
        channels = config.intermediate_size if channels is None else channels
        self.gate_proj = nn.Linear(config.hidden_size, channels, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, channels, bias=config.mlp_bias)
        self.down_proj = nn.Linear(channels, config.hidden_size, bias=config.mlp_bias)
        self.down_proj.writes_residual = True
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x_BTD) -> tuple:
        return self.down_proj(self.act_fn(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)), None


# {a layer's argument about an encoder: its name in cross-attention, which is skipped without hidden states}.
OF_ENCODER = {"encoder_hidden_states": "key_value_states", "encoder_attention_mask": "attention_mask"}
OF_ENCODER |= {"encoder_cache": "past_key_values"}


def build_feed_forward(config, layer_idx: int) -> nn.Module:
    """The feed-forward of a layer: dense, or experts."""
    if config.mlp_kinds[layer_idx] == "sparse":
        return SPARSE.load()(config)
    return build_dense(config)


def build_dense(config, channels: int | None = None) -> nn.Module:
    """A dense feed-forward of inner width `channels`; None: `intermediate_size`."""
    return PARTS.mlp_type[config.mlp_type].load()(config, channels)


class TransformerBlock(GradientCheckpointingLayer):
    """A layer, (B, T, D) -> (B, T, D); with experts (`is_sparse`) it returns the three parts of their Routing, too.

    Pre-norm (Xiong et al. 2020, table 1) or post-norm (Vaswani et al. 2017, section 3.1); other forms are subclasses.
    With `cross_attn` tokens also attend to `encoder_hidden_states`, between self-attention and feed-forward. Attention
    and feed-forward return (output, extra): the extra is attention weights or a Routing, or None.
    """

    def __init__(self, config, layer_idx: int, self_attn: nn.Module, cross_attn: nn.Module | None = None):
        super().__init__()
        self.is_pre_norm = block_forms(config)[layer_idx] == "pre"
        self.is_sparse = config.mlp_kinds[layer_idx] == "sparse"
        self.self_attn, self.cross_attn = self_attn, cross_attn
        self.mlp = build_feed_forward(config, layer_idx)
        skips_norm = layer_idx == 0 and getattr(config, "skip_first_norm", False)
        self.input_layernorm = nn.Identity() if skips_norm else build_norm(config)
        self.cross_attention_layernorm = None if cross_attn is None else build_norm(config)
        self.post_attention_layernorm = build_norm(config)
        # None instead of a Dropout that does nothing: most of a generated token's time goes into calling modules.
        self.dropout = nn.Dropout(config.hidden_dropout) if config.hidden_dropout > 0 else None
        self.multiplier = None if config.residual_multiplier == 1 else config.residual_multiplier

    def forward(self, hidden_states, *trained, trained_names=(), kept_tokens=None, **context):
        """context: keyword arguments for self-attention, and for cross-attention by their names in OF_ENCODER.

        trained: values of the arguments `trained_names`: reentrant checkpointing finds gradients of positional ones.
        kept_tokens: tokens for which the feed-forward part is computed (it mixes no tokens); None: all. A number K: the
            first K of each row -> (B, K, D); a tensor of K indices into all B * T tokens -> (1, K, D).
        """
        context |= dict(zip(trained_names, trained))
        cross = {name: context.pop(argument, None) for argument, name in OF_ENCODER.items()}
        x_BTD, _ = self.residual(self.input_layernorm, self.self_attn, hidden_states, **context)
        if cross["key_value_states"] is not None:
            x_BTD, _ = self.residual(self.cross_attention_layernorm, self.cross_attn, x_BTD, **cross)
        x_BTD = self.kept(x_BTD, kept_tokens)
        x_BTD, routing = self.residual(self.post_attention_layernorm, self.mlp, x_BTD)
        # Flat: reentrant checkpointing finds the tensors in a tuple, but not in nested ones.
        return x_BTD if routing is None else (x_BTD, *routing)

    def residual(self, norm, part, x_BTD, **context) -> tuple:
        """x + part(norm(x)), or for post-norm norm(x + part(x)), and the part's extra."""
        out_BTD, extra = part(norm(x_BTD) if self.is_pre_norm else x_BTD, **context)
        x_BTD = x_BTD + self.branch(out_BTD)
        return (x_BTD if self.is_pre_norm else norm(x_BTD)), extra

    def branch(self, out_BTD):
        """What a part adds to the hidden states: its output after dropout, times `residual_multiplier`."""
        out_BTD = out_BTD if self.dropout is None else self.dropout(out_BTD)
        return out_BTD if self.multiplier is None else out_BTD * self.multiplier

    @staticmethod
    def kept(x_BTD, kept_tokens):
        """The hidden states of those tokens for which the feed-forward part is computed (see `forward`)."""
        if kept_tokens is None:
            return x_BTD
        is_number = isinstance(kept_tokens, int)
        return x_BTD[:, :kept_tokens] if is_number else x_BTD.flatten(0, 1).index_select(0, kept_tokens)[None]


def build_block(config, layer_idx: int, *attentions: nn.Module) -> TransformerBlock:
    """Build a layer in the residual form that `norm_position` and `block` name."""
    make = block_part(block_forms(config)[layer_idx]).load()
    for row in adjustments(config):
        make = make if row.blocks is None else row.blocks.load()(make)
    return make(config, layer_idx, *attentions)
