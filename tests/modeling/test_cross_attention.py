"""A decoder that attends to an encoder's tokens: as GPT-2's own class, and the laws of packing, padding and caches."""

import pytest
import torch
from anyformer.pipelines.interop.conversion import from_native, to_native
from family_variants import WINDOWS, exactness, positions_of
from native_models import assert_same_weights, native_model
from transformers import AutoModelForCausalLM, EncoderDecoderCache

from anyformer import AnyformerMoeForCausalLM

EXACT = 1e-9  # float64, same maths in another order of operations
PARTS = {
    "rotary": {},
    "alibi-sandwich": {"position_encoding": "alibi", "norm_position": "both", "attention_gate": "head"},
    "sliding-post": WINDOWS | {"norm_position": "post"},
    "delta-compressive": {
        "attention_pattern": ["gated_delta_attention", "compressive_attention"],
        "segment_length": 4,
    },
    "inside-linear-relative": {
        "norm_position": "inside",
        "attention_pattern": ["linear_attention", "full_attention"],
        "position_encoding": "none",
        "qk_norm": True,
    },
}


def slow_but_the_first(names):
    return [pytest.param(name, marks=[pytest.mark.slow] if i else []) for i, name in enumerate(names)]


@pytest.fixture(params=slow_but_the_first(PARTS))
def decoder(request, tiny_config):
    config = tiny_config(add_cross_attention=True, **PARTS[request.param])
    return AutoModelForCausalLM.from_config(config).double().eval()


def read(rows: int, target: int, source: int, seed: int = 0) -> dict:
    drawn = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(4, 97, (rows, target), generator=drawn),
        "encoder_hidden_states": torch.randn(rows, source, 32, generator=drawn, dtype=torch.float64),
    }


def packed(*documents) -> dict:
    """Documents (1, T) as one row, with positions of both sides."""
    row = {name: torch.cat([document[name] for document in documents], dim=1) for name in documents[0]}
    row["position_ids"] = positions_of([document["input_ids"].shape[1] for document in documents])
    row["encoder_position_ids"] = positions_of([d["encoder_hidden_states"].shape[1] for d in documents])
    return row


def same(found, expected, model=None):
    """Equal up to what the model computes in fp32 whatever its type."""
    tolerance = EXACT if model is None else exactness(model)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("head", ["GPT2LMHeadModel", "GPT2Model"])
def test_it_computes_what_gpt2_with_cross_attention_computes_both_ways(head):
    native = native_model("gpt2_cross_attention", head)
    ours = from_native(native)
    back = to_native(ours)
    assert_same_weights(native, back)
    inputs = read(2, 7, 5) | {"encoder_attention_mask": torch.tensor([[1] * 5, [1] * 3 + [0] * 2])}
    same(ours.double()(**inputs)[0], native.double()(**inputs)[0])
    alone = {"input_ids": inputs["input_ids"]}
    same(ours(**alone)[0], native(**alone)[0])


def test_packed_documents_see_their_own_source_only(decoder):
    documents = [read(1, 5, 4, seed=1), read(1, 3, 6, seed=2), read(1, 6, 1, seed=3)]
    apart = torch.cat([decoder(**document).logits for document in documents], dim=1)
    row = packed(*documents)
    row["encoder_hidden_states"].requires_grad_()
    together = decoder(**row).logits
    same(together, apart, decoder)
    together[:, 5:8].sum().backward()  # of the second document
    gradient = row["encoder_hidden_states"].grad
    assert gradient[:, :4].abs().max() == 0 and gradient[:, 10:].abs().max() == 0 and gradient[:, 4:10].abs().min() > 0


def test_packed_rows_without_the_sources_borders_are_refused(decoder):
    row = packed(read(1, 5, 4), read(1, 3, 6))
    borders = row.pop("encoder_position_ids")
    with pytest.raises(ValueError, match="encoder_position_ids are missing"):
        decoder(**row)
    with pytest.raises(ValueError, match="cu_seq_lens_q has the borders of one side"):
        decoder(**row, encoder_position_ids=borders, cu_seq_lens_q=torch.tensor([0, 5, 8]))


def test_a_cache_of_both_gives_what_the_whole_row_gives(decoder):
    inputs = read(2, 9, 5)
    expected, cache = decoder(**inputs).logits, None
    for part in inputs["input_ids"].split([4, 1, 1, 3], dim=1):
        outputs = decoder(
            input_ids=part, encoder_hidden_states=inputs["encoder_hidden_states"], past_key_values=cache, use_cache=True
        )
        cache = outputs.get("cache", outputs.get("past_key_values"))
        same(outputs.logits, expected[:, : part.shape[1]], decoder)
        expected = expected[:, part.shape[1] :]
    assert isinstance(cache, EncoderDecoderCache)
    assert all(cache.cross_attention_cache.layers[i].keys.shape[2] == 5 for i in range(2))


def test_padding_of_either_side_changes_nothing(decoder):
    inputs = read(1, 6, 5)
    expected = decoder(**inputs).logits
    ids = torch.cat((torch.zeros(1, 3, dtype=torch.long), inputs["input_ids"]), dim=1)
    mask, positions = (ids != 0).long(), torch.arange(-3, 6).clamp(min=0)[None]
    noise = torch.full((1, 2, 32), 7.0, dtype=torch.float64)
    found = decoder(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions if decoder.config.position_encoding == "learned" else None,
        encoder_hidden_states=torch.cat((inputs["encoder_hidden_states"], noise), dim=1),
        encoder_attention_mask=torch.tensor([[1] * 5 + [0] * 2]),
    )
    same(found.logits[:, 3:], expected, decoder)


@pytest.mark.slow
def test_checkpointing_and_compiling_change_nothing(decoder):
    inputs = read(2, 8, 5) | {"labels": torch.randint(4, 97, (2, 8))}
    decoder.train()
    source = inputs["encoder_hidden_states"].requires_grad_()
    expected = torch.autograd.grad(decoder(**inputs).loss, source)[0]
    for reentrant in (False, True):
        decoder.gradient_checkpointing_enable({"use_reentrant": reentrant})
        source.grad = None
        decoder(**inputs).loss.backward()
        same(source.grad, expected, decoder)
    decoder.gradient_checkpointing_disable()
    compiled = torch.compile(decoder.eval(), backend="aot_eager", fullgraph=True)
    given = {name: x.detach() for name, x in inputs.items()}
    same(compiled(**given).loss, decoder(**given).loss, decoder)


def test_attention_to_the_encoder_is_recorded_apart(decoder):
    decoder.set_attn_implementation("eager")
    outputs = decoder(**read(2, 8, 5), output_attentions=True)
    assert [x.shape for x in outputs.cross_attentions] == [(2, 4, 8, 5)] * 2
    assert all(x.shape[-1] != 5 for x in outputs.attentions)


def test_a_mixture_attends_to_an_encoder_too(tiny_moe_config):
    model = AnyformerMoeForCausalLM(tiny_moe_config(add_cross_attention=True)).double().train()
    inputs = read(2, 8, 5)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
