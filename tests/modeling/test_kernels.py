"""The backend `anyformer`: any mask of transformers, for any of its models, equal to what it hides nothing of."""

import copy
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch
import transformers
from anyformer.modeling.attention_blocks import block_sparse_mask_function
from anyformer.modeling.attention_strided import strided_mask_function
from anyformer.modeling.kernels import seen, strides, tiles
from family_variants import a_share
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, LlamaConfig, LlamaForCausalLM, masking_utils

import anyformer

EXACT = 1e-9  # float64: the same sums in another order
LENGTH = 300

anyformer.register()


@pytest.fixture(autouse=True)
def in_tiles_of_eight(monkeypatch):
    """Short rows have tiles, too, and few that see everything."""
    for name, value in {"TILE": 8, "SHORTEST_ROW": 9, "MOST_TILES": 1.0, "QUERIES_AT_A_TIME": 16}.items():
        monkeypatch.setattr(tiles, name, value)
    monkeypatch.setattr(strides, "KEY_COST", 0)


# ------------------------------------------------------------------------------------------------- masks and scores


def odd_keys(row, head, query, key):
    return (key % 2 == 1) | (key == query)


odd_keys.takes_tensors = True


def first_keys(row, head, query, key):
    return key < 3


first_keys.takes_tensors = True


@st.composite
def mask_functions(draw, length: int):
    """Compositions as transformers' `create_..._mask` make them, with parts whose bounds are unknown."""
    numbers = st.lists(st.integers(0, 1), min_size=2 * length, max_size=2 * length)
    documents = torch.tensor(draw(numbers)).view(2, length).cumsum(-1)
    restarts = torch.cat((torch.ones(2, 1, dtype=torch.bool), documents.diff(dim=-1) > 0), dim=1)
    begins = torch.where(restarts, torch.arange(length), 0).cummax(-1).values
    window, chunk = draw(st.integers(1, length)), draw(st.integers(1, length))
    causal, every = masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function
    strided = strided_mask_function(SimpleNamespace(attention_stride=draw(st.integers(1, 12))))
    padding = torch.ones(2, length, dtype=torch.bool)
    padding[:, : draw(st.integers(0, length - 1))] = False
    base = draw(
        st.sampled_from(
            [
                causal,
                masking_utils.sliding_window_causal_mask_function(window),
                masking_utils.sliding_window_bidirectional_mask_function(window),
                masking_utils.chunked_causal_mask_function(chunk, torch.zeros(2, dtype=torch.long)),
                masking_utils.and_masks(causal, odd_keys),
                masking_utils.and_masks(causal, strided),
                masking_utils.and_masks(every, strided),
                masking_utils.or_masks(masking_utils.and_masks(causal, strided), first_keys),
                masking_utils.or_masks(masking_utils.sliding_window_causal_mask_function(window), first_keys),
            ]
        )
    )
    if draw(st.booleans()):
        packs = getattr(masking_utils, "packed_sequence_compatibility_function", None)  # transformers < 5.23
        if packs is not None:
            return packs(base, torch.arange(length) - begins, documents), None
        return masking_utils.and_masks(base, masking_utils.packed_sequence_mask_function(documents)), None
    return base, draw(st.sampled_from([None, padding, padding.flip(1)]))


def dense(mask_function, padding, length: int) -> torch.Tensor:
    return masking_utils.sdpa_mask(
        batch_size=2,
        q_length=length,
        kv_length=length,
        mask_function=mask_function,
        attention_mask=padding,
        allow_is_causal_skip=False,
    )


