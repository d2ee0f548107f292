"""The rows of one part of a source, for training, validation or test: labelled examples, or a corpus of documents.

An example that cannot be used gives an error with its place; bad_rows.py finds all such rows and can leave them out.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ..errors import UserError
from ..storage.cache import sha
from ..storage.contents import States, hashed_files
from .account import LEFT_OUT, Account, ColumnsMet
from .account_words import unusual
from .documents import SKIPPED, Corpus, Document, Skipped, Source
from .reader import Example
from .splits import TRAIN, VALIDATION, Split

# Reason to skip a document -> the setting that allows more.
ALLOWS_MORE = {"too_long": "data.max_document_bytes", "gigantic_line": "data.max_line_bytes"}


class Part:
    """Of a source's first `most` rows those of one part. split: its name. rule: says which they are; None: all.

    left_out: {number in the source: BadRow} of rows that cannot be used and are left out.
    """

    left_out: Mapping[int, Any] = MappingProxyType({})

    def __init__(self, split: str, source: Source, *, rule: Split | None = None, most: int | None = None):
        self.split, self.source, self.rule, self.most = split, source, rule, most
        self.name = source.name
        self._begin()

    def numbered_from(self, place: list | None = None) -> Iterator[tuple[int, Any, list]]:
        """(number in the source, item, place after it) of every row; items are what the source's read_from gives.

        place: [rows read of the source, those of them that count, the source's place]; skipped ones do not count.
        """
        first, count, start = place or (0, 0, None)
        # Behind the window nothing is held back, and so nothing is read.
        last = self.rule.window if self.rule is not None and self.split == VALIDATION else None
        if count == self.most or (last is not None and first >= last):
            return
        self._begin()
        # Every row that anyone reads passes here: `row` has all its columns, `item` says what was made of it.
        for index, (row, item, after) in enumerate(self.source.read_from(start), start=first):
            count += not isinstance(item, Skipped)
            if self._holds(index, item):
                self._count(row, item)
                yield index, item, [index + 1, count, after]
            if count == self.most or index + 1 == last:
                return  # without asking a stream for one more

    def numbered(self) -> Iterator[tuple[int, Any]]:
        """(number in the source, item) of every row."""
        return ((index, item) for index, item, _ in self.numbered_from())

    def tally(self) -> Account:
        """What was counted in the latest pass, up to its latest row."""
        tally = Account(self._skipped.entries())
        self._met.into(tally)
        return tally

    def _begin(self) -> None:
        self._skipped, self._met = Account(), ColumnsMet(self.source.columns.values())

    def _count(self, row: Any, item: Any) -> None:
        if row is not None and row.unread is not None and isinstance(row.values, dict):
            self._met.add(row.values, row.unread)
        if isinstance(item, Skipped):
            hint = f"{ALLOWS_MORE[item.reason]} allows more" if item.reason in ALLOWS_MORE else ""
            if item.reason == "non_utf8" and self.source.has_encoding:
                hint = f"{self.source.where}.encoding=latin-1, or what it is, reads another encoding"
            self._skipped.left_out("document", SKIPPED[item.reason], place=item.source, hint=hint)

    def _holds(self, index: int, item: Any) -> bool:
        if index in self.left_out:
            return False
        if self.rule is None or (self.rule.cut and isinstance(item, Document)):
            return True
        return self.rule.part(index, item.source if self.rule.by_name else "") == self.split


class Examples(Part):
    """The examples of one part of a source, which is a Reader.

    files: the state, before hashing, of each file that the latest examples_fingerprint() hashed.
    """

    files: States = {}

    def __iter__(self) -> Iterator[Example]:
        for _, (place, row) in self.numbered():
            if isinstance(row, UserError):
                raise row
            yield place, row

    def only(self, column: str) -> "Examples":
        """The same examples with this column alone; the others need not be read."""
        examples = copy.copy(self)
        examples.source = self.source.only(column)
        return examples

    def account(self) -> Account:
        """Of all that came in, once the examples have been iterated."""
        account = self.tally() + self.source.account()
        for row in self.left_out.values():
            account.left_out("row", row.reason, place=row.place)
        return account

    def identity(self) -> Any:
        rule, is_planned = self.rule, self.rule is not None and self.rule.planned is not None
        part = {"rule": rule and rule.identity(self.split), "held": is_planned or self.split == VALIDATION}
        without = {"without": sorted(self.left_out)} if self.left_out else {}
        return {"source": self.source.identity()} | part | {"most": self.most} | without


class ExampleTexts(Corpus):
    """Texts made of examples, as documents on which a tokenizer is trained.

    render: (place, row) -> its texts; raises UserError if there is none. key: JSON that changes whenever `render` makes
    other texts of equal examples.
    """

    def __init__(self, examples: Examples, render: Callable[[str, dict], list[str]], key: dict[str, Any]):
        self.examples, self.render, self.key = examples, render, key
        self.split, self.name = examples.split, examples.name

    def documents(self) -> Iterator[Document]:
        for place, row in self.examples:
            for text in self.render(place, row):
                yield Document(text, place)

    def identity(self) -> Any:
        return {"examples": self.examples.identity(), **self.key}


def examples_fingerprint(examples: Examples) -> str:
    """Content identity, equal for equal examples also in another process."""
    with hashed_files() as examples.files:
        return sha(examples.identity())


class SourceCorpus(Part, Corpus):
    """The documents of one part of a source. Its first `most` are counted before they are split."""

    def documents_from(self, place: list | None = None) -> Iterator[tuple[Document, list]]:
        for _, item, after in self.numbered_from(place):
            if not isinstance(item, Skipped):
                yield self._my_end(item) if self.rule is not None and self.rule.cut else item, after

    @property
    def num_shards(self) -> int:
        return self.source.num_shards

    def shard(self, number: int) -> Corpus:
        """Documents are held back from the first shard alone (opening.py)."""
        rule = self.rule if number == 0 else None
        return SourceCorpus(self.split, self.source.shard(number), rule=rule)

    def parts(self, size: int) -> list[Corpus]:
        if self.rule is not None or self.most is not None:
            return [self]  # these count documents from the first one
        return [SourceCorpus(self.split, source) for source in self.source.parts(size)]

    def account(self, tally: Account | None = None) -> Account:
        is_of_train = self.rule is not None and self.split != TRAIN
        return super().account(tally) + (Account() if is_of_train else self.source.account())

    def identity(self) -> Any:
        rule = self.rule and self.rule.identity(self.split) | {"held": self.split == VALIDATION}
        return {"source": self.source.identity(), "rule": rule, "max_documents": self.most}

    def size_hint(self) -> int | None:
        size = self.source.size_hint()
        if size is None or self.most is not None:
            return None
        if self.rule is None:
            return size
        return round(size * (self.rule.fraction if self.split == VALIDATION else 1 - self.rule.fraction))

    def _my_end(self, document: Document) -> Document:
        text = document.text
        if len(text) < 2:
            raise UserError(f"{self.source.where}.validation_fraction: {self.name} is one character, too short to cut.")
        cut = nearest_cut(text, round(len(text) * (1 - self.rule.fraction)))
        return Document(text[cut:] if self.split == VALIDATION else text[:cut], document.source)


class MixtureCorpus(Corpus):
    """The documents of several corpora in turn, equal amounts of text of each; when one ends, the others go on.

    A tokenizer is trained on them in this order, whatever the weights of a mixture and the order of its sources are;
    rows are made of each of the `sources` separately.
    """

    def __init__(self, split: str, sources: Mapping[str, Corpus]):
        self.split, self.sources, self.name = split, dict(sources), " + ".join(sources)

    def documents(self) -> Iterator[Document]:
        """The next document is of the corpus that has given the least text so far."""
        streams = {number: corpus.documents() for number, (_, corpus) in enumerate(self._in_turn())}
        num_bytes = dict.fromkeys(streams, 0)
        while streams:
            behind = min(streams, key=num_bytes.__getitem__)
            document = next(streams[behind], None)
            if document is None:
                del streams[behind]
            else:
                num_bytes[behind] += len(document.text.encode())
                yield document

    def _in_turn(self) -> list[tuple[str, Corpus]]:
        """(hash of its identity, corpus) of each source, in an order that does not depend on the recipe's."""
        pairs = [(sha(corpus.identity()), corpus) for corpus in self.sources.values()]
        return sorted(pairs, key=lambda pair: pair[0])

    def identity(self) -> Any:
        return {"in turn": [identity for identity, _ in self._in_turn()], "split": self.split}

    def account(self, tally: Account | None = None) -> Account:
        return sum((corpus.account() for corpus in self.sources.values()), Account())

    def size_hint(self) -> int | None:
        sizes = [corpus.size_hint() for corpus in self.sources.values()]
        return None if None in sizes else sum(sizes)


def nearest_cut(text: str, position: int) -> int:
    """The place after the line break nearest to `position` that leaves text on both sides, else `position` itself."""
    position = min(max(position, 1), len(text) - 1)
    before, after = text.rfind("\n", 0, position) + 1, text.find("\n", position - 1) + 1
    for cut in sorted((before, after), key=lambda place: (abs(place - position), place)):
        if text[:cut].strip() and text[cut:].strip():
            return cut
    return position


def no_documents(source: Source, tally: Account) -> UserError:
    skipped = Account(tally.entries(LEFT_OUT, "document"))
    reasons, way_out = {key.why for key, _ in skipped.entries()}, ""
    if SKIPPED["too_long"] in reasons:
        way_out = f"; raise data.max_document_bytes or set {source.where}.document to line"
    elif SKIPPED["gigantic_line"] in reasons:
        way_out = "; raise data.max_line_bytes"
    reason = f" ({unusual(skipped)[0]})" if skipped else ""
    return UserError(f"{source.where}: {source.name} holds no document with text{reason}{way_out}.")
