"""Attention whose memory is one matrix for each head, corrected by the delta rule and faded by a gate of each token.

Shapes as in attention.py, and G heads of queries and keys of K channels, V channels of a value, n chunks of C tokens.
"""

import torch
from torch import nn
from torch.nn.functional import pad, silu
from transformers import initialization as init

from .attention import Attention
from .attention_segments import token_positions, with_zeros
from .attention_states import state_layer
from .block import RMSNorm
from .traits import implements

CHUNK = 64  # tokens whose corrections are solved for at once; all before them are one state
LEAST_NORM = 1e-6  # added to the squared length of a query or key before it is made 1, as transformers' classes do
DECAYS, STEPS = (1e-4, 16.0), (1e-3, 0.1)  # ranges of new gates: exp(A_log) and softplus(dt_bias), as in Mamba-2


@implements("attention", "gated_delta_attention")
class GatedDeltaNet(Attention):
    """S_t = a_t S_{t-1} (1 - b_t k_t k_t^T) + b_t v_t k_t^T, o_t = S_t q_t: Yang et al. 2025 (Gated DeltaNet), eq. 10.

    Queries, keys and values pass a short convolution over the tokens before (and silu); queries and keys have length 1.
    a_t = exp(-exp(A_log) softplus(a_proj(x_t) + dt_bias)) forgets, b_t = sigmoid(b_proj(x_t)) writes (twice that with
    `linear_allow_neg_eigval`, Grazzi et al. 2025). The output is normed in each head and gated by silu(g_proj(x)). No
    token of another document, and no padding, reaches a convolution or a state.
    """

    token_positions = staticmethod(token_positions)
    instead_of_weights = "the delta rule has no weights of single tokens: all before one are a matrix of a fixed size"

    def __init__(self, config, layer_idx: int):
        nn.Module.__init__(self)
        self.config, self.layer_idx = config, layer_idx
        self.key_heads, self.value_heads = config.linear_num_key_heads, config.linear_num_value_heads
        self.key_size, self.value_size = config.linear_key_head_dim, config.linear_value_head_dim
        self.write_strength = 2.0 if config.linear_allow_neg_eigval else 1.0
        width, keys = config.hidden_size, self.key_heads * self.key_size
        values = self.value_heads * self.value_size
        self.q_proj, self.k_proj = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.v_proj, self.g_proj = (nn.Linear(width, values, bias=False) for _ in range(2))
        self.a_proj, self.b_proj = (nn.Linear(width, self.value_heads, bias=False) for _ in range(2))
        self.conv_weight = nn.Parameter(torch.empty(2 * keys + values, config.linear_conv_kernel_dim))
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(self.value_heads)) for _ in range(2))
        self.norm = RMSNorm(self.value_size, eps=config.norm_eps)
        self.o_proj = nn.Linear(values, width, bias=False)
        self.o_proj.writes_residual = True

    def init_own_weights(self, std: float, residual_std: float) -> None:
        bound = self.conv_weight.shape[1] ** -0.5
        init.uniform_(self.conv_weight, -bound, bound)
        decays = torch.empty_like(self.A_log, dtype=torch.float).uniform_(*DECAYS)
        low, high = (torch.tensor(step).log().item() for step in STEPS)
        steps = torch.empty_like(decays).uniform_(low, high).exp()
        init.copy_(self.A_log, decays.log())
        init.copy_(self.dt_bias, steps + torch.log(-torch.expm1(-steps)))  # softplus of it is the step

    def forward(
        self, hidden_states, attention_mask=None, position_embeddings=None, past_key_values=None, **kwargs
    ) -> tuple:
        """As `Attention.forward`; there are no weights to return.

        Args:
            attention_mask: None, or the result of `token_positions`.
        """
        cached = state_layer(past_key_values, self.layer_idx)
        states = {} if cached is None else cached.states
        documents = None if attention_mask is None else attention_mask[:, 0]
        x_BTC = torch.cat([project(hidden_states) for project in (self.q_proj, self.k_proj, self.v_proj)], dim=-1)
        if documents is not None:
            x_BTC = x_BTC * (documents >= 0).unsqueeze(-1)
        mixed_BTC, tail = short_convolution(x_BTC, self.conv_weight, documents, states.get("convolution"))
        sizes = [self.key_heads * self.key_size] * 2 + [self.value_heads * self.value_size]
        q, k, v = silu(mixed_BTC).split(sizes, dim=-1)
        wide = torch.promote_types(hidden_states.dtype, torch.float32)
        with torch.autocast(hidden_states.device.type, enabled=False):
            q, k = (of_length_one(x.unflatten(-1, (-1, self.key_size)).transpose(1, 2).to(wide)) for x in (q, k))
            v = v.unflatten(-1, (-1, self.value_size)).transpose(1, 2).to(wide)
            fades = self.a_proj(hidden_states.to(self.a_proj.weight.dtype)).to(wide) + self.dt_bias.to(wide)
            # softplus; the gradient of torch's has strides that torch.compile does not foresee (torch 2.15, aot_eager).
            fades_BHT = (-self.A_log.to(wide).exp() * torch.logaddexp(fades, torch.zeros_like(fades))).transpose(1, 2)
            writes_BHT = self.b_proj(hidden_states.to(self.b_proj.weight.dtype)).to(wide).sigmoid().transpose(1, 2)
            writes_BHT = writes_BHT * self.write_strength
            if documents is not None:
                writes_BHT = writes_BHT * (documents >= 0)[:, None]
            repeats = self.value_heads // self.key_heads
            q, k = (x if repeats == 1 else x.repeat_interleave(repeats, dim=1) for x in (q * self.key_size**-0.5, k))
            out_BHTV, state = delta_rule(q, k, v, fades_BHT, writes_BHT, documents, states.get("matrix"))
            out_BTHV = self.norm(out_BHTV.transpose(1, 2)).to(hidden_states.dtype)
        if cached is not None:
            cached.write(hidden_states.shape[1], matrix=state, convolution=tail)
        gate_BTHV = silu(self.g_proj(hidden_states).unflatten(-1, (-1, self.value_size)))
        return self.o_proj((out_BTHV * gate_BTHV).flatten(-2)), None


