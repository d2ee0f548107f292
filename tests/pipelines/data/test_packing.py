"""Laws of packing: every prediction once, documents apart, the same rows however they are made."""

import copy
import pickle

import numpy as np
import pytest
import torch
from anyformer.pipelines.data import token_store
from anyformer.pipelines.data.batch_keys import IGNORE_INDEX
from anyformer.pipelines.data.documents import Corpus, Document
from anyformer.pipelines.data.encoding import Encoder
from anyformer.pipelines.data.packed_stream import StreamingPackedDataset
from anyformer.pipelines.data.packing import PackedDataset
from anyformer.pipelines.data.tokenization import Tokenization
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.causal import Causal
from anyformer.pipelines.recipes.types import build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_tokenizers import trained_on
from token_arrays import TokenArrays

PAD = 9999
some_settings = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
lengths_of_documents = st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(lambda lengths: sum(lengths) > 1)


class TextList(Corpus):
    """A corpus of given texts."""

    split = name = "texts"

    def __init__(self, texts):
        self.texts = texts

    def documents(self):
        return (Document(text, str(number)) for number, text in enumerate(self.texts))

    def identity(self):
        return self.texts


def stored(lengths):
    """Each token is its own place in the stream."""
    return TokenArrays(np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]))


def rows_of(dataset):
    return [dataset[index] for index in range(len(dataset))]


def counted_predictions(rows):
    """(context token, predicted token) of every label that counts, as a shifting model sees them."""
    return [
        (int(row["input_ids"][place - 1]), int(row["labels"][place]))
        for row in rows
        for place in range(1, len(row["labels"]))
        if row["labels"][place] != IGNORE_INDEX
    ]


def same_rows(left, right):
    left, right = list(left), list(right)
    keys = ("input_ids", "labels", "position_ids")
    return len(left) == len(right) and all(torch.equal(a[key], b[key]) for a, b in zip(left, right) for key in keys)


@pytest.fixture(scope="module")
def char_tokenizer(tmp_path_factory):
    return trained_on("abcdefgh \n", tmp_path_factory.mktemp("char"), type="char")


def store_of(texts, tokenizer, folder, add_bos=False, add_eos=True):
    corpus = texts if isinstance(texts, Corpus) else TextList(texts)
    return Tokenization(corpus, tokenizer, folder, add_bos=add_bos, add_eos=add_eos).store()


# Rows


@some_settings
@given(lengths=lengths_of_documents, length=st.integers(2, 24))
def test_every_prediction_within_a_document_is_made_exactly_once(lengths, length):
    store = stored(lengths)
    dataset = PackedDataset(store, length, "pad", PAD)
    expected = [
        (token - 1, token)
        for begin, end in zip(store.offsets, store.offsets[1:])
        for token in range(int(begin) + 1, int(end))
    ]
    assert counted_predictions(rows_of(dataset)) == expected  # in order, none across documents


@some_settings
@given(lengths=lengths_of_documents, length=st.integers(3, 24), data=st.data())
def test_with_an_overlap_every_prediction_is_made_once_from_so_many_tokens(lengths, length, data):
    overlap = data.draw(st.integers(2, length - 1))
    store = stored(lengths)
    begins = np.asarray(store.offsets[:-1])
    predicted = []
    for row in rows_of(PackedDataset(store, length, "pad", PAD, overlap=overlap)):
        for place in np.flatnonzero(row["labels"] != IGNORE_INDEX).tolist():
            token, context = int(row["labels"][place]), int(row["position_ids"][place])
            first = int(begins[np.searchsorted(begins, token, side="right") - 1])
            assert context >= min(token - first, overlap)
            assert row["input_ids"][place - context : place + 1].tolist() == list(range(token - context, token + 1))
            predicted.append(token)
    assert predicted == [token for token in range(store.num_tokens) if token not in begins]


