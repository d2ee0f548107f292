"""Laws of training.max_grad_norm with a norm for each part of the model."""

import pytest
import torch
from anyformer.pipelines.recipes.schema import PartNorms
from anyformer.pipelines.training.guards.clipped_parts import ClippedParts

import anyformer

PARTS = {"embeddings": ("embed_tokens",), "layers": ("layers.",), "head": ("model.norm.", "lm_head")}


@pytest.mark.parametrize("tied", [False, True])
def test_each_part_is_clipped_to_its_norm_and_one_with_0_is_not(tied, tiny_config):
    model = anyformer.AnyformerDecoderForCausalLM(tiny_config(tie_word_embeddings=tied))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    own = {part: [name for name in before if any(w in name for w in words)] for part, words in PARTS.items()}
    assert sorted(name for names in own.values() for name in names) == sorted(before)
    clipped = ClippedParts(PartNorms(embeddings=0.5, layers=0.0, head=1e3))  # the last one is above the norm there is
    total = clipped.clip(model)
    torch.testing.assert_close(total, torch.nn.utils.get_total_norm(before.values()))
    for part, names in own.items():
        norm = torch.nn.utils.get_total_norm([before[name] for name in names])
        assert clipped.log()[f"grad_norm_{part}"] == pytest.approx(norm.item())
        scale = 0.5 / norm if part == "embeddings" else 1.0
        for name in names:
            torch.testing.assert_close(model.get_parameter(name).grad, before[name] * scale)