@given(data=st.data(), length=st.integers(10, 50))
def test_what_a_mask_shows_is_what_the_tiles_show_and_nothing_else(data, length):
    mask_function, padding = data.draw(mask_functions(length))
    shown = dense(mask_function, padding, length)
    rest = {"batch_size": 2, "q_length": length, "kv_length": length, "attention_mask": padding}
    found = tiles.tiles_mask(**rest, mask_function=mask_function, allow_is_causal_skip=False, config=None)
    torch.manual_seed(length)
    leaves = [torch.randn(2, heads, length, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    bias = torch.randn(1, 4, length, length, dtype=torch.float64)
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 2, True
    for extra in ({}, {"position_bias": bias}, {"softcap": 0.5}, {"s_aux": torch.randn(4, dtype=torch.float64)}):
        results = []
        for mask in (shown, found):
            out = tiles.tiles_attention(module, *leaves, mask, scaling=0.5, **extra)[0]
            sees = shown.any(-1).transpose(1, 2)[..., None]  # what sees nothing is padding
            loss = (out * sees).pow(2).sum()
            results.append((out * sees, *torch.autograd.grad(loss, leaves)))
        for got, expected in zip(*results):
            torch.testing.assert_close(got, expected, atol=EXACT, rtol=EXACT)


def test_tiles_between_the_blocks_that_a_query_sees_are_not_computed():
    fields = {"block_size": 8, "num_local_blocks": 2, "num_sink_blocks": 1, "num_random_blocks": 1}
    config = anyformer.AnyformerDecoderConfig(attention_pattern=["block_sparse_attention"], **fields)
    function = masking_utils.and_masks(masking_utils.causal_mask_function, block_sparse_mask_function(config))
    groups = tiles.make_tiles(function, 1, 512).groups
    computed = sum(group.key.numel() for group in groups)
    assert 2 * 64 < computed <= 4 * 64  # of 64 tiles of queries each meets 4 of 64: local, first, drawn


STRIDED = {"attention_pattern": ["strided_attention"], "attention_stride": 16, "max_position_embeddings": 1024}
STRIDED |= {"vocab_size": 97, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
STRIDED |= {"intermediate_size": 48, "num_hidden_layers": 1, "pad_token_id": 0}
STRIDED_VARIANTS = {
    "decoder": (anyformer.AnyformerDecoderForCausalLM, {}),
    "encoder": (anyformer.AnyformerEncoderForMaskedLM, {}),
    "alibi": (anyformer.AnyformerDecoderForCausalLM, {"position_encoding": "alibi"}),
    "learned_bias": (anyformer.AnyformerEncoderForMaskedLM, {"position_encoding": "relative"}),
    "sinks_capped": (
        anyformer.AnyformerDecoderForCausalLM,
        {"attention_sinks": True, "attn_logit_softcapping": 2.0, "num_key_value_heads": 1},
    ),
}


def strided_model(variant: str, backend: str):
    model_class, fields = STRIDED_VARIANTS[variant]
    torch.manual_seed(0)
    model = model_class._from_config(model_class.config_class(**STRIDED | fields), attn_implementation=backend)
    return model.double().eval()


@pytest.mark.parametrize("variant, side", a_share(product(STRIDED_VARIANTS, ["none", "left", "packed"]), 4))
def test_strided_layers_compute_what_eager_attention_does_from_near_and_far_keys_alone(variant, side, monkeypatch):
    monkeypatch.undo()  # the sizes of real runs
    length, stride = 603, STRIDED["attention_stride"]
    ids, real = torch.randint(3, 97, (2, length)), torch.ones(2, length, dtype=torch.bool)
    inputs = {"input_ids": ids}
    if side == "left":
        real[0, :70] = False
        inputs["attention_mask"] = real.long()
    elif side == "packed":
        inputs["position_ids"] = torch.cat([torch.arange(n) for n in (400, 150, 53)])[None].expand(2, -1)
    results, products = [], []
    for backend in ("eager", "anyformer"):
        with FlopCounterMode(display=False) as counted:
            results.append(results_of(strided_model(variant, backend), real, **inputs))
        counts = counted.get_flop_counts()["Global"]
        products.append(sum(number for name, number in counts.items() if "bmm" in str(name)))
    for expected, got in zip(*results):
        torch.testing.assert_close(got, expected, atol=EXACT * (1 + expected.abs().max().item()), rtol=0)
    keys = (2 if "Decoder" in STRIDED_VARIANTS[variant][0].__name__ else 3) * stride + -(-length // stride)
    assert 0 < products[1] < 1.1 * products[0] * keys / length


def test_what_transformers_composes_masks_of_is_known_here():
    """Parts that transformers renames would be slow, and nothing would fail."""
    later = {"remap_positions_for_packed_sequence"}  # transformers < 5.23
    for name in {name.split(".")[0] for name in seen.BOUNDS} - later:
        assert hasattr(masking_utils, name), name
    window = masking_utils.sliding_window_causal_mask_function(4)
    assert seen.unknown_parts(window) == [] and seen.unknown_parts(masking_utils.and_masks(window, odd_keys)) == [
        odd_keys
    ]


# --------------------------------------------------------------------------------------------------- native models

SMALL = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0}
SMALL |= {"bos_token_id": 1, "eos_token_id": 2, "moe_intermediate_size": 24, "sliding_window": 64}
SMALL |= {"attention_chunk_size": 80, "use_sliding_window": True, "max_window_layers": 0, "local_attention": 64}
SMALL |= {"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "is_decoder": True}
SMALL |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "d_model": 32, "decoder_layers": 2}
SMALL |= {"decoder_attention_heads": 4, "decoder_ffn_dim": 48, "ffn_dim": 48, "embedding_size": 32}
SMALL |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "hidden_dropout_prob": 0.0, "dropout": 0.0}
SMALL |= {"attention_probs_dropout_prob": 0.0, "attention_dropout": 0.0}
# Windows, chunks, sinks, soft caps, shared keys, experts; all whose scores transformers' interface computes.
CAUSAL = "arcee bart biogpt cohere cohere2 cwm ernie4_5 exaone4 gemma gemma2 gemma3_text glm glm4 gpt2 gpt_bigcode"
CAUSAL += " gpt_neox gpt_oss granite granitemoe helium hunyuan_v1_dense llama llama4_text ministral mistral mixtral"
CAUSAL += " modernbert-decoder nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe"
CAUSAL += " seed_oss smollm3 stablelm starcoder2"
MASKED = "albert bert camembert electra ernie modernbert roberta xlm-roberta"
FAST = {"llama", "mistral", "gemma2", "bert"}
IN_FP32 = 1e-4  # classes that sdpa cannot compute: their eager attention takes the softmax in fp32


def pair(model_type: str, auto_class):
    """The same random model twice, in float64: transformers' backend and ours."""
    config_class = CONFIG_MAPPING[model_type]
    fields = config_class().to_dict()
    config = config_class(**{name: value for name, value in SMALL.items() if name in fields or name == "hidden_size"})
    models = []
    capped = getattr(config, "attn_logit_softcapping", None)  # which sdpa drops  # transformers < 5.23
    for backend in ("eager" if capped else None, "anyformer"):
        torch.manual_seed(0)
        own = copy.deepcopy(config)
        own._experts_implementation = "eager"  # others have no products in float64
        model = auto_class.from_config(own, attn_implementation=backend, dtype=torch.float64).eval()
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        models.append(model)
    return models


def results_of(model, real, **inputs):
    model.zero_grad()
    logits = model(**inputs).logits
    logits = torch.where(real[..., None], logits, 0)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype)
    (logits * weights).sum().backward()
    return [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def named(words: str):
    return [pytest.param(word, marks=() if word in FAST else pytest.mark.slow) for word in words.split()]


@pytest.mark.parametrize("side", ["none", "left", "right", "packed"])
@pytest.mark.parametrize("model_type", named(f"{CAUSAL} {MASKED}"))
def test_native_models_compute_what_they_do_under_transformers_backends(model_type, side):
    is_masked = model_type in MASKED.split()
    if is_masked and side == "packed":
        pytest.skip("position_ids do not tell documents apart in encoders of transformers")
    reference, ours = pair(
        model_type, transformers.AutoModelForMaskedLM if is_masked else transformers.AutoModelForCausalLM
    )
    ids, real = torch.randint(3, 97, (2, LENGTH)), torch.ones(2, LENGTH, dtype=torch.bool)
    inputs = {"input_ids": ids}
    if side in ("left", "right"):
        real[0, :110] = False
        real = real if side == "left" else real.flip(1)
        inputs["attention_mask"] = real.long()
    elif side == "packed":
        inputs["position_ids"] = torch.cat([torch.arange(n) for n in (90, 130, 80)])[None].expand(2, -1)
    tolerance = EXACT
    if reference.config._attn_implementation == "eager":
        reference, ours, tolerance = reference.float(), ours.float(), IN_FP32
    for got, expected in zip(results_of(ours, real, **inputs), results_of(reference, real, **inputs)):
        torch.testing.assert_close(got, expected, atol=tolerance * (1 + expected.abs().max().item()), rtol=0)


def native_llama(backend: str):
    sizes = {name: SMALL[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    torch.manual_seed(0)
    return LlamaForCausalLM._from_config(LlamaConfig(**sizes), attn_implementation=backend).eval()


@pytest.mark.parametrize("make, length", [(native_llama, 40), (partial(strided_model, "decoder"), 300)])
def test_a_model_generates_the_same_from_any_cache(make, length):
    ids = torch.randint(3, 97, (2, length))
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = make("eager").generate(ids, **options)
    for cache in (None, "static"):
        got = make("anyformer").generate(ids, cache_implementation=cache, **options)
        assert torch.equal(got, expected)


def test_a_class_that_computes_scores_by_itself_refuses_the_backend():
    model = transformers.BloomModel(transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=97))
    model.config._attn_implementation = "anyformer"
    with pytest.raises(ValueError, match="BloomModel computes its attention by itself"):
        model(torch.randint(3, 97, (1, 40)))


@pytest.mark.filterwarnings("error:Dynamo detected a call to a `functools.lru_cache`")
def test_packed_rows_are_compiled_whole_without_a_warning_and_as_they_are():
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=LENGTH)
    model = LlamaForCausalLM._from_config(config, attn_implementation="anyformer").eval()
    row = {"input_ids": torch.randint(40, (1, LENGTH)), "position_ids": torch.arange(LENGTH)[None] % 100}
    with torch.no_grad():
        got = torch.compile(model, fullgraph=True, backend="eager")(**row, use_cache=False).logits
        torch.testing.assert_close(got, model(**row, use_cache=False).logits)
