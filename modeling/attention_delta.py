"""Attention whose memory is one matrix for each head, corrected by the delta rule and faded by a gate for each token.

Shapes as in attention.py, and G heads of queries and keys of K channels, V channels of a value, n chunks of C tokens.
"""

import math
from functools import partial

import torch
from torch import nn
from torch.nn.functional import pad, silu
from transformers import initialization as init

from .attention import Attention
from .attention_segments import token_positions, with_zeros
from .attention_states import state_layer
from .block import RMSNorm
from .traits import RULES

CHUNK, CHUNK_OF_CHANNELS = 64, 16  # tokens whose corrections are solved for at once; earlier ones are one state
LEAST_NORM = 1e-6  # added to the squared length of a query or key that is normalised, as in transformers' classes
DECAYS, STEPS = (1e-4, 16.0), (1e-3, 0.1)  # initial ranges of exp(A_log) and softplus(dt_bias), as in Mamba-2
# {kind of attention: a function in place of `delta_rule`}, of the package, if it is installed.
KERNELS = {}


class GatedDeltaNet(Attention):
    """S_t = a_t S_{t-1} (1 - b_t k_t k_t^T) + b_t v_t k_t^T, o_t = S_t q_t: Yang et al. 2025 (Gated DeltaNet), eq. 10.

    Queries, keys and values pass a short convolution over past tokens, then silu; queries and keys get length 1.
    a_t = exp(-exp(A_log) softplus(a_proj(x_t) + dt_bias)) forgets, b_t = sigmoid(b_proj(x_t)) writes (twice that with
    `linear_allow_neg_eigval`, Grazzi et al. 2025). The output is normed in each head and gated by silu(g_proj(x)). No
    token of another document, and no padding, reaches a convolution or a state.
    """

    mixed = ("q_proj", "k_proj", "v_proj")  # what the convolution reads, in the order of its weights
    corrects = True  # whether the state's value for a key is subtracted before the new value is written
    token_positions = staticmethod(token_positions)
    instead_of_weights = "the delta rule has no weights of single tokens: all before one are a matrix of a fixed size"

    def __init__(self, config, layer_idx: int):
        nn.Module.__init__(self)
        self.config, self.layer_idx = config, layer_idx
        KERNELS.update(RULES.get("delta_kernels", dict)())
        self.key_heads, self.value_heads = config.linear_num_key_heads, config.linear_num_value_heads
        self.key_size, self.value_size = config.linear_key_head_dim, config.linear_value_head_dim
        self.write_strength = 2.0 if config.linear_allow_neg_eigval else 1.0
        width, keys = config.hidden_size, self.key_heads * self.key_size
        values = self.value_heads * self.value_size
        self.q_proj, self.k_proj = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.v_proj = nn.Linear(width, values, bias=False)
        self.build_gates(width, values)
        self.conv_weight = nn.Parameter(torch.empty(2 * keys + values, config.linear_conv_kernel_dim))
        self.conv_bias = None
        self.norm = RMSNorm(self.value_size, eps=config.linear_norm_eps)
        self.o_proj = nn.Linear(values, width, bias=False)
        self.o_proj.writes_residual = True

    def build_gates(self, width: int, values: int) -> None:
        """Build the modules that the methods below use. values: channels of all heads' values."""
        self.g_proj = nn.Linear(width, values, bias=False)
        self.a_proj, self.b_proj = (nn.Linear(width, self.value_heads, bias=False) for _ in range(2))
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(self.value_heads)) for _ in range(2))

    def fades(self, hidden_states, wide: torch.dtype):
        """ln a_t, (B, T, D) -> (B, T, H, 1): one number for all channels of a head's keys."""
        steps = self.a_proj(hidden_states.to(self.a_proj.weight.dtype)).to(wide) + self.dt_bias.to(wide)
        return (-self.A_log.to(wide).exp() * softplus(steps)).unsqueeze(-1)

    def rates(self, hidden_states, wide: torch.dtype) -> tuple:
        """ln a_t (B, T, H, 1 or K) and b_t (B, T, H)."""
        writes = self.b_proj(hidden_states.to(self.b_proj.weight.dtype)).to(wide).sigmoid()
        return self.fades(hidden_states, wide), writes * self.write_strength

    def directions(self, q, k) -> tuple:
        """Queries and keys in the form in which they read and write the state."""
        return of_length_one(q) * self.key_size**-0.5, of_length_one(k)

    def output_gate(self, hidden_states):
        """(B, T, D) -> (B, T, H * V)."""
        return silu(self.g_proj(hidden_states))

    def finish(self, out_BTHV, v_BTHV, hidden_states):
        """The values that were read, normed and gated: (B, T, H * V), in the dtype of the hidden states (B, T, D)."""
        return self.norm(out_BTHV).to(hidden_states.dtype).flatten(-2) * self.output_gate(hidden_states)

    def kernel(self, dtype: torch.dtype):
        """`delta_rule`, or the kernel registered in its place (attention_delta_fla.py), which computes in `dtype`."""
        registered = KERNELS.get(self.config.attention_kinds[self.layer_idx])
        if registered is None or self.implementation() == "eager":
            return partial(delta_rule, corrects=self.corrects)
        return partial(registered, dtype=dtype)

    def init_own_weights(self, std: float, residual_std: float) -> None:
        bound = self.conv_weight.shape[1] ** -0.5
        init.uniform_(self.conv_weight, -bound, bound)
        decays = torch.empty_like(self.A_log, dtype=torch.float).uniform_(*DECAYS)
        low, high = (torch.tensor(step).log().item() for step in STEPS)
        steps = torch.empty_like(self.dt_bias, dtype=torch.float).uniform_(low, high).exp()
        init.copy_(self.A_log, decays.log())
        init.copy_(self.dt_bias, steps + torch.log(-torch.expm1(-steps)))  # softplus of it is the step

    def forward(
        self, hidden_states, attention_mask=None, position_embeddings=None, past_key_values=None, **kwargs
    ) -> tuple:
        """As `Attention.forward`, without weights; attention_mask: None, or the result of `token_positions`."""
        cached = state_layer(past_key_values, self.layer_idx)
        states = {} if cached is None else cached.states
        documents = None if attention_mask is None else attention_mask[:, 0]
        x_BTC = torch.cat([getattr(self, name)(hidden_states) for name in self.mixed], dim=-1)
        if documents is not None:
            x_BTC = x_BTC * (documents >= 0).unsqueeze(-1)
        mixed_BTC, tail = short_convolution(x_BTC, self.conv_weight, documents, states.get("convolution"))
        mixed_BTC = silu(mixed_BTC if self.conv_bias is None else mixed_BTC + self.conv_bias)
        sizes = {"q_proj": (self.key_heads, self.key_size), "k_proj": (self.key_heads, self.key_size)}
        sizes["v_proj"] = (self.value_heads, self.value_size)
        parts = dict(zip(self.mixed, mixed_BTC.split([math.prod(sizes[name]) for name in self.mixed], dim=-1)))
        wide = torch.promote_types(hidden_states.dtype, torch.float32)
        with torch.autocast(hidden_states.device.type, enabled=False):
            q, k, v = (parts[name].unflatten(-1, size).transpose(1, 2).to(wide) for name, size in sizes.items())
            fades_BHTK, writes_BHT = (x.transpose(1, 2) for x in self.rates(hidden_states, wide))
            if documents is not None:
                writes_BHT = writes_BHT * (documents >= 0)[:, None]
            repeats = self.value_heads // self.key_heads
            q, k = (x if repeats == 1 else x.repeat_interleave(repeats, dim=1) for x in self.directions(q, k))
            run = self.kernel(x_BTC.dtype)
            out_BHTV, state = run(q, k, v, fades_BHTK, writes_BHT, documents, states.get("matrix"))
        if cached is not None:
            cached.write(hidden_states.shape[1], matrix=state, convolution=tail)
        return self.o_proj(self.finish(out_BHTV.transpose(1, 2), v.transpose(1, 2), hidden_states)), None


