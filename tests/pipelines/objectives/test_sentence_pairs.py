"""Pairs of segments: their labels are true, their lengths tell nothing, both losses are logged, runs end with both."""

import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from anyformer.pipelines.data.batch_keys import IGNORE_INDEX
from anyformer.pipelines.data.sample_ids import without_labels
from anyformer.pipelines.data.sentence_pair_rows import SentencePairRows
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.data import Data
from anyformer.pipelines.objectives.masked import MaskingSettings
from anyformer.pipelines.objectives.sentence_pairs import PairLosses, SentencePairCollator, SentencePairs
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import Recipe
from anyformer.pipelines.tokenizers.word_marks import WordMarks
from hypothesis import given
from hypothesis import strategies as st
from token_arrays import TokenArrays
from tokenizers import Tokenizer, models
from torch.nn import functional
from transformers import BertConfig, BertForPreTraining

import anyformer

PAD, CLS, SEP, MASK, STOP = range(5)
WORDS = 60
SIZE = 5 + WORDS
SHARES = MaskingSettings()  # 15 %, of which 80 % are masked and 10 % replaced
KINDS = ("next_sentence", "sentence_order")


class Vocabulary:
    """A WordPiece vocabulary of words, every third of them a continuation, and a full stop."""

    pad_token_id, cls_token_id, sep_token_id, mask_token_id = PAD, CLS, SEP, MASK
    all_special_ids = [PAD, CLS, SEP, MASK]

    def __init__(self):
        words = [f"##x{i}" if i % 3 == 2 else f"X{i}" for i in range(WORDS)]
        self.entries = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", ".", *words]
        vocabulary = {entry: number for number, entry in enumerate(self.entries)}
        self.backend_tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="."))

    def get_vocab(self):
        return self.backend_tokenizer.get_vocab()


VOCABULARY = Vocabulary()
MARKS = WordMarks(VOCABULARY)


def stored(documents, seed=0):
    """Documents of sentences of given lengths, each ended by a stop."""
    generator = np.random.default_rng(seed)
    firsts = np.array([5 + i for i in range(WORDS) if i % 3 != 2])

    def sentence(length):
        return [generator.choice(firsts), *generator.integers(5, SIZE, max(length - 2, 0)), STOP][:length]

    return TokenArrays([[token for length in document for token in sentence(length)] for document in documents])


def pair_rows(documents, length, kind):
    return SentencePairRows(stored(documents), MARKS, length, kind)


some_documents = st.lists(st.lists(st.integers(2, 30), min_size=1, max_size=8), min_size=2, max_size=8)


# Pieces and pairs


@given(documents=some_documents, length=st.integers(2, 50))
def test_pieces_are_whole_sentences_in_order_and_nothing_is_lost_but_single_tokens(documents, length):
    rows = pair_rows(documents, length, "sentence_order")
    store, at = rows.store, 0
    ends = set(np.cumsum([size for document in documents for size in document]).tolist())
    for begin, end in rows.pieces.tolist():
        assert 0 <= begin - at <= 2 and 2 <= end - begin <= length
        assert rows.document(begin) == rows.document(end - 1)
        at = end
        if end not in ends:  # within a sentence: it does not fit into one piece
            assert min(e for e in ends if e > end) - max(e for e in {0} | ends if e < end) > length
    assert store.num_tokens - at in (0, 1)
    borders = {*rows.starts.tolist(), store.num_tokens}
    for (begin, end), (_, after) in pairwise(rows.pieces.tolist()):
        if end not in store.offsets and after not in store.offsets:  # as many sentences as fit, but for the last two
            assert min(place for place in borders if place > end) - begin > length


@pytest.mark.parametrize("kind", KINDS)
@given(documents=some_documents, length=st.integers(2, 50), seed=st.integers(0, 2**63))
def test_labels_are_true(kind, documents, length, seed):
    rows = pair_rows(documents, length, kind)
    generator = np.random.default_rng(seed)
    for number in range(len(rows)):
        pair, (begin, end) = rows.pair(number, generator), rows.pieces[number].tolist()
        (first, middle), (other, last) = pair.first, pair.second
        assert first < middle and other < last and middle - first + last - other <= length
        if pair.label == 0:
            assert (first, middle, last) == (begin, other, end)  # one piece, cut in two
        elif kind == "sentence_order":
            assert (other, last, middle) == (begin, first, end)  # the same, swapped
        else:
            assert first == begin and middle < end
            assert rows.document(other) == rows.document(last - 1) != rows.document(begin)


