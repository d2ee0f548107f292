"""Laws of the sequence-to-sequence family alone; what all families share stands in test_laws.py."""

import pytest
import torch
import transformers
from anyformer.pipelines.checks.subject import Subject
from family_variants import SEQ2SEQS, a_share, tokens
from native_models import randomise
from packaging.version import Version
from torch.nn.functional import pad
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from anyformer import (
    AnyformerSeq2SeqForConditionalGeneration,
    AnyformerSeq2SeqForSequenceClassification,
    AnyformerSeq2SeqModel,
)

EXACT = {"atol": 1e-5, "rtol": 1e-5}  # fp32, same maths in another order of operations
BATCH = {"input_ids": tokens(2, 12), "decoder_input_ids": tokens(2, 9, seed=100)}
NEW = 10


def build(config, **kwargs):
    return randomise(AnyformerSeq2SeqForConditionalGeneration._from_config(config, **kwargs))


@pytest.fixture(params=a_share(SEQ2SEQS, 4))
def variant(request, tiny_seq2seq_config):
    return build(tiny_seq2seq_config(**SEQ2SEQS[request.param]))


def test_a_missing_decoder_input_is_named_before_the_encoder_runs(tiny_seq2seq_config):
    embeds = {"inputs_embeds": torch.zeros(1, 5, 32)}  # a base model shifts tokens, see the feature-extraction pipeline
    for cls, inputs in ((AnyformerSeq2SeqModel, embeds), (AnyformerSeq2SeqForConditionalGeneration, {})):
        model = cls(tiny_seq2seq_config())
        model.get_encoder().forward = None  # is not called
        with pytest.raises(ValueError, match="give exactly one of decoder_input_ids and decoder_inputs_embeds"):
            model(**inputs or {"input_ids": tokens(1, 5)})


@torch.no_grad()
def test_outputs_hold_every_layer_of_both_stacks_and_embeddings_may_be_given(variant):
    variant.set_attn_implementation("eager")
    batch, layers, decoder_layers = BATCH, 2, variant.config.num_decoder_layers
    out = variant(**batch, output_hidden_states=True, output_attentions=True)
    shapes = {
        "encoder_hidden_states": (layers + 1, (2, 12, 32)),
        "encoder_attentions": (layers, (2, 4, 12, 12)),
        "decoder_hidden_states": (decoder_layers + 1, (2, 9, 32)),
        "decoder_attentions": (decoder_layers, (2, 4, 9, 9)),
        "cross_attentions": (decoder_layers, (2, 4, 9, 12)),
    }
    for name, (count, shape) in shapes.items():
        assert len(out[name]) == count and {tuple(x.shape) for x in out[name]} == {shape}, name
        if "attentions" in name:
            for weights in out[name]:
                torch.testing.assert_close(weights.sum(-1), torch.ones(shape[:-1]))
    embed = variant.get_input_embeddings()
    embeds = {"inputs_embeds": embed(batch["input_ids"])}
    embeds |= {"decoder_inputs_embeds": embed(batch["decoder_input_ids"])}
    again = variant(**embeds)
    assert torch.equal(again.logits, out.logits) and again.cross_attentions is None
    as_tuple = variant(**embeds, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], out.logits)
    with pytest.raises(ValueError, match="exactly one of"):
        variant(**batch, **embeds)


@torch.no_grad()
def test_outputs_of_the_encoder_may_be_given(variant):
    subject = Subject(variant, "seq2seq")
    batch = subject.padded(subject.documents([7, 1, 11, 5]))
    expected = variant(**batch).logits
    ids = batch.pop("input_ids")
    hidden = variant.get_encoder()(ids, attention_mask=batch["attention_mask"]).last_hidden_state
    for outputs in (BaseModelOutput(hidden), (hidden,)):
        out = variant(**batch, encoder_outputs=outputs)
        assert torch.equal(out.logits, expected) and torch.equal(out.encoder_last_hidden_state, hidden)
    given = variant.generate(encoder_outputs=BaseModelOutput(hidden), attention_mask=batch["attention_mask"], **GREEDY)
    assert torch.equal(given, variant.generate(ids, attention_mask=batch["attention_mask"], **GREEDY))