def softplus(x: torch.Tensor) -> torch.Tensor:
    """ln(1 + e^x). The gradient of torch's has strides that torch.compile does not expect (torch 2.15, aot_eager)."""
    return torch.logaddexp(x, torch.zeros_like(x))


def of_length_one(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().sum(-1, keepdim=True) + LEAST_NORM).rsqrt()


def short_convolution(x_BTC, weight_CW, documents_BT=None, past_BWC=None) -> tuple:
    """For each channel, a weighted sum over a token and the W - 1 tokens before it, of its own document only.

    past: the W - 1 tokens before the row, which are of document 0. Returns (B, T, C) and the last W - 1 tokens.
    """
    length, reach = x_BTC.shape[1], weight_CW.shape[1] - 1
    if past_BWC is None:
        past_BWC = x_BTC.new_zeros(x_BTC.shape[0], reach, x_BTC.shape[2])
    whole = torch.cat((past_BWC.to(x_BTC.dtype), x_BTC), dim=1)
    documents = None if documents_BT is None else pad(documents_BT, (reach, 0))
    mixed = whole[:, reach:] * weight_CW[:, -1]
    for back in range(1, reach + 1):
        earlier = whole[:, reach - back : reach - back + length]
        if documents is not None:
            earlier = earlier * (documents[:, reach - back : reach - back + length] == documents_BT).unsqueeze(-1)
        mixed = mixed + earlier * weight_CW[:, -1 - back]
    tail = whole[:, length:]
    if documents is not None:  # later tokens must not read another document's tokens or padding
        tail = tail * (documents[:, length:] == documents_BT[:, -1:]).unsqueeze(-1)
    return mixed, tail


