"""Several corpora with weights as one."""

from collections.abc import Iterator, Sequence
from typing import Any

from .documents import Corpus, Document, SkipCounts


class MixtureCorpus(Corpus):
    """Documents of several corpora, interleaved so that the bytes of text from each follow the weights.

    The next document comes from the corpus furthest behind its share, so the shares hold at every point to within one
    document, and the order is the same every time.

    names: what people read of each corpus; None: the corpus's own name.
    keep_shares: True (training): the mixture ends with the first corpus that runs out. Otherwise every document would
    be read once whatever the weights, and since rows are shuffled the weights would have no effect. False (validation):
    it ends when all have run out.
    """

    def __init__(self, split: str, parts: Sequence[tuple[Corpus, float]], *, keep_shares: bool, names=None):
        self.split = split
        self.corpora = [corpus for corpus, _ in parts]
        self.weights = [weight for _, weight in parts]
        self.keep_shares = keep_shares
        self.given_names = list(names or [None] * len(parts))
        names = [given or corpus.name for given, corpus in zip(self.given_names, self.corpora)]
        # Files of different folders may have one name; the number is that of `data.mixture.3.weight`.
        self.names = [
            name if names.count(name) == 1 else f"{name} (mixture.{number})" for number, name in enumerate(names)
        ]
        self.name = " + ".join(self.names)
        self.num_bytes = [0] * len(self.corpora)
        self.ended_by: str | None = None

    def documents(self) -> Iterator[Document]:
        return (document for document, _ in self.documents_from())

    def documents_from(self, place: dict | None = None) -> Iterator[tuple[Document, dict]]:
        """place: {"bytes": of text from each corpus, "places": of each corpus}."""
        self.num_bytes = list(place["bytes"]) if place else [0] * len(self.corpora)
        places = list(place["places"]) if place else [None] * len(self.corpora)
        streams = [corpus.documents_from(own) for corpus, own in zip(self.corpora, places)]
        running = list(range(len(streams)))
        self.ended_by = None
        while running:
            behind = min(running, key=lambda part: self.num_bytes[part] / self.weights[part])
            found = next(streams[behind], None)
            if found is not None:
                document, places[behind] = found
                self.num_bytes[behind] += len(document.text.encode())
                yield document, {"bytes": list(self.num_bytes), "places": list(places)}
            elif self.keep_shares:
                self.ended_by = self.names[behind]
                return
            else:
                running.remove(behind)

    def tally(self) -> Any:
        parts = [corpus.tally() for corpus in self.corpora]
        return {"parts": parts, "bytes": list(self.num_bytes), "ended_by": self.ended_by}

    def together(self, first: Any, second: Any) -> Any:
        parts = [corpus.together(*both) for corpus, *both in zip(self.corpora, first["parts"], second["parts"])]
        return second | {"parts": parts}  # its bytes are those of the whole pass, which a place carries

    def restore(self, tally: Any) -> None:
        for corpus, part in zip(self.corpora, tally["parts"]):
            corpus.restore(part)
        self.num_bytes, self.ended_by = tally["bytes"], tally["ended_by"]

    @property
    def skipped(self) -> SkipCounts:
        counts = SkipCounts()
        for corpus in self.corpora:
            counts.add(corpus.skipped)
        return counts

    def shares(self) -> list[float]:
        """Share of the bytes of text that each corpus gave in the latest pass, as far as it went."""
        total = sum(self.num_bytes) or 1
        return [size / total for size in self.num_bytes]

    def notes(self) -> list[str]:
        parts = [
            f"{name} {share:.1%} ({size / 1e6:,.1f} MB)"
            for name, share, size in zip(self.names, self.shares(), self.num_bytes)
        ]
        end = f"; it ends where {self.ended_by} runs out, so that the shares hold" if self.ended_by else ""
        return [f"mixture: {', '.join(parts)}{end}", *super().notes()]

    def skipped_by_name(self) -> list[str]:
        return [sentence for corpus in self.corpora for sentence in corpus.skipped_by_name()]

    def identity(self) -> Any:
        parts = [[corpus.identity(), weight] for corpus, weight in zip(self.corpora, self.weights)]
        named = {"names": self.given_names} if any(self.given_names) else {}  # they stand in notes that are kept
        return {"mixture": parts, "keep_shares": self.keep_shares, "split": self.split} | named

    def size_hint(self) -> int | None:
        sizes = [corpus.size_hint() for corpus in self.corpora]
        if None in sizes:
            return None
        if not self.keep_shares:
            return sum(sizes)
        return round(sum(self.weights) * min(size / weight for size, weight in zip(sizes, self.weights)))
