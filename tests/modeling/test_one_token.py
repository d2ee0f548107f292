"""Generating: a token without the calls of modules, a cache with room, a product of few rows. The same numbers."""

import copy
import importlib

import pytest
import torch
from anyformer.modeling.cache_growing import LEAST_ROOM, EncoderLayer, GrowingLayer
from anyformer.modeling.products import product, weight_comes_first
from family_variants import DECODERS, EXACT, SEQ2SEQS, Variant, close, tokens
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

stack = importlib.import_module("anyformer.modeling.stack")

# By what is in a layer; of kinds with states or experts the layers are called.
ROWS = [Variant("decoder", name, DECODERS[name]) for name in DECODERS if "linear" not in name and "re" not in name[:3]]
ROWS = [row for row in ROWS if "compressive" not in row.name]
ROWS += [Variant("seq2seq", name, fields) for name, fields in SEQ2SEQS.items() if name != "switch"]
OPTIONS = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "eos_token_id": None}
OPTIONS |= {"return_dict_in_generate": True, "output_logits": True, "pad_token_id": 0}


def ran(monkeypatch) -> list:
    """Where it is noted for each pass whether it was done without the layers' calls."""
    found, original = [], stack.one_token

    def noted(*args, **kwargs):
        out = original(*args, **kwargs)
        found.append(out is not None)
        return out

    monkeypatch.setattr(stack, "one_token", noted)
    return found


@torch.no_grad()
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_token_without_calls_is_the_layers_token(row, monkeypatch):
    model, ids = row.model(), tokens(3, 7)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0  # padding to the left
    noted = ran(monkeypatch)
    for options in ({}, {"num_beams": 2}):
        runs = []
        for without_calls in (True, False):
            with monkeypatch.context() as patch:
                if not without_calls:
                    patch.setattr(stack, "one_token", lambda *args, **kwargs: None)
                    if row.family == "decoder":
                        patch.setattr(type(model), "only_generates", lambda self: False)
                runs.append(model.generate(ids, attention_mask=mask, **OPTIONS, **options))
        assert torch.equal(runs[0].sequences, runs[1].sequences)
        for got, expected in zip(runs[0].logits, runs[1].logits):
            close(got, expected, EXACT)
    assert noted.count(True) == 10  # of each run all steps but the first; a test of nothing would pass, too


@torch.no_grad()
def test_what_is_hooked_or_replaced_is_called(tiny_config, monkeypatch):
    model, ids = Variant("decoder", "rotary", {}).model(), tokens(2, 5)
    noted, seen = ran(monkeypatch), []

    def steps():
        noted.clear()
        model.generate(ids, **OPTIONS)
        return noted.count(True)

    assert steps() == 5
    first = model.model.layers[0]
    for module in (model.model, first, first.self_attn, first.mlp.up_proj):
        hook = module.register_forward_hook(lambda *args: seen.append(1))
        seen.clear()
        steps()
        assert len(seen) == 6, type(module)
        hook.remove()

    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    plain = model.generate(ids, **OPTIONS).logits
    adapted = Adapted(32, first.self_attn.q_proj.out_features, bias=False).double()
    adapted.weight = first.self_attn.q_proj.weight
    first.self_attn.q_proj = adapted
    assert steps() == 0
    assert (model.generate(ids, **OPTIONS).logits[3] - plain[3]).abs().max() > 1e-3
    shown = model.generate(ids, **OPTIONS, output_hidden_states=True)
    assert len(shown.hidden_states) == 6 and len(shown.hidden_states[3]) == model.config.num_hidden_layers + 1


@torch.no_grad()
def test_captured_outputs_are_those_of_every_token(tiny_config):
    model = Variant("decoder", "rotary", {}).model()
    shown = model.generate(tokens(2, 5), **OPTIONS, output_hidden_states=True)
    assert [len(step) for step in shown.hidden_states] == [model.config.num_hidden_layers + 1] * 6


def filled(layer, steps=((5, 0), (1, 1), (1, 2))):
    for length, seed in steps:
        states = torch.randn(2, 3, length, 4, generator=torch.Generator().manual_seed(seed))
        got = layer.update(states, states + 1)
    return got


