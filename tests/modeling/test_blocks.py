"""Windows, strides and global tokens computed in blocks equal the same under a mask, and cost what they see."""

from itertools import accumulate

import pytest
import torch
from anyformer.modeling import attention_block_sizes, attention_blocks
from anyformer.modeling.attention_block_sizes import block_sizes
from anyformer.modeling.attention_blocks import Blocks, attend_in_blocks, make_blocks, window_rule
from anyformer.modeling.attention_masks import mask_function
from anyformer.modeling.stack import TransformerStack
from anyformer.modeling.traits import ATTENTION_KINDS
from family_variants import EXACT, close, gradients_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer import (
    AnyformerDecoderConfig,
    AnyformerDecoderForCausalLM,
    AnyformerDecoderModel,
    AnyformerEncoderConfig,
    AnyformerEncoderForMaskedLM,
    AnyformerEncoderModel,
)

SCALING = 0.3
QUERIES = ("QUERIES_PER_BLOCK", "QUERIES_BESIDE_STRIDE", "QUERIES_IN_PLACE")
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
SLIDING = {"attention_pattern": ["sliding_attention"]}
STRIDED = {"attention_pattern": ["strided_attention"]}
LOCAL_GLOBAL = {"attention_pattern": ["local_global_attention"]}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 4 queries, for rows of any length."""
    for name in QUERIES:
        monkeypatch.setattr(attention_block_sizes, name, 4)
    for name in ("LEAST_GAIN", "LEAST_GAIN_BESIDE_STRIDE"):
        monkeypatch.setattr(attention_block_sizes, name, 0)
    monkeypatch.setattr(attention_blocks, "SCORES_AT_A_TIME", 300)


# ------------------------------------------------------------------------------------------------ the computation


def config_of(kind: str, reach: int):
    if kind == "strided_attention":
        return AnyformerDecoderConfig(**SIZES, attention_pattern=[kind], attention_stride=reach)
    family = AnyformerDecoderConfig if kind == "causal" else AnyformerEncoderConfig
    kind = "local_global_attention" if kind == "local_global_attention" else "sliding_attention"
    return family(**SIZES, attention_pattern=[kind], sliding_window=reach)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["causal", "two-sided", "strided_attention", "local_global_attention"]),
    reach=st.integers(1, 9),
    length=st.integers(1, 30),
    block=st.integers(1, 8),
    heads=st.sampled_from([(2, 2), (4, 2), (2, 1)]),
    padded=st.booleans(),
    packed=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_blocks_equal_the_dense_mask_of_the_same_rule(kind, reach, length, block, heads, padded, packed, biased, seed):
    config, batch, generator = config_of(kind, reach), 2, torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    query, key, value = (draw(batch, n, length, 3) for n in (heads[0], heads[1], heads[1]))
    kind = config.attention_kinds[0]
    traits, rule = ATTENTION_KINDS[kind], mask_function(config, kind, config.is_causal)
    real = torch.rand(batch, length, generator=generator) > 0.2 if padded else None
    documents = torch.randint(2, (batch, length), generator=generator).cumsum(-1) if packed else None
    far, biased = None, biased and kind != "local_global_attention"
    at = torch.arange(length)
    seen = rule(0, 0, at[:, None], at).expand(batch, -1, -1)
    if kind == "local_global_attention":
        index, valid = (
            torch.tensor([[0, length // 2], [length - 1, 0]]),
            torch.tensor([[True, length > 1], [True, False]]),
        )
        far = index, valid
        seen = seen | torch.zeros(batch, length, dtype=torch.bool).scatter(1, index, valid)[:, None]
    if real is not None:
        seen = seen & real[:, None]
    if documents is not None:
        seen = seen & (documents[:, :, None] == documents[:, None])
    slope = draw(heads[0])

    with pytest.MonkeyPatch.context() as patch:
        for name in QUERIES:
            patch.setattr(attention_block_sizes, name, block)
        patch.setattr(attention_blocks, "SCORES_AT_A_TIME", 100)
        stride = 0 if traits.stride is None else traits.stride(config)
        if far is not None and real is not None:  # as global_attention_context does: padding is never global
            far = index, valid & real.gather(1, index)
            seen = seen & real[:, None]
        like = query.transpose(1, 2).flatten(2)
        blocks = make_blocks(rule, block_sizes(traits.near(config), stride), like, real, documents, far)
        if biased:
            blocks = blocks.with_bias(slope[None, :, None, None] * blocks.distances)
        got, in_place = attend_in_blocks(query, key, value, blocks, SCALING), None
        if far is None and not stride:
            with torch.no_grad():
                blocks = make_blocks(rule, block_sizes(traits.near(config), in_place=True), like, real, documents)
                if biased:
                    blocks = blocks.with_bias(slope[None, :, None, None] * blocks.distances)
                in_place = attend_in_blocks(query, key, value, blocks, SCALING)
    keys, values = (x.repeat_interleave(heads[0] // heads[1], dim=1) for x in (key, value))
    scores = query @ keys.transpose(2, 3) * SCALING
    if biased:
        scores = scores + slope[:, None, None] * (at[:, None] - at)
    weights = scores.masked_fill(~seen[:, None], torch.finfo(torch.float64).min / 2).softmax(-1)
    expected = (weights @ values).transpose(1, 2)

    sees_something = seen.any(-1)[..., None, None]  # what else comes out is finite, and gets no gradient below
    assert got.isfinite().all()
    torch.testing.assert_close(got * sees_something, expected * sees_something, atol=EXACT, rtol=0)
    if in_place is not None:
        torch.testing.assert_close(in_place * sees_something, expected * sees_something, atol=EXACT, rtol=0)
    leaves = [query, key, value, *([slope] if biased else [])]
    direction = torch.randn(got.shape, generator=generator, dtype=torch.float64) * sees_something
    for ours, dense in zip(
        torch.autograd.grad(got, leaves, direction), torch.autograd.grad(expected, leaves, direction)
    ):
        torch.testing.assert_close(ours, dense, atol=EXACT, rtol=0)


@torch.no_grad()
def test_a_row_with_nan_leaves_the_rows_beside_it_alone():
    query, key, value = torch.randn(3, 3, 2, 40, 4)
    blocks = make_blocks(window_rule(20, True), block_sizes((19, 0), in_place=True), query.transpose(1, 2).flatten(2))
    expected = attend_in_blocks(query, key, value, blocks, SCALING)
    value[1] = float("nan")
    got = attend_in_blocks(query, key, value, blocks, SCALING)
    torch.testing.assert_close(got[::2], expected[::2], atol=0, rtol=0)


# ----------------------------------------------------------------------------------------------------- whole models

DECODERS = {
    "sliding-rotary-grouped": SLIDING | {"sliding_window": 5, "num_key_value_heads": 2},
    "sliding-alibi": SLIDING | {"sliding_window": 4, "position_encoding": "alibi"},
    "sliding-relative": SLIDING | {"sliding_window": 7, "position_encoding": "relative"},
    "strided": STRIDED | {"attention_stride": 3, "num_key_value_heads": 1},
    "strided-alibi-and-full": {"attention_pattern": ["strided_attention", "full_attention"]}
    | {"attention_stride": 4, "position_encoding": "alibi"},
    "strided-relative-per-layer": STRIDED
    | {"attention_stride": 5, "position_encoding": "relative", "relative_attention_shared": False},
}
ENCODERS = {
    "sliding-relative": SLIDING | {"sliding_window": 3, "position_encoding": "relative"},
    "sliding-learned-and-full": {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 6}
    | {"position_encoding": "learned"},
    "local-global": LOCAL_GLOBAL | {"sliding_window": 3, "num_key_value_heads": 2},
}
MODELS = [("decoder", name) for name in DECODERS] + [("encoder", name) for name in ENCODERS]


def model_and_rows(family: str, name: str):
    """A model in float64, and rows: plain, packed, padded to both sides, packed and padded."""
    torch.manual_seed(0)
    if family == "decoder":
        model = AnyformerDecoderForCausalLM(AnyformerDecoderConfig(**SIZES, **DECODERS[name]))
    else:
        model = AnyformerEncoderForMaskedLM(AnyformerEncoderConfig(**SIZES, **ENCODERS[name]))
    ids = torch.randint(3, 60, (2, 22), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(n) for n in (9, 1, 12)]).expand(2, -1)
    right = (torch.arange(22) < torch.tensor([[22], [15]])).long()
    rows = [{}, {"position_ids": positions}, {"attention_mask": right}, {"attention_mask": right.flip(1)}]
    rows.append({"position_ids": positions, "attention_mask": right})
    if "global" in name:
        everywhere = torch.zeros_like(ids)
        everywhere[0, 0] = everywhere[1, [3, 20]] = 1
        rows = [row | {"global_attention_mask": everywhere} for row in rows] + [{}]
    return model.double(), [{"input_ids": ids, "labels": ids, **row} for row in rows]


@pytest.mark.parametrize("family, name", MODELS)
def test_a_model_in_blocks_has_the_losses_and_gradients_of_masks(family, name, small_blocks, monkeypatch):
    model, rows = model_and_rows(family, name)
    monkeypatch.setattr(TransformerStack, "attends_packed_rows_apart", lambda *_: False)
    monkeypatch.setattr(TransformerStack, "can_unpad", lambda *_: False)
    calls, original = [], attention_blocks.attend_in_blocks
    monkeypatch.setattr("anyformer.modeling.attention.attend_in_blocks", lambda *a: calls.append(1) or original(*a))
    found = []
    for in_blocks in (True, False):
        monkeypatch.setattr(TransformerStack, "attends_in_blocks", lambda *_, answer=in_blocks: answer)
        for batch in rows:
            if "attention_mask" in batch:
                mask = batch["attention_mask"]  # what padding predicts is nobody's concern, and differs
                counts = mask * torch.cat((mask[:, :1], mask[:, :-1]), dim=1)
                batch = batch | {"labels": batch["labels"].masked_fill(counts == 0, -100)}
            loss = model(**batch).loss
            found.append((gradients_of(model, lambda loss=loss: loss), loss))
        assert len(calls) >= len(rows)
    for (ours, loss), (theirs, expected) in zip(found[: len(rows)], found[len(rows) :], strict=True):
        close(loss, expected, 1e-6)  # losses are in fp32
        assert ours.keys() == theirs.keys()
        for parameter, gradient in theirs.items():
            close(ours[parameter], gradient, 1e-7)  # of the same


def test_prompts_are_read_in_blocks_and_answers_written_under_the_mask(small_blocks, monkeypatch):
    model, rows = model_and_rows("decoder", "sliding-alibi")
    model.eval()
    prompts = {name: x for name, x in rows[3].items() if name != "labels"}  # padded on the left
    calls, original = [], attention_blocks.make_blocks
    monkeypatch.setattr("anyformer.modeling.attention_masks.make_blocks", lambda *a: calls.append(a) or original(*a))
    ours = model.generate(**prompts, max_new_tokens=6, do_sample=False)
    assert len(calls) == 1
    monkeypatch.setattr(TransformerStack, "attends_in_blocks", lambda *_: False)
    assert torch.equal(ours, model.generate(**prompts, max_new_tokens=6, do_sample=False))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_trained_bias_gets_its_gradient_through_checkpointed_blocks(reentrant, small_blocks):
    model, rows = model_and_rows("decoder", "sliding-relative")
    expected = gradients_of(model, lambda: model(**rows[0]).loss)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    got = gradients_of(model.train(), lambda: model(**rows[0]).loss)
    assert got["model.position_encoding.relative_attention_bias.weight"].any()
    for name, gradient in expected.items():
        close(got[name], gradient, EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sliding-rotary-grouped", "strided-alibi-and-full"])
def test_one_graph_holds_the_blocks_of_all_lengths(name, small_blocks):
    model, rows = model_and_rows("decoder", name)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model.model, fullgraph=True, backend=counter)
    for length in (22, 17, 13, 9):
        ids, found = rows[0]["input_ids"][:, :length], []
        for run in (model.model, compiled):
            out = run(ids, use_cache=False).last_hidden_state
            found.append((out, gradients_of(model, out.square().sum)))
        (expected, gradients), (got, compiled_gradients) = found
        close(got, expected, EXACT)
        for parameter, gradient in gradients.items():
            close(compiled_gradients[parameter], gradient, EXACT)
    assert counter.frame_count <= 2


# --------------------------------------------------------------------------------------------------------- the costs


class Largest(TorchDispatchMode):
    """The most entries of a tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor) and 0 not in x.stride():
                self.entries = max(self.entries, x.numel())
        return out


