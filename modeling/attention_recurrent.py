"""Memories of what lies before a segment: its last tokens (Transformer-XL) or one matrix of all (Infini-attention).

Shapes as in attention.py and attention_segments.py, and V = K + 1 channels of a memory, the last of them sums of
scores.
"""

import torch
from torch import nn

from .attention import Attention
from .attention_linear import feature_map, normalised, with_ones
from .attention_segments import block_size, in_blocks, reach, seen_in_blocks, token_places, with_zeros
from .attention_states import state_layer
from .positions_rotary import rotate


class RecurrentAttention(Attention):
    """A segment and the `memory_length` tokens before it, through which no gradient flows (Dai et al. 2019, eq. 1).

    The paper runs segment after segment and keeps hidden states. What a layer computes of a segment depends on states
    of the layer below only, so here each layer takes all segments of a row at once: the same numbers, and, as the
    memory's hidden states are detached before their keys and values are made, the same gradients.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.segment_length = config.segment_length
        self.window = reach(config, config.attention_kinds[layer_idx])
        self.memory_length = self.window - self.segment_length

    def implementation(self) -> str:
        """Masks of segments are nothing that flash and flex kernels take."""
        return "eager" if self.config._attn_implementation == "eager" else "sdpa"

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        position_embeddings=None,
        past_key_values=None,
        segment_bias=None,
        **kwargs,
    ) -> tuple:
        """As `Attention.forward`; weights are of segments, not of rows, and not returned.

        Args:
            attention_mask: None (one document from its start on), or what `token_places` returns.
            segment_bias: None or (B, H, C, W + C), added to the scores of each block.
        """
        cached = state_layer(past_key_values, self.layer_idx)
        past = {} if cached is None else cached.states
        q_BHTK, (k_BGTK, v_BGTK) = self.queries(hidden_states), self.keys_and_values(hidden_states)
        q_turned, k_turned = self.turned(q_BHTK, position_embeddings), self.turned(k_BGTK, position_embeddings)
        own = self.after(past.get("keys"), k_turned), self.after(past.get("values"), v_BGTK)
        memory = None
        if self.memory_length and torch.is_grad_enabled():
            k_memory, v_memory = self.keys_and_values(hidden_states.detach())
            memory = self.turned(k_memory, position_embeddings), v_memory
            memory = tuple(self.after(past.get(name), x, True) for name, x in zip(("keys", "values"), memory))
        out_BTHK = self.attend_segments(q_turned, own, memory, attention_mask, segment_bias, **kwargs)
        out_BTHK, states = self.with_memory(out_BTHK, q_BHTK, k_BGTK, v_BGTK, attention_mask, past)
        if cached is not None:
            kept = {name: x[:, :, -self.window :] for name, x in zip(("keys", "values"), own)}
            cached.write(hidden_states.shape[1], **kept, **states)
        return self.o_proj(out_BTHK.reshape(*hidden_states.shape[:-1], -1)), None

    def turned(self, x, position_embeddings):
        return x if position_embeddings is None else rotate(x, *position_embeddings)

    def after(self, past, x, detached: bool = False):
        """(B, G, T, K) -> (B, G, W + T, K): the tokens before first, zeros where there are none."""
        if past is None:
            return with_zeros(x, before=self.window)
        return torch.cat((past.detach() if detached else past, x), dim=2)

    def with_memory(self, out_BTHK, q_BHTK, k_BGTK, v_BGTK, places, past) -> tuple:
        """The output with what a memory beside the segment adds, and the memory's states after these tokens."""
        return out_BTHK, {}

    def attend_segments(self, q_BHTK, own, memory, places, bias, **kwargs):
        """Every query over its segment's keys and values `own` and over those of `memory`. Returns (B, T, H, K).

        own, memory: keys and values, each (B, G, W + T, K), of equal numbers; memory None: no gradient is wanted.
        """
        batch, _, length, _ = q_BHTK.shape
        size, segment, window = block_size(length, self.segment_length), self.segment_length, self.window
        aligned = places is None  # blocks are segments
        if aligned:
            places = token_places(window, q_BHTK.new_empty(1, length, 0), document_ids=self.one_document(q_BHTK))
        # (which keys, how many of the tokens before a block, whether those of the block itself, what of them is seen)
        if not self.memory_length:
            parts = [(own, 0 if aligned else segment, True, "own")]
        elif aligned:
            parts = [(memory or own, self.memory_length, False, "memory"), (own, 0, True, "own")]
        elif memory is None:
            parts = [(own, window, True, "both")]
        else:
            parts = [(memory, window, True, "memory"), (own, segment, True, "own")]
        keys, values, seen, biases = [], [], [], []
        for states, before, with_block, part in parts:
            end = None if with_block else before
            k, v = (in_blocks(x[:, :, window - before :], size, before)[..., :end, :] for x in states)
            keys.append(k)
            values.append(v)
            near = places[..., window - before :]
            seen.append(seen_in_blocks(near, size, before, segment, self.memory_length, part)[..., :end])
            if bias is not None:
                biases.append(bias[:1, ..., window - before :][..., :end])
        seen = torch.cat(seen, dim=-1).expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
        if biases:
            mask = torch.where(seen, torch.cat(biases, dim=-1), torch.finfo(q_BHTK.dtype).min)
        elif self.implementation() == "eager":
            mask = torch.where(seen, q_BHTK.new_zeros(()), torch.finfo(q_BHTK.dtype).min)
        else:
            mask = seen
        k, v = (torch.cat(x, dim=-2).flatten(0, 1) for x in (keys, values))
        out, _ = self.attend(in_blocks(q_BHTK, size).flatten(0, 1), k, v, mask, **kwargs)
        return out.unflatten(0, (batch, -1)).flatten(1, 2)[:, :length]

    @staticmethod
    def one_document(x_BHTK):
        return torch.zeros(1, x_BHTK.shape[2], dtype=torch.long, device=x_BHTK.device)


