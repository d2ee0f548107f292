"""Laws of which token sees which: windows, strides, flash sequences, and masks that are not built."""

import ctypes
from pathlib import Path

import pytest
import torch
import transformers
from anyformer.modeling.attention_blocks import block_sparse_mask_function
from anyformer.modeling.attention_masks import CACHE, document_ids_from_positions, make_masks
from anyformer.pipelines.objectives.documents_apart import keeps_documents_apart, with_borders
from native_models import native_model
from packaging.version import Version
from processes import memory
from transformers import masking_utils
from transformers.integrations import flex_attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, create_chunked_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from watching import Watch, square

from anyformer import AnyformerDecoderForCausalLM

LENGTH = 24
FLEX_TOLERANCE = 3e-5  # sums in another order, of a native model whose random weights are large: 1.5e-5 was seen


def seen(config, query: int) -> set[int]:
    """The positions whose embeddings a one-layer model's output at `query` depends on."""
    torch.manual_seed(0)
    model = AnyformerDecoderForCausalLM(config).eval()
    embeds = torch.randn(1, LENGTH, config.hidden_size, requires_grad=True)
    out = model(inputs_embeds=embeds).logits[0, query].square().sum()
    (gradient,) = torch.autograd.grad(out, embeds)
    return set(gradient[0].abs().sum(-1).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("position_encoding", ["rotary", "alibi", "relative", "none"])
def test_a_sliding_layer_sees_the_window_and_a_strided_one_the_band_and_every_stride(tiny_config, position_encoding):
    common = {"num_hidden_layers": 1, "position_encoding": position_encoding}
    sliding = tiny_config(attention_pattern=["sliding_attention"], sliding_window=5, **common)
    strided = tiny_config(attention_pattern=["strided_attention"], attention_stride=4, **common)
    for query in (0, 3, 11, 23):
        assert seen(sliding, query) == set(range(max(0, query - 4), query + 1))
        assert seen(strided, query) == {k for k in range(query + 1) if query - k < 4 or (query - k) % 4 == 0}


CHUNKS = {"attention_pattern": ["chunked_attention"], "attention_chunk_size": 5, "num_hidden_layers": 1}


def test_a_chunked_layer_sees_its_own_chunk_up_to_the_query(tiny_config):
    for query in (0, 4, 5, 13, 23):
        assert seen(tiny_config(**CHUNKS), query) == set(range(query // 5 * 5, query + 1))


def test_chunks_are_counted_from_the_first_token_of_a_document_as_transformers_counts_them(tiny_config):
    """Two documents in one row, and a row behind padding: the masks of transformers' own function."""
    config, embeds = tiny_config(**CHUNKS), torch.zeros(2, 12, 32)
    config._attn_implementation = "eager"
    positions = torch.cat((torch.arange(7), torch.arange(5)))[None].expand(2, -1)
    packed = make_masks(config, embeds, None, None, document_ids_from_positions(positions))["chunked_attention"]
    padding = torch.ones(2, 12, dtype=torch.bool)
    padding[1, :3] = False
    padded = make_masks(config, embeds, padding)["chunked_attention"]
    native = {"config": config, "inputs_embeds": embeds, CACHE: None}
    if Version(transformers.__version__) >= Version("5.23"):  # 5.17 counts packed documents from the row's first token
        assert torch.equal(packed, create_chunked_causal_mask(**native, attention_mask=None, position_ids=positions))
    assert torch.equal(padded, create_chunked_causal_mask(**native, attention_mask=padding))


BLOCKS = {"attention_pattern": ["block_sparse_attention"], "block_size": 3, "num_hidden_layers": 1}


def test_a_block_sparse_layer_sees_local_blocks_first_blocks_and_those_a_stride_apart(tiny_config):
    config = tiny_config(**BLOCKS, num_local_blocks=2, num_sink_blocks=1, block_stride=4)
    for query in (0, 5, 17, 23):
        block = query // 3
        blocks = {0, block, block - 1, *range(block, -1, -4)}
        assert seen(config, query) == {key for key in range(query + 1) if key // 3 in blocks}


def test_drawn_blocks_are_of_the_seed_and_the_block_alone_and_lie_before_it(tiny_config):
    def drawn(seed, length=60):
        config = tiny_config(**BLOCKS, num_local_blocks=1, num_sink_blocks=0, num_random_blocks=2, block_seed=seed)
        at = torch.arange(length)
        return block_sparse_mask_function(config)(0, 0, at[:, None], at[None]) & (at[None] <= at[:, None])

    whole = drawn(0)
    assert torch.equal(drawn(0, 30), whole[:30, :30]) and not torch.equal(drawn(1), whole)
    blocks = whole[::3, ::3].tril(-1)
    assert set(blocks[3:].sum(-1).tolist()) <= {1, 2} and len({tuple(row) for row in blocks[6:].tolist()}) > 10


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("position_encoding", ["rotary", "learned", "sinusoidal", "none"])
def test_without_padding_and_packing_no_mask_is_built_and_nothing_is_read_on_the_host(
    tiny_config, position_encoding, training
):
    model = AnyformerDecoderForCausalLM(tiny_config(position_encoding=position_encoding)).train(training)
    ids = torch.randint(3, 97, (2, LENGTH))
    with Watch(square(LENGTH)) as watch:
        model(ids, labels=ids)
    assert watch.made == [] and watch.reads == []


WHOLE_WINDOW = {"attention_pattern": ["sliding_attention"], "sliding_window": LENGTH}


@pytest.mark.parametrize("fields", [{}, pytest.param(WHOLE_WINDOW, marks=pytest.mark.slow)])
def test_the_compiled_graph_has_no_mask_either(tiny_config, fields):
    model = AnyformerDecoderForCausalLM(tiny_config(**fields)).train()
    squares = []

    def look(graph, inputs):
        for node in graph.graph.nodes:
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor) and tuple(value.shape[-2:]) == (LENGTH, LENGTH):
                squares.append(node.name)
        return graph.forward

    ids = torch.randint(3, 97, (2, LENGTH))
    torch.compile(model, fullgraph=True, backend=look)(ids, labels=ids)
    assert squares == []


@pytest.mark.parametrize(
    "fields, backend",
    [
        ({"position_encoding": "alibi"}, "flash_attention_2"),
        ({"attention_pattern": ["strided_attention"], "attention_stride": 2}, "flash_attention_2"),
        ({"attn_logit_softcapping": 5.0}, "sdpa"),
    ],
)
def test_a_backend_that_would_drop_a_part_is_refused(tiny_config, fields, backend):
    with pytest.raises((ValueError, ImportError), match="support"):
        AnyformerDecoderForCausalLM._from_config(tiny_config(**fields), attn_implementation=backend)


def test_capped_scores_are_those_of_the_formula_and_the_default_backend_can_do_them(tiny_config):
    model = AnyformerDecoderForCausalLM(tiny_config(attn_logit_softcapping=0.01, num_hidden_layers=1)).eval()
    assert model.config._attn_implementation == "anyformer"
    for p in model.model.layers[0].self_attn.parameters():
        p.data.mul_(50)
    ids = torch.randint(3, 97, (1, 8))
    logits = model(ids).logits
    model.set_attn_implementation("eager")
    outputs = model(ids, output_attentions=True)
    weights = outputs.attentions[0]
    torch.testing.assert_close(logits, outputs.logits, atol=1e-5, rtol=0)
    # Scores within +-0.01 are almost equal: every query weighs its keys almost evenly, however large the projections.
    for query in range(8):
        even = torch.full((4, query + 1), 1 / (query + 1))
        torch.testing.assert_close(weights[0, :, query, : query + 1], even, atol=0.01, rtol=0)


# ---- flash kernels cannot run here: a stub with their signature, in plain torch, stands in for them


def reference_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale=None, causal=False, window_size=(-1, -1), **_):
    """What a flash varlen kernel computes: q, k, v (total, heads, size), each sequence on its own."""
    out = torch.empty_like(q)
    groups = q.shape[1] // k.shape[1]
    for start, end in zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist()):
        query, key, value = q[start:end], *(x[start:end].repeat_interleave(groups, 1) for x in (k, v))
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)[None]
        visible = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window_size[0] >= 0:
            visible &= distance <= window_size[0]
        scores = torch.einsum("thk,shk->hts", query, key) * softmax_scale
        out[start:end] = torch.einsum("hts,shk->thk", scores.masked_fill(~visible, -torch.inf).softmax(-1), value)
    return out