@some_settings
@given(lengths=lengths_of_documents, length=st.integers(2, 24))
def test_segments_positions_and_labels_describe_the_same_document_parts(lengths, length):
    store = stored(lengths)
    dataset = PackedDataset(store, length, "pad", PAD)
    seen = set()
    for index, row in enumerate(rows_of(dataset)):
        place = 0
        for document, start, size in dataset.documents(index):
            tokens = row["input_ids"][place : place + size].tolist()
            begin = int(store.offsets[document]) + start
            assert size > 0 and tokens == list(range(begin, begin + size))
            assert begin + size <= store.offsets[document + 1]
            assert row["position_ids"][place : place + size].tolist() == list(range(size))
            assert row["labels"][place : place + size].tolist() == [IGNORE_INDEX, *tokens[1:]]
            seen.update(tokens)
            place += size
        padding = length - place
        assert padding == 0 or index == len(dataset) - 1
        assert row["input_ids"][place:].tolist() == [PAD] * padding
        assert row["labels"][place:].tolist() == [IGNORE_INDEX] * padding
        assert row["position_ids"][place:].tolist() == list(range(padding))
        assert all(value.dtype == torch.int64 and value.shape == (length,) for value in row.values())
    assert seen == set(range(store.num_tokens))


@some_settings
@given(lengths=lengths_of_documents, length=st.integers(2, 24))
def test_dropping_the_tail_keeps_the_full_rows_as_they_are(lengths, length):
    store = stored(lengths)
    padded = PackedDataset(store, length, "pad", PAD)
    full = [row for row in rows_of(padded) if PAD not in row["input_ids"]]
    if not full:
        with pytest.raises(UserError):
            PackedDataset(store, length, "drop")
        return
    dropped = PackedDataset(store, length, "drop")
    assert same_rows(rows_of(dropped), full)
    assert dropped.fill_rate == 1
    held = sum((row["input_ids"] != PAD).sum().item() for row in rows_of(padded))
    assert padded.fill_rate == pytest.approx(held / (length * len(padded)))
    documents = {document for index in range(len(padded)) for document, _, _ in padded.documents(index)}
    assert padded.is_packed == (len(documents) > 1)


# Tokens on disk


@some_settings
@given(texts=st.lists(st.text(st.sampled_from("abc \n")), min_size=1, max_size=8), bos=st.booleans(), eos=st.booleans())
def test_the_store_holds_each_document_framed_and_counted(tmp_path_factory, char_tokenizer, texts, bos, eos):
    store = store_of(texts, char_tokenizer, tmp_path_factory.mktemp("store"), bos, eos)
    end = char_tokenizer.eos_token_id
    for index, text in enumerate(texts):
        framed = store.document(index).tolist()
        assert framed == [end] * bos + char_tokenizer(text).input_ids + [end] * eos
    assert store.num_documents == len(texts)
    assert store.tokens.dtype == np.uint16


@pytest.mark.parametrize(
    ("text", "words"), [("a b\n", 3), ("a b", 3), ("\n\n", 2), (" a \n b\n\n c", 7), ("", 1), ("\n", 1)]
)
def test_words_count_one_more_per_line(text, words):
    assert token_store.count_words(text) == words


def test_ids_are_stored_in_two_bytes_below_65536_and_in_four_from_there(tmp_path, char_tokenizer):
    assert [token_store.token_dtype(size) for size in (2, 65_535, 65_536)] == ["uint16", "uint16", "uint32"]
    tokenizer = copy.deepcopy(char_tokenizer)
    for wanted, dtype in ((65_535, np.uint16), (65_537, np.uint32)):
        tokenizer.add_tokens([f"<t{number}>" for number in range(len(tokenizer), wanted)])
        last = f"<t{wanted - 1}>"
        store = store_of([f"a{last}"], tokenizer, tmp_path, add_eos=False)
        assert store.tokens.dtype == dtype
        assert store.tokens.tolist() == tokenizer(f"a{last}").input_ids


