"""Laws of the encoder's task heads, whatever the encoder: padding, losses, exact accumulation in Trainer, saving."""

import pytest
import torch
from anyformer.pipelines.checks.subject import Subject
from family_variants import ENCODERS, encoder_row
from native_models import randomise
from torch.nn import functional

import anyformer

HEADS = {
    "MaskedLM": None,
    "PreTraining": None,
    "SequenceClassification": "single_label_classification",
    "SequenceClassification, several": "multi_label_classification",
    "SequenceClassification, numbers": "regression",
    "TokenClassification": None,
    "QuestionAnswering": None,
    "MultipleChoice": None,
}


def build(head, config):
    torch.manual_seed(0)
    config.num_labels = 2 if head in ("QuestionAnswering", "MultipleChoice", "PreTraining") else 4
    config.problem_type = HEADS[head]
    return randomise(getattr(anyformer, f"AnyformerEncoderFor{head.split(',')[0]}")(config))


def labels_for(head, row, seed=0) -> dict:
    """Labels of a row (1, T) for every input that the head's loss has."""
    g, length = torch.Generator().manual_seed(seed), row["input_ids"].shape[-1]
    per_token = row["input_ids"].masked_fill(torch.rand(row["input_ids"].shape, generator=g) > 0.4, -100)
    return {
        "MaskedLM": {"labels": per_token},
        "PreTraining": {"labels": per_token, "next_sentence_label": torch.tensor([seed % 2])},
        "SequenceClassification": {"labels": torch.tensor([seed % 4])},
        "SequenceClassification, several": {"labels": torch.randint(0, 2, (1, 4), generator=g).float()},
        "SequenceClassification, numbers": {"labels": torch.randn(1, 4, generator=g)},
        "TokenClassification": {"labels": per_token.where(per_token == -100, per_token % 4)},
        "QuestionAnswering": {
            "start_positions": torch.tensor([seed % length]),
            "end_positions": torch.tensor([length - 1]),
        },
        "MultipleChoice": {"labels": torch.tensor([seed % 2])},
    }[head]


def example(head, config, length, seed=0) -> dict:
    """One row with its labels; two of them, side by side, for multiple choice."""
    if head != "MultipleChoice":
        row = encoder_row(config, length, seed)
        return row | labels_for(head, row, seed)
    row = {name: x[None] for name, x in encoder_row(config, length, seed, batch=2).items()}
    return row | labels_for(head, row, seed)


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_is_that_of_the_logits(tiny_encoder_config, head):
    model = build(head, tiny_encoder_config())
    rows = [example(head, model.config, 9, seed=seed) for seed in range(3)]
    batch = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    out = model(**batch)
    if head in ("MaskedLM", "TokenClassification"):
        expected = functional.cross_entropy(out.logits.flatten(0, 1), batch["labels"].flatten())
    elif head == "PreTraining":
        expected = functional.cross_entropy(out.prediction_logits.flatten(0, 1), batch["labels"].flatten())
        expected = expected + functional.cross_entropy(out.seq_relationship_logits, batch["next_sentence_label"])
    elif head == "QuestionAnswering":
        starts = functional.cross_entropy(out.start_logits, batch["start_positions"])
        expected = (starts + functional.cross_entropy(out.end_logits, batch["end_positions"])) / 2
    else:
        loss = {
            "multi_label_classification": functional.binary_cross_entropy_with_logits,
            "regression": functional.mse_loss,
        }.get(HEADS[head], functional.cross_entropy)
        expected = loss(out.logits, batch["labels"])
    torch.testing.assert_close(out.loss, expected, atol=1e-6, rtol=1e-5)
    for training in (False, True):
        named, as_tuple = (model.train(training)(**batch, return_dict=r) for r in (True, False))
        assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], named.loss)


def test_both_losses_of_pretraining_count_alone_and_together(tiny_encoder_config):
    model = build("PreTraining", tiny_encoder_config()).train()
    row = example("PreTraining", model.config, 12)
    labels = {name: row.pop(name) for name in ("labels", "next_sentence_label")}
    both = model(**row, **labels).loss
    apart = [model(**row, **{name: x}).loss for name, x in labels.items()]
    torch.testing.assert_close(both, sum(apart), atol=1e-6, rtol=1e-6)
    assert model(**row).loss is None and model(**row).prediction_logits is not None
    assert "prediction_logits" not in model(**row, **labels)
    assert model(**row, **labels, return_logits=True).prediction_logits.shape == (1, 12, 97)


@pytest.mark.parametrize("pooler_type", ["cls", "mean"])
@pytest.mark.parametrize("fields", [{}, {"pooler_act": None}, {"task_head_transform": True, "head_act": "relu"}])
def test_poolers_read_the_first_token_or_the_mean_of_real_ones(tiny_encoder_config, pooler_type, fields):
    model = build("SequenceClassification", tiny_encoder_config(pooler_type=pooler_type, **fields))
    batch = Subject(model, "masked").padded([encoder_row(model.config, n) for n in (8, 5)])
    x = model.model(**batch).last_hidden_state
    real = batch["attention_mask"][..., None]
    pooled = x[:, 0] if pooler_type == "cls" else (x * real).sum(1) / real.sum(1)
    if "task_head_transform" in fields:
        assert model.model.pooler is None
        pooled = model.head_transform.norm(model.head_transform.dense(pooled).relu())
    elif not fields:
        pooled = model.model.pooler.dense(pooled).tanh()
    torch.testing.assert_close(model(**batch).logits, model.score(pooled), atol=1e-5, rtol=1e-5)


def test_the_first_token_of_a_choice_is_global_where_nobody_says_which(tiny_encoder_config):
    """As that of a text (Beltagy et al. 2020, section 3.1); other tasks are compared with Longformer's own heads."""
    model = build("MultipleChoice", tiny_encoder_config(**ENCODERS["longformer"]))
    ids = torch.tensor([[1, 7, 8, 2, 9, 10, 11, 12, 2, 13, 14, 15]]).expand(2, -1)[None]
    mark = ids * 0 + (torch.arange(12) == 0)
    torch.testing.assert_close(model(ids).logits, model(ids, global_attention_mask=mark).logits)
    embeds = model.get_input_embeddings()(ids)
    torch.testing.assert_close(model(inputs_embeds=embeds).logits, model(ids).logits)


@pytest.mark.parametrize("own, rate", [(None, 0.5), (0.0, 0.0), (0.9, 0.9)])
def test_classifiers_have_a_dropout_of_their_own_or_that_of_the_layers(tiny_encoder_config, own, rate):
    config = tiny_encoder_config(hidden_dropout=0.5, classifier_dropout=own)
    rates = {
        "SequenceClassification": lambda model: model.classifier_dropout.p,
        "TokenClassification": lambda model: model.dropout.p,
        "PreTraining": lambda model: model.dropout.p,
    }
    for head, rate_of in rates.items():
        assert rate_of(build(head, config)) == rate