CHANGES = {
    "nothing": lambda layer: None,
    "crop": lambda layer: layer.crop(-2),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 1])),
    "repeat": lambda layer: (layer.batch_repeat_interleave(2), layer.batch_select_indices(torch.tensor([0, 3]))),
    "reset": lambda layer: (layer.reset(), filled(layer)),
    "set": lambda layer: setattr(layer, "keys", layer.keys * 2),
    "copy": lambda layer: copy.deepcopy(layer).update(torch.zeros(2, 3, 1, 4), torch.zeros(2, 3, 1, 4)),
}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
def test_a_growing_layer_holds_what_a_dynamic_one_holds(change):
    growing, dynamic = GrowingLayer(), DynamicLayer()
    for layer in (growing, dynamic):
        filled(layer)
        CHANGES[change](layer)
    more = [(1, 10 + i) for i in range(3)] + [(4, 20), (LEAST_ROOM + 5, 21), (1, 22)]
    assert all(torch.equal(*pair) for pair in zip(filled(growing, more), filled(dynamic, more)))
    assert growing.get_seq_length() == dynamic.get_seq_length()


def test_a_growing_layer_copies_nothing_while_there_is_room_and_keeps_what_gradients_need():
    layer = GrowingLayer()
    with torch.inference_mode():
        filled(layer)
        place = layer.keys.data_ptr()
        filled(layer, [(1, i) for i in range(LEAST_ROOM - 5)])
        assert layer.keys.data_ptr() == place
    with torch.no_grad():  # tensors made in inference mode are not written to outside it
        held = layer.keys.clone()
        got, _ = filled(layer, [(1, 1)])
        assert torch.equal(got[:, :, :-1], held)
    weight = torch.ones(2, 3, 1, 4, requires_grad=True)
    got, _ = layer.update(weight * 2, weight)
    product_of_them = (got * got).sum()
    layer.update(weight, weight)
    product_of_them.backward()
    assert torch.equal(weight.grad, torch.full_like(weight, 8.0))


@torch.no_grad()
def test_generate_keeps_the_cache_where_it_is():
    model = Variant("decoder", "rotary", {}).model()
    cache, places = DynamicCache(), set()
    for step in range(40):
        model(tokens(1, 9 if step == 0 else 1), past_key_values=cache)
        places.add(cache.layers[0].keys.data_ptr())
    assert len(places) == 2  # that of the prompt, and that with room


@torch.no_grad()
def test_a_source_is_encoded_once_however_many_beams_and_tokens(monkeypatch):
    model, ids = Variant("seq2seq", "t5", SEQ2SEQS["t5"]).model(), tokens(3, 7)
    encoded, copied = [], []
    model.model.encoder.register_forward_hook(lambda module, args, out: encoded.append(len(out[0])))
    original = DynamicLayer.reorder_cache
    monkeypatch.setattr(
        DynamicLayer, "reorder_cache", lambda layer, idx: (copied.append(type(layer)), original(layer, idx))
    )
    for beams in (1, 4):
        model.generate(ids, num_beams=beams, **OPTIONS)
        assert encoded == [3] and EncoderLayer not in copied
        encoded.clear()


@torch.no_grad()
def test_an_encoders_keys_are_reordered_where_rows_differ():
    layer, idx = EncoderLayer(), torch.tensor([0, 0, 3, 2])
    rows = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0)).repeat_interleave(2, dim=0)
    layer.update(rows, rows + 1)
    held = layer.keys
    layer.reorder_cache(idx)  # within the beams of each row
    assert layer.keys is held
    layer.reorder_cache(torch.tensor([2, 2, 0, 1]))
    assert torch.equal(layer.keys, rows[[2, 2, 0, 1]]) and torch.equal(layer.values, rows[[2, 2, 0, 1]] + 1)


@pytest.mark.parametrize("rows", [1, 4, 8, 17, 40])
def test_the_product_of_few_rows_is_the_linear_layers(rows, monkeypatch):
    monkeypatch.setattr("anyformer.modeling.products.KNOWN_OF_CPU", {"amx_tile": True})
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(4096, 256, generator=generator), torch.randn(4096, generator=generator)
    x = torch.randn(rows, 256, generator=generator)
    for arguments in ((x, weight), (x, weight, bias)):
        close(product(*arguments), nn.functional.linear(*arguments), 1e-5)
    assert weight_comes_first(rows, weight) == (4 <= rows <= 32)
    head = importlib.import_module("anyformer.modeling.lm_head").LanguageModelHead
    config = Variant("decoder", "rotary", {}).config(vocab_size=4096, hidden_size=256, lm_head_bias=True)
    layer = head(config)
    with torch.no_grad():
        close(layer(x[:, None]), nn.functional.linear(x[:, None], layer.weight, layer.bias), 1e-5)
        assert layer(x[:, None]).is_contiguous()
    monkeypatch.setattr("anyformer.modeling.products.KNOWN_OF_CPU", {"amx_tile": False})
    assert not weight_comes_first(rows, weight)