def test_a_reopened_dataset_is_identical_and_nothing_is_tokenised_again(tmp_path, char_tokenizer, monkeypatch):
    texts = ["abc def\n" * 30, "gh", "a\n" * 50]
    first = PackedDataset(store_of(texts, char_tokenizer, tmp_path), 16, "pad", 0)
    monkeypatch.setattr(Encoder, "encode", None)
    second = PackedDataset(store_of(texts, char_tokenizer, tmp_path), 16, "pad", 0)
    assert same_rows(rows_of(first), rows_of(second))
    assert first.fingerprint == second.fingerprint
    assert first.account == second.account
    assert PackedDataset(second.store, 17, "pad", 0).fingerprint != first.fingerprint


def test_other_text_tokenizer_or_framing_has_its_own_store(tmp_path, char_tokenizer):
    other = trained_on("xabc", tmp_path, type="char")
    stores = [
        store_of(["abc"], char_tokenizer, tmp_path),
        store_of(["abcd"], char_tokenizer, tmp_path),
        store_of(["abc"], other, tmp_path),
        store_of(["abc"], char_tokenizer, tmp_path, add_bos=True),
        store_of(["abc"], char_tokenizer, tmp_path, add_eos=False),
    ]
    assert len({store.fingerprint for store in stores}) == 5


def test_a_pickled_dataset_carries_no_tokens(tmp_path, char_tokenizer):
    dataset = PackedDataset(store_of(["abc def\n" * 20_000], char_tokenizer, tmp_path), 128)
    content = pickle.dumps(dataset)
    assert len(content) < 20_000 < dataset.store.tokens.nbytes
    assert same_rows(rows_of(pickle.loads(content))[:50], rows_of(dataset)[:50])


# Streams


@some_settings
@given(
    texts=st.lists(st.text(st.sampled_from("abc \n"), max_size=60), min_size=1, max_size=8),
    length=st.integers(2, 20),
    tail=st.sampled_from(["drop", "pad"]),
    bos=st.booleans(),
    eos=st.booleans(),
)
def test_a_stream_gives_the_rows_of_stored_data(tmp_path_factory, char_tokenizer, texts, length, tail, bos, eos):
    store = store_of(texts, char_tokenizer, tmp_path_factory.mktemp("stream"), bos, eos)
    stream = StreamingPackedDataset(TextList(texts), char_tokenizer, length, tail, add_bos=bos, add_eos=eos)
    try:
        expected = rows_of(PackedDataset(store, length, tail, char_tokenizer.pad_token_id))
    except UserError as error:
        with pytest.raises(UserError) as caught:
            list(stream)
        assert str(caught.value) == str(error)
        return
    assert same_rows(stream, expected)
    assert same_rows(stream, expected)  # a second pass starts again


# Reports and bad input


def test_bad_input_is_one_sentence(tmp_path, char_tokenizer):
    nameless = copy.deepcopy(char_tokenizer)
    nameless.eos_token = nameless.bos_token = nameless.pad_token = None
    store = store_of(["abc def"], char_tokenizer, tmp_path)
    cases = [
        (
            lambda: PackedDataset(store, 1024),
            "a row takes 1,024 tokens of text, more than the whole text of texts (8); lower it",
        ),
        (lambda: build(Causal.Settings, {"tail": "cut"}, "objective"), "objective.tail='cut'"),
        (lambda: store_of(["a"], nameless, tmp_path, add_bos=True), "objective.add_bos=true needs"),
        (lambda: store_of(["a"], nameless, tmp_path), "objective.add_eos=true needs"),
    ]
    for call, sentence in cases:
        with pytest.raises(UserError) as caught:
            call()
        assert sentence in str(caught.value) and "\n" not in str(caught.value)
    assert len(PackedDataset(store, 8)) == 1  # the length the first error names


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path, char_tokenizer, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.cache_dir=.*cannot be written"):
        store_of(["abc"], char_tokenizer, tmp_path / "file")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Encoder, "encode", full)
    with pytest.raises(UserError, match=r"data\.cache_dir=.*No space left on device"):
        store_of(["abc"], char_tokenizer, tmp_path)
    assert not list((tmp_path / "tokens").iterdir())
