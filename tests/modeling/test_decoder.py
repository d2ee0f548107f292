"""Laws of the decoder alone: equal to transformers' own maths; what all families share stands in test_laws.py."""

import pytest
import torch
from family_variants import ROPES
from native_models import native_model

from anyformer import AnyformerDecoderForCausalLM, from_native

TOLERANCE = 1e-9  # float64, same maths in another order of operations


def tokens(batch=2, length=24, vocab=97, seed=0):
    return torch.randint(3, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("rope", ROPES)
def test_logits_equal_native_llama_for_every_rope_type(rope):
    native = native_model("llama2", rope_parameters=dict(ROPES[rope]))
    ours = from_native(native)
    for attn in ("eager", "sdpa"):
        for model in (native, ours):
            model.set_attn_implementation(attn)
        torch.testing.assert_close(ours(tokens()).logits, native(tokens()).logits, atol=TOLERANCE, rtol=0)


def test_residual_projections_start_smaller_with_depth(tiny_config):
    model = AnyformerDecoderForCausalLM(tiny_config(num_hidden_layers=8, hidden_size=64)).requires_grad_(False)
    layer = model.model.layers[0]
    assert layer.self_attn.o_proj.weight.std() == pytest.approx(0.02 / 4, rel=0.1)
    assert layer.mlp.down_proj.weight.std() == pytest.approx(0.02 / 4, rel=0.1)
    assert layer.self_attn.q_proj.weight.std() == pytest.approx(0.02, rel=0.1)


@torch.no_grad()
@pytest.mark.parametrize(
    "fields", [{"final_logit_softcapping": 2.0, "logit_multiplier": 0.5}, {"output_vocab_size": 50}]
)
def test_an_untied_head_keeps_its_logits_when_its_vocabulary_grows(fields, tiny_config, tmp_path):
    model = AnyformerDecoderForCausalLM(tiny_config(tie_word_embeddings=False, initializer_range=0.5, **fields)).eval()
    ids = tokens(vocab=50)
    before = model(ids).logits
    model.resize_token_embeddings(120)
    grown = model(ids).logits
    assert grown.shape[-1] == 120 and torch.equal(grown[..., : before.shape[-1]], before)
    model.save_pretrained(tmp_path)
    assert torch.equal(AnyformerDecoderForCausalLM.from_pretrained(tmp_path)(ids).logits, grown)
