"""Latent attention: what its cache holds, and how one query meets it."""

import pytest
import torch
from anyformer.modeling.attention_latent import LatentAttention
from family_variants import EXACT, LATENT, Variant, close
from torch import nn
from transformers import DynamicCache

LENGTH = 12
VARIANTS = {
    "latent": LATENT | {"q_lora_rank": 9},
    "alibi": LATENT | {"position_encoding": "alibi"},
}


def model_of(fields: dict, backend: str):
    model = Variant("decoder", "latent", fields).model()
    model.set_attn_implementation(backend)
    return model


def last_step(model, **how):
    """The outputs of the last of LENGTH tokens, on a cache of the others; the second row has padding on the left."""
    ids = torch.randint(3, 97, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :-1], attention_mask=mask[:, :-1], past_key_values=cache)
        return model(ids[:, -1:], attention_mask=mask, past_key_values=cache, **how), cache


@pytest.mark.parametrize("backend", ["eager", "sdpa", "anyformer"])
@pytest.mark.parametrize("name", VARIANTS)
def test_one_query_meets_latents_as_it_would_the_keys_and_values_made_of_them(name, backend, monkeypatch):
    model = model_of(VARIANTS[name], backend)
    how = {"output_attentions": True} if backend == "eager" else {}
    made = []
    expand = LatentAttention.keys_and_values
    monkeypatch.setattr(LatentAttention, "keys_and_values", lambda self, c: made.append(c.shape) or expand(self, c))
    by_latents, _ = last_step(model, **how)
    layers = model.config.num_hidden_layers
    assert len(made) == layers  # of the prompt, and not of the step
    monkeypatch.setattr(LatentAttention, "absorbs", lambda self, mask: False)
    by_keys, _ = last_step(model, **how)
    assert len(made) == 3 * layers
    close(by_latents.logits, by_keys.logits, EXACT)
    for one, other in zip(by_latents.attentions or (), by_keys.attentions or ()):
        close(one, other, EXACT)


def test_a_cache_holds_the_latents_and_the_rotated_part_of_keys():
    model = model_of(VARIANTS["latent"], "sdpa")
    for layer in last_step(model)[1].layers:
        assert layer.keys.shape == (2, 1, LENGTH, LATENT["kv_lora_rank"])
        assert layer.values.shape == (2, 1, LENGTH, LATENT["qk_rope_head_dim"])


def test_what_stands_around_the_projection_of_latents_is_not_passed_by():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    attention = model_of(VARIANTS["latent"], "sdpa").model.layers[0].self_attn
    assert attention.absorbs(None)
    plain = attention.kv_b_proj
    attention.kv_b_proj = Doubled(plain.in_features, plain.out_features, bias=False)
    assert not attention.absorbs(None)
