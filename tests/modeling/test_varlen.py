"""Documents attended one by one equal documents attended under a mask."""

import pytest
import torch
from anyformer.modeling import attention_block_sizes, attention_varlen
from anyformer.modeling.attention_varlen import document_lengths, varlen_sdpa
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer import AnyformerDecoderForCausalLM

SCALING = 0.3


def inputs(batch, tokens, heads=4, groups=2, size=8, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    shapes = [(batch, n, tokens, size) for n in (heads, groups, groups)]
    return [torch.randn(shape, generator=g, dtype=dtype).requires_grad_() for shape in shapes]


def ids_of(rows):
    """Lists of document lengths, one list a row -> (B, T) ids."""
    return torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in rows])


def masked(query, key, value, rows, is_causal, window=None):
    """The same by scores of all pairs of tokens and a mask, in float64."""
    query, key, value = (x.double() for x in (query, key, value))
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    ids = ids_of(rows)
    seen = ids[:, :, None] == ids[:, None, :]
    distance = torch.arange(ids.shape[1])[:, None] - torch.arange(ids.shape[1])
    if is_causal:
        seen = seen & (distance >= 0)
    if window is not None:
        seen = seen & (distance.abs() < window)
    scores = (query @ key.transpose(2, 3) * SCALING).masked_fill(~seen[:, None], float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


def assert_equal_with_gradients(got, exact, leaves, atol=1e-12):
    """In float64: fp32 rounds gradients that cancel to zero to a few 1e-6."""
    torch.testing.assert_close(got.double(), exact, atol=atol, rtol=1e-5)
    direction = torch.randn(got.shape, generator=torch.Generator().manual_seed(5), dtype=got.dtype)
    got_gradients = torch.autograd.grad(got, leaves, direction)
    for ours, theirs in zip(got_gradients, torch.autograd.grad(exact, leaves, direction.double())):
        torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-5)


@st.composite
def packed_rows(draw):
    tokens = draw(st.integers(1, 24))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, tokens - 1), max_size=5))) if tokens > 1 else []
        rows.append([end - start for start, end in zip([0, *cuts], [*cuts, tokens])])
    return rows


@settings(max_examples=80, deadline=None)
@given(
    rows=packed_rows(),
    heads=st.sampled_from([(2, 2), (4, 2), (4, 1)]),
    is_causal=st.booleans(),
    window=st.none() | st.integers(1, 30),
    block=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_documents_alone_equal_documents_under_a_mask(rows, heads, is_causal, window, block, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_block_sizes, "QUERIES_PER_BLOCK", block)
        leaves = inputs(len(rows), sum(rows[0]), *heads, seed=seed)
        lengths = [length for row in rows for length in row]
        got = varlen_sdpa(*leaves, lengths, is_causal, SCALING, window=window)
    assert_equal_with_gradients(got, masked(*leaves, rows, is_causal, window), leaves)


@pytest.mark.parametrize("window", [None, 100, 200])
@pytest.mark.parametrize("is_causal", [False, True])
def test_long_documents_in_fp32_are_equal_too_with_windows_over_several_blocks(is_causal, window):
    rows, leaves = [[300, 84], [192, 192]], inputs(2, 384, dtype=torch.float32)
    got = varlen_sdpa(*leaves, [300, 84, 192, 192], is_causal, SCALING, window=window)
    assert_equal_with_gradients(got, masked(*leaves, rows, is_causal, window), leaves, atol=3e-6)


def test_no_tensor_grows_with_the_square_of_the_tokens():
    largest = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            tensors = out if isinstance(out, (tuple, list)) else (out,)
            largest.append(max((t.numel() for t in tensors if isinstance(t, torch.Tensor)), default=0))
            return out

    leaves = inputs(1, 1024, heads=2, groups=2, size=4)
    for lengths, window in (([512, 512], None), ([1024], 64), ([24, 1000], 64)):
        with Sizes():
            varlen_sdpa(*leaves, lengths, False, SCALING, window=window).sum().backward()
    assert 0 < max(largest) <= 1024 * 256  # a mask for all blocks at once: 256 keys a query, however long the row


def test_dropout_drops_weights_and_one_seed_gives_one_result():
    leaves, lengths = inputs(1, 12), [5, 7]
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(varlen_sdpa(*leaves, lengths, True, SCALING, dropout=0.5))
    assert torch.equal(*results)
    assert not torch.allclose(results[0], varlen_sdpa(*leaves, lengths, True, SCALING))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("slow", [False, True])
def test_half_types_come_back_as_they_went_in_and_autocast_makes_them(slow, autocast, monkeypatch):
    monkeypatch.setattr(attention_varlen, "SLOW_ON_CPU", frozenset([torch.bfloat16] if slow else []))
    leaves = inputs(1, 12, dtype=torch.float32)
    given_ = leaves if autocast else [x.to(torch.bfloat16) for x in leaves]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got = varlen_sdpa(*given_, [5, 7], True, SCALING)
    assert got.dtype == torch.bfloat16
    # 8 bits: inputs, weights and outputs are rounded to 2^-8 each
    torch.testing.assert_close(got.double(), masked(*leaves, [[5, 7]], True), atol=3e-2, rtol=3e-2)


def test_lengths_that_do_not_fill_the_rows_are_refused():
    with pytest.raises(ValueError, match="11 tokens in all do not fill 2 rows of 6"):
        varlen_sdpa(*inputs(2, 6), [6, 5], True, SCALING)


@pytest.mark.parametrize("options", [{"scale", "window_size"}, {"scale", "window_size", "enable_gqa"}])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_flash_kernel_is_asked_for_the_same(is_causal, window, options, monkeypatch):
    """The kernel runs on CUDA only; what its documentation says stands in for it."""

    def documented(
        query, key, value, starts_q, starts_k, longest_q, longest_k, *, scale, window_size, enable_gqa=False
    ):
        assert query.shape[1] == key.shape[1] or enable_gqa
        assert starts_q is starts_k and starts_q.dtype == torch.int32
        lengths = starts_q.diff().tolist()
        assert longest_q == longest_k == max(lengths)
        outputs = []
        for q, k, v in zip(query.split(lengths), key.split(lengths), value.split(lengths)):
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
            distance = torch.arange(len(q))[:, None] - torch.arange(len(q))
            left, right = (len(q) if side < 0 else side for side in window_size)
            scores = torch.einsum("qhd,khd->hqk", q, k) * scale
            scores = scores.masked_fill((distance > left) | (-distance > right), float("-inf"))
            outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        return torch.cat(outputs)

    monkeypatch.setattr(attention_varlen, "_has_kernel", lambda *args: True)
    monkeypatch.setattr(attention_varlen, "varlen_attn", documented)
    monkeypatch.setattr(attention_varlen, "KERNEL_OPTIONS", frozenset(options))
    rows, leaves = [[5, 7], [12]], inputs(2, 12)
    with torch.inference_mode():  # an evaluation with the same lengths must not spoil the training step after it
        varlen_sdpa(*leaves, [5, 7, 12], is_causal, SCALING, window=window)
    got = varlen_sdpa(*leaves, [5, 7, 12], is_causal, SCALING, window=window)
    assert_equal_with_gradients(got, masked(*leaves, rows, is_causal, window), leaves)
    assert not attention_varlen._bounds((5, 7, 12), leaves[0].device).is_inference()


def test_documents_end_with_their_row_even_where_the_next_row_goes_on_with_their_id():
    assert document_lengths(torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]])) == [3, 2, 5]
    assert document_lengths(torch.tensor([[4]])) == [1]


