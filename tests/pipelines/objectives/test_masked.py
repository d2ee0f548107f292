"""Laws of masked language modelling: shares as in BERT's paper, and randomness by seed, epoch and row alone."""

import numpy as np
import pytest
import torch
from anyformer.pipelines.data.batch_keys import IGNORE_INDEX
from anyformer.pipelines.data.opening import open_corpora
from anyformer.pipelines.data.packed_stream import StreamingPackedDataset
from anyformer.pipelines.data.packing import PackedDataset
from anyformer.pipelines.objectives.masked import MaskedCollator, MaskingSettings
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.plugins import objective_of
from anyformer.pipelines.recipes.compose import load_recipe
from hypothesis import given
from hypothesis import strategies as st
from token_arrays import TokenArrays

PAD, CLS, SEP, MASK = 0, 1, 2, 3
SIZE = 97  # entries of the vocabulary, the four special ones included


class Vocabulary:
    """What the collator needs of a tokenizer."""

    pad_token_id, mask_token_id, all_special_ids = PAD, MASK, [PAD, CLS, SEP, MASK]

    def get_vocab(self):
        return {str(number): number for number in range(SIZE)}


def stored(lengths, seed=0):
    """Documents of given lengths, each framed by CLS and SEP."""
    generator = np.random.default_rng(seed)
    return TokenArrays([[CLS, *generator.integers(4, SIZE, length), SEP] for length in lengths])


def collator(packed=True, seed=0, **changes):
    shares = {"mask_probability": 0.15, "mask_replace": 0.8, "random_replace": 0.1} | changes
    return MaskedCollator(Vocabulary(), MaskingSettings(**shares), seed, packed)


def rows_of(lengths, length, epoch=0):
    dataset = PackedDataset(stored(lengths), length, "pad", PAD, shifts_labels=False)
    return [dataset[number] | {"row_ids": number, "epoch": epoch} for number in range(len(dataset))]


lengths_of_documents = st.lists(st.integers(0, 60), min_size=1, max_size=12)
probabilities = st.floats(0.01, 0.99)


# Rows


@given(lengths=lengths_of_documents, length=st.integers(2, 40))
def test_rows_are_plain_slices_of_the_documents_and_every_token_is_in_one(lengths, length):
    store, rows = stored(lengths), rows_of(lengths, length)
    real = [row["labels"][row["labels"] != IGNORE_INDEX] for row in rows]
    assert torch.cat(real).tolist() == store.tokens.tolist()
    assert all(len(tokens) == length for tokens in real[:-1])
    begins = set(store.offsets[:-1].tolist())
    for number, row in enumerate(rows):
        filled = len(real[number])
        assert row["input_ids"][:filled].tolist() == real[number].tolist()
        restarts = {number * length + place for place in range(filled) if row["position_ids"][place] == 0}
        inside = {begin for begin in begins if number * length <= begin < number * length + filled}
        assert restarts == inside | {number * length}
        assert row["position_ids"][filled:].tolist() == list(range(length - filled))  # a document of its own


# What is predicted


@given(lengths=lengths_of_documents, length=st.integers(2, 64), probability=probabilities, seed=st.integers(0, 2**63))
def test_exactly_the_share_of_ordinary_tokens_is_predicted_and_nothing_else_is_touched(
    lengths, length, probability, seed
):
    rows = rows_of(lengths, length)
    batch = collator(seed=seed, mask_probability=probability)(rows)
    for row, ids, labels in zip(rows, batch["input_ids"], batch["labels"]):
        ordinary = (row["labels"] != IGNORE_INDEX) & (row["input_ids"] > MASK)
        predicted = labels != IGNORE_INDEX
        expected = max(1, round(probability * int(ordinary.sum()))) if ordinary.any() else 0
        assert int(predicted.sum()) == expected
        assert not (predicted & ~ordinary).any()  # neither special tokens nor padding
        assert torch.equal(labels[predicted], row["input_ids"][predicted])  # aligned with the tokens, not shifted
        assert torch.equal(ids[~predicted], row["input_ids"][~predicted])
        changed = ids[predicted & (ids != row["input_ids"])]
        assert ((changed == MASK) | (changed > MASK)).all()  # the mask, or another ordinary token


