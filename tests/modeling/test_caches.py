"""Every cache and every way of decoding gives the tokens of the plain full forward."""

import pytest
import torch
import transformers
from family_variants import LATENT, WINDOW, WINDOWS, a_share
from native_models import randomise
from packaging.version import Version
from transformers import (
    CompileConfig,
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    StaticCache,
    cache_utils,
)

import anyformer
from anyformer import AnyformerDecoderForCausalLM

KINDS = {
    "full": {},
    "sliding": WINDOWS,
    "strided": {"attention_pattern": ["strided_attention"], "attention_stride": 3},
    "alibi": {"position_encoding": "alibi"},
    "relative-sliding": WINDOW | {"position_encoding": "relative"},
    "learned": {"position_encoding": "learned"},
}
LENGTH = 10


@pytest.fixture(params=KINDS)
def model(request, tiny_config):
    torch.manual_seed(0)
    return AnyformerDecoderForCausalLM(tiny_config(initializer_range=0.3, **KINDS[request.param])).eval()


def prompt(batch=2):
    return torch.randint(3, 97, (batch, 7), generator=torch.Generator().manual_seed(1))


def by_full_forwards(model, ids, new_tokens=LENGTH):
    """Greedy decoding without any cache: the reference."""
    for _ in range(new_tokens):
        ids = torch.cat((ids, model(ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)), dim=1)
    return ids


def greedy(model, ids, **options):
    return model.generate(
        ids, max_new_tokens=LENGTH, min_new_tokens=LENGTH, do_sample=False, eos_token_id=None, **options
    )


@torch.no_grad()
def test_assisted_and_prompt_lookup_decoding_give_the_greedy_tokens(model):
    if set(model.config.layer_types) == {"sliding_attention"} and Version(transformers.__version__) < Version("5.23"):
        pytest.skip("the cache of old transformers cannot roll back where all layers slide; its own Mistral fails, too")
    torch.manual_seed(1)
    assistant = AnyformerDecoderForCausalLM(model.config).eval()
    ids = prompt(1)
    expected = greedy(model, ids)
    assert torch.equal(greedy(model, ids, assistant_model=assistant), expected)
    assert torch.equal(greedy(model, ids, prompt_lookup_num_tokens=3), expected)


