"""A tokenizer in a GGUF file. Its type is found by the ids that llama.cpp gives hard texts, never by a name."""

import argparse
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

from ...errors import UserError

# Blocks of Unicode: Latin, marks, Cyrillic, Hebrew, Indic, Thai, signs, CJK, Hangul, forms, mathematics, emoji, tags.
BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x530), (0x590, 0x700), (0x900, 0xD80), (0xE00, 0x1000)]
BLOCKS += [(0x1F00, 0x2BFF), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xFE00, 0xFFFE)]
BLOCKS += [(0x1D400, 0x1D800), (0x1F300, 0x1FA70), (0xE0020, 0xE007F), (1, 0x20)]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2028", "\x0b", "\x85", "   \n  ", "\u200b", ""]
WORDS = ["don't", "I'LL", "x'S", "12345", "3.14", "007", "½", "²", "٣", "abc", "Ünï", "_id", "==", "...", "你好", "▁"]
WORDS += ["é", "e\u0301", "👩‍👩‍👧", "##a", "-1e+5", "([{'\"}])"]
# llama.cpp's pre-tokenizers of byte-level BPE that divide texts in different ways, the usual ones first.
PRE_TOKENIZERS = ("gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-v3")
PRE_TOKENIZERS += ("deepseek-llm", "deepseek-coder", "falcon", "bloom", "viking", "seed-coder", "bailingmoe", "default")
Kind = tuple[str, ...]  # a tokenizer of llama.cpp, and a pre-tokenizer where it has several


def state_of(tokenizer) -> dict[str, Any]:
    return json.loads(tokenizer.backend_tokenizer.to_str())


def possible_kinds(state: dict[str, Any], by_llama: bool) -> list[Kind]:
    """What llama.cpp could read a tokenizer as; not by_llama: what its parts look like, of what is known without."""
    pre = state["pre_tokenizer"] or {}
    types = [part.get("type") for part in pre.get("pretokenizers", [pre])]
    if not by_llama:
        known = {("ByteLevel",): "gpt-2", ("Digits", "ByteLevel"): "smollm"}
        return [("gpt2", known[tuple(types)])] if tuple(types) in known and not state["normalizer"] else []
    if "ByteLevel" in types:
        return [("gpt2", name) for name in PRE_TOKENIZERS]
    model = state["model"]
    if model["type"] == "BPE" and "<0x0A>" in model["vocab"]:  # without bytes llama.cpp ends the process
        return [("llama",), ("gpt2", "sarvam-moe")]
    return [("bert",)] if model["type"] == "WordPiece" else []


def hard_texts(tokenizer, count: int = 4000) -> dict[str, list[int]]:
    """{text: ids} of texts that tokenizers read differently: code, scripts, spaces, numbers, entries of the vocabulary.

    Of a tokenizer that composes characters first (NFC), which llama.cpp does not, composed texts; of WordPiece texts
    without controls, which it drops, while llama.cpp takes some for spaces.
    """
    draw, code = random.Random(0), Path(argparse.__file__).read_text(encoding="utf-8")
    entries = [token for token in sorted(tokenizer.get_vocab().values()) if token not in tokenizer.all_special_ids]
    starts = range(len(code) - 400)
    kinds = [
        lambda: code[(start := draw.choice(starts)) : start + draw.randrange(1, 400)],
        lambda: "".join(chr(draw.randrange(*draw.choice(BLOCKS))) for _ in range(draw.randrange(1, 40))),
        lambda: "".join(draw.choice(SPACES) + draw.choice(WORDS) for _ in range(draw.randrange(1, 12))),
        lambda: "".join(draw.choices("0123456789 ,.-+eE'\"()[]{}\n\t_aZ", k=draw.randrange(1, 60))),
        lambda: tokenizer.decode(draw.choices(entries, k=draw.randrange(1, 30))),
    ]
    texts = [kinds[i % len(kinds)]() for i in range(count)]
    texts += [f"a{token}b {token}" for token in tokenizer.all_special_tokens]
    if state_of(tokenizer)["model"]["type"] == "WordPiece":
        texts = ["".join(c for c in text if c in "\t\n\r" or unicodedata.category(c)[0] != "C") for text in texts]
    if composes(tokenizer):
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    return dict(zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True))


