"""transformers' continuous batching: texts of many users in one row, keys and values in pages; tokens as generate's."""

import pytest
import torch
from native_models import randomise
from transformers import ContinuousBatchingConfig, GenerationConfig

import anyformer

NEW_TOKENS = 6
WINDOW = {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 4}
STRIDED = {"attention_pattern": ["strided_attention", "full_attention"], "attention_stride": 3}
LEARNED = {"position_encoding": "learned", "max_position_embeddings": 24}  # fewer than the row has tokens
CASES = {
    "rotary": ("decoder", {}, "sdpa"),
    "rotary-eager": ("decoder", WINDOW | {"qk_norm": True}, "eager"),
    "learned": ("decoder", LEARNED, "sdpa"),
    "windows": ("decoder", {"attention_pattern": ["sliding_attention"], "sliding_window": 4}, "sdpa"),
    "alibi-windows": ("decoder", WINDOW | {"position_encoding": "alibi"}, "sdpa"),
    "relative-eager": ("decoder", {"position_encoding": "relative", "relative_attention_shared": False}, "eager"),
    "strided": ("decoder", STRIDED, "sdpa"),
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


@pytest.mark.parametrize("name", CASES)
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
        ("decoder", {"attention_pattern": ["linear_attention"]}, "linear_attention keeps states"),
        ("moe", {"expert_capacity": 2}, "expert_capacity=2 counts the tokens of a row"),
    ],
)
def test_what_pages_cannot_hold_is_refused_in_one_sentence(family, fields, words, configs):
    with pytest.raises(ValueError, match=f"continuous batching cannot run .*{words}.*; generate can$"):
        build(family, fields, "eager", configs).generate_batch([[3, 4]], GenerationConfig(max_new_tokens=1))
