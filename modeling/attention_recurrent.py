"""Memories of earlier segments: their last tokens (Transformer-XL) or one matrix of all (Infini-attention).

Shapes as in attention.py and attention_segments.py, and V = K + 1 channels of a memory, the last for sums of scores.
"""

import torch
from torch import nn
from transformers import initialization as init

from .attention import Attention
from .attention_linear import feature_map, normalised, with_ones
from .attention_segments import block_distances, block_size, in_blocks, seen_in_blocks, token_positions, with_zeros
from .attention_states import state_layer
from .positions import rotate
from .traits import ATTENTION_KINDS


class RecurrentAttention(Attention):
    """Sees a segment and `memory_length` tokens before it, through which no gradient flows (Dai et al. 2019, eq. 1).

    The paper runs segment after segment and keeps hidden states. The output of a layer for a segment depends on states
    of the layer below only, so here each layer computes all segments of a row at once. The numbers are the same, and so
    are gradients, as the memory's hidden states are detached before their keys and values are made.
    """

    token_positions = staticmethod(token_positions)
    block_distances = staticmethod(block_distances)
    keeps_row_weights = False  # whether forward returns the weights of whole rows (eager only)

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.segment_length = config.segment_length
        self.window = ATTENTION_KINDS[config.attention_kinds[layer_idx]].lookback(config)
        self.memory_length = self.window - self.segment_length

    def implementation(self) -> str:
        """Never flash or flex kernels, which do not take masks of segments."""
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
        """As `Attention.forward`; weights are computed in segments, and returned only with `keeps_row_weights`.

        attention_mask: None (one document from its start on), or the result of `token_positions`. segment_bias: None or
        (B, H, C, W + C), added to the scores of each block.
        """
        cached = state_layer(past_key_values, self.layer_idx)
        past = {} if cached is None else cached.states
        q_BHTK, (k_BGTK, v_BGTK) = self.queries(hidden_states), self.keys_and_values(hidden_states)
        q_rotated, k_rotated = self.rotated(q_BHTK, position_embeddings), self.rotated(k_BGTK, position_embeddings)
        keys_values = self.after(past.get("keys"), k_rotated), self.after(past.get("values"), v_BGTK)
        memory = None
        if self.memory_length and torch.is_grad_enabled():
            k_memory, v_memory = self.keys_and_values(hidden_states.detach())
            memory = self.rotated(k_memory, position_embeddings), v_memory
            memory = tuple(self.after(past.get(name), x, True) for name, x in zip(("keys", "values"), memory))
        out_BTHK, weights = self.attend_segments(q_rotated, keys_values, memory, attention_mask, segment_bias, **kwargs)
        out_BTHK, states = self.with_memory(out_BTHK, q_BHTK, k_BGTK, v_BGTK, attention_mask, past)
        if cached is not None:
            last = {name: x[:, :, -self.window :] for name, x in zip(("keys", "values"), keys_values)}
            cached.write(hidden_states.shape[1], **last, **states)
        return self.o_proj(out_BTHK.reshape(*hidden_states.shape[:-1], -1)), weights

    def rotated(self, x, position_embeddings):
        return x if position_embeddings is None else rotate(x, *position_embeddings)

    def after(self, past, x, detached: bool = False):
        """(B, G, T, K) -> (B, G, W + T, K), with the tokens before in front, or zeros if there are none."""
        if past is None:
            return with_zeros(x, before=self.window)
        return torch.cat((past.detach() if detached else past, x), dim=2)

    def with_memory(self, out_BTHK, q_BHTK, k_BGTK, v_BGTK, positions, past) -> tuple:
        """(The output with a subclass's memory mixed in, the states of that memory after these tokens)."""
        return out_BTHK, {}

    def attend_segments(self, q_BHTK, own, memory, positions, bias, **kwargs):
        """Attend from every query to its segment's keys and values `own`, and to earlier tokens' in `memory`.

        Returns (B, T, H, K), and with `keeps_row_weights` the weights (B, H, T, T) of the row's own tokens, else None.

        own, memory: keys and values, each (B, G, W + T, K), equal but for gradients; memory None: `own` is both.
        """
        batch, _, length, _ = q_BHTK.shape
        size, segment, window = block_size(length, self.segment_length), self.segment_length, self.window
        aligned = positions is None  # blocks are segments
        if aligned:
            positions = token_positions(window, q_BHTK.new_empty(1, length, 0), document_ids=self.one_document(q_BHTK))
        # (keys and values, number of tokens before a block, whether the block's own are included, visible part)
        if not self.memory_length:
            parts = [(own, 0 if aligned else segment, True, "own")]
        elif aligned:
            parts = [(memory or own, self.memory_length, False, "memory"), (own, 0, True, "own")]
        elif memory is None:
            parts = [(own, window, True, "both")]
        else:
            parts = [(memory, window, True, "memory"), (own, segment, True, "own")]
        keys, values, seen, biases, columns = [], [], [], [], []
        for states, before, with_block, part in parts:
            end = None if with_block else before
            k, v = (in_blocks(x[:, :, window - before :], size, before)[..., :end, :] for x in states)
            keys.append(k)
            values.append(v)
            columns.append(torch.arange(k.shape[-2], device=k.device) - before)
            near = positions[..., window - before :]
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
        out, weights = self.attend(in_blocks(q_BHTK, size).flatten(0, 1), k, v, mask, **kwargs)
        out_BTHK = out.unflatten(0, (batch, -1)).flatten(1, 2)[:, :length]
        if not self.keeps_row_weights or weights is None:
            return out_BTHK, None
        return out_BTHK, rows_of_blocks(weights.unflatten(0, (batch, -1)), torch.cat(columns), length)

    @staticmethod
    def one_document(x_BHTK):
        return torch.zeros(1, x_BHTK.shape[2], dtype=torch.long, device=x_BHTK.device)


