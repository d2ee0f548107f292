"""Tokenizers of saved models, with the tokens that their tokenizer.json gives.

transformers 5 takes vocabulary, merges and post-processor alone from tokenizer.json where tokenizer_config.json names a
class with its own constructor (GPT2Tokenizer, BertTokenizer): normalizer and pre-tokenizer are then the class's.
"""

import os

from .adapters import tokenizer_place
from .transformers_logging import errors_only
from .words import say_once

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
OF_MODELS = ("unk_token", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")


def open_tokenizer(source: str | os.PathLike, trust_remote_code: bool = False):
    """AutoTokenizer.from_pretrained; where the class differs from tokenizer.json, the file's tokenizer, which is said.

    source: a folder or a repository on the Hub, or an adapter. Raises what from_pretrained raises.
    """
    import transformers

    source, plain = tokenizer_place(source), transformers.PreTrainedTokenizerFast
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    is_native = type(tokenizer).__module__.startswith("transformers.models.")
    if not (is_native and tokenizer.is_fast and has_file(source, "tokenizer.json")):
        return tokenizer
    kept = {name: getattr(tokenizer, name) for name in ("model_input_names", "padding_side", "truncation_side")}
    with errors_only():  # transformers would warn of the other class
        by_file = plain.from_pretrained(source, **kept)
    different = differences(tokenizer, by_file)
    if not different:
        return tokenizer
    words = f"tokenizer of {source}: {type(tokenizer).__name__} has another {', '.join(different)} than tokenizer.json"
    if has_languages(tokenizer):
        say_once(f"{words}, and is used, because it knows the languages")
        return tokenizer
    roles, vocabulary = tokenizer.special_tokens_map, by_file.get_vocab()  # the class may name some by itself
    kept |= {role: roles[role] for role in roles if getattr(by_file, role) is None and roles[role] in vocabulary}
    with errors_only():
        by_file = plain.from_pretrained(source, **kept)
    again = "AutoTokenizer may take the class again of what is saved, PreTrainedTokenizerFast takes the file"
    say_once(f"{words}, and the file is used; {again}")
    return by_file


def vocabulary_size(tokenizer) -> int:
    """The rows that a model's token embeddings need: the largest id and one more, also where ids have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def has_languages(tokenizer) -> bool:
    """Whether the tokenizer marks a text's language, and that of its translation, by tokens (mBART, NLLB)."""
    return hasattr(tokenizer, "set_tgt_lang_special_tokens")


def has_file(source: str, name: str) -> bool:
    """Whether a folder or a repository on the Hub has a file of this name."""
    from transformers.utils import cached_file

    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return cached_file(source, name, **quiet) is not None


def differences(tokenizer, by_file) -> list[str]:
    """The parts in which a tokenizer differs from that of its file, so that texts may get other tokens.

    The post-processor of a tokenizer with languages is that of the current one, and no difference.
    """
    ours, files = both = tokenizer.backend_tokenizer, by_file.backend_tokenizer
    parts = [name for name in PARTS if name != "post_processor" or not has_languages(tokenizer)]
    different = [name for name in parts if meaning(getattr(ours, name), name) != meaning(getattr(files, name), name)]
    models = [[type(one.model), *(getattr(one.model, name, None) or None for name in OF_MODELS)] for one in both]
    added, own = files.get_added_tokens_decoder(), ours.get_added_tokens_decoder()
    if models[0] != models[1] or not by_file.get_vocab().items() <= tokenizer.get_vocab().items():
        different.append("vocabulary")
    elif any(repr(token) != repr(own.get(number)) for number, token in added.items()):
        different.append("added tokens")
    return different


def meaning(part, name: str) -> str:
    """A part of a tokenizer as text, without what changes no token: how ByteLevel trims offsets, or decodes."""
    text = "" if part is None else part.__getstate__().decode()
    if name == "decoder" and text.startswith('{"type":"ByteLevel"'):
        return "ByteLevel"
    trims = '"trim_offsets":true', '"trim_offsets":false'
    return text.replace(*trims) if name == "pre_tokenizer" else text
