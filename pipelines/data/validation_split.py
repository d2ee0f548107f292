"""The validation split of one source: a fixed share of its documents, the same ones every time, at least one."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import UserError
from .documents import SKIPPED, Corpus, Document, SkipCounts, Skipped, Source

# A stream may have no end: only its first documents are candidates, or validation would read all of it.
STREAM_WINDOW = 20_000
NAMED = 5  # skipped documents that are named for each reason; the others are counted


@dataclass(frozen=True)
class ValidationSplit:
    """The rule that splits documents by the hash of their index or name, so that added documents move none.

    The fields are part of data sets' fingerprints.

    window: only the first so many documents are candidates. moved: index of the one document that changes sides because
    the hash alone would leave one side empty. cut: there is one document only, and the end of its text is validation.
    """

    fraction: float
    seed: int = 0
    by_name: bool = False
    window: int | None = None
    moved: int | None = None
    cut: bool = False

    def rank(self, index: int, name: str) -> float:
        """A number in [0, 1) from the document's index or name; below `fraction` it is a validation document."""
        key = name if self.by_name else str(index)
        digest = hashlib.blake2b(f"{self.seed}:{key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64

    def identity(self) -> dict[str, Any]:
        return asdict(self)

    def holding_at_least(self, number: int, there: int) -> "ValidationSplit":
        """This rule, its fraction raised if need be to hold back `number` of the first `there` documents, by index."""
        ranks = sorted(self.rank(index, "") for index in range(there))
        return replace(self, fraction=max(self.fraction, ranks[number])) if number < there else self

    def is_validation(self, index: int, name: str) -> bool:
        if self.window is not None and index >= self.window:
            return False
        return (self.rank(index, name) < self.fraction) != (index == self.moved)


def plan_validation_split(
    source: Source, rule: ValidationSplit | None, max_documents: int | None
) -> ValidationSplit | None:
    """Complete the rule so that both splits have a document. Reads documents until each split has one: seldom many.

    rule: None if there is only one split. Raises UserError where the source holds no document.
    """
    count, both = 0, set()
    lowest = highest = None
    skipped = SkipCounts()
    for index, item in enumerate(first_documents(source.items(), max_documents)):
        if isinstance(item, Skipped):
            skipped[item.reason] += 1
            continue
        if rule is None:
            return None
        count += 1
        both.add(rule.is_validation(index, item.source))
        if len(both) == 2:
            return rule
        rank = (rule.rank(index, item.source), index)
        lowest, highest = min(lowest or rank, rank), max(highest or rank, rank)
        if rule.window is not None and index + 1 >= rule.window:
            break
    if count == 0:
        raise no_documents(source, skipped)
    if count == 1:
        return replace(rule, cut=True)
    return replace(rule, moved=(highest if True in both else lowest)[1])


class SourceCorpus(Corpus):
    """The documents of one source; with a rule, only its validation documents, or only the others.

    max_documents counts documents of the source, before they are split.
    """

    def __init__(
        self,
        split: str,
        source: Source,
        *,
        rule: ValidationSplit | None = None,
        validation: bool = False,
        max_documents: int | None = None,
    ):
        self.split, self.source, self.name = split, source, source.name
        self.rule, self.validation, self.max_documents = rule, validation, max_documents
        self.skipped = SkipCounts()
        self._skipped_names: dict[str, list[str]] = {}  # reason -> the first few

    def documents_from(self, place: list | None = None) -> Iterator[tuple[Document, list]]:
        """place: [items read of the source, documents among them, the source's place]."""
        self.skipped, self._skipped_names = SkipCounts(), {}
        first, held, start = place or (0, 0, None)
        last = self.rule.window if self.rule is not None and self.validation else None  # none is held back after that
        if held == self.max_documents or (last is not None and first >= last):
            return
        for index, (item, after) in enumerate(self.source.items_from(start), start=first):
            held += isinstance(item, Document)
            document = self._mine(index, item)
            if document is not None:
                yield document, [index + 1, held, after]
            if held == self.max_documents or index + 1 == last:
                return  # without asking a stream for one more

    def _mine(self, index: int, item: Document | Skipped) -> Document | None:
        """This split's document in the source's item `index`, or None; a skipped item of this split is counted."""
        if self.rule is not None and self.rule.cut:
            if isinstance(item, Document):
                return self._my_end(item)
            mine = not self.validation
        else:
            mine = self.rule is None or self.rule.is_validation(index, item.source) == self.validation
        if mine and isinstance(item, Document):
            return item
        if mine:
            self.skipped[item.reason] += 1
            names = self._skipped_names.setdefault(item.reason, [])
            names += [item.source][: NAMED - len(names)]
        return None

    @property
    def num_shards(self) -> int:
        return self.source.num_shards

    def shard(self, number: int) -> Corpus:
        """Documents are held back from the first shard alone (corpora.py)."""
        rule = self.rule if number == 0 else None
        return SourceCorpus(self.split, self.source.shard(number), rule=rule)

    def parts(self, size: int) -> list[Corpus]:
        if self.rule is not None or self.max_documents is not None:
            return [self]  # these count documents from the first one
        return [SourceCorpus(self.split, source) for source in self.source.parts(size)]

    def tally(self) -> Any:
        return {"skipped": super().tally(), "names": {name: list(docs) for name, docs in self._skipped_names.items()}}

    def together(self, first: Any, second: Any) -> Any:
        named = first["names"] | second["names"]
        names = {reason: (first["names"].get(reason, []) + second["names"].get(reason, []))[:NAMED] for reason in named}
        return {"skipped": super().together(first["skipped"], second["skipped"]), "names": names}

    def restore(self, tally: Any) -> None:
        super().restore(tally["skipped"])
        self._skipped_names = tally["names"]

    def skipped_by_name(self) -> list[str]:
        ways = {"too_long": "data.max_document_bytes allows more", "gigantic_line": "data.max_line_bytes allows more"}
        if self.source.has_encoding:
            ways["non_utf8"] = f"{self.source.where}.encoding=latin-1, or what it is, reads another encoding"
        sentences = []
        for reason in ways.keys() & self._skipped_names.keys():
            names = self._skipped_names[reason]
            more = self.skipped[reason] - len(names)
            listed = ", ".join(names) + (f" and {more:,} more" if more else "")
            sentences.append(f"{SKIPPED[reason]}: {listed}; {ways[reason]}")
        return [*sorted(sentences), *([] if self.validation else self.source.notes())]

    def identity(self) -> Any:
        rule = asdict(self.rule) | {"held": self.validation} if self.rule else None
        return {"source": self.source.identity(), "rule": rule, "max_documents": self.max_documents}

    def size_hint(self) -> int | None:
        size = self.source.size_hint()
        if size is None or self.max_documents is not None:
            return None
        if self.rule is None:
            return size
        return round(size * (self.rule.fraction if self.validation else 1 - self.rule.fraction))

    def _my_end(self, document: Document) -> Document:
        text = document.text
        if len(text) < 2:
            raise UserError(f"{self.source.where}.validation_fraction: {self.name} is one character, too short to cut.")
        cut = nearest_cut(text, round(len(text) * (1 - self.rule.fraction)))
        return Document(text[cut:] if self.validation else text[:cut], document.source)


def nearest_cut(text: str, position: int) -> int:
    """The place after the line break nearest to `position` that leaves text on both sides, else `position` itself."""
    position = min(max(position, 1), len(text) - 1)
    before, after = text.rfind("\n", 0, position) + 1, text.find("\n", position - 1) + 1
    for cut in sorted((before, after), key=lambda place: (abs(place - position), place)):
        if text[:cut].strip() and text[cut:].strip():
            return cut
    return position


def first_documents(items: Iterable[Document | Skipped], number: int | None) -> Iterator[Document | Skipped]:
    """The items up to the `number`-th document; skipped ones do not count."""
    for item in items:
        if number is not None and isinstance(item, Document):
            if number == 0:
                return
            number -= 1
        yield item
        if number == 0:
            return  # without asking a stream for one more


def no_documents(source: Source, skipped: SkipCounts) -> UserError:
    reason, way_out = f" ({skipped})" if skipped.total() else "", ""
    if skipped["too_long"]:
        way_out = f"; raise data.max_document_bytes or set {source.where}.document to line"
    elif skipped["gigantic_line"]:
        way_out = "; raise data.max_line_bytes"
    return UserError(f"{source.where}: {source.name} holds no document with text{reason}{way_out}.")