def rows_of_blocks(weights, columns, length: int):
    """Turn weights of blocks of queries (B, n, H, C, J) into those of rows, (B, H, T, T).

    columns: (J,), positions of keys relative to their block's first token; a key may occur twice, once unseen. Keys
    before the row, which a cache holds, are left out.
    """
    batch, blocks, heads, size, _ = weights.shape
    before = max(0, -int(columns.min()))
    index = columns + before + size * torch.arange(blocks, device=columns.device)[:, None]
    rows = weights.new_zeros(batch, blocks, heads, size, before + blocks * size)
    rows.scatter_add_(-1, index[None, :, None, None].expand_as(weights), weights)
    return rows.transpose(1, 2).flatten(2, 3)[:, :, :length, before : before + length]


class CompressiveAttention(RecurrentAttention):
    """Sees a segment, and a matrix of fixed size that holds all before it (Munkhdalai et al. 2024, section 2).

    The memory is that of linear attention, without positions, read segment by segment (eq. 3) and written with the
    difference to the keys' old values (eq. 5). A learned gate for each head mixes its output with the attention to the
    segment (eq. 6). Gradients flow through the memory.
    """

    instead_of_weights = "shares within the segment; what came before is one matrix, which a gate of each head mixes in"

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.gate = nn.Parameter(torch.zeros(config.num_attention_heads))  # 0: half and half

    def init_own_weights(self, std: float, residual_std: float) -> None:
        init.zeros_(self.gate)

    def with_memory(self, out_BTHK, q_BHTK, k_BGTK, v_BGTK, positions, past) -> tuple:
        with torch.autocast(out_BTHK.device.type, enabled=False):
            q, k, v = feature_map(q_BHTK), feature_map(k_BGTK), v_BGTK.float()
            # The last cached token decides whether the new ones continue its document and segment.
            near = None if positions is None else positions[..., self.window - 1 :]
            memory = past.get("previous_segments"), past.get("all_segments")
            sums, memory = memory_sums(q, k, v, near, self.segment_length, memory)
            read_BTHK = normalised(sums).transpose(1, 2)
            gate = self.gate.float().sigmoid()[:, None]
            mixed = gate * read_BTHK + (1 - gate) * out_BTHK.float()
        return mixed.to(out_BTHK.dtype), dict(zip(("previous_segments", "all_segments"), memory))


