"""Documents that are almost the same as an earlier one, by MinHash (Broder 1997) and bands of it; needs datasketch."""

import numpy as np
from datasketch import MinHash, MinHashLSH

from .word_sequences import sequences_of

WORDS = 5  # in a row, as Lee et al. 2022 compare documents
HASHES = 256  # the estimate's standard deviation is at most 1 / (2 * sqrt(256)): 0.03
MISSED = 0.9  # weight of missed pairs against false candidates in choosing bands: candidates are compared anyway


class NearDuplicates:
    """Finds documents similar to an earlier one: with a Jaccard similarity of at least `threshold`.

    Takes about 2 kB of memory for each document.
    """

    def __init__(self, threshold: float):
        self.threshold, self._hashes = threshold, []
        self._empty = MinHash(HASHES, seed=1, hashfunc=int)
        self._bands = MinHashLSH(threshold, HASHES, weights=(1 - MISSED, MISSED))

    def was_there(self, words: list[str]) -> bool:
        """Whether a document with these words is similar to an earlier one; if not, later ones are compared with it."""
        if not words:
            return False
        signature = self._empty.copy()
        signature.update_batch((sequences_of(words, min(WORDS, len(words))) >> np.uint64(32)).tolist())
        earlier = self._bands.query(signature)
        if any(np.mean(signature.hashvalues == self._hashes[number]) >= self.threshold for number in earlier):
            return True
        self._bands.insert(len(self._hashes), signature)
        self._hashes.append(signature.hashvalues.astype(np.uint32))
        return False
