"""A cache that grows without copying what it holds.

transformers' DynamicLayer concatenates all its keys and values with those of each new token: at 1,000 tokens, the whole
cache is read and written once more for every token that a model writes.
"""

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

# Tokens of spare room: at least so many, or this share of those held. Each is copied about five times in all.
LEAST_ROOM, ROOM_SHARE = 128, 0.25


class GrowingLayer(DynamicLayer):
    """transformers' DynamicLayer with room behind its tokens, into which new ones are written.

    `keys` and `values`, (B, G, S, K), are the beginning of larger tensors. Whatever else sets them (cropping, selecting
    rows, moving to another device) makes them tensors of their own, which get room at the next token.
    """

    room: tuple[torch.Tensor, torch.Tensor] | None = None
    handed_out: tuple[torch.Tensor, torch.Tensor] | None = None  # the last `keys` and `values` in it

    def update(self, key_states, value_states, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values (B, G, T, K); return those of all tokens.

        With gradients they are concatenated, since those may still need what stands here; so they are in compiled
        programs, which know no storage, and with the first tokens, after which may come none.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self.get_seq_length() == 0:
            return super().update(key_states, value_states, *args, **kwargs)
        held, new = self.keys.shape[2], key_states.shape[2]
        if not self.has_room(held + new):
            self.make_room(held + new)
        keys, values = self.room
        keys.narrow(2, held, new).copy_(key_states)
        values.narrow(2, held, new).copy_(value_states)
        self.hand_out(held + new)
        return self.keys, self.values

    def hand_out(self, tokens: int) -> None:
        self.keys, self.values = self.handed_out = tuple(room.narrow(2, 0, tokens) for room in self.room)

    def has_room(self, tokens: int) -> bool:
        """Whether `keys` and `values` begin tensors that hold so many tokens, and that may be written to."""
        if self.room is None or self.keys is not self.handed_out[0] or self.values is not self.handed_out[1]:
            return False
        room = self.room[0]
        return room.shape[2] >= tokens and (torch.is_inference_mode_enabled() or not room.is_inference())

    def make_room(self, tokens: int) -> None:
        length = tokens + max(LEAST_ROOM, int(tokens * ROOM_SHARE))
        held, made = (self.keys, self.values), []
        for x in held:
            made.append(x.new_empty(*x.shape[:2], length, x.shape[3]))
            made[-1].narrow(2, 0, x.shape[2]).copy_(x)
        self.room = tuple(made)

    def reset(self) -> None:
        super().reset()
        self.room = self.handed_out = None

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """As DynamicLayer's; the room moves along, or each step of a beam search would copy the cache twice."""
        if self.get_seq_length() == 0 or not self.has_room(self.keys.shape[2]):
            super().reorder_cache(beam_idx)
            return
        self.room = tuple(room.index_select(0, beam_idx.to(room.device)) for room in self.room)
        self.hand_out(self.keys.shape[2])


class EncoderLayer(DynamicLayer):
    """Keys and values of an encoder's tokens, which are the same for all beams of a row.

    A beam search reorders the cache at each token, and within rows: nothing of these would change by being copied.
    """

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        if self.get_seq_length() > 0 and self.keys.device.type == "cpu":
            head = self.keys[:, 0]  # one tells rows apart; on other devices the question would cost a synchronisation
            if torch.equal(head.index_select(0, beam_idx.to(head.device)), head):
                return
        super().reorder_cache(beam_idx)


def grows(past_key_values) -> bool:
    """Whether a cache, or the decoder's part of an encoder-decoder's, holds what was seen and no more."""
    return type(getattr(past_key_values, "self_attention_cache", past_key_values)) is DynamicCache


def give_room(past_key_values) -> None:
    """Make the layers of an empty DynamicCache GrowingLayers, and those for an encoder's tokens EncoderLayers.

    Layers of other classes (windows, states, quantised, static) and caches that are moved to the CPU stay as they are.
    """
    if torch.compiler.is_compiling() or not grows(past_key_values):  # a compiled program follows no change of a class
        return
    own = getattr(past_key_values, "self_attention_cache", past_key_values)
    if own.layers and own.layers[0].is_initialized:
        return
    for cache, room in ((own, GrowingLayer), (getattr(past_key_values, "cross_attention_cache", None), EncoderLayer)):
        if type(cache) is not DynamicCache or cache.offloading:
            continue
        if cache.layer_class_to_replicate is DynamicLayer:  # of a cache that was made without a config
            cache.layer_class_to_replicate = room
        for layer in cache.layers:
            if type(layer) is DynamicLayer and not layer.is_initialized:
                layer.__class__ = room  # which adds to it what it does, and nothing that it holds