def memory_sums(q_BHTK, k_BGTK, v_BGTK, positions, segment_length: int, memory) -> tuple:
    """Sums (B, H, T, V) that each query reads from the segments before its own, and the memory after the last token.

    Computed in blocks of at most a segment, so that a document's tokens in a block are of two segments at most. A
    memory is two matrices (B, G, K, V): `previous_segments`, of all segments before that of the last token, and
    `all_segments`, of all tokens. A query in the last token's segment reads the first; one in the next segment reads
    the second, and also the tokens of the old segment that are in its own block.

    Args:
        positions: None (blocks are the segments of one document), or (B or 1, 2, 1 + T): those of the last token before
            the row, and of its tokens.
        memory: (previous_segments, all_segments), each None where there is nothing before.
    """
    batch, groups, length, width = k_BGTK.shape
    size = block_size(length, segment_length)
    q_BGRTK = q_BHTK.unflatten(1, (groups, -1))
    empty = k_BGTK.new_zeros(batch, groups, width, v_BGTK.shape[-1] + 1)
    previous_segments, all_segments = (empty if x is None else x for x in memory)
    sums = []
    for begin in range(0, length, size):
        end = min(begin + size, length)
        q, k, v = q_BGRTK[:, :, :, begin:end], k_BGTK[:, :, begin:end], v_BGTK[:, :, begin:end]
        if positions is None:
            block = None
        else:
            block = BlockOfSegments(positions[:, :, begin : end + 1], segment_length)
            k = k * block.is_real[:, None, :, None]

        matrices = previous_segments, all_segments
        written = None  # round 1 is right for tokens of the old segment; round 2 reads these for the others
        for _ in range(1 if block is None else 2):
            old = read_memory(k[:, :, None], matrices, block, k, written)
            written = with_ones(v - normalised(old)[:, :, 0])
        sums.append(read_memory(q, matrices, block, k, written))
        if block is None:
            previous_segments, all_segments = all_segments, all_segments + k.transpose(-1, -2) @ written
        else:
            previous_segments, all_segments = block.write(previous_segments, all_segments, k, written)
    return torch.cat(sums, dim=3).flatten(1, 2), (previous_segments, all_segments)


def read_memory(x_BGRCK, memory, block, k_BGCK, written_BGCV):
    """Sums (B, G, R, C, V) that x reads from the memory and from the values `written` in the block, if any."""
    rows = x_BGRCK.flatten(2, 3)
    previous_segments, all_segments = memory
    if block is None:
        sums = rows @ all_segments
    else:
        same, following, earlier = block.reads(x_BGRCK.shape[2])
        sums = (rows * same) @ previous_segments + (rows * following) @ all_segments
        if written_BGCV is not None:
            sums = sums + ((rows @ k_BGCK.transpose(-1, -2)) * earlier) @ written_BGCV
    return sums.unflatten(2, x_BGRCK.shape[2:4])


class BlockOfSegments:
    """Documents and segments of a block's tokens: which of them read the memory, and which read each other.

    positions: (B or 1, 2, 1 + C), the first of them that of the token before the block.
    """

    def __init__(self, positions, segment_length: int):
        documents, segments = positions[:, 0], positions[:, 1] // segment_length
        self.is_real = documents[:, 1:] >= 0
        self.continues = documents[:, 1:] == documents[:, :1]
        self.is_same = segments[:, 1:] == segments[:, :1]
        self.documents, self.segments = documents, segments
        ids = documents[:, 1:]
        self.earlier = (ids[:, :, None] == ids[:, None, :]) & (segments[:, None, 1:] < segments[:, 1:, None])

    def reads(self, groups: int) -> tuple:
        """Masks of reads from `previous_segments`, `all_segments` (B, 1, R * C, 1) and block keys (B, 1, R * C, C)."""
        same, following = self.continues & self.is_same, self.continues & ~self.is_same
        rows = [x[:, None, :, None].repeat(1, 1, groups, 1) for x in (same, following)]
        return *rows, self.earlier[:, None].repeat(1, 1, groups, 1)

    def write(self, previous_segments, all_segments, k_BGCK, written_BGCV) -> tuple:
        """The memory after the block, which holds its last token's document only."""
        documents, segments = self.documents, self.segments
        continues, is_same = self.continues[:, -1:, None, None], self.is_same[:, -1:, None, None]
        of_last = (documents[:, 1:] == documents[:, -1:])[:, None, :, None]
        before_last = of_last & (segments[:, 1:] < segments[:, -1:])[:, None, :, None]
        memory = previous_segments * (continues & is_same) + all_segments * (continues & ~is_same)
        previous_segments = memory + (k_BGCK * before_last).transpose(-1, -2) @ written_BGCV
        return previous_segments, all_segments * continues + (k_BGCK * of_last).transpose(-1, -2) @ written_BGCV
