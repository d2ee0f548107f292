"""Laws of the decoder alone: equal to transformers' own maths; what all families share stands in test_laws.py."""

import pytest
import torch
from family_variants import ROPES
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
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


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_logits_equal_native_gpt2(tiny_config, attn):
    native = GPT2LMHeadModel._from_config(
        GPT2Config(
            vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        ),
        attn_implementation=attn,
    ).eval()
    ours = build(
        tiny_config(
            position_encoding="learned",
            norm_type="layernorm",
            mlp_type="mlp",
            hidden_act="gelu_new",
            attention_bias=True,
            mlp_bias=True,
            num_key_value_heads=4,
        ),
        attn_implementation=attn,
    )
    theirs, weights = native.state_dict(), {}
    names = {
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "attn.c_proj": "self_attn.o_proj",
        "mlp.c_fc": "mlp.up_proj",
        "mlp.c_proj": "mlp.down_proj",
    }
    for i in range(2):
        for kind in ("weight", "bias"):
            prefix = f"transformer.h.{i}."
            for old, new in names.items():
                value = theirs[f"{prefix}{old}.{kind}"]
                weights[f"model.layers.{i}.{new}.{kind}"] = value if value.dim() == 1 or "ln" in old else value.T
            fused = theirs[f"{prefix}attn.c_attn.{kind}"]
            for name, part in zip("qkv", fused.chunk(3, dim=-1)):
                weights[f"model.layers.{i}.self_attn.{name}_proj.{kind}"] = part.T if part.dim() == 2 else part
    for kind in ("weight", "bias"):
        weights[f"model.norm.{kind}"] = theirs[f"transformer.ln_f.{kind}"]
    weights["model.embed_tokens.weight"] = weights["lm_head.weight"] = theirs["transformer.wte.weight"]
    weights["model.position_encoding.weight"] = theirs["transformer.wpe.weight"]
    ours.load_state_dict(weights)
    ids = tokens()
    torch.testing.assert_close(ours(ids).logits, native(ids).logits, atol=TOLERANCE, rtol=0)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "top_k": 5}, {"num_beams": 3}], ids=["greedy", "sample", "beam"]
)
def test_generate_equals_native_llama_with_left_padding(tiny_config, options):
    native, ours = llama_twin(tiny_config)
    ids, mask = tokens(2, 10), torch.ones(2, 10, dtype=torch.long)
    ids[1, :4], mask[1, :4] = 0, 0
    results = []
    for model in (native, ours):
        torch.manual_seed(7)
        results.append(model.generate(ids, attention_mask=mask, max_new_tokens=12, **options))
    assert torch.equal(*results)


@torch.no_grad()
def test_outputs_hold_every_layer(tiny_config):
    model = build(tiny_config(), attn_implementation="eager")
    out = model(tokens(), output_hidden_states=True, output_attentions=True)
    assert len(out.hidden_states) == 3 and out.hidden_states[0].shape == (2, 24, 32)
    assert len(out.attentions) == 2 and out.attentions[0].shape == (2, 4, 24, 24)
    torch.testing.assert_close(out.attentions[0].sum(-1), torch.ones(2, 4, 24))


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
