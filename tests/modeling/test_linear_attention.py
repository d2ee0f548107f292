"""Laws of linear attention beside those of test_laws.py: one sum in three forms, many chunks, constant state."""

import pytest
import torch
from anyformer.modeling.attention_linear import CHUNK, feature_map, kernel_sums, normalised, with_ones
from anyformer.pipelines.checks.check_report import ask
from anyformer.pipelines.checks.laws import law
from family_variants import LINEAR, ZOO, tokens
from hypothesis import given
from hypothesis import strategies as st
from test_laws import check_answer
from transformers import DynamicCache
from zoo_subject import ZooSubject

from anyformer import AnyformerDecoderForCausalLM


def by_definition(q, k, v, documents):
    """(B, H, T, V): every pair of tokens, in fp64."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    length = q.shape[2]
    seen = torch.ones(length, length, dtype=torch.bool).tril() & (documents[:, :, None] == documents[:, None])
    scores = (q.double() @ k.double().transpose(-1, -2)) * (seen & (documents >= 0)[:, None])[:, None]
    return scores @ v.double()


@given(
    length=st.integers(1, 3 * CHUNK + 5),
    batch=st.integers(1, 2),
    groups=st.integers(1, 2),
    repeats=st.integers(1, 3),
    seed=st.integers(0, 99),
    packed=st.booleans(),
)
def test_chunks_give_the_sums_of_the_definition(length, batch, groups, repeats, seed, packed):
    generator = torch.Generator().manual_seed(seed)
    q = torch.rand(batch, groups * repeats, length, 4, generator=generator)
    k, v = torch.rand(batch, groups, length, 4, generator=generator), torch.randn(batch, groups, length, 3)
    documents = torch.zeros(batch, length, dtype=torch.long)
    if packed:
        documents = (torch.rand(batch, length, generator=generator) < 0.05).cumsum(-1)
        documents[0, : length // 3] = -1  # padding
    sums, _ = kernel_sums(q, k, v, documents if packed else None)
    torch.testing.assert_close(sums.double(), by_definition(q, k, v, documents), atol=1e-4, rtol=1e-5)


@given(pieces=st.lists(st.integers(1, CHUNK + 9), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_a_state_carries_a_row_over_any_pieces(pieces, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.rand(1, 2, sum(pieces), 4, generator=generator) for _ in range(3))
    expected, final = kernel_sums(q, k, v)
    state, found = None, []
    for part in zip(*(x.split(pieces, dim=2) for x in (q, k, v))):
        sums, state = kernel_sums(*part, state_BGKV=state)
        found.append(sums)
    torch.testing.assert_close(torch.cat(found, dim=2), expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(state, final, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
def test_values_that_are_all_equal_come_out_however_large_the_scores(scale):
    """Weights sum to 1: no row without a denominator, and no overflow, for queries and keys of either sign."""
    generator = torch.Generator().manual_seed(0)
    for sign in (-1, 1):
        q, k = (feature_map(sign * scale * torch.rand(1, 2, 150, 8, generator=generator)) for _ in range(2))
        out = normalised(kernel_sums(q, k, with_ones(torch.full((1, 2, 150, 8), 3.0)))[0])
        torch.testing.assert_close(out, torch.full_like(out, 3.0), atol=1e-3, rtol=0)


@pytest.mark.parametrize("variant", [v for v in ZOO if v.name in ("linear", "linear-sliding")], ids=str)
def test_rows_of_many_chunks_are_packed_padded_and_decoded_by_the_laws_of_all(variant, monkeypatch):
    monkeypatch.setattr(law("packing"), "LENGTHS", (7, 1, CHUNK + 3, 5, 30))
    monkeypatch.setattr(law("padding"), "LENGTHS", (CHUNK + 9, 1, 20, 30))
    monkeypatch.setattr(law("cache"), "PIECES", ((3, *[1] * (CHUNK + 8)), (CHUNK - 1, 2, CHUNK)))
    subject = ZooSubject(variant, variant.model(max_position_embeddings=256))
    for name in ("packing", "padding", "cache"):
        check_answer(ask(subject, name), True)


def test_bf16_sums_run_in_fp32(tiny_config):
    """A row of equal tokens has equal outputs, up to bf16: summed in bf16, the last of 4,096 ones would be lost."""
    model = AnyformerDecoderForCausalLM(tiny_config(**LINEAR, position_encoding="none")).eval().bfloat16()
    ids = torch.full((1, 4096), 5)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.float()
        torch.testing.assert_close(logits[:, -1], logits[:, 0], atol=0.02, rtol=0.02)
        cache = model(ids[:, :8], use_cache=True).past_key_values
    assert all(x.dtype == torch.float32 for layer in cache.layers for x in layer.states.values())


def test_a_cache_made_for_other_layers_and_a_ready_mask_are_refused_with_a_sentence(tiny_config):
    model = AnyformerDecoderForCausalLM(tiny_config(**LINEAR)).eval()
    with pytest.raises(ValueError, match="no state for layer 0; make it with config"):
        model(tokens(1, 4), past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="linear_attention layers have no such scores"):
        model(tokens(1, 4), attention_mask=torch.ones(1, 1, 4, 4, dtype=torch.bool), use_cache=False)
    with pytest.raises(RuntimeError, match="a state cannot forget its last tokens"):
        model(tokens(1, 4), use_cache=True).past_key_values.crop(-1)
