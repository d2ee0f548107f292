"""Labelled examples: the rows of one part of a source, and their texts as a corpus.

A row that cannot be used gives an error with its place; bad_rows.py finds all such rows and can leave them out.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import UserError
from ..storage.cache import sha
from ..storage.contents import States, hashed_files
from .account import Account
from .documents import Corpus, Document
from .reader import Example
from .source_parts import Part
from .splits import VALIDATION


class Examples(Part):
    """The examples of one part of a source, which is a Reader.

    files: the state, before hashing, of each file that the latest examples_fingerprint() hashed.
    """

    files: States = {}
    _watch: Callable[[dict], None] | None = None

    def __iter__(self) -> Iterator[Example]:
        for _, (place, row) in self.numbered():
            if isinstance(row, UserError):
                raise row
            if self._watch is not None:
                self._watch(row)
            yield place, row

    def watched(self, watch: Callable[[dict], None]) -> "Examples":
        """The same examples; `watch` is called with each row before it is yielded."""
        examples = copy.copy(self)
        examples._watch = watch
        return examples

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