def test_runs_of_padding_are_documents_of_their_own_whatever_their_ids():
    ids = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 2, 2, 2, 3]])
    padding = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]])
    assert document_lengths(ids, padding) == [2, 2, 2, 2, 3, 1]
    assert document_lengths(ids, padding.bool()) == [2, 2, 2, 2, 3, 1]
    assert document_lengths(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3)) == [3, 3]


def test_what_stands_in_the_padding_changes_no_token_and_gets_no_gradient_from_any():
    rows, padding = ids_of([[4, 3, 5], [6, 6, 0]]), torch.ones(2, 12)
    padding[0, 9:], padding[1, :2] = 0, 0
    lengths, real = document_lengths(rows, padding), padding.bool()
    leaves = inputs(2, 12)
    out = varlen_sdpa(*leaves, lengths, False, SCALING)
    disturbed = [x.detach().masked_fill(~real[:, None, :, None], 50.0) for x in leaves]
    assert torch.equal(varlen_sdpa(*disturbed, lengths, False, SCALING)[real], out[real])
    for gradient in torch.autograd.grad(out[real].sum(), leaves):
        assert not gradient.transpose(1, 2)[~real].any()


def test_compiled_layers_are_not_compiled_anew_for_other_documents(tiny_config):
    torch.manual_seed(0)
    model = AnyformerDecoderForCausalLM(tiny_config(max_position_embeddings=128, hidden_dropout=0.0)).train()
    model.config.use_cache, ids = False, torch.randint(20, (1, 128))

    def loss(*documents):
        positions = torch.cat([torch.arange(length) for length in documents])[None]
        return model(ids, position_ids=positions, labels=ids).loss

    packings = [(64, 64), (40, 40, 48), (70, 58), (32, 32, 32, 32)]
    with torch.no_grad():
        expected = [loss(*documents) for documents in packings]
        torch._dynamo.reset()
        counter = CompileCounter()
        for layer in model.model.layers:
            layer.compile(backend=counter)
        found, compiled = [], []
        for documents in packings:
            found.append(loss(*documents))
            compiled.append(counter.frame_count)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert compiled[0] > 0 and len(set(compiled)) == 1