@torch.no_grad()
@pytest.mark.parametrize("class_name", ["AnyformerDecoderForCausalLM", "AnyformerMoeForCausalLM"])
@pytest.mark.parametrize("length", [1, 7])
def test_embeddings_generate_what_their_tokens_do(tiny_config, tiny_moe_config, class_name, length):
    config = (tiny_moe_config if "Moe" in class_name else tiny_config)(initializer_range=0.3)
    model, ids = getattr(anyformer, class_name)(config).eval(), prompt()[:, :length]
    mask = torch.ones_like(ids)
    mask[1, : length // 2] = 0
    for options in ({}, {"cache_implementation": "static"}, {"num_beams": 2}, {"attention_mask": mask}):
        options = {"disable_compile": True, **options}
        expected = greedy(model, ids, **options)
        embeds = model.get_input_embeddings()(ids)
        assert torch.equal(greedy(model, None, inputs_embeds=embeds, **options), expected[:, length:])
        assert torch.equal(greedy(model, ids, inputs_embeds=embeds, **options), expected)
        other = (ids + 1) % 90 + 3  # embeddings come first
        assert torch.equal(greedy(model, other, inputs_embeds=embeds, **options)[:, length:], expected[:, length:])


QUANTISERS = {
    "fp8": ("torch", {}),
    "quanto": ("optimum.quanto", {"nbits": 4}),
    "hqq": ("hqq", {"nbits": 4, "axis_key": 1, "axis_value": 1}),
}


@torch.no_grad()
@pytest.mark.parametrize("backend", QUANTISERS)
def test_a_quantised_cache_stays_close_to_the_full_one(tiny_config, backend):
    package, settings = QUANTISERS[backend]
    pytest.importorskip(package)
    if backend == "fp8" and not any("fp8" in name.lower() for name in dir(cache_utils)):
        pytest.skip("this transformers has no fp8 cache")
    torch.manual_seed(0)
    # Heads of 64: the quantisers work on groups of 64 numbers.
    model = AnyformerDecoderForCausalLM(
        tiny_config(initializer_range=0.3, hidden_size=128, num_attention_heads=2, num_key_value_heads=2)
    ).eval()
    ids = prompt()
    cache = cache_utils.QuantizedCache(backend=backend, config=model.config, **settings)
    expected = model(ids, use_cache=False).logits
    first = model(ids[:, :4], past_key_values=cache)
    rest = model(ids[:, 4:], past_key_values=cache)
    got = torch.cat((first.logits, rest.logits), 1)
    # The first call reads what it has just computed, the second what was quantised.
    assert (got - expected)[:, 4:].abs().max() > 0
    assert (got - expected).abs().mean() < 0.15 * expected.std()
    options = {"cache_implementation": "quantized", "cache_config": {"backend": backend, **settings}}
    assert greedy(model, ids, **options).shape == (2, 7 + LENGTH)


@torch.no_grad()
@pytest.mark.slow
def test_a_compiled_step_with_a_static_cache_decodes_the_same_tokens(model):
    torch.compiler.reset()
    # Not dynamic=False: the static cache of sliding layers counts on the host, a new graph for each token (native too).
    compile_config = CompileConfig(fullgraph=True)
    compile_config._compile_all_devices = True
    rows = greedy(model, prompt(), cache_implementation="static", compile_config=compile_config)
    assert torch.equal(rows, by_full_forwards(model, prompt()))


@torch.no_grad()
def test_a_sliding_cache_holds_the_window_and_no_more(tiny_config):
    config = tiny_config(**WINDOWS)
    model = AnyformerDecoderForCausalLM(config).eval()
    cache = model(prompt(), use_cache=True).past_key_values
    assert cache.layers[0].keys.shape[-2] == 3 and cache.layers[1].keys.shape[-2] == 7
    assert StaticCache(config=config, max_cache_len=32).layers[0].max_cache_len == 4


@torch.no_grad()
def test_a_cache_goes_by_both_names_that_transformers_gave_it(model):
    for name in ("cache", "past_key_values"):
        made = DynamicCache(config=model.config)
        model(prompt()[:, :4], **{name: made})
        rest = model(prompt()[:, 4:], **{name: made}).logits
        assert (rest - model(prompt(), use_cache=False).logits[:, 4:]).abs().max() < 1e-5
    with pytest.raises(ValueError, match="give the cache once"):
        model(prompt(), cache=made, past_key_values=made)


NEW_TOKENS = 6
STRIDED = {"attention_pattern": ["strided_attention", "full_attention"], "attention_stride": 3}
BLOCKS = {"attention_pattern": ["block_sparse_attention"], "block_size": 3, "num_random_blocks": 1}
CHUNKS = {"attention_pattern": ["chunked_attention"], "attention_chunk_size": 4}
LEARNED = {"position_encoding": "learned", "max_position_embeddings": 24}  # fewer than the row has tokens
CASES = {
    "rotary": ("decoder", {}, "sdpa"),
    "rotary-eager": ("decoder", WINDOWS | {"qk_norm": True}, "eager"),
    "learned": ("decoder", LEARNED, "sdpa"),
    "windows": ("decoder", WINDOW, "sdpa"),
    "alibi-windows": ("decoder", WINDOWS | {"position_encoding": "alibi"}, "sdpa"),
    "relative-eager": ("decoder", {"position_encoding": "relative", "relative_attention_shared": False}, "eager"),
    "strided": ("decoder", STRIDED, "sdpa"),
    "blocks": ("decoder", BLOCKS, "sdpa"),
    "strided-alibi-eager": ("decoder", STRIDED | {"position_encoding": "alibi"}, "eager"),
    "soft-caps": ("decoder", {"attn_logit_softcapping": 2.0, "logit_multiplier": 0.5}, "eager"),
    "moe": ("moe", {"shared_expert_intermediate_size": 32, "router_scoring": "sigmoid"}, "sdpa"),
}


def build(family, fields, backend, configs):
    config = configs[family](**({"eos_token_id": None} | fields))
    model = randomise(getattr(anyformer, type(config).__name__.replace("Config", "ForCausalLM"))(config))
    model.set_attn_implementation(backend)
    return model


@pytest.fixture
def configs(tiny_config, tiny_moe_config):
    return {"decoder": tiny_config, "moe": tiny_moe_config}


@pytest.mark.parametrize("name", a_share(CASES, 3))
@torch.no_grad()
def test_tokens_of_many_texts_in_one_row_are_those_of_generate(name, configs):
    model = build(*CASES[name], configs)
    draw = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 97, (length,), generator=draw).tolist() for length in (9, 2, 15)]
    greedy = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    pages = ContinuousBatchingConfig(num_blocks=32, block_size=8, max_batch_tokens=12)  # prompts in several steps
    answers = model.generate_batch(
        prompts, generation_config=greedy, continuous_batching_config=pages, progress_bar=False
    )
    given = [list(answers[key].generated_tokens) for key in sorted(answers, key=lambda key: int(key.split("_")[-1]))]
    own = [
        model.generate(torch.tensor([row]), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        for row in prompts
    ]
    assert given == [ids[0, len(row) :].tolist() for ids, row in zip(own, prompts)]


@pytest.mark.parametrize(
    "family, fields, words",
    [
        ("decoder", {"attention_pattern": ["linear_attention"]}, "linear_attention keeps no keys"),
        ("decoder", LATENT, "latent_attention keeps no keys and values, which its pages hold"),
        ("decoder", CHUNKS, "its pages have no chunked_attention"),
        ("moe", {"expert_capacity": 2}, "expert_capacity=2 counts the tokens of a row"),
    ],
)
def test_what_pages_cannot_hold_is_refused_in_one_sentence(family, fields, words, configs):
    with pytest.raises(ValueError, match=f"continuous batching cannot run .*{words}.*; generate can$"):
        build(family, fields, "eager", configs).generate_batch([[3, 4]], GenerationConfig(max_new_tokens=1))
