"""Caches of layers whose memory has a fixed size, however long the row: linear attention and segments."""

import torch
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    STATIC_LAYER_TYPE_MAPPING,
    CacheLayerMixin,
    LinearAttentionCacheLayerMixin,
)

from .traits import STATE_LAYER_TYPE


class StateLayer(CacheLayerMixin):
    """Named states of one layer, each (B, ...), replaced at every step, and the number of tokens seen.

    Unlike transformers' cache layer for linear attention it holds states of any number and shape, and counts tokens,
    which `generate` needs and no other cache does in a model of linear layers only.
    """

    is_sliding = False
    supports_early_init = False  # of keys and values, which are not kept here

    def __init__(self, **kwargs):
        super().__init__()
        self.states: dict[str, torch.Tensor] = {}
        self.cumulative_length = 0

    def write(self, tokens: int, **states: torch.Tensor) -> None:
        """Store the `states` after `tokens` more tokens."""
        self.states |= states
        self.cumulative_length += tokens

    def update(self, key_states, value_states, *args, **kwargs):
        raise TypeError("this layer keeps states, written by write(); it has no keys and values")

    lazy_initialization = update

    def get_seq_length(self):
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple:
        return self.cumulative_length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def offload(self) -> None:
        self._each(lambda x: x.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Does nothing: states are small, and a cache that offloads leaves them on their device."""

    def reset(self) -> None:
        self.states, self.cumulative_length = {}, 0

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0:
            raise RuntimeError(
                "a state cannot forget its last tokens: assisted decoding works with full, sliding and strided "
                "attention, not with linear, compressive or recurrent"
            )

    def reorder_cache(self, beam_idx) -> None:
        self._each(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices) -> None:
        self._each(lambda x: x[indices])

    def _each(self, change) -> None:
        self.states = {name: change(x) for name, x in self.states.items()}


class StaticStateLayer(StateLayer):
    """A StateLayer whose tensors keep their addresses, which compiled steps need."""

    is_compileable = True

    def __init__(self, **kwargs):
        super().__init__()
        self.cumulative_length = torch.tensor(0)  # a number would be a constant of the compiled graph

    def write(self, tokens: int, **states: torch.Tensor) -> None:
        for name, new in states.items():
            if name not in self.states:
                self.states[name] = torch.zeros_like(new)
                self.cumulative_length = self.cumulative_length.to(new.device)
                if not torch.compiler.is_compiling():
                    torch._dynamo.mark_static_address(self.states[name])
                    torch._dynamo.mark_static_address(self.cumulative_length)
            self.states[name].copy_(new)
        self.cumulative_length.add_(tokens)

    def reset(self) -> None:
        for x in (self.cumulative_length, *self.states.values()):
            x.zero_()


# transformers leaves layers of this class out when it sizes masks; ours have no keys to be masked either.
LinearAttentionCacheLayerMixin.register(StateLayer)
DYNAMIC_LAYER_TYPE_MAPPING[STATE_LAYER_TYPE] = StateLayer
STATIC_LAYER_TYPE_MAPPING[STATE_LAYER_TYPE] = StaticStateLayer


def state_layer(past_key_values, layer_idx: int) -> StateLayer | None:
    """The layer's part of a cache, None without one. Raises ValueError for a cache that was made without a config."""
    if past_key_values is None:
        return None
    layers = past_key_values.layers
    # Not isinstance: a cache may come from another copy of this file, loaded from the Hub.
    if layer_idx >= len(layers) or not hasattr(layers[layer_idx], "states"):
        raise ValueError(
            f"past_key_values={type(past_key_values).__name__} has no state for layer {layer_idx}; make it with "
            f"config=model.config, and not quantised"
        )
    return layers[layer_idx]