def step_of(kind: str, length: int, padded: bool, backend: str = "sdpa", training: bool = True):
    """A forward pass, with `training` also the backward pass, of a model with one row."""
    common = SIZES | {"num_attention_heads": 2, "hidden_size": 16, "max_position_embeddings": 4096}
    if kind == "local_global_attention":
        fields = common | LOCAL_GLOBAL | {"sliding_window": 32}
        model = AnyformerEncoderModel._from_config(AnyformerEncoderConfig(**fields), attn_implementation=backend)
    else:
        reach = {"attention_stride": 64} if kind == "strided_attention" else {"sliding_window": 64}
        config = AnyformerDecoderConfig(**common, attention_pattern=[kind], **reach)
        model = AnyformerDecoderModel._from_config(config, attn_implementation=backend)
    ids = torch.randint(3, 60, (1, length))
    mask = (torch.arange(length)[None] < length - 5).long() if padded else None
    kwargs = (
        {"global_attention_mask": (torch.arange(length)[None] == 0).long()} if model.config.has_global_tokens else {}
    )

    def step():
        with torch.set_grad_enabled(training):
            out = model.train(training)(ids, attention_mask=mask, **kwargs).last_hidden_state
        if training:
            out.sum().backward()

    return step


def largest(kind: str, length: int, padded: bool) -> float:
    """Entries per token of the largest tensor that a step makes."""
    step = step_of(kind, length, padded)
    with Largest() as watch:
        step()
    return watch.entries / length


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["sliding_attention", "strided_attention", "local_global_attention"])
def test_no_tensor_grows_faster_than_the_row(kind, padded):
    short, long = (largest(kind, length, padded) for length in (1024, 2048))
    assert long <= 1.02 * short < 1024