class CompressiveAttention(RecurrentAttention):
    """A segment, and a matrix of fixed size that holds all segments before it (Munkhdalai et al. 2024, section 2).

    The memory is that of linear attention, without positions, read segment by segment (eq. 3) and written with what
    the keys' old values leave to be said (`memory_update="delta"`, eq. 5) or plainly ("linear", eq. 4). A learned gate
    for each head mixes what it gives with the attention to the segment (eq. 6). Gradients flow through it.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.is_delta = config.memory_update == "delta"
        self.gate = nn.Parameter(torch.zeros(config.num_attention_heads))  # 0: half and half

    def with_memory(self, out_BTHK, q_BHTK, k_BGTK, v_BGTK, places, past) -> tuple:
        with torch.autocast(out_BTHK.device.type, enabled=False):
            q, k, v = feature_map(q_BHTK), feature_map(k_BGTK), v_BGTK.float()
            # Of what is before these tokens the last one says how they go on.
            near = None if places is None else places[..., self.window - 1 :]
            memory = past.get("closed"), past.get("open")
            sums, memory = memory_sums(q, k, v, near, self.segment_length, memory, self.is_delta)
            read_BTHK = normalised(sums).transpose(1, 2)
            gate = self.gate.float().sigmoid()[:, None]
            mixed = gate * read_BTHK + (1 - gate) * out_BTHK.float()
        return mixed.to(out_BTHK.dtype), dict(zip(("closed", "open"), memory))


def memory_sums(q_BHTK, k_BGTK, v_BGTK, places, segment_length: int, memory, is_delta: bool) -> tuple:
    """What each query reads of the segments before its own, sums (B, H, T, V), and the memory after the last token.

    Block by block, at most a segment long, so that a document's tokens in a block are of two segments at most. A
    memory is two matrices (B, G, K, V): `closed`, of all segments before that of the last token, and `open`, of all
    tokens. A query of the last token's segment reads the first; one of the next segment the second, and beside it the
    tokens of the old segment that are in its own block.

    Args:
        places: None (blocks are the segments of one document), or (B or 1, 2, 1 + T): those of the last token before
            the block, and of its own.
        memory: (closed, open), each None where there is nothing before.
    """
    batch, groups, length, width = k_BGTK.shape
    size = block_size(length, segment_length)
    q_BGRTK = q_BHTK.unflatten(1, (groups, -1))
    empty = k_BGTK.new_zeros(batch, groups, width, v_BGTK.shape[-1] + 1)
    closed, everything = (empty if x is None else x for x in memory)
    sums = []
    for begin in range(0, length, size):
        end = min(begin + size, length)
        q, k, v = q_BGRTK[:, :, :, begin:end], k_BGTK[:, :, begin:end], v_BGTK[:, :, begin:end]
        if places is None:
            block = None
        else:
            block = BlockOfSegments(places[:, :, begin : end + 1], segment_length)
            k = k * block.is_real[:, None, :, None]

        known = closed, everything
        if is_delta:
            written = None  # first the tokens of the old segment, which others in the block may read
            for _ in range(1 if block is None else 2):
                old = read_memory(k[:, :, None], known, block, k, written)
                written = with_ones(v - normalised(old)[:, :, 0])
        else:
            written = with_ones(v)
        sums.append(read_memory(q, known, block, k, written))
        if block is None:
            closed, everything = everything, everything + k.transpose(-1, -2) @ written
        else:
            closed, everything = block.write(closed, everything, k, written)
    return torch.cat(sums, dim=3).flatten(1, 2), (closed, everything)


def read_memory(x_BGRCK, memory, block, k_BGCK, written_BGCV):
    """Sums (B, G, R, C, V) of what x reads of the memory and of what the block's own tokens have `written`, if any."""
    rows = x_BGRCK.flatten(2, 3)
    closed, everything = memory
    if block is None:
        sums = rows @ everything
    else:
        same, following, earlier = block.reads(x_BGRCK.shape[2])
        sums = (rows * same) @ closed + (rows * following) @ everything
        if written_BGCV is not None:
            sums = sums + ((rows @ k_BGCK.transpose(-1, -2)) * earlier) @ written_BGCV
    return sums.unflatten(2, x_BGRCK.shape[2:4])