def of_length_one(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().sum(-1, keepdim=True) + LEAST_NORM).rsqrt()


def short_convolution(x_BTC, weight_CW, documents_BT=None, past_BWC=None) -> tuple:
    """Each channel a weighted sum of a token and the W - 1 before it, of its own document only.

    past: the W - 1 tokens before, which are of document 0. Returns (B, T, C) and the last W - 1 tokens.
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
    if documents is not None:  # another document's tokens, and padding, are nothing to those that come
        tail = tail * (documents[:, length:] == documents_BT[:, -1:]).unsqueeze(-1)
    return mixed, tail


def delta_rule(q_BHTK, k_BHTK, v_BHTV, fades_BHT, writes_BHT, documents_BT=None, state_BHKV=None) -> tuple:
    """o_t of GatedDeltaNet -> (B, H, T, V), and the state after the last token.

    Within a chunk the corrections are the solution of a triangular system, between chunks the state is one matrix
    (Yang et al. 2024, section 3.2, with the gates of Yang et al. 2025, section 3.3): O(T C) time and memory. Of one
    token it is the recurrence.

    Args:
        fades_BHT: logarithms of a_t. writes_BHT: b_t.
        documents_BT: None (one document), or numbers that tell documents apart; -1: padding, which writes nothing.
        state_BHKV: the state after earlier tokens, which are of document 0.
    """
    batch, heads, length, keys = k_BHTK.shape
    size = min(CHUNK, length)
    tail = -length % size
    if state_BHKV is None:
        state_BHKV = k_BHTK.new_zeros(batch, heads, keys, v_BHTV.shape[-1])
    q, k, v = (with_zeros(x, after=tail).unflatten(2, (-1, size)) for x in (q_BHTK, k_BHTK, v_BHTV))
    fades, writes = (pad(x, (0, tail)).unflatten(2, (-1, size)) for x in (fades_BHT, writes_BHT))
    seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    reads = ends = goes_on = None
    if documents_BT is not None:
        documents = torch.cat((documents_BT, documents_BT[:, -1:].expand(-1, tail)), dim=1).unflatten(1, (-1, size))
        seen = (seen & (documents[..., :, None] == documents[..., None, :]))[:, None]
        last = documents[..., -1]
        owners = pad(last[:, :-1], (1, 0))  # the document of the state before each chunk
        reads = (documents == owners[..., None])[:, None, :, :, None]
        ends = (documents == last[..., None])[:, None, :, :, None]
        goes_on = (owners == last)[:, None, :, None, None]
    # Sums within a document by a product, not by differences of running sums: their gradients would only nearly cancel.
    faded = (
        fades.cumsum(-1) if documents_BT is None else (seen.to(fades.dtype) @ fades[..., None])[..., 0]
    )  # (B, H, n, C)
    fading = (faded[..., :, None] - faded[..., None, :]).masked_fill(~seen, -torch.inf).exp()
    k_written = k * writes[..., None]
    from_state = k_written * faded.exp()[..., None]
    q_state, k_left = q * faded.exp()[..., None], k * (faded[..., -1:] - faded).exp()[..., None]
    carried = faded[..., -1].exp()[..., None, None]
    if documents_BT is not None:
        from_state, q_state, k_left, carried = from_state * reads, q_state * reads, k_left * ends, carried * goes_on
    system = (k_written @ k.transpose(-1, -2)) * fading
    solved = torch.linalg.solve_triangular(
        system, torch.cat((v * writes[..., None], from_state), dim=-1), upper=False, unitriangular=True
    )
    values, from_state = solved.split((v.shape[-1], keys), dim=-1)
    scores, out = (q @ k.transpose(-1, -2)) * fading, []
    for i in range(q.shape[2]):
        written = values[:, :, i] - from_state[:, :, i] @ state_BHKV
        out.append(q_state[:, :, i] @ state_BHKV + scores[:, :, i] @ written)
        state_BHKV = state_BHKV * carried[:, :, i] + k_left[:, :, i].transpose(-1, -2) @ written
    return torch.cat(out, dim=2)[:, :, :length], state_BHKV