def faded_products(rows: list, k_BHnCK, faded_BHnCK, seen) -> list:
    """Products of each of `rows` (B, H, n, C, K) with every key, times the decay between both -> (B, H, n, C, C).

    faded: cumulated log decays, per channel or (K = 1) for all. seen: (C, C) or (B, 1, n, C, C); 0 where false.
    """
    if faded_BHnCK.shape[-1] == 1:
        fading = (faded_BHnCK - faded_BHnCK.transpose(-1, -2)).masked_fill(~seen, -torch.inf).exp()
        return [(row @ k_BHnCK.transpose(-1, -2)) * fading for row in rows]
    # Two factors, e^(sum of the query) and e^(-sum of the key), would take less memory, but the second overflows.
    between = faded_BHnCK[..., :, None, :] - faded_BHnCK[..., None, :, :]
    keys = between.masked_fill(~seen[..., None], -torch.inf).exp() * k_BHnCK[..., None, :, :]
    return [(keys @ row.unsqueeze(-1)).squeeze(-1) for row in rows]


def delta_rule(
    q_BHTK, k_BHTK, v_BHTV, fades_BHTK, writes_BHT, documents_BT=None, state_BHKV=None, corrects: bool = True
) -> tuple:
    """o_t of GatedDeltaNet -> (B, H, T, V), and the state after the last token.

    Within a chunk the corrections are the solution of a triangular system, between chunks the state is one matrix
    (Yang et al. 2024, section 3.2, with the gates of Yang et al. 2025, section 3.3): O(T C) time and memory. For a
    single token it is the recurrence.

    Args:
        fades_BHTK: logarithms of a_t, for each channel of a key or (K = 1) for all. writes_BHT: b_t.
        documents_BT: None (one document), or numbers that tell documents apart; -1: padding, which writes nothing.
        state_BHKV: the state after earlier tokens, which are of document 0.
        corrects: whether the state's value for a key is subtracted before the new value is written; if not, this is
            linear attention with decay (Dao and Gu 2024, section 6).
    """
    batch, heads, length, keys = k_BHTK.shape
    size = min(CHUNK if fades_BHTK.shape[-1] == 1 else CHUNK_OF_CHANNELS, length)
    tail = -length % size
    if state_BHKV is None:
        state_BHKV = k_BHTK.new_zeros(batch, heads, keys, v_BHTV.shape[-1])
    q, k, v, fades, writes = (
        with_zeros(x, after=tail).unflatten(2, (-1, size)) for x in (q_BHTK, k_BHTK, v_BHTV, fades_BHTK, writes_BHT)
    )
    seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    if documents_BT is not None:
        documents = torch.cat((documents_BT, documents_BT[:, -1:].expand(-1, tail)), dim=1).unflatten(1, (-1, size))
        seen = (seen & (documents[..., :, None] == documents[..., None, :]))[:, None]
    # Summed within documents by a product, not as differences of running sums, whose gradients would not quite cancel.
    faded = fades.cumsum(-2) if documents_BT is None else seen.to(fades.dtype) @ fades  # (B, H, n, C, K)
    k_written, left, carried = k * writes[..., None], faded[..., -1:, :] - faded, faded[..., -1, :, None].exp()
    from_state, q_state = k_written * faded.exp(), q * faded.exp()
    if documents_BT is not None:
        last = documents[..., -1]
        owners = pad(last[:, :-1], (1, 0))  # the document of the state before each chunk
        reads = (documents == owners[..., None])[:, None, :, :, None]
        # Masked before exp, which overflows where a document decays more than the last one: 0 x infinity is nan.
        left = left.masked_fill((documents != last[..., None])[:, None, :, :, None], -torch.inf)
        from_state, q_state = from_state * reads, q_state * reads
        carried = carried * (owners == last)[:, None, :, None, None]
    k_left, written, out = k * left.exp(), v * writes[..., None], []
    scores, *system = faded_products([q, k_written] if corrects else [q], k, faded, seen)
    if corrects:
        columns = torch.cat((written, from_state), dim=-1)
        columns = torch.linalg.solve_triangular(system[0], columns, upper=False, unitriangular=True)
        written, from_state = columns.split((v.shape[-1], keys), dim=-1)
    # Not x[:, :, i]: the gradient of each slice would be as large as x, and the time quadratic in the length.
    for written_BHCV, from_BHCK, q_BHCK, scores_BHCC, carried_BHK1, left_BHCK in zip(
        *(x.unbind(2) for x in (written, from_state, q_state, scores, carried, k_left))
    ):
        values = written_BHCV - from_BHCK @ state_BHKV if corrects else written_BHCV
        out.append(q_BHCK @ state_BHKV + scores_BHCC @ values)
        state_BHKV = state_BHKV * carried_BHK1 + left_BHCK.transpose(-1, -2) @ values
    return torch.cat(out, dim=2)[:, :, :length], state_BHKV