# ---- losses


def test_labels_are_shifted_as_native_bart_and_t5_shift_them(tiny_seq2seq_config):
    labels = tokens(2, 9)
    labels[1, 5:] = -100
    common = {"vocab_size": 97, "d_model": 8, "pad_token_id": 0}
    for start in (0, 2):
        ours = build(tiny_seq2seq_config(decoder_start_token_id=start))
        heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
        bart = BartForConditionalGeneration(BartConfig(**common, **heads, decoder_start_token_id=start))
        t5 = T5ForConditionalGeneration(T5Config(**common, num_layers=1, decoder_start_token_id=start))
        expected = bart.prepare_decoder_input_ids_from_labels(labels)
        assert torch.equal(expected, t5.prepare_decoder_input_ids_from_labels(labels))
        assert torch.equal(ours.prepare_decoder_input_ids_from_labels(labels), expected)
        out, given = ours(tokens(), labels=labels), ours(tokens(), decoder_input_ids=expected)
        assert torch.equal(out.logits, given.logits)


def test_without_a_start_token_labels_cannot_be_shifted_and_one_sentence_says_so(tiny_seq2seq_config):
    model = build(tiny_seq2seq_config(decoder_start_token_id=None))
    with pytest.raises(ValueError, match="decoder_start_token_id is not set"):
        model(tokens(), labels=tokens())


# ---- decoding

GREEDY = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "num_beams": 1}


@torch.no_grad()
def test_stepwise_decoding_projects_the_source_once(variant):
    calls = []
    for layer in variant.model.decoder.layers:
        layer.cross_attn.k_proj.register_forward_hook(lambda *_: calls.append(1))
    variant.generate(BATCH["input_ids"], **GREEDY)
    assert len(calls) == variant.config.num_decoder_layers


@torch.no_grad()
def test_assisted_and_prompt_lookup_decoding_give_the_greedy_tokens(variant):
    ids = tokens(1, 12)
    expected = variant.generate(ids, **GREEDY)
    assistant = randomise(AnyformerSeq2SeqForConditionalGeneration(variant.config), seed=1)
    assert torch.equal(variant.generate(ids, **GREEDY, assistant_model=assistant), expected)
    begins_with_end = variant.config.decoder_start_token_id == variant.config.eos_token_id
    if begins_with_end and Version(transformers.__version__) < Version("5.23"):
        pytest.skip(
            "prompt lookup of old transformers ends at a start token that is an end token; native BART's does, too"
        )
    assert torch.equal(variant.generate(ids, **GREEDY, prompt_lookup_num_tokens=3), expected)


# ---- classification


def test_a_text_is_classified_by_its_last_end_token(tiny_seq2seq_config):
    model = randomise(AnyformerSeq2SeqForSequenceClassification(tiny_seq2seq_config(num_labels=3)))
    rows = [torch.cat((tokens(1, n, seed=n), torch.tensor([[2]])), 1) for n in (8, 3, 5)]
    ids = torch.cat([pad(row, (0, 9 - row.shape[1])) for row in rows])
    mask = (ids != 0).long()
    together = model(ids, attention_mask=mask).logits
    for row, logits in zip(rows, together):
        torch.testing.assert_close(model(row).logits[0], logits, **EXACT)
    assert model.last_token(ids, mask).tolist() == [8, 3, 5]
    assert model.last_token(torch.tensor([[5, 2, 7, 2, 0], [5, 6, 7, 0, 0]]), None).tolist() == [3, 2]
    padded_with_its_end = torch.tensor([[5, 7, 2, 2, 2]])
    assert model.last_token(padded_with_its_end, torch.tensor([[1, 1, 1, 0, 0]])).tolist() == [2]
    with pytest.raises(ValueError, match="give input_ids"):
        model(inputs_embeds=torch.randn(1, 3, 32))
