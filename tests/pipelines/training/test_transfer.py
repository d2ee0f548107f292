"""training.transfer: steps move what a model computes as far in every width and depth as in those of the base."""

import json

import pytest
import torch
import transformers
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.base_width import in_width, multipliers
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.engines.late_weights import built_late, fill
from anyformer.pipelines.training.optimizers import build_muon
from anyformer.pipelines.training.transfer import scale_new_weights, scale_rates, scales_of
from family_variants import a_share
from transformers import AutoConfig

BASE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TOKENS = {"vocab_size": 64, "max_position_embeddings": 32}
FAMILIES = {
    "decoder": ("AutoModelForCausalLM", TOKENS | {"num_key_value_heads": 1}),
    "encoder": ("AutoModelForMaskedLM", TOKENS | {"position_encoding": "learned", "hidden_dropout": 0.0}),
    "seq2seq": ("AutoModelForSeq2SeqLM", TOKENS | {"tie_word_embeddings": False, "decoder_start_token_id": 1}),
    "moe": ("AutoModelForCausalLM", TOKENS | {"num_experts": 4, "router_aux_loss_coef": 0.0}),
    "vit": ("AutoModelForImageClassification", {"image_size": 8, "patch_size": 4, "num_labels": 4}),
}


def build(family, sizes, transfers, through=lambda make: make()):
    """A model in other sizes than BASE, with the scales of that base, or None."""
    auto_class, fields = FAMILIES[family]
    fields = BASE | fields
    own = fields | in_width(fields, sizes.get("hidden_size", 32), "width") | sizes
    make = getattr(transformers, auto_class).from_config
    base, config = (AutoConfig.for_model(f"anyformer_{family}", **each) for each in (fields, own))
    torch.manual_seed(0)
    if not transfers:
        return make(config), None
    model = through(lambda: make(AutoConfig.for_model(f"anyformer_{family}", **own | multipliers(config, base))))
    with torch.device("meta"):
        narrow = fields | {"num_hidden_layers": own["num_hidden_layers"]}
        narrow = make(AutoConfig.for_model(f"anyformer_{family}", **narrow))
    scales = scales_of(model, narrow, own["num_hidden_layers"] / 2)
    scale_new_weights(model, scales)
    return model, scales


def moved(family, optim, sizes, transfers) -> float:
    """How far three steps move the logits: the root of the mean square."""
    model, scales = build(family, sizes, transfers)
    if optim == "muon":
        settings = {"weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
        optimizer = build_muon(model, set(), muon_lr=0.02, adamw_lr=3e-3, **settings)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if scales is not None:
        scale_rates(optimizer, model, scales)
    generator = torch.Generator().manual_seed(1)
    if family == "vit":
        batch = {"pixel_values": torch.randn(16, 3, 8, 8, generator=generator), "labels": torch.arange(16) % 4}
    else:
        batch = {"input_ids": torch.randint(5, 64, (8, 16), generator=generator)}
        batch["labels"] = batch["input_ids"].flip(1)
    before = model.eval()(**batch).logits.detach()
    for _ in range(3):
        model.train()(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (model.eval()(**batch).logits - before).detach().square().mean().sqrt().item()


CHECKED = [("decoder", "adamw", {"num_hidden_layers": 8})]
CHECKED += [(family, "adamw", {"hidden_size": 128}) for family in FAMILIES]
CHECKED += [("decoder", "muon", {"hidden_size": 128})]


@pytest.mark.parametrize("family, optim, sizes", a_share(CHECKED, 3))
def test_steps_move_the_outputs_of_a_larger_model_as_far_as_those_of_its_base(family, optim, sizes):
    """The coordinate check of Yang et al. 2022, appendix D.1; the base's own is the one without anything to scale."""
    base, larger = (moved(family, optim, each, transfers=True) for each in ({}, sizes))
    assert 0.6 < larger / base < 1.5
    assert base == moved(family, optim, {}, transfers=False)
    if "hidden_size" in sizes:
        assert moved(family, optim, sizes, transfers=False) > 1.6 * larger


def test_weights_that_are_drawn_late_are_scaled_as_whole_ones():
    sizes = {"hidden_size": 64, "num_hidden_layers": 4}
    whole, _ = build("moe", sizes, transfers=True)
    late, _ = build("moe", sizes, transfers=True, through=built_late)
    assert all(p.is_meta for p in late.parameters())
    fill(late)
    expected = dict(whole.named_parameters())
    assert all(torch.equal(p, expected[name]) for name, p in late.named_parameters())


def test_matrices_within_layers_learn_slower_and_the_saved_model_says_its_multipliers(tiny_recipe, command, tmp_path):
    transfer = {"base": {"hidden_size": 16, "num_hidden_layers": 1}}
    recipe = tiny_recipe(training={"max_steps": 6, "weight_decay": 0.1, "transfer": transfer})
    assert command("train", recipe, "model.num_key_value_heads=4", "model.intermediate_size=64") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["logit_multiplier"], config["residual_multiplier"]) == (0.5, 0.5)
    states = torch.load(tmp_path / "run" / "checkpoint-6" / "optimizer.pt", weights_only=True)
    peaks = {(g["initial_lr"], g["weight_decay"]) for g in states["param_groups"]}
    assert peaks == {(5e-3, 0.1), (5e-3, 0.0), (2.5e-3, 0.2)}  # the table, norms, and matrices


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (["training.transfer={base: {hiden_size: 64}}"], "base.hiden_size is no size of a model; did you mean hidden_"),
        (["training.transfer={base: {hidden_size: 50}}"], "base.hidden_size: 50 is no multiple of 32, the size of a"),
        (["training.transfer={base: {intermediate_size: 64}}"], "says no size; set hidden_size, num_hidden_layers or"),
        (["training.transfer={base: {hidden_size: 64, num_attention_heads: 8}}"], "has heads of 8 channels, and the"),
        (["training.transfer={base: {hidden_size: 64}}", "training.optim=sgd"], "optim=sgd: training.transfer knows"),
    ],
)
def test_a_base_from_which_nothing_transfers_is_one_sentence(settings, sentence):
    with pytest.raises(UserError) as caught:
        load_recipe("quickstart", settings)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
