"""Laws of models with experts beside those of test_laws.py: routers' losses and statistics in every family."""

import math

import pytest
import torch
from anyformer.pipelines.checks.subject import Subject
from family_variants import MIXTURES, TINY_FIELDS, encoder_row, labelled_batch, tiny, tokens

import anyformer
from anyformer import (
    AnyformerEncoderForMaskedLM,
    AnyformerMoeConfig,
    AnyformerMoeForCausalLM,
)

VARIANTS, TINY = MIXTURES, TINY_FIELDS["moe"]
EXACT = {"atol": 1e-5, "rtol": 1e-5}  # fp32, same maths in another order of operations


def build(model_class=AnyformerMoeForCausalLM, seed=0, **fields):
    torch.manual_seed(seed)
    return model_class(AnyformerMoeConfig(**(TINY | fields))).eval()


def skewed(model, scale=20.0):
    """Routers that prefer, so that a balance loss and its gradient are far from 0."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("gate.weight"):
                p.mul_(scale)
    return model


def test_grouped_experts_are_the_default_and_others_can_be_chosen():
    model, odd = build(), build(**VARIANTS["odd_sizes"])
    assert model.config._experts_implementation == "anyformer_grouped"
    model.set_experts_implementation("batched_mm")
    assert model.model.config._experts_implementation == "batched_mm"
    with pytest.raises(ValueError, match="needs multiples of 8, not moe_intermediate_size=21"):
        odd.set_experts_implementation("grouped_mm")


def test_off_the_cpu_generate_decodes_by_batched_products(monkeypatch):
    """As transformers does for its own grouped product: a compiled step may not read on the host where experts end."""
    model = build()
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    with model._optimize_model_for_decode():
        assert model.model.config._experts_implementation == "batched_mm"
    assert model.model.config._experts_implementation == "anyformer_grouped"


def test_training_adds_the_routers_losses_and_evaluation_does_not():
    model = skewed(build(router_aux_loss_coef=0.3, router_z_loss_coef=0.2))
    ids = tokens()
    evaluated = model(ids, labels=ids)
    assert not any(name.startswith("router") or name == "aux_loss" for name in evaluated)
    shown = model(ids, labels=ids, output_router_logits=True)
    torch.testing.assert_close(shown.loss, evaluated.loss)
    trained = model.train()(ids, labels=ids)
    torch.testing.assert_close(trained.aux_loss, shown.aux_loss)
    torch.testing.assert_close(trained.loss, evaluated.loss + 0.3 * trained.aux_loss + 0.2 * trained.z_loss)
    assert trained.aux_loss > 1.01


def test_statistics_are_those_of_the_logits():
    model, ids = skewed(build(**VARIANTS["qwen3"])), tokens()
    out = model(ids, output_router_logits=True)
    assert len(out.router_logits) == 1 and out.router_logits[0].shape == (48, 6)
    scores = out.router_logits[0].softmax(-1)
    chosen = torch.nn.functional.one_hot(scores.topk(3).indices, 6).float().sum(1).mean(0) / 3
    torch.testing.assert_close(out.router_load, chosen[None])
    torch.testing.assert_close(out.router_entropy, -(scores * scores.log()).sum(-1).mean()[None])
    assert out.router_dropped.tolist() == [0.0] and 0 < out.router_entropy.item() < math.log(6)
    ignored = model.config.keys_to_ignore_at_inference
    assert {name for name in out if name not in ("logits", "loss")} <= set(ignored)


def test_capacity_drops_tokens_and_counts_them():
    full = skewed(build(**VARIANTS["switch"]))
    tight = build(**VARIANTS["switch"], expert_capacity=2)
    tight.load_state_dict(full.state_dict())
    out = tight(tokens(), output_router_logits=True)
    index = out.router_logits[0].argmax(-1).view(2, 24)
    dropped = sum(max(0, (row == e).sum().item() - 2) for row in index for e in range(4)) / 48
    assert out.router_dropped[0].item() == pytest.approx(dropped) and dropped > 0.5
    roomy = build(**VARIANTS["switch"], expert_capacity=24)
    roomy.load_state_dict(full.state_dict())
    assert torch.equal(roomy(tokens()).logits, full(tokens()).logits)


EXPERTS = {"num_experts": 4, "mlp_bias": False, "router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.1}
DEEPER = {"num_decoder_layers": 3, "mlp_pattern": ["dense", "sparse"]}


@pytest.mark.parametrize(
    "name, fields", [("MoeForCausalLM", {}), ("EncoderForMaskedLM", {}), ("Seq2SeqForConditionalGeneration", DEEPER)]
)
def test_the_routers_losses_reach_the_routers_of_every_family(name, fields):
    model_class = getattr(anyformer, f"Anyformer{name}")
    model = skewed(model_class(tiny(name.split("For")[0].lower(), **EXPERTS | fields)))
    out = model.train()(**labelled_batch(name, model.config, rows=4))
    sparse = sum(type(module).__name__ == "SparseMLP" for module in model.modules())
    assert out.router_load.shape == (sparse, 4) and out.router_entropy.shape == (sparse,)
    torch.testing.assert_close(out.router_load.sum(-1), torch.ones(sparse))
    for loss in (out.aux_loss, out.z_loss):
        gates = [p for name, p in model.named_parameters() if name.endswith("gate.weight")]
        gradients = torch.autograd.grad(loss, gates, retain_graph=True)
        assert all(g.abs().sum() > 0 for g in gradients) and len(gates) == sparse
    assert "router_losses" not in out


@torch.no_grad()
def test_padding_changes_no_statistic_of_an_encoder(tiny_encoder_config):
    """Padded on either side, and run without the padding, as sdpa does."""
    model = skewed(AnyformerEncoderForMaskedLM(tiny_encoder_config(**EXPERTS)).eval())
    rows = [encoder_row(model.config, n, seed=n) for n in (9, 5)]
    alone = [model(**row, output_router_logits=True) for row in rows]
    load = sum(out.router_load * n for out, n in zip(alone, (9, 5))) / 14
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        batch = Subject(model, "masked").padded(rows)
        out = model(**batch, labels=batch["input_ids"], output_router_logits=True)
        torch.testing.assert_close(out.router_load, load)
        per_row = torch.cat([model.model(**row, output_router_logits=True).router_losses for row in rows], dim=1)
        torch.testing.assert_close(model.model(**batch, output_router_logits=True).router_losses, per_row, **EXACT)


def test_only_families_that_may_hold_experts_have_their_fields():
    """TRL adds a balancing loss to every model whose config has `output_router_logits`."""
    holders = {name for name in dir(anyformer) if hasattr(getattr(anyformer, name), "output_router_logits")}
    assert holders == {f"Anyformer{family}Config" for family in ("Moe", "Encoder", "Seq2Seq")}
