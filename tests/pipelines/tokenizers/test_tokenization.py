"""Laws of the tokenizers: exact round trips, the same files every time, cached by content."""

import subprocess
import sys

import numpy as np
import pytest
from anyformer.pipelines.data import encoding
from anyformer.pipelines.data.account_words import unusual
from anyformer.pipelines.data.documents import Document
from anyformer.pipelines.data.encoding import Encoder
from anyformer.pipelines.data.opening import open_corpora
from anyformer.pipelines.data.packing import PackedDataset
from anyformer.pipelines.data.tokenization import Tokenization
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
from anyformer.pipelines.recipes.tokenizer_section import WRITES_EVERY_TEXT
from anyformer.pipelines.recipes.types import build
from anyformer.pipelines.storage.cache import sha
from anyformer.pipelines.tokenizers import load
from anyformer.pipelines.tokenizers.control_tokens import ControlTokens, text_tokenizer
from anyformer.pipelines.tokenizers.load import tokenizer_fingerprint, train_or_load_tokenizer
from hypothesis import given
from hypothesis import strategies as st

TEXT = (
    "The quick brown fox jumps over the lazy dog; the dogs and the foxes slept.\n"
    "Größe, naïve café, 日本語 and ½ of 1234 — isn't it?\n\n    def lower(self):\n\treturn  self.low\n"
) * 10 + "".join(
    f"{a}{b}{c} {c}{a}\n"
    for a in ("wan", "der", "lust", "ig")
    for b in ("ma", "ri", "to", "")
    for c in ("nen", "sel", "ka")
)
SECTIONS = {
    "byte_bpe": TokenizerSection(type="byte_bpe", vocab_size=300),
    "wordpiece": TokenizerSection(type="wordpiece", vocab_size=120),
    "unigram": TokenizerSection(type="unigram", vocab_size=85),
    "char": TokenizerSection(type="char"),
}


