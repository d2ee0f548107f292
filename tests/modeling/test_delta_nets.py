"""Delta nets: the chunked form is the recurrence, documents are apart."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from anyformer.modeling import attention_delta, attention_delta_fla
from anyformer.modeling.attention_delta import delta_rule
from anyformer.modeling.attention_delta_fla import by_fla, fla_or_torch
from family_variants import EXACT, ZOO, close, positions_of, tokens
from transformers.utils.import_utils import is_flash_linear_attention_available

WITH_KERNELS = ("gated_delta_attention", "kimi_delta_attention")


def drawn(length: int, channels: int, strength: float = 1.0, keys: int = 5, values: int = 6) -> list[torch.Tensor]:
    """q, k, v, fades, writes of two rows and three heads, in fp64; `channels` of fades are 1 or `keys`."""
    generator = torch.Generator().manual_seed(length)
    drawn = {"generator": generator, "dtype": torch.float64}
    q, k, v, fades = (torch.randn(2, 3, length, size, **drawn) for size in (keys, keys, values, channels))
    k = k / k.norm(dim=-1, keepdim=True)
    return [q, k, v, -strength * fades.abs(), torch.rand(2, 3, length, **drawn)]


def recurrence(q, k, v, fades, writes, corrects=True):
    """S_t = S_{t-1} Diag(a_t) (1 - b_t k_t k_t^T) + b_t v_t k_t^T, o_t = S_t q_t, token by token.

    Without `corrects`, as in Mamba-2: S_t = S_{t-1} Diag(a_t) + b_t v_t k_t^T.
    """
    state, out = q.new_zeros(*v.shape[:2], v.shape[-1], k.shape[-1]), []
    for t in range(q.shape[2]):
        key, write = k[:, :, t], writes[:, :, t, None, None]
        state = state * fades[:, :, t].exp().unsqueeze(-2)
        known = (state @ key[..., None])[..., 0] if corrects else 0
        state = state + write * (v[:, :, t] - known)[..., None] * key[..., None, :]
        out.append((state @ q[:, :, t, :, None])[..., 0])
    return torch.stack(out, dim=2), state.transpose(-1, -2)


@pytest.mark.parametrize("channels, corrects", [(1, True), (5, True), (1, False)])
@pytest.mark.parametrize("length", [1, 63, 150])
def test_the_chunked_form_is_the_recurrence(channels, corrects, length):
    parts = drawn(length, channels)
    for got, expected in zip(delta_rule(*parts, corrects=corrects), recurrence(*parts, corrects)):
        close(got, expected, EXACT)


@pytest.mark.parametrize("channels", [1, 5])
def test_a_document_that_is_forgotten_fast_leaves_the_next_finite(channels):
    """In the chunk where they meet the first one fades by more than e^709, the largest number of fp64."""
    parts = drawn(150, channels, strength=100.0)
    documents = (torch.arange(150) >= 126).long().expand(2, -1)
    leaves = [part.requires_grad_() for part in parts]
    out, state = delta_rule(*leaves, documents_BT=documents)
    alone, last = recurrence(*(part[:, :, 126:].detach() for part in parts))
    close(out[:, :, 126:].detach(), alone, EXACT)
    close(state.detach(), last, EXACT)
    gradients = torch.autograd.grad(out[:, :, 126:].sum() + state.sum(), leaves)
    assert all(gradient.isfinite().all() and not gradient[:, :, :126].any() for gradient in gradients)


def stand_in(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None):
    """Arguments and results of fla 0.6's chunk_gated_delta_rule and chunk_kda, computed token by token as its naive.py.

    q, k (B, T, H, K); v (B, T, H, V); g (B, T, H) or (B, T, H, K); beta (B, T, H); states (N, H, K, V).
    """
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    if cu_seqlens is not None:
        assert len(q) == 1 and (initial_state is None or len(initial_state) == len(cu_seqlens) - 1)
        outs, states = [], []
        for i, (start, end) in enumerate(pairwise(cu_seqlens)):
            begin = None if initial_state is None else initial_state[i : i + 1]
            out, state = stand_in(*(x[:, start:end] for x in (q, k, v, g, beta)), scale, begin, True)
            outs.append(out)
            states.append(state)
        return torch.cat(outs, dim=1), torch.cat(states)
    state = k.new_zeros(*k.shape[:1], *k.shape[2:], v.shape[-1]) if initial_state is None else initial_state
    g, out = g if g.ndim == 4 else g.unsqueeze(-1), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp().unsqueeze(-1)
        corrected = (v[:, t] - (k[:, t].unsqueeze(-1) * state).sum(-2)) * beta[:, t].unsqueeze(-1)
        state = state + k[:, t].unsqueeze(-1) * corrected.unsqueeze(-2)
        out.append(torch.einsum("bhk, bhkv -> bhv", q[:, t] * scale, state))
    return torch.stack(out, dim=1), state if output_final_state else None


@pytest.fixture
def with_kernel(monkeypatch):
    """Enter the stand-in where fla's functions would be; returns the rows that it was given."""
    seen = []

    def run(q, *others, **how):
        seen.append(q.shape)
        return stand_in(q, *others, **how)

    def enter(kind):
        monkeypatch.setitem(attention_delta.KERNELS, kind, partial(by_fla, run))
        return seen

    return enter


@pytest.mark.parametrize("kind", WITH_KERNELS)
def test_a_kernel_with_flas_signature_computes_rows_documents_and_states(kind, with_kernel):
    variant = next(each for each in ZOO if each.fields.get("attention_pattern") == [kind, "full_attention"])
    model = variant.model()
    ids = tokens(batch=2, length=40)
    packed = torch.stack([positions_of([3, 20, 17])[0], positions_of([30, 10])[0]])
    left = torch.ones_like(ids)
    left[1, :9] = 0

    def outputs():
        whole = model(ids, labels=ids)
        gradients = torch.autograd.grad(whole.loss, model.parameters())
        apart = model(ids, position_ids=packed, use_cache=False).logits
        first = model(ids[:, :25], attention_mask=left[:, :25], use_cache=True)
        rest = model(ids[:, 25:], attention_mask=left, past_key_values=first.past_key_values)
        return [whole.logits, *gradients, apart, first.logits[left[:, :25] == 1], rest.logits]

    expected = outputs()
    seen = with_kernel(kind)
    for got, wanted in zip(outputs(), expected, strict=True):
        close(got, wanted, EXACT)
    heads, keys = model.config.linear_num_value_heads, model.config.linear_key_head_dim
    batches = {(2, 40), (1, 80), (1, 50), (2, 15), (1, 30)}
    assert len(seen) >= 4 and {(*shape[:2],) for shape in seen} <= batches
    assert {(*shape[2:],) for shape in seen} == {(heads, keys)}
    model.set_attn_implementation("eager")  # the readable reference
    del seen[:]
    model(ids)
    assert not seen


@pytest.mark.parametrize("kind", WITH_KERNELS)
def test_without_a_gpu_rows_are_left_to_torch(kind):
    parts = [part.float() for part in drawn(70, 5 if kind == "kimi_delta_attention" else 1)]
    for got, expected in zip(fla_or_torch("fla", "none", *parts, dtype=torch.float32), delta_rule(*parts)):
        assert torch.equal(got, expected)


def test_fla_is_entered_where_transformers_finds_it_and_nowhere_else(monkeypatch):
    assert is_flash_linear_attention_available() == bool(attention_delta_fla.kernels())
    monkeypatch.setattr(attention_delta_fla, "is_flash_linear_attention_available", lambda: True)
    assert list(attention_delta_fla.kernels()) == list(WITH_KERNELS)
