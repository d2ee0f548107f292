"""Attention maps: under any backend those that the eager backend keeps, of every scheme, kind and family, and of native
models."""

import gc
import weakref

import pytest
import torch
from anyformer.modeling.traits import ATTENTION_KINDS
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.inspection.attention_maps import AttentionMap, attention_maps
from family_variants import ZOO, a_share
from native_models import native_model
from transformers import PreTrainedModel

import anyformer

EXACT = 1e-9


def kept_by_eager(model, inputs) -> list[torch.Tensor]:
    """What transformers' own outputs hold where the model runs on the eager backend."""
    for part in (module for module in model.modules() if isinstance(module, PreTrainedModel)):
        part.set_attn_implementation("eager")
    out = model(**inputs, output_attentions=True)
    if "encoder_attentions" not in out:
        return [weights for weights in out.attentions]
    own, cross = out.decoder_attentions, out.cross_attentions
    return [*out.encoder_attentions, *(weights for both in zip(own, cross) for weights in both)]


@pytest.mark.parametrize("variant", a_share(ZOO, 24), ids=str)
def test_maps_are_those_of_eager_whatever_the_backend(variant):
    model = variant.model()  # on sdpa, where it can
    inputs = variant.inputs(model)
    before, logits = model.config._attn_implementation, model(**inputs)[0]
    maps = attention_maps(model, **inputs)
    assert model.config._attn_implementation == before and torch.equal(model(**inputs)[0], logits)
    for layer in maps:
        if layer.weights is None:
            assert "of a fixed size" in layer.note
        else:
            sums = layer.weights.sum(-1)
            if getattr(model.config, "attention_sinks", False):  # they take a share
                assert (sums > 0).all() and (sums < 1).all(), layer.name
            else:
                assert (sums - 1).abs().max() < EXACT, layer.name
    kinds = [ATTENTION_KINDS[kind] for kind in getattr(model.config, "attention_kinds", None) or ()]
    with_states = [kind.keeps_states for kind in kinds]
    with_states = with_states if any(with_states) else [False] * len(maps)
    same = [layer for layer, states in zip(maps, with_states, strict=True) if not states]
    for layer, weights in zip(same, kept_by_eager(model, inputs), strict=True):
        assert (layer.weights - weights).abs().max() <= EXACT, layer.name


@pytest.mark.parametrize("segment, memory", [(24, 1), (5, 7)])
def test_maps_of_segments_are_those_of_rows(segment, memory, tiny_config):
    """A recurrent layer's weights are those of full attention whose mask shows its segment and the tokens before it."""
    configs = (
        tiny_config(num_hidden_layers=1, **own) for own in ({}, {"segment_length": segment, "memory_length": memory})
    )
    full, recurrent = (anyformer.AnyformerDecoderModel(config).double() for config in configs)
    full.load_state_dict(recurrent.state_dict())
    ids = torch.randint(97, (2, 24), generator=torch.Generator().manual_seed(0))
    place = torch.arange(24)
    seen = (place[None] <= place[:, None]) & (place[None] >= place[:, None] // segment * segment - memory)
    mask = torch.zeros(2, 1, 24, 24).double().masked_fill(~seen, torch.finfo(torch.float64).min)
    (got,) = attention_maps(recurrent, input_ids=ids)
    (expected,) = attention_maps(full, input_ids=ids, attention_mask=mask)
    assert (got.weights - expected.weights).abs().max() <= EXACT


def test_native_models_are_mapped_by_what_they_say_of_themselves():
    bart, t5 = native_model("bart", "BartModel", decoder_layers=2), native_model("t5", "T5Model", num_layers=2)
    inputs = {"input_ids": torch.arange(3, 12)[None], "decoder_input_ids": torch.arange(3, 9)[None]}
    for model in (bart, t5):
        maps = attention_maps(model, **inputs)
        names = [layer.name for layer in maps]
        assert names[:2] == ["encoder layer 0", "encoder layer 1"]
        assert names[2:] == [f"decoder layer {n}{kind}" for n in range(2) for kind in ("", ", cross")]
        for layer, weights in zip(maps, kept_by_eager(model, inputs), strict=True):
            assert (layer.weights - weights).abs().max() < 1e-6


def test_what_is_not_kept_is_freed_layer_by_layer(tiny_config):
    model = anyformer.AnyformerDecoderForCausalLM(tiny_config(num_hidden_layers=3))
    alive, most = [], []

    def each(layer: AttentionMap):
        gc.collect()
        most.append(sum(reference() is not None for reference in alive))
        alive.append(weakref.ref(layer.weights))
        return layer.weights.amax(-1).mean().item()

    means = attention_maps(model.train(), each, input_ids=torch.arange(3, 20)[None])
    assert len(means) == 3 and all(0 < mean <= 1 for mean in means)
    assert max(most) <= 1 and model.training
    with pytest.raises(UserError, match="Linear has no attention layers"):
        attention_maps(torch.nn.Linear(2, 2))
