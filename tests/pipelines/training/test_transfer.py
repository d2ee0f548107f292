"""training.transfer: what a layer computes has the same size in every width and depth, before training and in it."""

import pytest
import torch
from anyformer.pipelines.recipes.base_width import in_width, multipliers
from anyformer.pipelines.training.engines.late_weights import built_late, fill
from anyformer.pipelines.training.optimizers import build_muon
from anyformer.pipelines.training.transfer import scale_new_weights, scale_rates, scales_of
from transformers import AutoConfig
import transformers

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TOKENS = {"vocab_size": 64, "max_position_embeddings": 32}
FAMILIES = {
    "decoder": ("AutoModelForCausalLM", TOKENS | {"num_key_value_heads": 1}),
    "encoder": ("AutoModelForMaskedLM", TOKENS | {"position_encoding": "learned", "hidden_dropout": 0.0}),
    "seq2seq": ("AutoModelForSeq2SeqLM", TOKENS | {"tie_word_embeddings": False}),
    "moe": ("AutoModelForCausalLM", TOKENS | {"num_experts": 4, "router_aux_loss_coef": 0.0}),
    "vit": ("AutoModelForImageClassification", {"image_size": 8, "patch_size": 4, "num_labels": 4}),
}


def build(family, width, layers, transfers):
    """A model of a width and depth, with the scales of a base of 32 channels and two layers, or None."""
    auto_class, fields = FAMILIES[family]
    fields = SIZES | fields
    sizes = fields | in_width(fields, width, "width") | {"num_hidden_layers": layers}
    base, config = (AutoConfig.for_model(f"anyformer_{family}", **each) for each in (fields, sizes))
    torch.manual_seed(0)
    make = getattr(transformers, auto_class).from_config
    if not transfers:
        return make(config), None
    model = make(AutoConfig.for_model(f"anyformer_{family}", **sizes | multipliers(config, base)))
    with torch.device("meta"):
        narrow = make(AutoConfig.for_model(f"anyformer_{family}", **fields | {"num_hidden_layers": layers}))
    scales = scales_of(model, narrow, layers / 2)
    scale_new_weights(model, scales)
    return model, scales


def change_of_outputs(family, optim, width, layers, transfers) -> float:
    """How far four steps move the logits: the root of the mean square."""
    model, scales = build(family, width, layers, transfers)
    if optim == "muon":
        settings = {"weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
        optimizer = build_muon(model, set(), muon_lr=0.02, adamw_lr=3e-3, **settings)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if scales is not None:
        scale_rates(optimizer, model, scales)
    generator = torch.Generator().manual_seed(1)
    if family == "vit":
        batch = {"pixel_values": torch.randn(16, 3, 8, 8, generator=generator)}
        batch["labels"] = torch.arange(16) % 4
    else:
        batch = {"input_ids": torch.randint(5, 64, (8, 16), generator=generator)}
        batch["labels"] = batch["input_ids"].flip(1)
    first = model.train()(**batch).loss
    before = model.eval()(**batch).logits.detach()
    model.train()
    for _ in range(4):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = model.eval()(**batch).logits.detach()
    print(family, optim, width, layers, transfers, f"{before.std():.4f} {(after-before).std():.4f} {first:.3f}")
    return (after - before).square().mean().sqrt().item()


if __name__ == "__main__":
    import anyformer; anyformer.register()
    torch.set_num_threads(1)
    for family in FAMILIES:
        for optim in ("adamw", "muon"):
            for t in (False, True):
                for w, l in ((32, 2), (128, 2), (512, 2), (32, 8)):
                    if w == 512 and family != "decoder": continue
                    change_of_outputs(family, optim, w, l, t)
