"""Several corpora as one."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..storage.cache import sha
from .account import Account
from .documents import Corpus, Document


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