def corpus_of(folder, text=TEXT):
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(text)
    return open_corpora(DataSection(files=str(folder / "text.txt"), validation_fraction=0))["train"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """type -> (tokenizer, its folder in the cache)."""
    folder = tmp_path_factory.mktemp("trained")
    result = {}
    for name, section in SECTIONS.items():
        tokenizer = train_or_load_tokenizer(section, corpus_of(folder), folder / name)
        result[name] = tokenizer, next((folder / name / "tokenizers").iterdir())
    return result


# Round trips


# Text, white space, what the tokenizers write themselves, emoji of several code points, scripts outside the plane 0.
PARTS = st.one_of(
    st.text(), st.sampled_from([" ", "  ", "\n", "\t\r\n", " the", "▁", "▁0", "\ufdd0", "\ufdd01", "<0x41>"])
)
RARE = st.sampled_from(["👩‍👩‍👧", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "ᚠᛇᚻ", "𒀀𒁀", "ꦗꦮ", "日本語", "e\u0301", "\u200d", "\x00", "\U0010ffff"])


@pytest.mark.parametrize("name", WRITES_EVERY_TEXT)
@given(text=st.lists(PARTS | RARE, max_size=8).map("".join))
def test_types_with_bytes_give_back_every_text(trained, name, text):
    tokenizer, _ = trained[name]
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.parametrize("name", ["char", "unigram"])
@given(text=st.text(st.sampled_from(sorted(set(TEXT)))))
def test_char_and_unigram_give_back_every_text_of_known_characters(trained, name, text):
    tokenizer, _ = trained[name]
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_wordpiece_splits_words_like_bert(trained, tmp_path):
    tokenizer, _ = trained["wordpiece"]
    tokens = tokenizer.tokenize("the foxes, lazy")
    assert tokens[0] == "the" and "," in tokens and any(token.startswith("##") for token in tokens)
    assert tokenizer.decode(tokenizer("the lazy fox").input_ids) == "the lazy fox"
    lower = train_or_load_tokenizer(
        TokenizerSection(type="wordpiece", vocab_size=100, lowercase=True),
        corpus_of(tmp_path),
        tmp_path,
    )
    assert lower.tokenize("The") == lower.tokenize("the")


def test_char_numbers_characters_by_code_point_and_special_tokens_follow(trained):
    tokenizer, _ = trained["char"]
    characters = sorted(set(TEXT))
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == [
        *characters,
        "<|endoftext|>",
        "<|pad|>",
        "<|unk|>",
    ]
    assert tokenizer("ж").input_ids == [tokenizer.unk_token_id]


@pytest.mark.parametrize("name", SECTIONS)
def test_every_type_has_the_special_tokens_and_the_size_asked_for(trained, name):
    tokenizer, _ = trained[name]
    assert tokenizer.bos_token == tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer.pad_token == "<|pad|>"
    assert tokenizer.unk_token == (None if name in WRITES_EVERY_TEXT else "<|unk|>")
    assert "token_type_ids" not in tokenizer("some text")
    assert tokenizer.model_max_length > 10**9
    if SECTIONS[name].vocab_size:
        assert len(tokenizer) == SECTIONS[name].vocab_size


def test_further_special_tokens_follow_ours_and_are_one_token(tmp_path):
    section = TokenizerSection(vocab_size=300, special_tokens=["<|user|>", "<|bot|>"])
    tokenizer = train_or_load_tokenizer(section, corpus_of(tmp_path), tmp_path)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<|endoftext|>", "<|pad|>", "<|user|>", "<|bot|>"]
    assert tokenizer("<|bot|>").input_ids == [3]
    assert tokenizer.decode([3, 40], skip_special_tokens=True) == tokenizer.decode([40])


# The same files every time, which transformers alone can load


def test_another_process_trains_byte_identical_files(trained, tmp_path):
    program = f"""
import anyformer_main
from pathlib import Path
from anyformer.pipelines.data.opening import open_corpora
from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
from anyformer.pipelines.tokenizers.load import train_or_load_tokenizer
corpus = open_corpora(DataSection(files={str(tmp_path / "text.txt")!r}, validation_fraction=0))["train"]
for name, section in {SECTIONS!r}.items():
    train_or_load_tokenizer(section, corpus, Path({str(tmp_path)!r}) / name)
"""
    corpus_of(tmp_path)
    subprocess.run([sys.executable, "-c", program], check=True)
    for name, (_, folder) in trained.items():
        other = tmp_path / name / "tokenizers" / folder.name  # the same key
        for path in folder.iterdir():
            assert (other / path.name).read_bytes() == path.read_bytes(), (name, path.name)


# Cache


def test_the_second_call_does_not_train_and_other_settings_do(tmp_path, monkeypatch):
    trainings = []
    train = load.TRAINERS["byte_bpe"]
    monkeypatch.setitem(load.TRAINERS, "byte_bpe", lambda *a: trainings.append(1) or train(*a))

    def get(text=TEXT, **settings):
        corpus = corpus_of(tmp_path, text)
        return train_or_load_tokenizer(TokenizerSection(**{"vocab_size": 280} | settings), corpus, tmp_path)

    first = get()
    assert tokenizer_fingerprint(get()) == tokenizer_fingerprint(first) and len(trainings) == 1
    assert tokenizer_fingerprint(get(vocab_size=290)) != tokenizer_fingerprint(first) and len(trainings) == 2
    get(text=TEXT + "other")
    get(special_tokens=["<|x|>"])
    get(max_training_bytes=500)
    assert len(trainings) == 5


def test_training_reads_no_more_than_max_training_bytes(tmp_path):
    corpus = corpus_of(tmp_path, "aé" * 50 + "z" * 100)
    section = TokenizerSection(type="char", max_training_bytes=149)  # ends in the middle of an é
    tokenizer = train_or_load_tokenizer(section, corpus, tmp_path)
    assert "é" in tokenizer.get_vocab() and "z" not in tokenizer.get_vocab()


# Bad input


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"vocab_size": 50_000}, ["tokenizer.vocab_size=50000", "more than the training text supports", "at most"]),
        ({"type": "char", "vocab_size": 50_000}, ["tokenizer.vocab_size=50000", "characters", "leave vocab_size out"]),
        ({"type": "wordpiece", "vocab_size": 20}, ["tokenizer.vocab_size=20 is too small", "characters"]),
        ({"special_tokens": ["<|pad|>"]}, ["tokenizer.special_tokens", "<|pad|>"]),
        ({"type": "char", "special_tokens": ["a"]}, ["tokenizer.special_tokens", "'a'"]),
    ],
)
def test_vocabularies_the_text_does_not_support_are_one_sentence(tmp_path, settings, expected):
    with pytest.raises(UserError) as caught:
        section = build(TokenizerSection, settings, "tokenizer")  # as a recipe is read: types and bounds first
        train_or_load_tokenizer(section, corpus_of(tmp_path), tmp_path)
    assert all(part in str(caught.value) for part in expected), str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_largest_size_an_error_names_works(tmp_path):
    corpus = corpus_of(tmp_path)
    with pytest.raises(UserError) as caught:
        train_or_load_tokenizer(TokenizerSection(vocab_size=50_000), corpus, tmp_path)
    largest = int(str(caught.value).split("at most ")[1].split()[0].replace(",", ""))
    tokenizer = train_or_load_tokenizer(TokenizerSection(vocab_size=largest), corpus, tmp_path)
    assert len(tokenizer) == largest
    assert len(train_or_load_tokenizer(TokenizerSection(), corpus, tmp_path)) == largest


