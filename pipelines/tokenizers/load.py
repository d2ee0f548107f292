"""The tokenizer of a run: trained on the training text and kept in the cache, or a pretrained one."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError, loading_reason
from ..lazy import tokenizers, transformers
from ..manifest import check_saved_files
from ..open_tokenizer import open_tokenizer
from ..recipes.tokenizer_section import (
    CLS,
    MASK,
    PAD,
    SEP,
    UNKNOWN,
    TokenizerSection,
    begin_and_end,
    sentinel,
    special_tokens,
    template,
)
from ..storage.cache import cached_folder, sha
from ..storage.local_facts import forget_loading
from ..words import working
from .train import DEFAULT_VOCAB_SIZE, TRAINERS, Plan

_FORMAT = 1  # raise it when training changes, so that older cache entries are not taken for its result
ASSUMED_CHARACTERS = 256
_CHUNK = 2**20  # characters; the trainers keep several times a text's size in memory while they read it


def planned_size(section: TokenizerSection) -> int | None:
    """The vocabulary size of a recipe's tokenizer before any text is read; None for a pretrained one.

    A character tokenizer has an entry for each character of the text; ASSUMED_CHARACTERS are assumed.
    """
    if section.name_or_path is not None:
        return None
    return section.vocab_size or (ASSUMED_CHARACTERS if section.type == "char" else DEFAULT_VOCAB_SIZE)


def train_or_load_tokenizer(
    section: TokenizerSection,
    corpus: Any,
    cache_dir: Path,
    *,
    trust_remote_code: bool = False,
) -> "transformers.PreTrainedTokenizerFast":
    """The pretrained tokenizer of `name_or_path`, or one trained on the first `max_training_bytes` of the corpus.

    corpus: a data.documents.Corpus.

    A trained tokenizer has `<|pad|>` and, where its algorithm can meet text it cannot write, `<|unk|>`. The rest
    depends on the framing (None: as `none`; an Objective fills in what it needs):
    none: `<|endoftext|>` is beginning and end of text, and nothing is put around a text.
    cls_sep: `<|cls|>` text `<|sep|>`, and for a pair `<|cls|>` a `<|sep|>` b `<|sep|>` with token_type_ids 0 and 1; the
    two are beginning and end of text as well, and there is a `<|mask|>`.
    eos: text `<|endoftext|>`.
    A `<|mask|>` among `special_tokens` is the mask token of any framing. `sentinels` adds `<extra_id_0>`,
    `<extra_id_1>`, ... The tokenizer is stored under cache_dir/tokenizers by its settings and the corpus' fingerprint,
    as files that AutoTokenizer loads without this package. The same text gives byte-identical files.
    `trust_remote_code`: whether code that comes with a pretrained tokenizer may run. Raises UserError for a
    vocabulary the text does not support and for a pretrained tokenizer that cannot be loaded.
    """
    if section.name_or_path:
        return _load_pretrained(section, trust_remote_code)
    plan = _plan(section)
    folder = cached_folder(
        Path(cache_dir),
        "tokenizers",
        _cache_key(plan, section, corpus),
        lambda work: _train(plan, section, corpus).save_pretrained(work),
        files=corpus.files,
    )
    return forget_loading(transformers.PreTrainedTokenizerFast.from_pretrained(folder))


def tokenizer_fingerprint(tokenizer: "transformers.PreTrainedTokenizerFast") -> str:
    """Equal for tokenizers that give every text the same tokens and frame it with the same special tokens."""
    ids = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id]
    return sha([plain_backend(tokenizer).to_str(), ids])


def plain_backend(tokenizer: "transformers.PreTrainedTokenizerFast") -> "tokenizers.Tokenizer":
    """The tokenizers.Tokenizer inside if it neither truncates nor pads, else a copy that does neither."""
    backend = tokenizer.backend_tokenizer
    if backend.truncation is None and backend.padding is None:
        return backend
    backend = copy.deepcopy(backend)
    backend.no_truncation()
    backend.no_padding()
    return backend


def training_texts(corpus: Any, max_bytes: int) -> Iterator[str]:
    """The text of the corpus up to `max_bytes` of UTF-8, in chunks of a million characters or less."""
    left = max_bytes
    for document in corpus.documents():
        for chunk in _chunks(document.text):
            size = len(chunk.encode())
            if size > left:
                chunk = chunk.encode()[:left].decode(errors="ignore")  # not in the middle of a character
            if chunk:
                yield chunk
            left -= size
            if left <= 0:
                return


def _chunks(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + _CHUNK
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end


def _plan(section: TokenizerSection) -> Plan:
    special = special_tokens(section)
    for token in section.special_tokens:
        if not token or special.count(token) > 1:
            raise UserError(f"tokenizer.special_tokens: {token!r} is empty or stands there twice; leave it out.")
    return Plan(
        special=special,
        vocab_size=section.vocab_size or DEFAULT_VOCAB_SIZE,
        size_was_asked=section.vocab_size is not None,
        lowercase=section.lowercase,
        min_frequency=section.min_frequency,
    )


def _cache_key(plan: Plan, section: TokenizerSection, corpus: Any) -> str:
    settings = [section.type, vars(plan), section.max_training_bytes]
    if section.framing not in (None, "none"):
        settings.append(section.framing)
    return sha([_FORMAT, tokenizers.__version__, settings, corpus.fingerprint()])


def _train(plan: Plan, section: TokenizerSection, corpus: Any) -> "transformers.PreTrainedTokenizerFast":
    # The progress bars of tokenizers break lines on a terminal to which others write, too.
    with working("training the tokenizer"):
        backend = TRAINERS[section.type](lambda: training_texts(corpus, section.max_training_bytes), plan)
    begin, end = begin_and_end(section.framing)
    names = {"bos_token": begin, "eos_token": end, "pad_token": PAD}
    names["unk_token"] = UNKNOWN if UNKNOWN in plan.special else None
    inputs = ["input_ids", "attention_mask"]  # without token_type_ids, which a decoder does not take
    if section.framing == "cls_sep":
        names |= {"cls_token": CLS, "sep_token": SEP}
        inputs.insert(1, "token_type_ids")
    if MASK in plan.special:
        names["mask_token"] = _placeholder(MASK, section)
    sentinels = [_placeholder(sentinel(number), section) for number in range(section.sentinels or 0)]
    backend.add_special_tokens([token for token in (names.get("mask_token"), *sentinels) if token is not None])
    _set_frame(backend, section)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **names,
        extra_special_tokens=[*(token for token in section.special_tokens if token != MASK), *sentinels],
        model_input_names=inputs,
        clean_up_tokenization_spaces=False,
    )


def _placeholder(token: str, section: TokenizerSection):
    """A token in place of words, which takes the space before it where words carry theirs, as RoBERTa's mask does.

    Otherwise "a <|mask|> b" would hold a token for the space before the mask, which no training row does.
    """
    words_carry_spaces = section.type in ("byte_bpe", "unigram")
    return tokenizers.AddedToken(token, lstrip=words_carry_spaces, special=True, normalized=False)


def _set_frame(backend, section: TokenizerSection) -> None:
    """Give the backend the post-processor that puts the framing's tokens around a text or a pair of texts."""
    texts = template(section.framing)
    if texts is not None:
        tokens = [token for token in special_tokens(section) if any(token in text for text in texts.values())]
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            **texts, special_tokens=[(token, backend.token_to_id(token)) for token in tokens]
        )


def _load_pretrained(section: TokenizerSection, trust_remote_code: bool) -> "transformers.PreTrainedTokenizerFast":
    field, place = f"tokenizer.name_or_path={section.name_or_path!r}", Path(section.name_or_path).expanduser()
    check_saved_files(place, "tokenizer.name_or_path")
    try:
        tokenizer = open_tokenizer(place, trust_remote_code)
    except Exception as error:  # transformers raises OSError, ValueError, ImportError, KeyError and its own kinds here
        raise UserError(f"{field} cannot be loaded: {loading_reason(error)}.") from error
    if not tokenizer.is_fast:
        raise UserError(f"{field} has no fast version (tokenizer.json), which is needed here.")
    if section.special_tokens:
        tokenizer.add_tokens(list(section.special_tokens), special_tokens=True)
    return forget_loading(tokenizer)
