"""Attention in time linear in the length: a kernel of features instead of a softmax (Katharopoulos et al. 2020).

Shapes as in attention.py, and n chunks of C tokens, V channels of what is summed, R = H / G query heads per key head.
"""

import torch
from torch.nn.functional import pad

from .attention import Attention
from .attention_segments import token_positions, with_zeros
from .attention_states import state_layer
from .positions import rotate

CHUNK = 64  # tokens whose scores are computed as a square matrix; earlier ones are one state
# Added to the features elu(x) + 1, which vanish for x << 0: every sum of a token's scores stays above LEAST.
FLOOR = 1e-6
LEAST = 1e-12


def feature_map(x: torch.Tensor) -> torch.Tensor:
    """elu(x) + 1 in fp32 (Katharopoulos et al. 2020, eq. 7): positive, and so are scores.

    Computed as relu(x) + e^min(x, 0): e^x - 1 + 1 would round small features away, and the gradient of torch's elu has
    strides that torch.compile does not expect (torch 2.15, aot_eager).
    """
    x = x.float()
    return x.relu() + (x.clamp(max=0).exp() + FLOOR)


def normalised(sums: torch.Tensor) -> torch.Tensor:
    """Sums of scores x values, last of scores, (..., V + 1) -> their quotients (..., V); 0 where nothing is seen."""
    return sums[..., :-1] / sums[..., -1:].clamp(min=LEAST)


def with_ones(v: torch.Tensor) -> torch.Tensor:
    """The values with a channel of ones, whose weighted sum is the sum of the scores."""
    return torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)


class LinearAttention(Attention):
    """o_i = sum_j<=i phi(q_i) . phi(k_j) v_j / sum_j<=i phi(q_i) . phi(k_j): eq. 8 and 9 of Katharopoulos et al. 2020.

    Rotary positions turn the features in the numerator only (Su et al. 2021, eq. 19), so the denominator stays
    positive. All of it runs in fp32: with fewer bits, sums over a long row would lose the last tokens.
    """

    token_positions = staticmethod(token_positions)
    instead_of_weights = "linear attention has no weights of single tokens: all before one are a sum of a fixed size"

    def forward(
        self, hidden_states, attention_mask=None, position_embeddings=None, past_key_values=None, **kwargs
    ) -> tuple:
        """As `Attention.forward`, without weights; attention_mask: None, or the result of `token_positions`."""
        q_BHTK, (k_BGTK, v_BGTK) = self.queries(hidden_states), self.keys_and_values(hidden_states)
        cached = state_layer(past_key_values, self.layer_idx)
        state = None if cached is None else cached.states.get("sums")
        documents = None if attention_mask is None else attention_mask[:, 0]
        with torch.autocast(hidden_states.device.type, enabled=False):
            q, k, v = feature_map(q_BHTK), feature_map(k_BGTK), v_BGTK.float()
            if position_embeddings is None:
                sums, state = kernel_sums(q, k, with_ones(v), documents, state)
            else:
                turns = [x.float() for x in position_embeddings]
                parts = (None, None) if state is None else (state[..., :-1], state[..., -1:])
                above, first = kernel_sums(rotate(q, *turns), rotate(k, *turns), v, documents, parts[0])
                below, second = kernel_sums(q, k, torch.ones_like(v[..., :1]), documents, parts[1])
                sums, state = torch.cat((above, below), dim=-1), torch.cat((first, second), dim=-1)
            out_BHTK = normalised(sums).to(v_BGTK.dtype)
        if cached is not None:
            cached.write(hidden_states.shape[1], sums=state)
        return self.o_proj(out_BHTK.transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)), None


def kernel_sums(q_BHTK, k_BGTK, v_BGTV, documents_BT=None, state_BGKV=None) -> tuple:
    """sum of (q_i . k_j) v_j over j <= i of i's document -> (B, H, T, V), and the state after the last token.

    Within a chunk it is computed by C x C scores, for tokens before by the state sum k_j v_j^T: O(T C) time and memory.
    For one token at a time this is the recurrence of Katharopoulos et al. 2020, eq. 18 to 20.

    Args:
        documents_BT: None (one document), or numbers that tell documents apart; -1: padding, which nothing sees.
        state_BGKV: the state after earlier tokens, which are of document 0.
    """
    batch, groups, length, _ = k_BGTK.shape
    size = min(CHUNK, length)
    tail = -length % size
    if documents_BT is not None:
        k_BGTK = k_BGTK * (documents_BT >= 0)[:, None, :, None]
    q, k, v = (with_zeros(x, after=tail).unflatten(2, (-1, size)) for x in (q_BHTK, k_BGTK, v_BGTV))
    q = q.unflatten(1, (groups, -1)).transpose(2, 3)  # (B, G, n, R, C, K)
    seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    if state_BGKV is None:
        state_BGKV = k.new_zeros(batch, groups, k.shape[-1], v.shape[-1])
    if documents_BT is None:
        left = k.transpose(-1, -2) @ v
        states = torch.cat((state_BGKV[:, :, None], left), dim=2).cumsum(2)
        readers = q
    else:
        last = documents_BT[:, -1:].expand(-1, tail)
        documents = torch.cat((documents_BT, last), dim=1).unflatten(1, (-1, size))  # (B, n, C)
        seen = seen & (documents[..., :, None] == documents[..., None, :])
        ends = documents[..., -1:]
        left = (k * (documents == ends)[:, None, ..., None]).transpose(-1, -2) @ v
        left = torch.cat((state_BGKV[:, :, None], left), dim=2)
        # States are summed within a document only, by products with 0 and 1: differences of running sums would keep
        # rounding errors of other documents.
        owners = pad(ends[..., 0], (1, 0))
        goes_on = (owners[:, :, None] == owners[:, None, :]).tril()
        states = (goes_on[:, None].to(left.dtype) @ left.flatten(-2)).view_as(left)
        readers = q * (documents == owners[:, :-1, None])[:, None, :, None, :, None]
        seen = seen[:, None, :, None]
    scores = (q.flatten(3, 4) @ k.transpose(-1, -2)).unflatten(3, (-1, size)) * seen
    sums = scores.flatten(3, 4) @ v + readers.flatten(3, 4) @ states[:, :, :-1]
    sums = sums.unflatten(3, (-1, size)).transpose(2, 3)  # (B, G, R, n, C, V)
    return sums.flatten(3, 4).flatten(1, 2)[:, :, :length], states[:, :, -1]
