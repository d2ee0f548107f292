"""Muon for hidden matrices, AdamW for the rest, behind one optimizer's interface."""

import copy

import pytest
import torch
from anyformer.pipelines.optimizers import build_muon, muon_parameter_names
from transformers import get_scheduler

from anyformer import AnyformerDecoderForCausalLM


@pytest.fixture
def model(tiny_config):
    return AnyformerDecoderForCausalLM(tiny_config(position_encoding="learned", norm_type="layernorm"))


def build(model):
    decay = {n for n, p in model.named_parameters() if p.ndim > 1}
    return build_muon(model, decay, muon_lr=0.02, adamw_lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8)


def take_steps(model, optimizer, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(3, 97, (2, 16), generator=generator)
        model.train()(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_muon_takes_hidden_matrices_only_and_every_parameter_has_one_optimizer(model):
    names = muon_parameter_names(model)
    assert all(".self_attn." in n or ".mlp." in n for n in names) and len(names) == 2 * 7
    optimizer = build(model)
    held = [p for g in optimizer.param_groups for p in g["params"]]
    assert len(held) == len({id(p) for p in held}) == len(list(model.parameters()))


def test_it_learns(model):
    ids = torch.randint(3, 97, (4, 16))
    optimizer = build(model)
    losses = []
    for _ in range(30):
        loss = model.train()(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_a_schedule_scales_both_peaks(model):
    optimizer = build(model)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=10, num_training_steps=20)
    take_steps(model, optimizer, 1, 0)
    for _ in range(5):
        scheduler.step()
    assert {round(g["lr"], 6) for g in optimizer.param_groups} == {0.01, 0.0005}
    assert {round(g["lr"], 6) for part in optimizer.parts.values() for g in part.param_groups} == {0.01, 0.0005}


def test_saved_and_loaded_state_continues_bit_identically(model):
    optimizer = build(model)
    take_steps(model, optimizer, 3, 1)
    other = copy.deepcopy(model)
    loaded = build(other)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for m, o in ((model, optimizer), (other, loaded)):
        take_steps(m, o, 3, 2)
    for (name, p), (_, q) in zip(model.named_parameters(), other.named_parameters()):
        assert torch.equal(p, q), name