@pytest.mark.parametrize("kind", KINDS)
def test_half_of_the_pairs_are_wrong_and_lengths_do_not_say_which(kind):
    documents = [list(draw) for draw in np.random.default_rng(0).integers(3, 20, (60, 40))]
    rows = pair_rows(documents, 60, kind)
    generator = np.random.default_rng(1)
    pairs = [rows.pair(number, generator) for number in range(len(rows)) for _ in range(6)]
    wrong = np.array([pair.label for pair in pairs])
    assert len(pairs) > 2000 and wrong.mean() == pytest.approx(0.5, abs=0.04)
    sizes = np.array([[end - begin for begin, end in (pair.first, pair.second)] for pair in pairs])
    for size in (*sizes.T, sizes.sum(axis=1)):
        assert size[wrong == 1].mean() == pytest.approx(size[wrong == 0].mean(), abs=0.03 * 60)
    stops = {pair.label: [] for pair in pairs}
    for pair in pairs:  # nor does how the segments end
        stops[pair.label].append([rows.store.tokens[end - 1] == STOP for _, end in (pair.first, pair.second)])
    assert np.mean(stops[0], axis=0) == pytest.approx(np.mean(stops[1], axis=0), abs=0.02)


def test_other_documents_are_drawn_by_their_pieces_and_a_document_of_one_sentence_is_cut_between_words():
    rows = pair_rows([[20], [20] * 4, [20] * 12], 20, "next_sentence")
    generator = np.random.default_rng(0)
    drawn, begins = [], set()
    for _ in range(2000):
        pair = rows.pair(0, generator)
        begins.add(pair.first[1])
        if pair.label == 1:  # the true segment begins within a sentence and ends with it, and so does this one
            assert rows.store.tokens[pair.second[1] - 1] == STOP and pair.second[0] not in rows.starts
            drawn.append(rows.document(pair.second[0]))
    assert begins == set(np.flatnonzero(MARKS.word_starts(rows.tokens((0, 20)))).tolist()) - {0}
    assert drawn.count(0) == 0 and drawn.count(2) / len(drawn) == pytest.approx(12 / 16, abs=0.06)


def test_next_sentences_of_a_single_document_are_refused_and_their_order_is_not():
    with pytest.raises(UserError, match=r"has one document with text; set data"):
        pair_rows([[10, 10], []], 12, "next_sentence")
    assert len(pair_rows([[10, 10], []], 12, "sentence_order")) == 2
    with pytest.raises(UserError, match="it takes 2 of one document to make a pair"):
        pair_rows([[1], [1]], 12, "sentence_order")


# Batches


def batch_rows(rows, numbers, epoch=0):
    return [rows[number] | {"row_ids": number, "epoch": epoch} for number in numbers]


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**63), epoch=st.integers(0, 9), order=st.permutations(range(6)), size=st.integers(1, 6))
def test_a_batch_holds_its_pairs_whatever_stands_beside_them(kind, seed, epoch, order, size):
    rows = pair_rows([[5, 9, 4, 7, 6], [12, 3, 8], [30, 6, 5, 11]], 24, kind)
    collate = SentencePairCollator(VOCABULARY, SHARES, seed)
    order = [number for number in order if number < len(rows)][:size]
    given_rows = batch_rows(rows, order, epoch)
    batch = collate(given_rows)
    for place, row in enumerate(given_rows):
        pair = collate.pair_of(row)
        first, second = rows.tokens(pair.first), rows.tokens(pair.second)
        tokens = [CLS, *first, SEP, *second, SEP]
        real = slice(0, len(tokens))
        labels, ids = batch["labels"][place], batch["input_ids"][place]
        assert torch.where(labels < 0, ids, labels)[real].tolist() == tokens
        assert batch["token_type_ids"][place][real].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert batch["next_sentence_label"][place] == pair.label
        assert int((labels != IGNORE_INDEX).sum()) == max(1, round(0.15 * (len(tokens) - 3)))
        assert (labels[len(tokens) :] == IGNORE_INDEX).all() and (ids[len(tokens) :] == PAD).all()
        if "attention_mask" in batch:
            assert int(batch["attention_mask"][place].sum()) == len(tokens)
        alone = collate([row])  # nothing depends on other rows
        assert torch.equal(alone["input_ids"][0], ids[real]) and torch.equal(alone["labels"][0], labels[real])
    assert batch["row_ids"] == order


def test_pairs_are_drawn_anew_in_each_epoch_and_a_row_that_fills_up_has_no_answer():
    rows = pair_rows([[5, 9, 4, 7, 6], [12, 3, 8]], 40, "next_sentence")
    collate = SentencePairCollator(VOCABULARY, SHARES, 3)
    pairs = {str(collate.pair_of(row)) for epoch in range(6) for row in batch_rows(rows, [0], epoch)}
    assert len(pairs) > 2
    (row,) = batch_rows(rows, [0])
    batch = collate([row, without_labels(row)])
    assert batch["next_sentence_label"].tolist()[1] == IGNORE_INDEX and (batch["labels"][1] == IGNORE_INDEX).all()
    assert MASK not in batch["input_ids"][1]