def peak_bytes(kind: str, length: int, backend: str) -> float:
    """Most bytes per token that torch's allocator holds in a forward pass: what kernels hold within counts, too."""
    run = step_of(kind, length, False, backend, training=False)
    run()  # compiles
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in events)) / length


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sliding_attention", "strided_attention", "local_global_attention"])
def test_flex_attention_holds_no_dense_mask_either(kind):
    """A dispatch mode would see no operation of a compiled kernel, and flex_attention does not run under one."""
    short, long = (peak_bytes(kind, length, "flex_attention") for length in (1024, 2048))
    assert long <= 1.1 * short  # a mask of 2,048 keys a query would be 2,048 bytes more


def test_every_kind_with_blocks_says_where_its_keys_are():
    """What the rule of a kind shows is near or a multiple of the stride away: else blocks would not meet it."""
    for kind, traits in ATTENTION_KINDS.items():
        if traits.near is None:
            continue
        config = config_of(kind if "sliding" not in kind else "causal", 5)
        distances = torch.arange(-60, 61)
        seen = set(
            distances[mask_function(config, kind, config.is_causal)(0, 0, distances + 60, torch.tensor(60))].tolist()
        )
        before, after = traits.near(config)
        multiples = range(0, 61, traits.stride(config)) if traits.stride else ()
        assert seen <= {*range(-after, before + 1), *multiples}
        assert {before, -after} <= seen


def test_rows_too_short_to_gain_anything_keep_their_mask():
    config = AnyformerDecoderConfig(**SIZES, **SLIDING, sliding_window=64)
    model = AnyformerDecoderModel(config)
    for length, expected in ((200, torch.Tensor), (400, Blocks)):
        x = torch.zeros(1, length, 32)
        masks, _ = model.build_masks(x, model.read_batch(x))
        assert isinstance(masks["sliding_attention"], expected)