class BlockOfSegments:
    """How the tokens of a block belong to documents and segments, and so to a memory and to one another.

    Of places (B or 1, 2, 1 + C), the first of them of the token before the block.
    """

    def __init__(self, places, segment_length: int):
        documents, segments = places[:, 0], places[:, 1] // segment_length
        self.is_real = documents[:, 1:] >= 0
        self.goes_on = documents[:, 1:] == documents[:, :1]
        self.is_same = segments[:, 1:] == segments[:, :1]
        self.documents, self.segments = documents, segments
        own = documents[:, 1:]
        self.earlier = (own[:, :, None] == own[:, None, :]) & (segments[:, None, 1:] < segments[:, 1:, None])

    def reads(self, groups: int) -> tuple:
        """(B, 1, R * C, 1) twice: reads of `closed`, of `open`; (B, 1, R * C, C): of the block's own tokens."""
        same, following = self.goes_on & self.is_same, self.goes_on & ~self.is_same
        rows = [x[:, None, :, None].repeat(1, 1, groups, 1) for x in (same, following)]
        return *rows, self.earlier[:, None].repeat(1, 1, groups, 1)

    def write(self, closed, everything, k_BGCK, written_BGCV) -> tuple:
        """The memory after the block. What another document left is dropped."""
        documents, segments = self.documents, self.segments
        lives, is_same = self.goes_on[:, -1:, None, None], self.is_same[:, -1:, None, None]
        of_last = (documents[:, 1:] == documents[:, -1:])[:, None, :, None]
        before_last = of_last & (segments[:, 1:] < segments[:, -1:])[:, None, :, None]
        kept = closed * (lives & is_same) + everything * (lives & ~is_same)
        closed = kept + (k_BGCK * before_last).transpose(-1, -2) @ written_BGCV
        return closed, everything * lives + (k_BGCK * of_last).transpose(-1, -2) @ written_BGCV
