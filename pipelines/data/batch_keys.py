"""What collators share: keys beside a model's inputs, labels that are not counted, padding, random generators."""

from ..lazy import np, torch

# Keys that the model does not see: the rows' sample ids, their epoch, and the position where a stream resumes.
ROW_IDS, EPOCH, POSITION = "row_ids", "epoch", "position"
PLACE = "place"  # key of a row of several parts: its Place (order.py)
PREFIX_MASK = "prefix_mask"  # (B, T), nonzero at tokens that all tokens of their document see, earlier ones, too

IGNORE_INDEX = -100  # the label that the losses of torch and transformers ignore
WORDS = "words"  # for each token the number of the word whose tag is its label (token_classification.py)
UNLABELLED = -101  # the label of an example that has only a teacher's answer (objectives/taught_texts.py)


def pad(sequences: list, value: int, left: bool = False, width: int | None = None) -> "torch.Tensor":
    """Pad sequences of shape (T_i,), of torch or numpy, with `value` to (B, max T_i), or to `width` if that is more."""
    side, sequences = "left" if left else "right", list(map(torch.as_tensor, sequences))
    rows = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=value, padding_side=side)
    more = max(0, (width or 0) - rows.shape[1])
    return torch.nn.functional.pad(rows, (more, 0) if left else (0, more), value=value)


def real_places(lengths: list[int], width: int, left: bool = False) -> "torch.Tensor":
    """A mask (B, width): true where a row of that length holds a token, false where it is padded."""
    sizes, places = torch.tensor(lengths)[:, None], torch.arange(width)
    return places >= width - sizes if left else places < sizes


def document_parts(position_ids: "np.ndarray") -> list[tuple[int, int]]:
    """(start, end) of each document in a packed row; the positions of a document begin with 0.

    Padding at the row's end counts as a document.
    """
    starts = np.flatnonzero(position_ids == 0).tolist()
    return list(zip(starts, [*starts[1:], len(position_ids)]))


def row_generators(rows: list[dict], seed: int) -> "list[np.random.Generator]":
    """A random generator for each row, a pure function of the seed, the row's epoch and its sample id.

    So a row gets the same random numbers in every batch, process and worker, and after resuming, but new ones in each
    epoch. A row without a sample id is keyed by its index in the list, a row without an epoch by epoch 0.
    """
    keys = [(seed, int(row.get(EPOCH, 0)), int(row.get(ROW_IDS, place))) for place, row in enumerate(rows)]
    if max(map(max, keys), default=0) < 2**32:
        keys = np.array(keys, dtype=np.uint32)  # same generators as from Python ints, which take numpy a third longer
    return [np.random.default_rng(key) for key in keys]


def row_ids(rows: list[dict]) -> dict:
    """{"row_ids": the sample ids of a batch's rows}, or {} where they have none.

    The ids of a stream stay tensors: accelerate sends its batches to the other processes, and sends only tensors.
    """
    if ROW_IDS not in rows[0]:
        return {}
    ids = [row[ROW_IDS] for row in rows]
    return {ROW_IDS: torch.stack(ids) if torch.is_tensor(ids[0]) else ids}