def test_pretrained_tokenizers_are_taken_as_they_are_or_refused_with_a_sentence(trained, tmp_path):
    tokenizer, folder = trained["char"]
    corpus = corpus_of(tmp_path)
    loaded = train_or_load_tokenizer(TokenizerSection(name_or_path=str(folder)), corpus, tmp_path)
    assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer)
    with pytest.raises(UserError, match=r"tokenizer\.name_or_path=.*cannot be loaded") as caught:
        section = TokenizerSection(name_or_path=str(tmp_path / "nothing"))
        train_or_load_tokenizer(section, corpus, tmp_path)
    assert "\n" not in str(caught.value)


# Encoding of documents


@pytest.mark.parametrize("name", SECTIONS)
def test_long_texts_in_pieces_get_the_tokens_of_the_whole(trained, name, monkeypatch):
    tokenizer, _ = trained[name]
    for constant, value in (("_PIECE", 300), ("_BATCH", 1000), ("_WINDOW", 100)):
        monkeypatch.setattr(encoding, constant, value)
    encoder = Encoder(tokenizer)
    texts = ["short", TEXT, "a\n\n\n" * 500, "no line break " * 300, TEXT.replace("\n", "\r\n")]
    assert len(encoder._pieces(TEXT)) > 5
    documents = [Document(text, str(number)) for number, text in enumerate(texts)]
    expected = [tokenizer(text).input_ids for text in texts]
    assert [ids.tolist() for ids in encoder.encode_documents(documents)] == expected


def test_a_tokenizer_that_marks_the_beginning_of_a_text_gets_no_cut_it_would_notice(trained, monkeypatch):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(encoding, "_PIECE", 300)
    characters = sorted({*TEXT, "▁"})
    backend = Tokenizer(models.BPE({character: i for i, character in enumerate(characters)}, []))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    words = "some words in a line\n" * 100  # a mark would be put in front of each piece
    assert Encoder(tokenizer)._pieces(words) == [words]
    assert Encoder(tokenizer).encode([TEXT])[0].tolist() == tokenizer(TEXT).input_ids


