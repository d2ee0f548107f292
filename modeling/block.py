"""One layer: attention and feed-forward, each with a residual connection and a norm before or after it."""

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import Attention, build_attention
from .feed_forward import build_feed_forward
from .normalization import build_norm


class TransformerBlock(GradientCheckpointingLayer):
    """(B, T, D) -> (B, T, D); with experts (`is_sparse`), followed by the three parts of their Routing.

    Pre-norm (Xiong et al. 2020, table 1) or post-norm (Vaswani et al. 2017, section 3.1). With `cross_attention` the
    tokens also attend to `encoder_hidden_states`, between self-attention and feed-forward. Attention and feed-forward
    return (output, extra): the extra is attention weights or a Routing, or None.
    """

    def __init__(self, config, layer_idx: int, cross_attention: bool = False):
        super().__init__()
        self.is_pre_norm = config.norm_position == "pre"
        self.is_sparse = config.mlp_kinds[layer_idx] == "sparse"
        self.self_attn = build_attention(config, layer_idx)
        self.cross_attn = Attention(config, layer_idx, cross_attention=True) if cross_attention else None
        self.mlp = build_feed_forward(config, layer_idx)
        skips_norm = layer_idx == 0 and getattr(config, "skip_first_norm", False)
        self.input_layernorm = nn.Identity() if skips_norm else build_norm(config)
        self.cross_attention_layernorm = build_norm(config) if cross_attention else None
        self.post_attention_layernorm = build_norm(config)
        # None instead of a Dropout that does nothing: a generated token is mostly the cost of calling modules.
        self.dropout = nn.Dropout(config.hidden_dropout) if config.hidden_dropout > 0 else None

    def forward(self, hidden_states, *trained, trained_names=(), kept_tokens=None, **context):
        """context: keyword arguments of self-attention; `past_key_values` also holds the keys of cross-attention.

        trained: the values of `trained_names`, keyword arguments whose gradients reentrant checkpointing has to find.
        kept_tokens: those of which the feed-forward part, which mixes no tokens, is computed: K, the first of each row,
            -> (B, K, D), or indices among all B * T -> (1, K, D).
        """
        context |= dict(zip(trained_names, trained))
        encoder_hidden_states = context.pop("encoder_hidden_states", None)
        encoder_attention_mask = context.pop("encoder_attention_mask", None)
        cache = context.get("past_key_values")
        if self.cross_attn is not None and cache is not None:
            context["past_key_values"] = cache.self_attention_cache

        x_BTD, _ = self.residual(self.input_layernorm, self.self_attn, hidden_states, **context)
        if self.cross_attn is not None:
            cross = {"key_value_states": encoder_hidden_states, "attention_mask": encoder_attention_mask}
            x_BTD, _ = self.residual(
                self.cross_attention_layernorm, self.cross_attn, x_BTD, past_key_values=cache, **cross
            )
        if kept_tokens is not None:
            is_number = isinstance(kept_tokens, int)
            x_BTD = x_BTD[:, :kept_tokens] if is_number else x_BTD.flatten(0, 1).index_select(0, kept_tokens)[None]
        x_BTD, routing = self.residual(self.post_attention_layernorm, self.mlp, x_BTD)

        # Flat: reentrant checkpointing finds the tensors of a tuple, not those of a tuple within.
        return x_BTD if routing is None else (x_BTD, *routing)

    def residual(self, norm, part, x_BTD, **context) -> tuple:
        """x + part(norm(x)), or post-norm norm(x + part(x)); and the part's extra."""
        out_BTD, extra = part(norm(x_BTD) if self.is_pre_norm else x_BTD, **context)
        x_BTD = x_BTD + (out_BTD if self.dropout is None else self.dropout(out_BTD))
        return (x_BTD if self.is_pre_norm else norm(x_BTD)), extra
