"""Rows of a Hugging Face data set: from the Hub or a local folder, loaded or streamed."""

import copy
import os
from collections.abc import Iterator
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..lazy import datasets, pyarrow
from ..recipes.data_section import SourceSection
from .cells import cell_names
from .documents import counted_from
from .file_formats import names_of_classes
from .file_reader import names_in
from .reader import Reader, Row, TextView, View


class HubReader(Reader):
    """The rows of one split of a data set. Raises UserError where data set, configuration, split or column are missing.

    split_field: the setting of the section that names the split. streaming: rows are fetched while they are iterated
    and nothing is stored. table: the object of datasets, in which images stay encoded.
    """

    _shard = ""  # number of the file, where it is one of several

    def __init__(self, section: SourceSection, split_field: str, view: View, streaming: bool = False):
        super().__init__(view)
        self.dataset, self.config_name, self.revision = section.dataset, section.config_name, section.revision
        self.split, self.split_field, self.streaming = getattr(section, split_field), split_field, streaming
        self.field, self.place = f"{self.where}.dataset", f"{self.dataset} ({self.split})"
        self.name = self.dataset if isinstance(view, TextView) else self.place
        self.table = self._load()
        self.check()
        image = view.columns.get("image_field")
        if image is not None and isinstance(self.table.features.get(image), datasets.Image):
            self.table = self.table.cast_column(image, datasets.Image(decode=False))

    def check(self) -> None:
        if self.table.features is not None:  # those of a stream may be unknown before its first row
            self.view.check_columns(cell_names(self.table.features), self.place)

    def rows_from(self, place: list | None = None) -> Iterator[tuple[Row, Any]]:
        """place: the number of rows; of a stream [rows, state of the datasets object].

        From that state datasets goes on without reading the files and rows before it.
        """
        return self._streamed(place) if self.streaming else counted_from(place, self._loaded())

    def all_columns(self) -> list[str]:
        return self.table.column_names

    def _loaded(self) -> Iterator[Row]:
        # The columns to read: for names joined by dots, the outermost column.
        there = self.table.column_names
        outermost = dict.fromkeys(c if c in there else c.split(".")[0] for c in self.columns.values())
        columns = [column for column in outermost if column in there]
        batches = self.table.select_columns(columns).with_format(None).iter(batch_size=256)
        rows = chain.from_iterable(zip(*(batch[column] for column in columns)) for batch in batches)
        unread = [column for column in there if column not in columns]
        # The names of the classes in the file of each row.
        files = zip(self.named(), (rows for _, rows in self._files())) if self.view.names_classes else ()
        named = chain(chain.from_iterable(repeat(names, number) for names, number in files), repeat({}))
        for number, (values, names) in enumerate(zip(rows, named)):
            yield self._row(number, dict(zip(columns, values)), names, unread)

    def _streamed(self, place: list | None) -> Iterator[tuple[Row, list]]:
        done, state = place or (0, None)
        self.table.load_state_dict(state)  # None: the beginning
        # Not `for row in self.table`: in a loader's worker that gives the worker a share of the files only.
        for number, batch in enumerate(self.table.iter(batch_size=1), start=done + 1):
            values = {name: values[0] for name, values in batch.items()}
            yield self._row(number - 1, values, {}), [number, self.table.state_dict()]

    def _row(self, number: int, *of_it: Any) -> Row:
        return Row(f"{self.place}, row {number}", f"{self.dataset}/{self.split}{self._shard}:{number}", *of_it)

    def named(self) -> list[dict[str, list[str]]]:
        """Of a folder's Parquet files each has its own, though datasets calls all by those of the first file."""
        if not self.view.names_classes:
            return []
        features = self.table.features
        known = {c: names for c in self.columns.values() if (names := names_of_classes(features, c)) is not None}
        return [known | (names_in(self.name, path, self.columns) if path else {}) for path, _ in self._files()]

    def _files(self) -> list[tuple[Path | None, int]]:
        """(file, how many of its rows the split has) in a folder of Parquet files; None: the files are not here."""
        files, splits, found = self._builder.config.data_files or {}, self._builder.info.splits, []
        lengths = {name: split.num_examples for name, split in splits.items()}
        for part in datasets.ReadInstruction.from_spec(self.split).to_absolute(lengths):
            start = 0
            for path in map(Path, files.get(part.splitname, ())):
                if path.suffix != ".parquet" or not path.exists():
                    return [(None, len(self.table))]
                end = start + pyarrow.parquet.read_metadata(path).num_rows
                found.append((path, max(0, min(end, part.to) - max(start, part.from_))))
                start = end
        return found or [(None, len(self.table))]

    @property
    def num_shards(self) -> int:
        return self.table.num_shards if self.streaming else 1

    def shard(self, number: int) -> "HubReader":
        part = copy.copy(self)
        part.table, part._shard = self.table.shard(self.num_shards, number), f".{number}"
        return part

    def identity(self) -> Any:
        # The builder's hash stands for the revision on the Hub, or for a local folder's files and their times.
        builder = self._builder
        dataset = [builder.dataset_name, builder.config_id, builder.hash, self.revision]
        rows = {"dataset": dataset, "split": f"{self.split}{self._shard}"}
        if self.view.names_classes:
            rows = {"source": rows | {"text_field": None, "limits": self.limits.identity()}}
        return rows | super().identity()

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
