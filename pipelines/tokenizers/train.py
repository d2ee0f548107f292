"""Training of the four kinds of tokenizer with the tokenizers library, each deterministic.

Determinism needs care: the trainers keep words in hash maps whose order differs from run to run, which leaks into the
numbering of WordPiece's alphabet and into the last digits of Unigram's scores.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..errors import UserError
from ..lazy import tokenizers as tk
from ..recipes.tokenizer_section import UNKNOWN

DEFAULT_VOCAB_SIZE = 8192

# Words with at most one space in front, numbers, runs of signs, line breaks and further spaces: GPT-2's division.
_WORDS = r" ?\p{L}[\p{L}\p{M}]*| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\n+| +(?= )|\s"

Texts = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Plan:
    """Settings of a tokenizer to train; part of its cache key.

    vocab_size: special tokens included. size_was_asked: whether the user set it; a default may come out smaller.
    """

    special: list[str]
    vocab_size: int
    size_was_asked: bool
    lowercase: bool = False
    min_frequency: int = 2


def train_byte_bpe(texts: Texts, plan: Plan):
    """Byte-level BPE as in GPT-2: every text comes back exactly, and no text is unknown."""
    alphabet = sorted(tk.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tk.Tokenizer(tk.models.BPE())
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = tk.decoders.ByteLevel()
    trainer = _trainer(tk.trainers.BpeTrainer, plan, special_tokens=plan.special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts(), trainer)
    return _checked(tokenizer, plan)


def train_wordpiece(texts: Texts, plan: Plan):
    """WordPiece as in BERT: words and signs apart, `##` marks a continuation. Spaces and line breaks are not kept."""

    def untrained(vocabulary: dict[str, int] | None = None):
        arguments = {"vocab": vocabulary} if vocabulary else {}
        tokenizer = tk.Tokenizer(tk.models.WordPiece(unk_token=UNKNOWN, max_input_chars_per_word=100, **arguments))
        tokenizer.normalizer = tk.normalizers.BertNormalizer(lowercase=plan.lowercase)
        tokenizer.pre_tokenizer = tk.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = tk.decoders.WordPiece(prefix="##")
        return tokenizer

    def trained(first: list[str], vocab_size: int) -> list[str]:
        tokenizer = untrained()
        trainer = _trainer(tk.trainers.WordPieceTrainer, plan, special_tokens=first, vocab_size=vocab_size)
        tokenizer.train_from_iterator(texts(), trainer)
        vocabulary = tokenizer.get_vocab()
        return sorted(vocabulary, key=vocabulary.get)

    # The trainer numbers the continuing characters in the order of its hash map, and merges equally frequent pairs in
    # the order of those numbers. So the alphabet is collected first (no merges), and handed in sorted.
    alphabet = trained(plan.special, 0)[len(plan.special) :]
    _require(plan, len(plan.special) + len(alphabet), "the characters of the training text and the special tokens")
    entries = trained(plan.special + sorted(alphabet), plan.vocab_size)
    tokenizer = untrained({entry: number for number, entry in enumerate(entries)})
    tokenizer.add_special_tokens(plan.special)
    return _checked(tokenizer, plan)


def train_unigram(texts: Texts, plan: Plan):
    """Unigram language model as in SentencePiece, with `▁` for a space. Text of known characters comes back exactly,
    unless it is lower-cased or holds `▁` itself."""
    tokenizer = tk.Tokenizer(tk.models.Unigram())
    if plan.lowercase:
        tokenizer.normalizer = tk.normalizers.Lowercase()
    # "never": a space in front of the text would make " a" and "a" the same.
    marked_spaces = tk.pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    words = tk.pre_tokenizers.Split(tk.Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = tk.pre_tokenizers.Sequence([words, marked_spaces])
    tokenizer.decoder = tk.decoders.Metaspace(prepend_scheme="never", split=False)
    characters = _characters(texts, str.lower if plan.lowercase else str)
    _require(plan, len(plan.special) + len(characters), "the characters of the training text and the special tokens")
    trainer = tk.trainers.UnigramTrainer(
        vocab_size=plan.vocab_size,
        special_tokens=plan.special,
        unk_token=UNKNOWN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return _checked(_with_settled_scores(tokenizer, plan.special), plan)


def _with_settled_scores(tokenizer, special: list[str]):
    """The tokenizer with reproducible scores, its pieces ordered by score.

    The trainer sums in the order of a hash map, so that its scores agree to about 1e-11 only: four decimals are kept.
    Characters that won no place get, in that order, the lowest score plus 0.0001, 0.0002, ...: here all get the lowest.
    """
    state = json.loads(tokenizer.to_str())
    scores = {piece: score for piece, score in state["model"]["vocab"] if piece not in special}
    lowest = min(scores.values())
    losers = lowest + 0.0001 * (sum(len(piece) == 1 for piece in scores) + 1)
    settled = [
        (piece, round(lowest if len(piece) == 1 and score < losers else score, 4)) for piece, score in scores.items()
    ]
    settled.sort(key=lambda entry: (-entry[1], entry[0]))
    state["model"]["vocab"] = [(piece, 0.0) for piece in special] + settled
    state["model"]["unk_id"] = special.index(UNKNOWN)
    return tk.Tokenizer.from_str(json.dumps(state))


def train_char(texts: Texts, plan: Plan):
    """One token per character, numbered by code point; the special tokens follow."""
    characters = _characters(texts)
    for token in characters & set(plan.special):
        raise UserError(f"tokenizer.special_tokens: {token!r} is a character of the training text; use a longer name.")
    vocabulary = {entry: number for number, entry in enumerate([*sorted(characters), *plan.special])}
    if plan.size_was_asked and plan.vocab_size != len(vocabulary):
        raise UserError(
            f"tokenizer.vocab_size={plan.vocab_size} does not fit tokenizer.type=char: the training text has "
            f"{len(characters):,} characters, with special tokens {len(vocabulary):,} entries; leave vocab_size out."
        )
    # BPE without merges, not WordLevel over a split into characters: the same tokens, six times as fast.
    tokenizer = tk.Tokenizer(tk.models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = tk.decoders.Fuse()
    tokenizer.add_special_tokens(plan.special)
    return tokenizer


def _trainer(kind, plan: Plan, **options):
    """A trainer of the plan's size, without a progress bar."""
    settings = {"vocab_size": plan.vocab_size, "min_frequency": plan.min_frequency, "show_progress": False}
    return kind(**settings | options)


def _characters(texts: Texts, change: Callable[[str], str] = str) -> set[str]:
    characters: set[str] = set()
    for text in texts():
        characters.update(change(text))
    return characters


def _require(plan: Plan, smallest: int, reason: str) -> None:
    if plan.vocab_size < smallest:
        raise UserError(
            f"tokenizer.vocab_size={plan.vocab_size} is too small: {reason} alone take {smallest:,} entries."
        )


def _checked(tokenizer, plan: Plan):
    size = tokenizer.get_vocab_size()
    if plan.size_was_asked and size < plan.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={plan.vocab_size} is more than the training text supports: "
            f"it yields at most {size:,} entries."
        )
    return tokenizer


TRAINERS = {
    "byte_bpe": train_byte_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
    "char": train_char,
}
