"""Documents of a Hugging Face data set: from the Hub or a local folder, loaded or streamed."""

import copy
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean
from ..lazy import datasets, pyarrow
from ..recipes.data_section import SourceSection
from .cells import cell, cell_names
from .documents import Document, Limits, Skipped, Source, counted_from, text_document


class HubSource(Source):
    """The rows of one split of a data set.

    split_field: the setting of the section that names the split. streaming: rows are fetched while they are iterated
    and nothing is stored. text_field: the column items() reads; None where only `rows`, the object of datasets, is
    read. Raises UserError where data set, configuration, split or column do not exist.
    """

    _shard = ""  # number of the file, where it is one of several

    def __init__(
        self,
        section: SourceSection,
        limits: Limits,
        split_field: str,
        text_field: str | None,
        streaming: bool = False,
        where: str = "data",
    ):
        self.where, self.limits = where, limits
        self.dataset, self.config_name, self.revision = section.dataset, section.config_name, section.revision
        self.split, self.split_field = getattr(section, split_field), split_field
        self.text_field, self.streaming = text_field, streaming
        self.name = self.dataset
        self.rows = self._load()
        columns = self.rows.column_names
        if None not in (columns, text_field) and self._column(columns) not in columns:
            raise self._no_such_column(columns)

    def items_from(self, place: list | None = None) -> Iterator[tuple[Document | Skipped, Any]]:
        """place: the number of rows; of a stream [rows, state of the datasets object].

        From that state datasets goes on without reading the files and rows before it.
        """
        field = f"{self.where}.text_field={self.text_field!r}"
        texts = self._streamed_texts(place) if self.streaming else counted_from(place, self._texts())
        for text, place in texts:
            row = (place[0] if self.streaming else place) - 1
            yield text_document(text, f"{self.dataset}/{self.split}{self._shard}:{row}", self.limits, field), place

    @property
    def num_shards(self) -> int:
        return self.rows.num_shards if self.streaming else 1

    def shard(self, number: int) -> "HubSource":
        part = copy.copy(self)
        part.rows, part._shard = self.rows.shard(self.num_shards, number), f".{number}"
        return part

    def parquet_files(self) -> list[tuple[Path, int]]:
        """(file, how many of its rows the split has), where the data set is a folder of Parquet files; else nothing."""
        files, splits, found = self._builder.config.data_files or {}, self._builder.info.splits, []
        lengths = {name: split.num_examples for name, split in splits.items()}
        for part in datasets.ReadInstruction.from_spec(self.split).to_absolute(lengths):
            start = 0
            for path in map(Path, files.get(part.splitname, ())):
                if path.suffix != ".parquet" or not path.exists():
                    return []
                end = start + pyarrow.parquet.read_metadata(path).num_rows
                found.append((path, max(0, min(end, part.to) - max(start, part.from_))))
                start = end
        return found

    def identity(self) -> Any:
        # The builder's hash stands for the revision on the Hub, or for a local folder's files and their times.
        builder = self._builder
        return {
            "dataset": [builder.dataset_name, builder.config_id, builder.hash, self.revision],
            "split": f"{self.split}{self._shard}",
            "text_field": self.text_field,
            "limits": self.limits.identity(),
        }

    def _texts(self) -> Iterator[Any]:
        column = self._column(self.rows.column_names)
        for batch in self.rows.select_columns([column]).with_format(None).iter(batch_size=256):
            for value in batch[column]:
                yield self._cell({column: value})

    def _streamed_texts(self, place: list | None) -> Iterator[tuple[Any, list]]:
        done, state = place or (0, None)
        self.rows.load_state_dict(state)  # None: the beginning
        # Not `for row in self.rows`: in a loader's worker that gives the worker a share of the files only.
        for number, batch in enumerate(self.rows.iter(batch_size=1), start=done + 1):
            row = {name: values[0] for name, values in batch.items()}
            yield self._cell(row), [number, self.rows.state_dict()]

    def _column(self, columns: list[str]) -> str:
        """The column in which text_field is found: itself, or the first of several names joined by dots."""
        return self.text_field if self.text_field in columns else self.text_field.split(".")[0]

    def _cell(self, row: dict[str, Any]) -> Any:
        try:
            return cell(row, self.text_field)
        except KeyError:  # the columns of a stream may be unknown before its first row, nested keys always are
            raise self._no_such_column(cell_names(row)) from None

    @cached_property
    def _builder(self):
        local = Path(os.path.expanduser(self.dataset))
        if (local / "dataset_info.json").exists() or (local / "dataset_dict.json").exists():
            raise UserError(
                f"{self.where}.dataset={self.dataset!r} was written by save_to_disk; write it with to_parquet instead."
            )
        path = str(local) if local.is_dir() else self.dataset
        return datasets.load_dataset_builder(path, self.config_name, revision=self.revision)

    def _load(self):
        """The steps of datasets.load_dataset, which does not return the builder, and so not the revision it found."""
        field = f"{self.where}.dataset={self.dataset!r}"
        try:
            builder = self._builder
            if not self.streaming:
                builder.download_and_prepare()
            make = builder.as_streaming_dataset if self.streaming else builder.as_dataset
            return make(split=self.split)
        except (OSError, ValueError, RuntimeError) as error:  # what datasets raises for a missing or broken data set
            # DatasetGenerationError hides the file at fault in its cause.
            reason = " ".join(str(error.__cause__ or error).split()).rstrip(".")[:400]
            part = f"{self.where}.{self.split_field}={self.split!r}"
            raise UserError(f"{field} ({part}) cannot be loaded: {reason}.") from error

    def _no_such_column(self, columns: list[str]) -> UserError:
        field = f"{self.where}.text_field={self.text_field!r}"
        return UserError(f"{field}: {self.dataset} has no such column{did_you_mean(self.text_field, columns)}")
