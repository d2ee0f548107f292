"""Laws of the encoder alone, whatever it is composed of; what all families share stands in test_laws.py."""

import pytest
import torch
from anyformer.pipelines.interop.matching import architecture_of
from anyformer.pipelines.interop.verify import Float64Mode, probe
from family_variants import ENCODERS, a_share, close, encoder_row, positions_of, tokens
from native_models import native_model, randomise
from watching import Watch, square

from anyformer import AnyformerEncoderForMaskedLM, AnyformerEncoderModel, from_native


def build(config, **kwargs):
    return randomise(AnyformerEncoderForMaskedLM._from_config(config, **kwargs))


@pytest.fixture(params=a_share(ENCODERS, 4))
def variant(request, tiny_encoder_config):
    return build(tiny_encoder_config(**ENCODERS[request.param]))


def labels_for(input_ids, share=0.3):
    drawn = torch.rand(input_ids.shape, generator=torch.Generator().manual_seed(9))
    return input_ids.masked_fill(drawn > share, -100)


@torch.no_grad()
def test_outputs_hold_every_layer_and_embeddings_may_be_given(variant):
    variant.set_attn_implementation("eager")
    config, row = variant.config, encoder_row(variant.config, 24, batch=2)
    out = variant(**row, output_hidden_states=True, output_attentions=True)
    # The enhanced mask decoder runs the last layer anew, so often.
    calls = config.num_hidden_layers + max(0, config.mask_decoder_layers - 1)
    assert len(out.hidden_states) == calls + 1 and len(out.attentions) == calls
    assert {tuple(x.shape) for x in out.hidden_states} == {(2, 24, 32)}
    for weights in out.attentions:
        assert weights.shape == (2, 4, 24, 24)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 24))
    embeds = variant.get_input_embeddings()(row.pop("input_ids"))
    again = variant(**row, inputs_embeds=embeds)
    assert torch.equal(again.logits, out.logits) and again.hidden_states is None and again.attentions is None
    as_tuple = variant(**row, inputs_embeds=embeds, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], out.logits)


def test_a_batch_without_a_label_has_no_loss_and_no_gradient(tiny_encoder_config):
    model = build(tiny_encoder_config()).train()
    out = model(tokens(), labels=torch.full((2, 24), -100))
    out.loss.backward()
    assert out.loss == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@torch.no_grad()
def test_no_segment_is_the_first_segment(tiny_encoder_config):
    model, ids = build(tiny_encoder_config()), tokens()
    assert torch.equal(model(ids).logits, model(ids, token_type_ids=torch.zeros_like(ids)).logits)
    assert not torch.allclose(model(ids).logits, model(ids, token_type_ids=torch.ones_like(ids)).logits)


ARCHITECTURES = ("deberta", "deberta_biased", "deberta_queries_of_positions", "deberta_v2", "deberta_v2_shared")
ARCHITECTURES += ("deberta_v3", "deberta_v2_convolution", "longformer")  # whose attention is a class of its own


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_outputs_and_gradients_are_those_of_the_native_model(name, backend):
    """Rows are longer than the exact distances and the windows, and one of them is padded."""
    native = native_model(name, "AutoModel").double()
    ours = from_native(native)
    ours.set_attn_implementation(backend)
    inputs = probe(ours, rows=3, tokens=40, seed=1)
    if "global_attention_mask" in inputs:  # of one row it says nothing
        inputs["global_attention_mask"][0] = 0
    wanted = torch.randn(3, 40, 32, dtype=torch.float64) * inputs["attention_mask"][..., None]
    sums, gradients = [], []
    with Float64Mode():
        for model in (native, ours):
            sums.append((model(**inputs).last_hidden_state * wanted).sum())
            gradients.append(torch.autograd.grad(sums[-1], model.get_input_embeddings().weight)[0])
    tolerance = architecture_of(native.config).tolerance
    close(sums[1], sums[0], tolerance)
    close(gradients[1], gradients[0], tolerance)


def seen(model, query: int, **kwargs) -> set[int]:
    """The positions whose embeddings the output at `query` depends on."""
    embeds = torch.randn(1, 24, model.config.hidden_size, requires_grad=True)
    out = model(inputs_embeds=embeds, **kwargs).last_hidden_state[0, query].square().sum()
    (gradient,) = torch.autograd.grad(out, embeds)
    return set(gradient[0].abs().sum(-1).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("position_encoding", ["learned", "rotary", "alibi", "relative", "none"])
def test_tokens_see_both_sides_and_in_a_sliding_layer_the_window_on_each(tiny_encoder_config, position_encoding):
    common = {"num_hidden_layers": 1, "position_encoding": position_encoding}
    full = randomise(AnyformerEncoderModel(tiny_encoder_config(**common)))
    sliding = tiny_encoder_config(attention_pattern=["sliding_attention"], sliding_window=4, **common)
    sliding = randomise(AnyformerEncoderModel(sliding))
    for query in (0, 3, 11, 23):
        assert seen(full, query) == set(range(24))
        assert seen(sliding, query) == set(range(max(0, query - 4), min(24, query + 5)))


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "rotary", "sinusoidal", "none"])
def test_without_padding_no_mask_is_built_and_the_number_of_labels_alone_is_read_on_the_host(tiny_encoder_config, name):
    model = build(tiny_encoder_config(**ENCODERS[name])).train()
    row = encoder_row(model.config, 24, batch=2)
    with Watch(square(24)) as watch:
        model.model(**row)
    assert watch.made == [] and watch.reads == []
    labels = labels_for(row["input_ids"])
    with Watch(square(24)) as watch:
        model(**row, labels=labels)
    assert watch.made == [] and watch.reads == ["nonzero"]


@pytest.mark.parametrize("name", ["bert", "roberta", "deberta", "deberta_mask_decoder"])
def test_too_many_tokens_for_learned_positions_is_one_sentence(tiny_encoder_config, name):
    model = build(tiny_encoder_config(**(ENCODERS[name] | {"max_position_embeddings": 8})))
    assert model(tokens(1, 8)).logits.shape == (1, 8, 97)
    with pytest.raises(ValueError, match="max_position_embeddings=8"):
        model(tokens(1, 9))
    model(tokens(1, 12), position_ids=positions_of([8, 4]))  # packed rows may be longer


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("position_encoding", ["relative", "alibi"])
def test_padding_that_sees_no_key_gives_no_nan_under_autocast(tiny_encoder_config, position_encoding, backend):
    """A window over padding holds no key, and the score biases are fp32 while the scores are bf16."""
    windows = {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 2}
    config = tiny_encoder_config(position_encoding=position_encoding, **windows)
    model = build(config, attn_implementation=backend).train()
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 3:] = 0
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens(2, 16), attention_mask=mask, labels=tokens(2, 16).where(mask == 1, -100)).loss
    loss.backward()
    assert loss.isfinite()
    assert all(x.grad.isfinite().all() for x in model.parameters() if x.grad is not None)
