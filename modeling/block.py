"""One layer: attention and feed-forward, each with a residual connection and a norm before or after it."""

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import Attention
from .attention_disentangled import DisentangledAttention
from .attention_linear import LinearAttention
from .attention_local_global import LocalGlobalAttention
from .attention_recurrent import CompressiveAttention, RecurrentAttention
from .experts import SparseMLP
from .feed_forward import FEED_FORWARDS
from .normalization import build_norm

# Kinds of attention that compute scores in their own way; the others are masks.
ATTENTIONS = {
    "local_global_attention": LocalGlobalAttention,
    "linear_attention": LinearAttention,
    "compressive_attention": CompressiveAttention,
    "recurrent_attention": RecurrentAttention,
}


def build_attention(config, layer_idx: int) -> Attention:
    """The self-attention of a layer."""
    plain = DisentangledAttention if config.position_encoding == "disentangled" else Attention
    return ATTENTIONS.get(config.attention_kinds[layer_idx], plain)(config, layer_idx)


class TransformerBlock(GradientCheckpointingLayer):
    """(B, T, D) -> (B, T, D), followed by what SparseMLP returns beside in layers with experts.

    Pre-norm (Xiong et al. 2020, table 1) or post-norm (Vaswani et al. 2017, section 3.1). With `cross_attention` the
    tokens also attend to `encoder_hidden_states`, between self-attention and feed-forward.
    """

    def __init__(self, config, layer_idx: int, cross_attention: bool = False):
        super().__init__()
        self.norm_position = config.norm_position
        self.self_attn = build_attention(config, layer_idx)
        self.cross_attn = Attention(config, layer_idx, cross_attention=True) if cross_attention else None
        is_sparse = config.mlp_kinds[layer_idx] == "sparse"
        self.mlp = SparseMLP(config) if is_sparse else FEED_FORWARDS[config.mlp_type](config)
        skips_norm = layer_idx == 0 and getattr(config, "skip_first_norm", False)
        self.input_layernorm = nn.Identity() if skips_norm else build_norm(config)
        self.cross_attention_layernorm = build_norm(config) if cross_attention else None
        self.post_attention_layernorm = build_norm(config)
        # None instead of a Dropout that does nothing: a generated token is mostly the cost of calling modules.
        self.dropout = nn.Dropout(config.hidden_dropout) if config.hidden_dropout > 0 else None
        for module in (self.self_attn, self.cross_attn):
            if module is not None:
                module.o_proj.writes_residual = True  # read by `_init_weights`
        if not is_sparse:
            self.mlp.down_proj.writes_residual = True

    def forward(
        self, hidden_states, past_key_values=None, encoder_hidden_states=None, encoder_attention_mask=None, **context
    ):
        x_BTD, cache = hidden_states, past_key_values
        if self.cross_attn is not None and cache is not None:
            cache = cache.self_attention_cache
        x_BTD, _ = self.add(self.input_layernorm, self.self_attn, x_BTD, past_key_values=cache, **context)
        if self.cross_attn is not None:
            x_BTD, _ = self.add(
                self.cross_attention_layernorm,
                self.cross_attn,
                x_BTD,
                key_value_states=encoder_hidden_states,
                attention_mask=encoder_attention_mask,
                past_key_values=past_key_values,
            )
        x_BTD, routing = self.add(self.post_attention_layernorm, self.mlp, x_BTD)
        return (x_BTD, *routing) if routing else x_BTD

    def add(self, norm, part, x_BTD, **context):
        """x + part(norm(x)), or post-norm norm(x + part(x)); and what the part returns beside its output."""
        out_BTD, rest = part(norm(x_BTD) if self.norm_position == "pre" else x_BTD, **context), ()
        if isinstance(out_BTD, tuple):
            out_BTD, *rest = out_BTD
        x_BTD = x_BTD + (out_BTD if self.dropout is None else self.dropout(out_BTD))
        return (x_BTD if self.norm_position == "pre" else norm(x_BTD)), rest
