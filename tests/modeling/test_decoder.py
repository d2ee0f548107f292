"""Laws of the decoder alone: equal to transformers' own maths; what all families share stands in test_laws.py."""

import pytest
import torch
from family_variants import ROPES
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
)

from anyformer import AnyformerDecoderForCausalLM

TOLERANCE = 1e-9  # float64, same maths in another order of operations


def tokens(batch=2, length=24, vocab=97, seed=0):
    return torch.randint(3, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def build(config, **kwargs):
    return AnyformerDecoderForCausalLM._from_config(config, **kwargs).eval()


def llama_twin(tiny_config, rope="default", attn="sdpa", tie=True):
    rope = dict(ROPES[rope])
    native = LlamaForCausalLM._from_config(
        LlamaConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            rms_norm_eps=1e-5,
            rope_parameters=dict(rope),
            tie_word_embeddings=tie,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        attn_implementation=attn,
    ).eval()
    config = tiny_config(intermediate_size=48, rope_parameters=dict(rope), tie_word_embeddings=tie)
    ours = build(config, attn_implementation=attn)
    ours.load_state_dict(native.state_dict())
    return native, ours


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("rope", ROPES)
def test_logits_equal_native_llama_for_every_rope_type(tiny_config, rope, attn):
    native, ours = llama_twin(tiny_config, rope, attn)
    ids = tokens()
    torch.testing.assert_close(ours(ids).logits, native(ids).logits, atol=TOLERANCE, rtol=0)


def test_residual_projections_start_smaller_with_depth(tiny_config):
    model = build(tiny_config(num_hidden_layers=8, hidden_size=64)).requires_grad_(False)
    layer = model.model.layers[0]
    assert layer.self_attn.o_proj.weight.std() == pytest.approx(0.02 / 4, rel=0.1)
    assert layer.mlp.down_proj.weight.std() == pytest.approx(0.02 / 4, rel=0.1)
    assert layer.self_attn.q_proj.weight.std() == pytest.approx(0.02, rel=0.1)


def test_too_many_tokens_for_learned_positions_is_one_sentence(tiny_config):
    model = build(tiny_config(position_encoding="learned", max_position_embeddings=8))
    with pytest.raises(ValueError, match="max_position_embeddings=8"):
        model(tokens(1, 9))