def composes(tokenizer) -> bool:
    return state_of(tokenizer)["normalizer"] == {"type": "NFC"}


def stops_of(tokenizer, model) -> list[int]:
    """The tokens that end an answer: the tokenizer's end, then the others of the model's generation config."""
    given = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = [tokenizer.eos_token_id, *(given if isinstance(given, list) else [given])]
    return list(dict.fromkeys(token for token in ids if token is not None))


def write_vocabulary(writer, tokenizer, kind: Kind, rows: int, stops: list[int]) -> None:
    """Add a tokenizer to a gguf.GGUFWriter. rows: of the model's embeddings, of which the last may be unused.

    Raises UserError for a tokenizer that is larger than the model, and for no end of an answer or more than three.
    """
    from gguf import TokenType

    state, (model, *pre) = state_of(tokenizer), kind
    if len(tokenizer) > rows:
        raise UserError(f"--to gguf: the tokenizer has {len(tokenizer)} entries and the model {rows}; resize its table")
    if model != "bert" and (not 1 <= len(stops) <= 3 or max(stops) >= rows):
        raise UserError(
            f"--to gguf: answers end at the tokens {stops}, and a file names one to three of its tokens; mend "
            f"eos_token_id in generation_config.json, or the tokenizer's eos_token"
        )
    names, types = [f"[PAD{number}]" for number in range(rows)], [TokenType.UNUSED] * rows
    for name, number in state["model"]["vocab"].items():
        is_byte = model == "llama" and len(name) == 6 and name.startswith("<0x")
        types[number] = TokenType.BYTE if is_byte else TokenType.NORMAL
        names[number] = name
        if model == "bert":  # llama.cpp marks beginnings of words, not continuations
            names[number] = name[2:] if name.startswith("##") else f"▁{name}"
    for token in state["added_tokens"]:
        names[token["id"]] = token["content"]
        types[token["id"]] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    if model == "llama" and tokenizer.unk_token_id is not None:
        types[tokenizer.unk_token_id] = TokenType.UNKNOWN
    writer.add_tokenizer_model(model)
    writer.add_token_list(names)
    writer.add_token_types(types)
    if model == "gpt2":
        writer.add_tokenizer_pre(pre[0])
        merges = [" ".join(merge) for merge in state["model"]["merges"]]
        writer.add_token_merges(merges or ["\ufdd0 \ufdd1"])  # a list without entries is not written
    elif model == "bert":
        options = state["normalizer"] or {}
        strips = options.get("strip_accents")
        writer.add_bool("tokenizer.ggml.normalizer.lowercase", bool(options.get("lowercase")))
        writer.add_bool(
            "tokenizer.ggml.normalizer.strip_accents", bool(options.get("lowercase") if strips is None else strips)
        )
    else:
        first = tokenizer.tokenize("a")[0]
        writer.add_token_scores(_scores(state["model"], rows))
        writer.add_add_space_prefix(first.startswith("▁"))
        writer.add_remove_extra_whitespaces(False)
    _write_special(writer, tokenizer, stops)


def _scores(model: dict[str, Any], rows: int) -> list[float]:
    """Scores by which llama.cpp merges in the merges' order."""
    scores = [0.0] * rows
    for rank, merge in enumerate(model["merges"]):
        merged = model["vocab"]["".join(merge)]
        scores[merged] = scores[merged] or -1.0 - rank
    return scores


def _write_special(writer, tokenizer, stops: list[int]) -> None:
    plain, framed = (tokenizer("a", add_special_tokens=each)["input_ids"] for each in (False, True))
    sep, firsts = tokenizer.sep_token_id, (tokenizer.cls_token_id, tokenizer.bos_token_id, *stops)
    ids = {"bos": next((token for token in firsts if token is not None), None)}  # without one, llama.cpp takes token 11
    ids |= {"sep": sep, "unk": tokenizer.unk_token_id, "pad": tokenizer.pad_token_id, "mask": tokenizer.mask_token_id}
    ids |= dict(zip(("eos", "eot", "eom"), stops))
    for name, number in ids.items():
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    after = framed[framed.index(plain[-1]) + 1 :]
    writer.add_add_bos_token(framed[0] != plain[0])
    writer.add_add_sep_token(bool(after) and after == [sep])
    writer.add_add_eos_token(bool(after) and after != [sep])
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
