"""Documents as arrays of token ids, where PackedDataset reads a TokenStore."""

import numpy as np
from anyformer.pipelines.data.account import Account


class TokenArrays:
    """documents: lists of token ids, each framed already."""

    name, fingerprint, num_bytes, notes, skipped, account = "arrays", "f", 1, [], None, Account()

    def __init__(self, documents):
        self.offsets = np.cumsum([0, *map(len, documents)]).astype(np.int64)
        self.num_tokens, self.num_documents = int(self.offsets[-1]), len(documents)
        self.tokens = np.concatenate(documents).astype(np.uint16)
