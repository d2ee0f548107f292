"""Latent attention: what its cache holds."""

import torch
from family_variants import LATENT, Variant
from transformers import DynamicCache

LENGTH = 12


@torch.no_grad()
def test_a_cache_holds_the_latents_and_the_rotated_part_of_keys():
    model = Variant("decoder", "latent", LATENT).model()
    cache = DynamicCache(config=model.config)
    model(torch.arange(3, 3 + LENGTH)[None], past_key_values=cache)
    for layer in cache.layers:
        assert layer.keys.shape == (1, 1, LENGTH, LATENT["kv_lora_rank"])
        assert layer.values.shape == (1, 1, LENGTH, LATENT["qk_rope_head_dim"])
