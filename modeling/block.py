"""One layer: attention and feed-forward, each with a residual connection and a norm before or after it."""

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import Attention
from .feed_forward import FEED_FORWARDS
from .normalization import build_norm


class TransformerBlock(GradientCheckpointingLayer):
    """(B, T, D) -> (B, T, D). Pre-norm (Xiong et al. 2020, table 1) or post-norm (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config, layer_idx: int):
        super().__init__()
        self.norm_position, self.attention_kind = config.norm_position, config.attention_kinds[layer_idx]
        self.self_attn = Attention(config, layer_idx)
        self.mlp = FEED_FORWARDS[config.mlp_type](config)
        self.input_layernorm = build_norm(config)
        self.post_attention_layernorm = build_norm(config)
        # None instead of a Dropout that does nothing: a generated token is mostly the cost of calling modules.
        self.dropout = nn.Dropout(config.hidden_dropout) if config.hidden_dropout > 0 else None
        for projection in (self.self_attn.o_proj, self.mlp.down_proj):
            projection.writes_residual = True  # read by `_init_weights`

    def attend(self, x_BTD, **context):
        out_BTD = self.self_attn(x_BTD, **context)[0]
        return out_BTD if self.dropout is None else self.dropout(out_BTD)

    def transform(self, x_BTD):
        out_BTD = self.mlp(x_BTD)
        return out_BTD if self.dropout is None else self.dropout(out_BTD)

    def forward(self, hidden_states, **context):
        x_BTD = hidden_states
        if self.norm_position == "pre":
            x_BTD = x_BTD + self.attend(self.input_layernorm(x_BTD), **context)
            return x_BTD + self.transform(self.post_attention_layernorm(x_BTD))
        x_BTD = self.input_layernorm(x_BTD + self.attend(x_BTD, **context))
        return self.post_attention_layernorm(x_BTD + self.transform(x_BTD))