def attend_by_reference(module, query, key, value, attention_mask, scaling, sliding_window=None, **kwargs):
    """An attention function that gives the stub what transformers' own gives a kernel."""
    assert attention_mask is None
    assert kwargs["max_length_q"] >= (kwargs["cu_seq_lens_q"][1:] - kwargs["cu_seq_lens_q"][:-1]).max()
    batch, _, length, _ = query.shape
    flat = [x.transpose(1, 2).reshape(batch * length, x.shape[1], -1) for x in (query, key, value)]
    # transformers hands flash kernels the window without the query's own token
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
    borders = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
    out = reference_varlen(*flat, *borders, scaling, causal=True, window_size=window)
    return out.view(batch, length, query.shape[1], -1), None


PACKED = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in ([7, 1, 16], [20, 4])])


@pytest.mark.parametrize("name", ["flash_attention_2", "kernels-community/flash-attn2"])
@pytest.mark.parametrize("with_padding", [False, True])
@pytest.mark.parametrize(
    "fields", [{}, {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 3}]
)
def test_flash_kernels_get_the_documents_of_packed_rows(tiny_config, monkeypatch, fields, with_padding, name):
    """Up to the kernel's door: the same logits as sdpa when the kernel does what its signature says."""
    model = AnyformerDecoderForCausalLM(tiny_config(**fields)).eval()
    ids = torch.randint(3, 97, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    if with_padding:
        mask[0, -3:] = 0
    options = {"position_ids": PACKED, "attention_mask": mask, "use_cache": False}
    expected = model(ids, **options).logits
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, attend_by_reference)
    masks = ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    monkeypatch.setitem(masks, name, masks["flash_attention_2"])  # as transformers registers a kernel of the Hub
    # Past the check for the installed package, which is all that setting it would add.
    model.config._attn_implementation_internal = name
    got = model(ids, **options).logits
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("native", ["mistral_without_window", "mistral"])
def test_flash_kernels_get_the_documents_of_several_packed_rows_of_a_native_model(native, monkeypatch):
    """transformers finds them by itself in a single row alone, and lets those of several rows see each other."""
    model, ids = native_model(native).eval(), torch.randint(3, 97, (2, LENGTH))
    expected = model(ids, position_ids=PACKED, use_cache=False).logits
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", attend_by_reference)
    model.config._attn_implementation_internal = "flash_attention_2"
    model.register_forward_pre_hook(with_borders, with_kwargs=True)
    assert keeps_documents_apart(model)
    got = model(ids, position_ids=PACKED, use_cache=False).logits
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours", "window", "native"])
def test_flex_attends_on_packed_rows_as_sdpa_does_under_a_dense_mask(kind, tiny_config, monkeypatch):
    monkeypatch.setattr(flex_attention.WrappedFlexAttention, "__call__", lambda self: flex_attention.flex_attention)
    made, make = [], masking_utils.create_block_mask
    monkeypatch.setattr(
        masking_utils,
        "create_block_mask",
        lambda *args, _compile=False, **options: made.append(make(*args, **options)) or made[-1],
    )
    fields = {"attention_pattern": ["sliding_attention"], "sliding_window": 150} if kind == "window" else {}
    model = (
        native_model("mistral_without_window")
        if kind == "native"
        else AnyformerDecoderForCausalLM(tiny_config(**fields))
    )
    ids = torch.randint(3, 97, (2, 300))
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in ([100, 7, 193], [290, 10])])
    logits = []
    for name in ("sdpa", "flex_attention"):
        model.eval().set_attn_implementation(name)
        with torch.no_grad():
            logits.append(model(ids, position_ids=positions, use_cache=False).logits)
    torch.testing.assert_close(*logits, atol=FLEX_TOLERANCE, rtol=1e-5)
    (mask,) = made  # one for all layers
    assert mask.shape == (2, 1, 300, 300) and mask.sparsity() > (20 if kind == "window" else 5)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the most memory of a process")
def test_the_mask_of_a_packed_row_of_32k_tokens_is_never_one_bit_for_each_pair(tiny_config):
    config, length = tiny_config(), 2**15
    config._attn_implementation = "flex_attention"

    def mask_of(length):
        documents = torch.arange(length)[None] // 300
        (mask,) = make_masks(config, torch.zeros(1, length, config.hidden_size), None, document_ids=documents).values()
        return sum(x.nbytes for x in mask.as_tuple() if torch.is_tensor(x))

    mask_of(512), mask_of(1024)  # compiled, once for all lengths
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    assert mask_of(length) < 2**21
    assert memory("VmHWM") - before < length**2 / 8
