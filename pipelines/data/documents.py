"""Documents, reasons to skip one, sources of documents, and the corpus of one split."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from types import MappingProxyType
from typing import Any, Self

from ..recipes.data_section import OF_FILES, SourceSection
from ..recipes.schema import DataSection
from ..storage.cache import sha
from ..storage.contents import States, hashed_files
from .account import Account


@dataclass(frozen=True, slots=True)
class Document:
    """One text. source: its place, such as a file and line, or a data set and row."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A document that is left out; `reason` is one of SKIPPED."""

    reason: str
    source: str


SKIPPED = {
    "non_utf8": "not UTF-8",
    "too_long": "too long",
    "gigantic_line": "with a gigantic line",
    "empty": "empty",
    "cleaned": "by data.clean",
}
UTF8 = "utf-8"


@dataclass(frozen=True)
class Limits:
    """Most bytes of a document and of a line, in UTF-8, so that a broken one does not fill the memory.

    encoding, separator, sheet, column_names: how files are read, as the settings of the data section.
    """

    document_bytes: int
    line_bytes: int
    encoding: str = UTF8
    separator: str | None = None
    sheet: str | None = None
    column_names: Sequence[str] | None = None

    @classmethod
    def of(cls, data: DataSection, source: SourceSection | None = None) -> Self:
        """source: the section of its mixture that names the files."""
        of_files = (getattr(source or data, name) for name in OF_FILES)
        return cls(data.max_document_bytes, data.max_line_bytes, *of_files)

    def of_files(self) -> dict[str, Any]:
        """How files are read, where the recipe says it."""
        return {name: value for name in OF_FILES if (value := getattr(self, name)) not in (UTF8, None)}

    def identity(self) -> dict[str, Any]:
        """Part of the fingerprint of the data."""
        return {"document_bytes": self.document_bytes, "line_bytes": self.line_bytes} | self.of_files()

    def reason_to_skip(self, text: str) -> str | None:
        if not text or text.isspace():
            return "empty"
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # a lone surrogate, as JSON's "\ud800" gives: no UTF-8 can hold it
            return "non_utf8"
        if len(encoded) > self.document_bytes:
            return "too_long"
        if len(encoded) > self.line_bytes and max(map(len, encoded.split(b"\n"))) > self.line_bytes:
            return "gigantic_line"
        return None

    def checked(self, text: str, source: str) -> Document | Skipped:
        reason = self.reason_to_skip(text)
        return Document(text, source) if reason is None else Skipped(reason, source)


def in_batches(items: Iterable[Any], size: int = 1000, weight: Callable[[Any], int] = lambda item: 1) -> Iterator[list]:
    """Group items into lists that end once their weight reaches `size`; the last one may be lighter."""
    batch, total = [], 0
    for item in items:
        batch.append(item)
        total += weight(item)
        if total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def counted_from(place: int | None, items: Iterator[Any]) -> Iterator[tuple[Any, int]]:
    """The items after the first `place`, each with the number of items up to and including it."""
    done = place or 0
    yield from zip(islice(items, done, None), count(done + 1))


class Divisible(ABC):
    """Base of sources and corpora: their identity, their size, and their division into parts."""

    num_shards = 1  # of a stream: the number of its files, which can be read in parallel

    @abstractmethod
    def identity(self) -> Any:
        """JSON that changes whenever the documents do."""

    def size_hint(self) -> int | None:
        """The approximate bytes of text; None if they are not known without reading it."""
        return None

    def parts(self, size: int) -> list[Self]:
        """Its parts in order, each of about `size` bytes and readable without the files of the others.

        [self] where the parts cannot be known without reading everything.
        """
        return [self]

    def shard(self, number: int) -> Self:
        """One of the shards; all shards, one after the other, hold the documents of the whole."""
        return self


class Source(Divisible):
    """A restartable stream of documents in a fixed order, before it is split into training and validation.

    name: short, for messages and reports. where: the recipe field that errors name: `data` or, say, `data.mixture.1`.
    """

    name: str
    where: str
    splits_by_name = False  # choose validation documents by their name instead of their index
    has_encoding = False  # whether data.encoding says how its files are read
    columns: Mapping[str, str] = MappingProxyType({})  # those that are read, by the settings that name them

    def items(self) -> Iterator[Document | Skipped]:
        """Every document from the first one; a document to skip is a Skipped in its place. Raises UserError.

        A subclass overrides this method or the next one.
        """
        return (item for _, item, _ in self.read_from())

    def read_from(self, place: Any = None) -> Iterator[tuple[Any, Document | Skipped, Any]]:
        """items() after a place, as (row, item, place after it). A place is JSON, None the beginning.

        row: what the item was made of; None where a source has no rows (reader.py). By default a place is a number of
        items, and those before it are read again; a subclass may be faster.
        """
        return ((None, item, after) for item, after in counted_from(place, self.items()))

    def account(self) -> Account:
        """How its files are read, and what the source itself leaves out."""
        return Account()


class Corpus(Divisible):
    """The documents of one split, in a fixed order.

    files: the state, before hashing, of each file that the latest fingerprint() hashed. sources: name -> corpus of a
    mixture (data.mixture), in which each has its own rows and weight; {}: this is no mixture.
    """

    split: str
    name: str
    files: States = {}
    sources: Mapping[str, "Corpus"] = MappingProxyType({})

    def documents(self) -> Iterator[Document]:
        """All documents; a subclass overrides this method or the next one. Raises UserError for unreadable files."""
        return (document for document, _ in self.documents_from())

    def documents_from(self, place: Any = None) -> Iterator[tuple[Document, Any]]:
        """documents() after a place, each with the place after it, as JSON; None is the beginning."""
        return counted_from(place, self.documents())

    def fingerprint(self) -> str:
        """Content identity: equal for equal documents from the same specification, also in another process."""
        with hashed_files() as self.files:
            return sha(self.identity())

    def tally(self) -> Account:
        """What was counted in the latest pass, up to its latest document."""
        return Account()

    def account(self, tally: Account | None = None) -> Account:
        """Of all that came in, in the latest pass or in one with this tally."""
        return self.tally() if tally is None else tally


@dataclass(frozen=True)
class Share:
    """One machine's share of the work: share `number` of `of`, counted from 1."""

    number: int
    of: int

    def holds(self, index: int) -> bool:
        return index % self.of == self.number - 1