def test_truncation_and_padding_saved_with_a_tokenizer_do_not_touch_documents(trained):
    import copy

    tokenizer = copy.deepcopy(trained["char"][0])
    earlier = Encoder(tokenizer)
    plain = np.concatenate(earlier.encode([TEXT]))
    tokenizer.backend_tokenizer.enable_truncation(8)
    tokenizer.backend_tokenizer.enable_padding(length=50_000)
    for encoder in (earlier, Encoder(tokenizer)):
        assert np.array_equal(np.concatenate(encoder.encode([TEXT])), plain)
    assert tokenizer.backend_tokenizer.truncation is not None  # what others asked for stays
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(trained["char"][0])


# Control tokens that are written in a text


@pytest.fixture(scope="module")
def control_tokenizers(trained):
    """Ours, and two whose vocabularies hold control tokens as words, which tokenizers' own switch does not keep out."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    entries = ["<pad>", "</s>", "<unk>", *"▁ab<>/psd"]
    unigram = Tokenizer(models.Unigram([(entry, -3.0 * (i > 2)) for i, entry in enumerate(entries)], unk_id=2))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    words = Tokenizer(models.WordLevel({entry: i for i, entry in enumerate(entries)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = {name: tokenizer for name, (tokenizer, _) in trained.items()}
    for name, backend in {"t5": unigram, "words": words}.items():
        backend.add_special_tokens(["</s>", "<pad>"])
        backend.add_tokens(["plain added"])
        backend.add_special_tokens(["<late>"])
        after = {"single": "$A </s>", "pair": "$A </s> $B </s>", "special_tokens": [("</s>", 1)]}
        backend.post_processor = processors.TemplateProcessing(**after)
        names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        found[name] = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    return found


@pytest.mark.parametrize("name", [*SECTIONS, "t5", "words"])
def test_control_tokens_written_in_a_text_are_text_and_all_else_is_as_ever(control_tokenizers, name):
    tokenizer = control_tokenizers[name]
    control = {token for token in tokenizer.all_special_tokens if token != tokenizer.unk_token} | {tokenizer.eos_token}
    texts = [f"a{token} b {token} a" for token in control]
    plain = "a plain added b a/ps"
    encode, copied = Encoder(tokenizer).encode, text_tokenizer(tokenizer)
    before = tokenizer(plain, plain)
    assert copied(plain, plain, truncation=True, max_length=500) == before
    assert encode([plain])[0].tolist() == tokenizer(plain, add_special_tokens=False).input_ids
    numbers = set(tokenizer.convert_tokens_to_ids([*control]))
    for text, ids in zip(texts, encode(texts)):
        assert numbers & set(tokenizer(text, add_special_tokens=False).input_ids)
        assert not numbers & {*ids.tolist(), *copied(text, add_special_tokens=False).input_ids}
        ends = tokenizer.num_special_tokens_to_add()
        assert len(copied(text).input_ids) == len(ids) + ends  # those around it stay
    assert tokenizer(plain, plain) == before and tokenizer.backend_tokenizer.truncation is None
    assert ControlTokens(tokenizer).count(texts) == dict.fromkeys(control, 2)


def test_a_store_tells_of_control_tokens_and_only_then_has_another_identity(trained, tmp_path):
    tokenizer = trained["byte_bpe"][0]

    def store(text):
        corpus = corpus_of(tmp_path, text)
        return corpus, Tokenization(corpus, tokenizer, tmp_path, add_bos=False, add_eos=True).store()

    corpus, plain = store(TEXT)
    ends = [tokenizer.bos_token_id, tokenizer.eos_token_id]
    before = sha([1, corpus.fingerprint(), tokenizer_fingerprint(tokenizer), None, ends[1]])  # of 0.1
    assert plain.fingerprint == before and not unusual(plain.account)
    corpus, told = store(TEXT + "an <|endoftext|> and <|pad|>, an <|endoftext|>")
    assert told.tokens.tolist().count(ends[1]) == 1
    assert told.fingerprint != sha([1, corpus.fingerprint(), tokenizer_fingerprint(tokenizer), None, ends[1]])
    assert "<|endoftext|> (2 times), <|pad|> (1 times)" in unusual(told.account)[0]
    assert PackedDataset(told, 32, tail="pad", pad_token_id=1).account == told.account
