"""What batches are made by and hold beside a model's inputs: keys, labels that are not counted, padding, randomness."""

from ..lazy import np, torch

# Which rows of the data set a batch holds, in which pass over it, and where a stream goes on; none is for the model.
ROW_IDS, EPOCH, POSITION = "row_ids", "epoch", "position"

IGNORE_INDEX = -100  # the label that the losses of torch and transformers leave out
WORDS = "words"  # for each token the number of the word whose tag it stands for (token_classification.py)
UNLABELLED = -101  # that of an example which has none, and a teacher's answer (objectives/taught_texts.py)


def pad(sequences: list, value: int, left: bool = False, width: int | None = None) -> "torch.Tensor":
    """Sequences of shape (T_i,), of torch or numpy, -> (B, width or max T_i), filled up with `value`."""
    side, sequences = "left" if left else "right", list(map(torch.as_tensor, sequences))
    rows = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=value, padding_side=side)
    more = max(0, (width or 0) - rows.shape[1])
    return torch.nn.functional.pad(rows, (more, 0) if left else (0, more), value=value)


def real_places(lengths: list[int], width: int, left: bool = False) -> "torch.Tensor":
    """(B, width) of booleans: where rows of such lengths hold tokens and no padding."""
    sizes, places = torch.tensor(lengths)[:, None], torch.arange(width)
    return places >= width - sizes if left else places < sizes


def document_parts(position_ids: "np.ndarray") -> list[tuple[int, int]]:
    """(first place, place after the last) of each document's part of a row, whose positions begin with 0.

    Padding at the row's end counts as one.
    """
    starts = np.flatnonzero(position_ids == 0).tolist()
    return list(zip(starts, [*starts[1:], len(position_ids)]))


def row_generators(rows: list[dict], seed: int) -> "list[np.random.Generator]":
    """A random generator for each row, a pure function of the seed, the row's epoch and its sample id.

    A row is thus changed alike in every batch, process and worker, and after resuming; and differently in each epoch.
    A row without a sample id counts by its place in the list, one without an epoch is in epoch 0.
    """
    keys = [(seed, int(row.get(EPOCH, 0)), int(row.get(ROW_IDS, place))) for place, row in enumerate(rows)]
    if max(map(max, keys), default=0) < 2**32:
        keys = np.array(keys, dtype=np.uint32)  # the same generators; numpy takes a third longer to read Python's ints
    return [np.random.default_rng(key) for key in keys]


def row_ids(rows: list[dict]) -> dict:
    """{"row_ids": the sample ids of a batch's rows}, or {} where they have none.

    Those of a stream stay tensors: accelerate sends a stream's batches to the other processes, and sends only tensors.
    """
    if ROW_IDS not in rows[0]:
        return {}
    ids = [row[ROW_IDS] for row in rows]
    return {ROW_IDS: torch.stack(ids) if torch.is_tensor(ids[0]) else ids}
