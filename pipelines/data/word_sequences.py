"""Hashes of word sequences, by which near duplicates and texts of test sets are recognised."""

import hashlib
import re
from functools import lru_cache

import numpy as np

_WORD = re.compile(r"\w+")
_BASE = 0x9E3779B97F4A7C15  # odd, so that no word of a sequence is lost modulo 2^64


@lru_cache(maxsize=2**19)
def _hash_of(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation (as Brown et al. 2020, appendix C, compares texts)."""
    return _WORD.findall(text.lower())


def sequences_of(words: list[str], length: int) -> np.ndarray:
    """A 64-bit hash of each `length` words in a row, uint64 (words - length + 1,): the same in every process."""
    number = len(words) - length + 1
    if number <= 0:
        return np.empty(0, np.uint64)
    hashes = np.fromiter(map(_hash_of, words), np.uint64, len(words))
    combined = np.zeros(number, np.uint64)
    for place in range(length):
        combined = combined * np.uint64(_BASE) + hashes[place : place + number]
    return combined
