"""The words of a text in any script, as metrics of texts compare them."""

import unicodedata

import regex

# Scripts that put no spaces between words; each letter with its marks counts as a word.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}ー"
LETTER = regex.compile(rf"[{UNSPACED}]\p{{M}}*")
# Vowel signs are marks (Hindi), and joiners are within words (Persian); of ASCII this is [A-Za-z0-9]+.
WORD = regex.compile(rf"{LETTER.pattern}|[[\p{{L}}\p{{M}}\p{{N}}\u200c\u200d]--[{UNSPACED}]]+", regex.V1)
NOT_LATIN = regex.compile(r"[\p{L}--\p{Latin}]", regex.V1)
ANY_PUNCTUATION = regex.compile(r"\p{P}")


class Words:
    """A tokenizer as rouge-score takes it, which of itself finds a-z and 0-9 alone."""

    @staticmethod
    def tokenize(text: str) -> list[str]:
        return WORD.findall(unicodedata.normalize("NFC", text).lower())
