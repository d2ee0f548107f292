"""Attention in which queries and keys, but not values, contain position embeddings."""

from .attention import Attention


class AttentionWithPositions(Attention):
    """Queries and keys of x + p, values of x, with position embeddings p: Press et al. 2021 (Shortformer), section 4.

    The hidden states that layers pass on hold no positions.
    """

    reads_other_states = True

    def forward(self, hidden_states, positions_of_queries_keys=None, **context):
        """As Attention's; positions_of_queries_keys: (B or 1, T, D)."""
        return super().forward(hidden_states + positions_of_queries_keys, key_value_states=hidden_states, **context)

    def keys_and_values_of_others(self, hidden_states, key_value_states, past_key_values) -> tuple:
        """Keys of the tokens with their positions, values of those without."""
        return self.heads(self.k_proj(hidden_states), self.k_norm), self.heads(self.v_proj(key_value_states))
