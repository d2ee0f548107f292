"""Laws of span corruption: T5's lengths, nothing lost, and randomness by seed, epoch and row alone."""

import numpy as np
import pytest
import torch
from anyformer.pipelines.data.batch_keys import IGNORE_INDEX
from anyformer.pipelines.data.packing import PackedDataset
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.span_corruption import SpanCorruption, noise_counts, raw_length, sentinel_ids
from anyformer.pipelines.recipes.schema import Recipe, TrainingSection
from hypothesis import assume, given
from hypothesis import strategies as st
from token_arrays import TokenArrays

PAD, EOS, WORDS = 0, 1, 1000
densities, span_lengths = st.floats(0.02, 0.6), st.floats(1, 10)


class Vocabulary:
    """What the objective needs of a tokenizer: words below 1,000, then sentinels, numbered downwards as T5's are."""

    pad_token_id, eos_token_id, bos_token_id = PAD, EOS, None
    sentinels = 400

    def get_vocab(self):
        words = {str(number): number for number in range(WORDS)}
        return words | {f"<extra_id_{i}>": WORDS + self.sentinels - 1 - i for i in range(self.sentinels)}


def stored(length, seed=0):
    """One document of random words."""
    return TokenArrays([np.random.default_rng(seed).integers(2, WORDS, length)])


def prepared(vocabulary=None, seed=0, **settings):
    """The data without rows."""
    section = SpanCorruption.Settings(**{"sequence_length": 64} | settings)
    made = SpanCorruption(Recipe(objective=section, training=TrainingSection(seed=seed)))
    return made.Reads(made).prepare({"train": None}, None, False, vocabulary or Vocabulary())


def collator(length=64, density=0.15, span=3.0, seed=0):
    own = {"sequence_length": length, "noise_density": density, "mean_span_length": span}
    return prepared(seed=seed, **own).collator_of(True)


def rows_of(tokens, length, density=0.15, span=3.0, epoch=0):
    raw = raw_length(length, density, span)
    dataset = PackedDataset(stored(tokens), raw, "pad", PAD, shifts_labels=False)
    return [dataset[number] | {"row_ids": number, "epoch": epoch} for number in range(len(dataset))]


def put_back(source, target):
    """The raw tokens from a source and a target: each sentinel in the source replaced by its span of the target."""
    assert source[-1] == target[-1] == EOS
    spans, name = {}, None
    for token in target[:-1]:
        if token >= WORDS:
            name = token
            assert name not in spans
            spans[name] = []
        else:
            spans[name].append(token)
    tokens = []
    for token in source[:-1]:
        tokens += spans.pop(token) if token >= WORDS else [token]
    assert not spans
    return tokens


def real(ids, mask=None):
    return ids[ids != IGNORE_INDEX].tolist() if mask is None else ids[mask.bool()].tolist()


@given(
    tokens=st.integers(1, 900),
    length=st.integers(3, 200),
    density=densities,
    span=span_lengths,
    seed=st.integers(0, 2**63),
)
def test_source_and_target_together_are_the_text(tokens, length, density, span, seed):
    assume(span >= density / (1 - density))
    rows = rows_of(tokens, length, density, span)
    batch = collator(length, density, span, seed)(rows)
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    sentinels = sentinel_ids(Vocabulary()).tolist()
    for row, source, target, inside in zip(rows, batch["input_ids"], batch["labels"], mask):
        source, target = real(source, inside), real(target)
        assert put_back(source, target) == row["labels"][row["labels"] != IGNORE_INDEX].tolist()
        names = [token for token in source if token >= WORDS]
        assert names == sentinels[: len(names)] == [token for token in target if token >= WORDS]  # in order, from 0


@given(length=st.integers(3, 600), density=st.floats(0.01, 0.5), span=st.floats(1.5, 40))
def test_every_full_row_fills_the_encoder_exactly_and_the_targets_too(length, density, span):
    raw = raw_length(length, density, span)
    noise, spans = noise_counts(raw, density, span)
    rows = rows_of(3 * raw, length, density, span)
    batch = collator(length, density, span)(rows)
    assert batch["input_ids"].shape == (3, length) and "attention_mask" not in batch
    assert batch["labels"].shape == (3, noise + spans + 1) and (batch["labels"] != IGNORE_INDEX).all()
    assert ((batch["labels"] >= WORDS).sum(1) == spans).all()


@pytest.mark.parametrize(("density", "span"), [(0.15, 3.0), (0.15, 8.0), (0.15, 32.0), (0.3, 3.0), (0.5, 3.0)])
@pytest.mark.parametrize("length", [64, 114, 128, 512, 1024])
def test_lengths_are_those_of_t5s_code(length, density, span):
    def t5_lengths(tokens):  # random_spans_helper of t5/data/preprocessors.py
        noise = round(tokens * density)
        spans = max(round(noise / span), 1)  # its mask has one at least, which its lengths forget
        return tokens - noise + spans + 1, noise + spans + 1

    tokens = length
    while t5_lengths(tokens + 1)[0] <= length:
        tokens += 1
    assert raw_length(length, density, span) == tokens
    assert collator(length, density, span).target_length == t5_lengths(tokens)[1]


# Bad input


def test_bad_settings_are_one_sentence():
    def without(**changes):
        return type("Other", (Vocabulary,), changes)()

    data = prepared()
    cases = [
        (lambda: prepared(without(eos_token_id=None)), "needs a tokenizer with an end-of-text token"),
        (lambda: prepared(without(pad_token_id=None)), "needs a tokenizer with a padding token"),
        (lambda: prepared(without(sentinels=0)), "leaves out 3 spans a row, but the tokenizer has 0 sentinels"),
        (lambda: prepared(without(sentinels=100), sequence_length=4096), "but the tokenizer has 100 sentinels"),
        (lambda: prepared(sequence_length=2), "objective.sequence_length=2 must be at least 3"),
        (lambda: raw_length(3, 0.15, 3.0, beside=1), "objective.sequence_length=3 must be at least 4"),
        (lambda: data.reads._pack(data, stored(50), "drop"), "takes 70 tokens of text, more than the whole text of"),
    ]
    for call, sentence in cases:
        with pytest.raises(UserError) as caught:
            call()
        assert sentence in str(caught.value) and "\n" not in str(caught.value)
