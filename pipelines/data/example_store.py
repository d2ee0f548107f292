"""Examples as token ids on disk: encoded once, memory-mapped ever after."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.compute
import torch
from torch.utils.data import Dataset

from ..storage.cache import cached_folder
from .rows import Rows

_FORMAT = 1  # raise it when the files change
BATCH = 1000  # examples encoded at once
ARROW, META = "examples.arrow", "meta.json"


class EncodedExamples(Rows, Dataset):
    """Encoded examples, in the order of their source: dicts of int64 tensors, ragged between rows.

    fingerprint: identity of the examples and of the way they were encoded. facts: numbers worth reporting.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        meta = json.loads((self.folder / META).read_text())
        self.fingerprint, self.name, self.facts = meta["fingerprint"], meta["name"], meta["facts"]
        self._map()

    def _map(self) -> None:
        self._table = pyarrow.ipc.open_stream(pyarrow.memory_map(str(self.folder / ARROW))).read_all()
        numbers = [field.name for field in self._table.schema if not pyarrow.types.is_string(field.type)]
        self._chunks = {name: self._table[name].chunks for name in numbers}
        self._ends = np.cumsum([len(batch) for batch in self._table[0].chunks])

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        index %= len(self)
        chunk = int(np.searchsorted(self._ends, index, side="right"))
        place = index - (int(self._ends[chunk - 1]) if chunk else 0)
        return {name: to_tensor(chunks[chunk][place]) for name, chunks in self._chunks.items()}

    def __getstate__(self) -> dict:
        """Without the map: a worker process opens the file itself instead of receiving its content."""
        return {name: value for name, value in vars(self).items() if name not in ("_table", "_chunks", "_ends")}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._map()

    @cached_property
    def row_lengths(self) -> np.ndarray:
        """Tokens of each row, over all its sequences."""
        total = np.zeros(len(self), dtype=np.int64)
        for name in ("input_ids", "labels"):
            column = self._table[name]
            if pyarrow.types.is_list(column.type):
                total += pyarrow.compute.list_value_length(column).to_numpy()
        return total

    def texts(self, column: str) -> list[str]:
        """A column of raw texts, in the order of the rows."""
        return self._table[column].to_pylist()


def to_tensor(cell: pyarrow.Scalar) -> torch.Tensor:
    """An int64 tensor: of shape () for a number, (T,) for a list."""
    if pyarrow.types.is_list(cell.type):
        return torch.from_numpy(cell.values.to_numpy().astype(np.int64))
    return torch.tensor(cell.as_py())


def encode_examples(
    cache: Path,
    key: str,
    name: str,
    schema: pyarrow.Schema,
    batches: Callable[[], Iterable[dict[str, list]]],
    facts: Callable[[dict[str, list]], dict[str, int | dict]],
) -> EncodedExamples:
    """The examples that `batches` gives column-wise, stored under cache/examples/key.

    facts: numbers of one batch; numbers are added up over all batches, and so are those in dicts.
    Raises what `batches` raises; nothing is left behind then.
    """

    def build(folder: Path) -> None:
        total: dict = {}
        with (folder / ARROW).open("wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
            for batch in batches():
                add_up(total, facts(batch))
                writer.write_batch(pyarrow.record_batch([batch[name] for name in schema.names], schema=schema))
        size = (folder / ARROW).stat().st_size
        (folder / META).write_text(json.dumps({"fingerprint": key, "name": name, "size": size, "facts": total}))

    def is_complete(folder: Path) -> bool:
        try:
            return json.loads((folder / META).read_text())["size"] == (folder / ARROW).stat().st_size
        except (OSError, ValueError, KeyError):
            return False

    return EncodedExamples(cached_folder(cache, "examples", key, build, is_complete))


def add_up(total: dict, more: dict) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            add_up(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value


def in_batches(items: Iterable, size: int = BATCH) -> Iterator[list]:
    """Lists of `size` items; the last one is shorter."""
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