def test_of_the_predicted_tokens_80_percent_are_masked_10_random_and_10_stay():
    rows = rows_of([400] * 200, 128)
    batch = collator()(rows)
    predicted = batch["labels"] != IGNORE_INDEX
    seen, real = batch["input_ids"][predicted], batch["labels"][predicted]
    number = len(seen)
    assert number > 10_000
    shares = {"masked": (seen == MASK), "kept": (seen == real), "random": (seen != MASK) & (seen != real)}
    # A random token is now and then the right one, which counts as kept.
    by_chance = 0.1 / (SIZE - 4)
    expected = {"masked": 0.8, "kept": 0.1 + by_chance, "random": 0.1 - by_chance}
    for name, share in expected.items():
        deviation = (share * (1 - share) / number) ** 0.5
        assert shares[name].double().mean().item() == pytest.approx(share, abs=4 * deviation), name
    others = seen[shares["random"]]
    assert others.min() == 4 and others.max() == SIZE - 1 and len(others.unique()) == SIZE - 4  # all of the vocabulary


# What a model is told about documents and padding


def test_packed_rows_have_positions_and_never_a_mask():
    rows = rows_of([30, 41], 32)
    batch = collator(packed=True)(rows)
    assert set(batch) == {"input_ids", "labels", "position_ids", "row_ids"}
    assert batch["position_ids"].dtype == batch["input_ids"].dtype == batch["labels"].dtype == torch.int64


def test_without_packing_only_a_batch_with_a_padded_row_has_a_mask():
    rows = rows_of([92], 40)
    assert set(collator(packed=False)(rows[:2])) == {"input_ids", "labels", "row_ids"}
    batch = collator(packed=False)(rows)
    padding = torch.stack([row["labels"] for row in rows]) == IGNORE_INDEX
    assert padding.any() and torch.equal(batch["attention_mask"], (~padding).long())


# On real text

SECTIONS = {
    "model": {"family": "encoder"},
    "objective": {"name": "masked"},
    "evaluation": {"metrics": ["perplexity"]},
}


def test_a_stream_masks_as_stored_rows_do_and_its_epoch_is_told(tiny_recipe, tmp_path):
    recipe = load_recipe(str(tiny_recipe(**SECTIONS)))
    data = prepare_data(recipe)
    corpus = open_corpora(recipe.data)["train"]
    objective = objective_of(recipe.with_(data={"streaming": True}))
    stream = objective.Reads(objective).rows(data, corpus, "train")
    assert isinstance(stream, StreamingPackedDataset)
    stored, collate = data.rows["train"], data.collator_of(packed=True)
    for epoch in (0, 3):
        rows = [row for row, _ in stream.pass_from(epoch)]
        expected = [stored[number] | {"row_ids": number, "epoch": epoch} for number in range(len(stored))]
        left, right = collate(rows), collate(expected)
        assert torch.equal(left["input_ids"], right["input_ids"]) and torch.equal(left["labels"], right["labels"])
        assert left["row_ids"].tolist() == right["row_ids"]  # a tensor, which accelerate can send on


def test_documents_of_an_encoder_begin_with_cls_and_end_with_sep(tiny_recipe):
    data = prepare_data(load_recipe(str(tiny_recipe(**SECTIONS))))
    store, tokenizer = data.rows["train"].store, data.tokenizer
    texts = [tokenizer.decode(store.document(i)[1:-1]) for i in range(3)]
    for number, text in enumerate(texts):
        assert store.document(number).tolist() == tokenizer(text).input_ids
    ids = {"cls_token_id": 0, "sep_token_id": 1, "mask_token_id": 3}
    assert data.learns().config_fields() == ids == {name: getattr(tokenizer, name) for name in ids}
    batch = data.collator([data.rows["train"][0]])
    assert batch["labels"].max() < len(tokenizer) and tokenizer.mask_token_id in batch["input_ids"]
