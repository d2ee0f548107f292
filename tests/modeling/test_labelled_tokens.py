"""Heads leave the last feed-forward part of tokens that they do not read out, and only time can tell."""

from itertools import product

import pytest
import torch
from anyformer.pipelines.checks.subject import Subject
from family_variants import ENCODERS, FP32, a_share, close, encoder_row, gradients_of
from native_models import randomise

from anyformer import (
    AnyformerEncoderForMaskedLM,
    AnyformerEncoderForMultipleChoice,
    AnyformerEncoderForPreTraining,
    AnyformerEncoderForSequenceClassification,
)

OF_ALL = ["deberta_conv", "deberta_mask_decoder", "deberta_experts"]  # something else reads all tokens
LENGTHS = (12, 5, 9)


def model_of(config):
    torch.manual_seed(0)
    return randomise(AnyformerEncoderForMaskedLM(config)).double().train()


def batch_of(model, kind: str) -> dict:
    """Rows of LENGTHS, padded or packed, or whole rows of one length; a third of the real tokens has labels.

    With padding on the left so has padding, which nobody should do: it counts as zeros do.
    """
    subject = Subject(model, "masked")
    rows = [encoder_row(model.config, 12 if kind == "whole" else length, seed) for seed, length in enumerate(LENGTHS)]
    for row in rows:
        row["labels"] = row["input_ids"].where(torch.arange(row["input_ids"].shape[1]) % 3 == 1, -100)
    if kind == "packed":
        return subject.packed(rows)
    batch = subject.padded(rows, kind if kind != "whole" else "right")
    if kind == "right":
        batch["labels"] = batch["labels"].where(batch["attention_mask"] == 1, -100)
    return batch


def rows_of_last_mlp(model, run) -> int:
    """Tokens that the last feed-forward part reads while `run` runs."""
    seen = []
    handle = model.model.layers[-1].mlp.register_forward_hook(lambda _, args, out: seen.append(args[0][..., 0].numel()))
    run()
    handle.remove()
    return seen[-1]


KINDS = ("whole", "right", "left", "packed")


@pytest.mark.parametrize("name, kind", a_share(product([name for name in ENCODERS if name not in OF_ALL], KINDS), 5))
def test_loss_and_gradients_are_those_of_a_last_layer_of_all_tokens(tiny_encoder_config, monkeypatch, name, kind):
    model = model_of(tiny_encoder_config(**ENCODERS[name]))
    batch = batch_of(model, kind)
    ours, grads = model(**batch).loss, gradients_of(model, lambda: model(**batch).loss)
    assert rows_of_last_mlp(model, lambda: model(**batch)) == (batch["labels"] != -100).sum()
    monkeypatch.setattr(AnyformerEncoderForMaskedLM, "labelled_tokens", lambda *args, **kwargs: None)
    expected = gradients_of(model, lambda: model(**batch).loss)
    close(ours, model(**batch).loss, FP32)
    assert grads.keys() == expected.keys()
    for parameter, grad in expected.items():
        close(grads[parameter], grad, FP32)


@pytest.mark.parametrize("name", OF_ALL)
def test_layers_that_are_read_elsewhere_compute_all_tokens(tiny_encoder_config, name):
    model = model_of(tiny_encoder_config(**ENCODERS[name]))
    batch = batch_of(model, "whole")
    assert not model.keeps_labelled_tokens
    assert rows_of_last_mlp(model, lambda: model(**batch)) == batch["labels"].numel()


def test_logits_and_hidden_states_are_of_all_tokens(tiny_encoder_config):
    model = model_of(tiny_encoder_config())
    batch = batch_of(model, "whole")
    assert model(**batch, return_logits=True).logits.shape[:2] == batch["labels"].shape
    states = model(**batch, output_hidden_states=True).hidden_states
    assert all(x.shape[:2] == batch["labels"].shape for x in states) and states[-1].ne(0).any(-1).all()
    with torch.no_grad():
        assert rows_of_last_mlp(model.eval(), lambda: model(**batch)) == batch["labels"].numel()  # logits are filled
        assert rows_of_last_mlp(model, lambda: model(**batch, return_logits=False)) == 12


@pytest.mark.parametrize("pooler_type, kept", [("cls", 12 + 3), ("mean", 36)])
def test_sentence_pairs_read_the_first_token_too_or_the_mean_of_all(
    tiny_encoder_config, monkeypatch, pooler_type, kept
):
    torch.manual_seed(0)
    config = tiny_encoder_config(pooler_type=pooler_type)
    model = randomise(AnyformerEncoderForPreTraining(config)).double().train()
    batch = batch_of(model, "whole") | {"next_sentence_label": torch.tensor([0, 1, 1])}
    grads = gradients_of(model, lambda: model(**batch).loss)
    assert rows_of_last_mlp(model, lambda: model(**batch)) == kept
    monkeypatch.setattr(AnyformerEncoderForPreTraining, "labelled_tokens", lambda *args, **kwargs: None)
    for name, grad in gradients_of(model, lambda: model(**batch).loss).items():
        close(grads[name], grad, FP32)


CLASSIFIERS = (AnyformerEncoderForSequenceClassification, AnyformerEncoderForMultipleChoice)
CLASSIFYING = ("bert", "albert", "deberta_v3", "longformer", "rotary", "deberta_conv", "modernbert")


@pytest.mark.parametrize("head, name, kind", a_share(product(CLASSIFIERS, CLASSIFYING, KINDS[:3]), 7))
def test_classifiers_read_the_first_token_alone_or_the_mean_of_all(tiny_encoder_config, monkeypatch, head, name, kind):
    torch.manual_seed(0)
    config = tiny_encoder_config(**ENCODERS[name], num_labels=3)
    model = randomise(head(config)).double().train()
    batch = {name: x for name, x in batch_of(model, kind).items() if name != "labels"}
    if head is AnyformerEncoderForMultipleChoice:  # one example of three choices
        batch = {name: x[None] for name, x in batch.items()} | {"labels": torch.tensor([1])}
    else:
        batch["labels"] = torch.tensor([0, 2, 1])
    grads, logits = gradients_of(model, lambda: model(**batch).loss), model.eval()(**batch).logits
    rows = rows_of_last_mlp(model, lambda: model(**batch))
    assert rows == 3 if model.num_kept_tokens else rows >= sum(LENGTHS)
    assert rows_of_last_mlp(model, lambda: model(**batch, output_hidden_states=True)) >= sum(LENGTHS)
    monkeypatch.setattr(head, "first_tokens", lambda *args, **kwargs: {})
    close(logits, model(**batch).logits, FP32)
    for parameter, grad in gradients_of(model.train(), lambda: model(**batch).loss).items():
        close(grads[parameter], grad, FP32)
