"""A block whose attention and feed-forward read the same hidden states, side by side."""

from .block import TransformerBlock


class ParallelBlock(TransformerBlock):
    """x + attention(norm(x)) + feed_forward(norm(x)), Chowdhery et al. 2022 (PaLM), section 2.

    One norm feeds both (PaLM, GPT-J), or with `parallel_norms=2` each has its own (GPT-NeoX).
    """

    def __init__(self, config, layer_idx, self_attn):
        super().__init__(config, layer_idx, self_attn)
        if config.parallel_norms == 1:
            self.post_attention_layernorm = None

    def forward(self, hidden_states, *trained, trained_names=(), kept_tokens=None, **context):
        """As TransformerBlock's."""
        context |= dict(zip(trained_names, trained))
        normed_BTD = self.input_layernorm(hidden_states)
        attended_BTD, _ = self.self_attn(normed_BTD, **context)
        if self.post_attention_layernorm is not None:
            normed_BTD = self.post_attention_layernorm(hidden_states)
        attended_BTD, normed_BTD, x_BTD = (self.kept(x, kept_tokens) for x in (attended_BTD, normed_BTD, hidden_states))
        fed_BTD, routing = self.mlp(normed_BTD)
        x_BTD = x_BTD + self.branch(attended_BTD) + self.branch(fed_BTD)
        return x_BTD if routing is None else (x_BTD, *routing)
