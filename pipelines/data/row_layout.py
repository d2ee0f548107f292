"""Where rows of tokens begin in a stream of documents.

Rows are slices of `length` tokens of the stream. Objectives that predict the next token need context for each row's
first one: where a row's end cuts a document, the next row begins with the cut document's last token again, so that each
token with a predecessor in its document is predicted from it exactly once. For all others the slices follow each other.
"""

from bisect import bisect_left

import numpy as np

from ..errors import UserError

IGNORED = -100  # the label that transformers' losses leave out


def row_starts(offsets: np.ndarray, length: int, predicts_next: bool = True) -> np.ndarray:
    """First token of each row, int64; the last row may be short. offsets: (documents + 1,) as in TokenStore."""
    check_length(length)
    if not predicts_next:
        return np.arange(0, int(offsets[-1]), length, dtype=np.int64)
    borders = memoryview(np.ascontiguousarray(offsets))  # bisect on plain integers: a tenth of numpy's time per look-up
    total, start, document = int(offsets[-1]), 0, 0
    starts = []
    while start < total:
        starts.append(start)
        end = start + length
        if end >= total:
            break
        document = bisect_left(borders, end, document)
        start = end if borders[document] == end else end - 1
    return np.array(starts, dtype=np.int64)


def row(
    tokens: np.ndarray, borders: np.ndarray, length: int, pad: int, predicts_next: bool = True
) -> dict[str, np.ndarray]:
    """One row as int64 arrays of shape (length,).

    tokens: what the row holds. borders: where documents begin in it, beside its first token. Labels are aligned with
    the tokens, and padding is ignored. With predicts_next they are what transformers' causal models shift: the first
    token of each document part has no context and is ignored, too. Otherwise they are all the row's tokens, from which
    a collator chooses. Positions restart with each document part and with the padding.
    """
    filled = len(tokens)
    input_ids = np.full(length, pad, dtype=np.int64)
    input_ids[:filled] = tokens
    labels = np.full(length, IGNORED, dtype=np.int64)
    labels[:filled] = tokens
    starts = np.zeros(length, dtype=np.int64)
    starts[borders] = borders
    if filled < length:
        starts[filled] = filled
    if predicts_next:
        labels[0] = IGNORED
        labels[borders] = IGNORED
    positions = np.arange(length) - np.maximum.accumulate(starts)
    return {"input_ids": input_ids, "labels": labels, "position_ids": positions}


def check_length(length: int) -> None:
    if length < 2:
        raise UserError(
            f"objective.sequence_length={length} must be at least 2: a row predicts tokens from other ones."
        )
