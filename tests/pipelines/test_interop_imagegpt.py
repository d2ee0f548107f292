"""ImageGPT and its twin: every head, both ways; published sizes."""

import pytest
import torch
import transformers
from anyformer.pipelines.interop.conversion import from_native, to_native
from anyformer.pipelines.interop.convert_checkpoint import convert
from native_models import assert_same_logits, assert_same_weights, randomise

SIZES = {"vocab_size": 17, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4, "num_labels": 3}
VARIANTS = {"plain": {}, "narrow": {"n_inner": 40, "activation_function": "relu", "scale_attn_weights": False}}
HEADS = {
    "ImageGPTModel": "AnyformerDecoderModel",
    "ImageGPTForCausalImageModeling": "AnyformerDecoderForCausalLM",
    "ImageGPTForImageClassification": "AnyformerDecoderForImageClassification",
}


def native_model(head, variant="plain"):
    config = transformers.ImageGPTConfig(**SIZES | VARIANTS[variant])
    return randomise(getattr(transformers, head)(config)).eval()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head", HEADS)
def test_twins_compute_the_same_and_go_back_bit_equal(head, variant):
    native = native_model(head, variant)
    ours = from_native(native)
    assert type(ours).__name__ == HEADS[head]
    assert_same_logits(native, ours)
    back = to_native(ours)
    assert type(back) is type(native)
    assert_same_weights(native, back)


def test_the_start_token_is_read_and_never_predicted():
    native = native_model("ImageGPTForCausalImageModeling")
    ours = from_native(native)
    assert ours.lm_head.weight.shape == (16, 32) and ours.get_input_embeddings().weight.shape == (17, 32)
    drawn = ours.generate(torch.full((4, 1), 16), max_new_tokens=20, do_sample=True, top_k=0, temperature=5.0)
    assert drawn[:, 1:].max() < 16
    labels = torch.randint(16, (2, 10))
    same = native(input_ids=labels, labels=labels).loss
    torch.testing.assert_close(ours(input_ids=labels, labels=labels).loss, same)


def test_a_saved_checkpoint_converts_both_ways(tmp_path):
    native_model("ImageGPTForCausalImageModeling").save_pretrained(tmp_path / "native")
    convert(tmp_path / "native", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back")
    assert type(transformers.AutoConfig.from_pretrained(tmp_path / "back")).__name__ == "ImageGPTConfig"
