"""ImageGPT and its twin: the start token, and whole folders both ways."""

import torch
import transformers
from anyformer.pipelines.interop.conversion import from_native
from anyformer.pipelines.interop.convert_checkpoint import convert
from native_models import native_model


def test_the_start_token_is_read_and_never_predicted():
    native = native_model("imagegpt", "ImageGPTForCausalImageModeling")
    ours = from_native(native)
    assert ours.lm_head.weight.shape == (16, 32) and ours.get_input_embeddings().weight.shape == (17, 32)
    drawn = ours.generate(torch.full((4, 1), 16), max_new_tokens=20, do_sample=True, top_k=0, temperature=5.0)
    assert drawn[:, 1:].max() < 16
    labels = torch.randint(16, (2, 10))
    same = native(input_ids=labels, labels=labels).loss
    torch.testing.assert_close(ours(input_ids=labels, labels=labels).loss, same)


def test_a_saved_checkpoint_converts_both_ways(tmp_path):
    native_model("imagegpt", "ImageGPTForCausalImageModeling").save_pretrained(tmp_path / "native")
    convert(tmp_path / "native", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back")
    assert type(transformers.AutoConfig.from_pretrained(tmp_path / "back")).__name__ == "ImageGPTConfig"
