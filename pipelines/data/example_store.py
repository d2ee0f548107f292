"""Examples as token ids on disk: encoded once, memory-mapped ever after."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import torch
from torch.utils.data import Dataset

from ..lazy import transformers
from ..storage.cache import sha
from ..tokenizers.control_tokens import ControlTokens
from ..words import working
from .account import Account
from .examples import Example, Examples
from .mapped_store import META, MappedStore
from .rows import Rows, evenly_spread

_FORMAT = 3  # raise it when the files or the way to make them change
ARROW = "examples.arrow"
WINDOWED = "number"  # the column of rows that are windows of examples: the number of the row's example


class EncodedExamples(MappedStore, Rows, Dataset):
    """Encoded examples, in the order of their source: dicts of int64 tensors, ragged between rows."""

    kind = "examples"

    def _open(self, meta: dict[str, Any]) -> None:
        self.facts = meta["facts"]
        self._table = pyarrow.ipc.open_stream(pyarrow.memory_map(str(self.folder / ARROW))).read_all()
        numbers = [field.name for field in self._table.schema if not pyarrow.types.is_string(field.type)]
        self._columns = {name: self._table[name] for name in numbers}

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        index = self.inside(index)
        return {name: to_tensor(column[index]) for name, column in self._columns.items()}

    @cached_property
    def row_lengths(self) -> np.ndarray:
        """Tokens of each row, over all its sequences."""
        total = np.zeros(len(self), dtype=np.int64)
        for name in ("input_ids", "labels"):
            column = self._table[name]
            if pyarrow.types.is_list(column.type):
                total += pyarrow.compute.list_value_length(column).to_numpy()
        return total

    def of_examples(self, most: int) -> list[int]:
        """All windows of at most `most` questions, where rows are windows. Which does not depend on the tokenizer."""
        if WINDOWED not in self._columns:
            return super().of_examples(most)
        of_window = self.numbers(WINDOWED)
        examples = np.unique(of_window)
        return np.flatnonzero(np.isin(of_window, examples[evenly_spread(len(examples), most)])).tolist()

    def texts(self, column: str) -> list[str]:
        """A column of raw texts, in the order of the rows."""
        return self._table[column].to_pylist()

    def hashes(self, column: str) -> list[int]:
        """A number for each row, equal where rows have the same list, or number, in a column."""
        if not pyarrow.types.is_list(self._table[column].type):
            return self.numbers(column).tolist()
        found = []
        for chunk in self._table[column].chunks:
            values, bounds = chunk.values.to_numpy(), chunk.offsets.to_numpy()
            found += [hash(values[start:end].tobytes()) for start, end in pairwise(bounds)]
        return found

    def numbers(self, column: str) -> np.ndarray:
        """A column with one number for each row, in the order of the rows."""
        return self._table[column].to_numpy()


def schema_of(columns: dict[str, str]) -> pyarrow.Schema:
    """The schema of columns {name: type}, as Arrow names types: int8, float32, string; int32[] is a list of int32."""
    types = {name: pyarrow.type_for_alias(kind.removesuffix("[]")) for name, kind in columns.items()}
    return pyarrow.schema(
        [(name, pyarrow.list_(cell) if columns[name].endswith("[]") else cell) for name, cell in types.items()]
    )


def to_tensor(cell: pyarrow.Scalar) -> torch.Tensor:
    """An int64 tensor: of shape () for a number, (T,) for a list."""
    if pyarrow.types.is_list(cell.type):
        return torch.from_numpy(cell.values.to_numpy().astype(np.int64))
    return torch.tensor(cell.as_py())


def encode_examples(
    cache: Path,
    key: str,
    source: Examples,
    schema: pyarrow.Schema,
    batches: Callable[[Iterable[Example], Account], Iterable[dict[str, list]]],
    tokenizer: "transformers.PreTrainedTokenizerFast",
) -> EncodedExamples:
    """Encode `source` by `batches`, which yields columns, and store the result under cache/examples, found by `key`.

    Each batch also has `facts`, numbers, also in dicts, which are added up. tokenizer: the one that `batches` uses; its
    control tokens are counted in the examples. The account of the examples is stored with them; `batches` counts what
    becomes of labels and texts.
    Raises what `batches` raises; no files are left behind then.
    """

    def build(folder: Path) -> None:
        total, account = {}, Account()
        occurrences, control = Counter(), ControlTokens(tokenizer)

        def counted() -> Iterator[Example]:
            for place, row in source:
                cells = [row[column] for column in source.source.columns.values()]
                occurrences.update(control.count([json.dumps(cells, ensure_ascii=False, default=str)]))
                yield place, row

        with (
            working(f"encoding {source.split}"),
            (folder / ARROW).open("wb") as file,
            pyarrow.ipc.new_stream(file, schema) as writer,
        ):
            for batch in batches(counted(), account):
                add_up(total, batch["facts"])
                writer.write_batch(pyarrow.record_batch([batch[name] for name in schema.names], schema=schema))
        account.update(source.account())
        for token, number in occurrences.items():
            account.read_as("control token", token, "ordinary text", number)
        meta = {"fingerprint": changed if occurrences else key, "name": source.name, "facts": total}
        (folder / META).write_text(json.dumps(meta | {"account": account.to_json()}))

    changed = sha([_FORMAT, key])  # examples without control tokens keep the old fingerprint, for resumed runs
    return EncodedExamples.cached(cache, changed, build, source.files)


def add_up(total: dict, more: dict) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            add_up(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