def test_the_parts_of_the_loss_are_those_of_the_logits(in_float64, tiny_encoder_config):
    model = anyformer.AnyformerEncoderForPreTraining(tiny_encoder_config(vocab_size=SIZE, type_vocab_size=2)).eval()
    rows = pair_rows([[5, 9, 4, 7, 6], [12, 3, 8]], 24, "next_sentence")
    batch = SentencePairCollator(VOCABULARY, SHARES, 0)(batch_rows(rows, range(len(rows))))
    del batch["row_ids"]
    labels, answers = batch["labels"], batch["next_sentence_label"]
    count = (labels != IGNORE_INDEX).sum()
    plain = model(**batch)
    masked = functional.cross_entropy(plain.prediction_logits.flatten(0, 1), labels.flatten())
    pairs = functional.cross_entropy(plain.seq_relationship_logits, answers)
    torch.testing.assert_close(plain.masked_lm_loss, masked)
    torch.testing.assert_close(plain.next_sentence_loss, pairs)
    torch.testing.assert_close(plain.loss, masked + pairs)
    for divided_by in (None, 1, 5 * count):
        extra = {} if divided_by is None else {"num_items_in_batch": divided_by}
        outputs = model(**batch, return_logits=False, **extra)
        torch.testing.assert_close(outputs.loss, outputs.masked_lm_loss + outputs.next_sentence_loss)
        sums = PairLosses().sums(outputs, batch, divided_by)
        means = {name: float(total / number) for name, (total, number) in sums.items()}
        right = (plain.seq_relationship_logits.argmax(-1) == answers).double().mean().item()
        expected = {"masked_loss": masked.item(), "pair_loss": pairs.item(), "pair_accuracy": right}
        assert means == pytest.approx(expected, rel=1e-6)  # the sums are kept in fp32


# Recipes and runs

SECTIONS = {
    "model": {"family": "encoder"},
    "objective": {"name": "sentence_pairs", "sequence_length": 48},
    "evaluation": {"metrics": ["perplexity", "pair_accuracy"], "every_steps": 4},
    "training": {"max_steps": 8},
    "data": {"validation_fraction": 0.3},
}


@pytest.mark.slow
def test_a_model_that_learned_the_order_of_sentences_is_asked_for_the_next_one(tiny_recipe, command, tmp_path, capsys):
    recipe = tiny_recipe(**SECTIONS)
    prompts = "evaluation.sample_prompts=['The [MASK] of a class']"
    assert command("train", recipe, "objective.pairs=sentence_order", prompts) == 0
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    found = run["metrics"]
    names = ("loss", "masked_loss", "pair_loss", "perplexity", "pair_accuracy")
    assert found.keys() == {f"validation_{name}" for name in names}
    assert found["validation_loss"] == pytest.approx(found["validation_masked_loss"] + found["validation_pair_loss"])
    assert found["validation_perplexity"] == pytest.approx(np.exp(found["validation_masked_loss"]))
    assert 0 <= found["validation_pair_accuracy"] <= 1 and run["samples"][0]["text"].count("%") == 5
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 8
    for line in steps:  # each pair weighs as much as its masked tokens, so that the sum is equal but for that
        assert line["loss"] == pytest.approx(line["masked_loss"] + line["pair_loss"], abs=0.05)
        assert 0 <= line["pair_accuracy"] <= 1
    assert {line["step"] for line in lines if "validation_pair_accuracy" in line} == {4, 8}
    printed = capsys.readouterr().out
    assert "pair accuracy" in printed and "(95 %:" in printed
    assert "AutoModelForMaskedLM" in (tmp_path / "run" / "README.md").read_text()

    other = ("objective.pairs=next_sentence", "--output", tmp_path / "e")
    assert command("evaluate", tmp_path / "run", recipe, *other) == 0
    other = json.loads((tmp_path / "e").read_text())
    assert other["recipe"]["objective"]["pairs"] == "next_sentence" and "pair_accuracy" in other["metrics"]
    assert command("evaluate", tmp_path / "run") == 0  # its own recipe again
    assert f"{found['validation_pair_accuracy']:.4f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["training.label_smoothing_factor=0.1"], "label_smoothing_factor has no effect on a loss of two parts"),
        (["data.files=null", "data.dataset=x", "data.streaming=true", "data.validation_fraction=null"], "may be of an"),
        (["objective.tail=pad"], "no effect with objective.name=sentence_pairs"),
    ],
)
def test_what_does_not_go_with_pairs_is_one_sentence(tiny_recipe, overrides, sentence):
    with pytest.raises(UserError) as caught:
        load_recipe(str(tiny_recipe(**SECTIONS)), overrides)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_models_without_a_head_for_pairs_or_a_second_segment_are_refused():
    objective = SentencePairs(Recipe(objective=SentencePairs.Settings()))
    data = Data(objective, objective.Reads(objective), SimpleNamespace(model_max_length=512))
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 9}
    with pytest.raises(UserError, match=r"BertForPreTraining.*convert it first"):
        data.learns().adapt(BertForPreTraining(BertConfig(**tiny)))
