"""Rows that are read through an Order: of the sources of a mixture, of objectives or tasks, or of a run's stages."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..lazy import np, torch
from ..storage.cache import sha
from .account import Account
from .batch_keys import EPOCH, PLACE, ROW_IDS
from .order import Draw, Order, Place, shares_of
from .rows import BEGINNING, Rows, Streamed, passes_from, steps_of_epoch

SIZES = ("documents", "tokens", "bytes")  # facts that are added up


class OrderedRows(Rows):
    """Rows of several sources in the order of an Order, which alone knows what stands at a number.

    Where an order goes on from epoch to epoch, numbers beyond the last one are the rows of further epochs; so a
    number is unique in the run, and tells in which step its row is trained.

    sources: source of the order -> rows. said: keys that each row carries beside its own: EPOCH, its source's turn, or
    PLACE. parts: what people see as parts; None: the sources. counts: source -> number of its rows in an epoch,
    repetitions included. The facts and what else Rows holds are set by the functions below.
    """

    def __init__(
        self,
        sources: Mapping[object, Rows],
        order: Order,
        fingerprint: str,
        said: Sequence[str] = (),
        parts: Mapping[str, Rows] | None = None,
    ):
        self.sources, self.order, self.said, self.fingerprint = sources, order, said, fingerprint
        self.parts = sources if parts is None else parts
        self.counts = order.drawn_before(len(self))
        self.name = " + ".join(dict.fromkeys(rows.name for rows in sources.values()))
        self.is_packed = any(rows.is_packed for rows in sources.values())
        self.account = sum((rows.account for rows in self.parts.values()), Account())
        self.sequence_length = getattr(next(iter(sources.values())), "sequence_length", None)

    def __len__(self) -> int:
        return self.order.length

    # ---- numbers

    def draw(self, number: int) -> Draw:
        """The source of a row, its number there, and how often it came before: in the epoch, or in the run."""
        number = number if number >= 0 and self.order.goes_on else self.inside(number)
        drawn = self.order.draw(number)
        return drawn._replace(row=self.sources[drawn.source].number_in(drawn.turn, drawn.row))

    def place(self, number: int) -> tuple[str, int]:
        drawn = self.draw(number)
        name = self.order.names[drawn.source]
        return (name, drawn.row) if name else self.sources[drawn.source].place(drawn.row)

    def number_in(self, epoch: int, place: int) -> int:
        return place + epoch * len(self) if self.order.goes_on else place

    def shares(self) -> dict[str, float]:
        """Each source's share of the rows."""
        return {name: count / len(self) for name, count in self.counts.items()}

    def tokens_after(self, steps: int, per_step: int) -> dict[str, int]:
        if self.order.seed is None:  # at random in each epoch: what came before is not known
            return {}
        epochs, rest = divmod(steps, steps_of_epoch(len(self), per_step))
        return self.tokens_before(epochs * len(self) + min(rest * per_step, len(self)))  # an epoch's last may be short

    def tokens_before(self, number: int) -> dict[str, int]:
        """The tokens of each source in the rows before a number, through all epochs."""
        total = dict.fromkeys(self.parts, 0)
        for drawn in self.order.drawn_by_stretch(number):
            for source, count in drawn.items():
                rows, name = self.sources[source], self.order.names[source]
                if name in total:
                    total[name] += count * rows.facts["tokens"] // len(rows)
        return total

    def sampler(self, per_step: int, seed: int, at_random: Callable[[], Iterable[int]]) -> Iterable[int]:
        return super().sampler(per_step, seed, at_random) if self.order.seed is None else range(len(self))

    # ---- rows

    def __getitem__(self, number: int) -> dict:
        drawn = self.draw(number)
        row = self.sources[drawn.source][drawn.row]
        return row | {key: drawn.turn if key == EPOCH else self._place(drawn) for key in self.said}

    def _place(self, drawn: Draw) -> Place:
        rows = self.sources[drawn.source]
        turns = 0 if drawn.source in self.order.lasting else -(-self.counts[drawn.source] // len(rows))
        return Place(drawn.source, drawn.row, drawn.turn, turns)

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        drawn = self.draw(number)
        return self.sources[drawn.source].documents(drawn.row, row)

    @cached_property
    def row_lengths(self):
        lengths = {source: rows.row_lengths for source, rows in self.sources.items()}
        if self.order.seed is not None or any(part is None for part in lengths.values()):
            return None
        return np.concatenate([np.resize(np.asarray(part), self.counts[source]) for source, part in lengths.items()])

    @property
    def stores(self) -> list:
        return [store for rows in self.parts.values() for store in rows.stores]

    def total(self, size: str) -> int:
        """The sum of a size (a name in the facts) over the rows, repetitions included."""
        return sum(rows.facts[size] * self.counts[name] // len(rows) for name, rows in self.sources.items())

    def words(self) -> dict[str, int]:
        """{"words": number of words, repetitions included}; {} where a part does not count them."""
        return {"words": self.total("words")} if all("words" in rows.facts for rows in self.sources.values()) else {}

    def of(self, sources: Mapping[str, Rows]) -> "OrderedRows":
        """The same mixture of other sources, whose rows are as many, in the same order, and may have more in them."""
        return mixture(sources, self.order)


class MixedStream(Streamed):
    """Rows of several parts by weight, some of them streams, which cannot be counted: one pass, which never ends.

    The next row comes from the part with the fewest rows so far for its weight, so that the order is reproducible and
    no part is ever more than one row ahead of its share. Each part is repeated, in a new order if it is no stream.

    Each row says its PLACE, for the collator: the row is what the part alone would give in the epoch `turn`, which
    counts the part's own passes. A row's sample id also says which part it is of (`place`).

    Args:
        parts: label -> rows. weights: label -> share of the rows. seed: of the order of parts that are no streams.
    """

    def __init__(self, parts: Mapping[str, Rows], weights: Mapping[str, float], seed: int):
        self.parts, self.weights, self.seed = parts, weights, seed
        self.labels = list(parts)
        self.name = " + ".join(dict.fromkeys(rows.name for rows in parts.values()))
        self.fingerprint = identity_of([[label, rows.identity] for label, rows in parts.items()])
        self.is_packed = any(rows.is_packed for rows in parts.values())
        self.account = sum((rows.account for rows in parts.values()), Account())
        self.num_places = sum(rows.num_places for rows in parts.values())

    def report(self) -> dict:
        parts = {label: rows.report() for label, rows in self.parts.items()}
        return {"stream": self.identity, "parts": parts} | ({"notes": self.notes} if self.notes else {})

    def shares(self) -> dict[str, float]:
        """{part: its share of the rows}."""
        return {label: self.weights[label] / sum(self.weights.values()) for label in self.labels}

    def place(self, number: int) -> tuple[str, int]:
        """(part, number of its rows before) of the row with this sample id."""
        return self.labels[number % len(self.labels)], number // len(self.labels)

    def documents(self, number: int, row: dict | None = None) -> list[tuple[int, int, int]]:
        if row is None:
            return []
        place = row[PLACE]
        return self.parts[place.part].documents(place.number, row | {PLACE: place.inner})

    def pass_from(self, number: int, place: Any = None, seed: int = 0) -> Iterator[tuple[dict, dict]]:
        """place: {"given": rows of each part so far, "places": the position in each, as passes_from takes it}."""
        place = place or {"given": {}, "places": {}}
        counts, positions = dict.fromkeys(self.labels, 0) | place["given"], dict(place["places"])
        rows = {
            label: passes_from(part, positions.get(label, BEGINNING), self.seed) for label, part in self.parts.items()
        }
        shares = self.shares()
        while True:
            total = sum(counts.values()) + 1
            label = max(self.labels, key=lambda label: total * shares[label] - counts[label])
            row, positions[label] = next(rows[label])
            number = counts[label] * len(self.labels) + self.labels.index(label)
            counts[label] += 1
            own = Place(label, int(row[ROW_IDS]), int(row[EPOCH]), 1, row.get(PLACE))
            ids = {PLACE: own, ROW_IDS: torch.tensor(number), EPOCH: torch.tensor(0)}
            yield row | ids, {"given": dict(counts), "places": dict(positions)}


# ---- rows of several parts, one part after the other


def in_turn(sources: Mapping[str, Rows], counts: Mapping[str, int], **options) -> OrderedRows:
    """Rows of several sources, one after the other; the training shuffles them.

    counts: source -> number of its rows. A source whose epochs differ is never repeated: it goes on in each epoch where
    it ended in the one before. options: further arguments of OrderedRows.
    """
    lasting = {name for name, rows in sources.items() if rows.number_in(1, 0)}
    stretches = [({name: 1}, count) for name, count in counts.items()]
    order = Order({name: len(rows) for name, rows in sources.items()}, stretches, lasting=lasting)
    content = [[name, rows.fingerprint, counts[name]] for name, rows in sources.items()]
    return OrderedRows(sources, order, identity_of(content), **options)


def mixed(
    parts: Mapping[str, Rows], weights: Mapping[str, float] | None, seed: int, is_placed: bool = False
) -> OrderedRows | MixedStream:
    """The rows of several objectives or tasks as one split.

    weights: part -> share of the rows; a part's rows are repeated in their order until it has its share, and each comes
    at least once. None: each row once. seed: of the order where a part is streamed. is_placed: each row says its Place,
    and facts count rows, not examples.
    """
    if any(isinstance(rows, Streamed) for rows in parts.values()):
        return MixedStream(parts, weights, seed)
    counts = {name: len(rows) for name, rows in parts.items()}
    if weights is not None:
        longest = max(len(rows) / weights[name] for name, rows in parts.items())
        # 1e-6: rounding must not make one of several equal parts a row longer.
        counts = {name: math.ceil(weights[name] * longest - 1e-6) for name in parts}
    rows = in_turn(parts, counts, said=(PLACE,) if is_placed else ())
    size = {"rows" if is_placed else "examples": len(rows)}
    rows.facts = size | {"tokens": rows.total("tokens"), "parts": dict(counts)} | rows.words()
    return rows


def joined(parts: Sequence[Rows]) -> OrderedRows:
    """The rows of several sources one after the other, as if they were of the first: facts and account are its own."""
    sources = {str(number): rows for number, rows in enumerate(parts)}
    rows = in_turn(sources, {name: len(part) for name, part in sources.items()}, parts={})
    rows.fingerprint = sha([part.fingerprint for part in parts])
    rows.name, rows.facts, rows.account = parts[0].name, parts[0].facts, Account(parts[0].account.entries())
    return rows


# ---- the sources of data.mixture


def sources_once(sources: Mapping[str, Rows]) -> OrderedRows:
    """Each row of the sources once, one source after the other."""
    return with_facts(in_turn(sources, {name: len(rows) for name, rows in sources.items()}))


def weighed(
    sources: Mapping[str, Rows], weights: Mapping[str, float], by: str | float, seed: int
) -> OrderedRows | MixedStream:
    """The training rows of the sources by weight. by: as data.weights_by."""
    if any(isinstance(rows, Streamed) for rows in sources.values()):
        return MixedStream(sources, weights, seed)
    sizes = [{name: rows.facts[of] for name, rows in sources.items()} for of in ("tokens", "documents")]
    counts = {name: len(rows) for name, rows in sources.items()}
    return mixture(sources, Order.by_shares(counts, shares_of(weights, by, *sizes), seed))


def mixture(sources: Mapping[str, Rows], order: Order) -> OrderedRows:
    """The training rows of sources in an order by shares.

    An epoch ends before a row would come twice in it; the next one goes on in each source where this one ended.
    """
    content = [[name, rows.fingerprint, len(rows)] for name, rows in sources.items()]
    identity = [identity_of(content), [normalised(order.shares), dict.fromkeys(sources, 0)]]
    return with_facts(OrderedRows(sources, order, identity_of(identity)))


def with_facts(rows: OrderedRows) -> OrderedRows:
    """The same rows with facts about all sources and about each of them."""
    noun = "rows" if "rows" in next(iter(rows.sources.values())).facts else "examples"
    rows.facts = {size: rows.total(size) for size in SIZES} | rows.words() | {noun: len(rows)}
    rows.facts["sources"] = {
        name: {noun: rows.counts[name], "share": round(share, 6)}
        | {size: rows.sources[name].facts[size] for size in SIZES}
        for name, share in rows.shares().items()
    }
    return rows


# ---- the stages of a run


def staged(
    rows: Sequence[Rows], shares: Sequence[Mapping[str, float] | None], counts: Sequence[int], seed: int
) -> OrderedRows:
    """The rows of all stages in training order: row n is the n-th that the run trains, whatever its length.

    A stage goes on in its rows where an earlier stage with the same rows left off; other rows begin with a pass of
    their own. Each row says as its epoch how many passes over its source came before.

    rows: the rows of each stage. shares: each stage's shares of the sources of its rows; None: those of the rows
    themselves. counts: the number of rows that each stage trains.
    """
    sources, stretches = {}, []
    for of_stage, weights, count in zip(rows, shares, counts, strict=True):
        own, usual = {"": of_stage}, {"": 1.0}  # rows without shares are their own single source, without a name
        if isinstance(of_stage, OrderedRows) and of_stage.order.seed is not None:
            own, usual = of_stage.sources, normalised(of_stage.order.shares)
        sources |= {(of_stage.fingerprint, name): source for name, source in own.items()}
        weights = usual if weights is None else weights
        stretches.append(({(of_stage.fingerprint, name): weight for name, weight in weights.items()}, count))
    order = Order(
        {source: len(own) for source, own in sources.items()},
        stretches,
        seed,
        names={source: source[1] for source in sources},
    )
    found = OrderedRows(sources, order, rows[0].fingerprint, said=(EPOCH,), parts=rows[0].parts)
    found.name = rows[0].name
    return found


def passes(rows: OrderedRows, of_stage: Rows, number: int) -> float:
    """Passes over the rows of a stage in the rows of a run before a number, earlier stages included."""
    drawn = rows.order.drawn_before(number)
    return sum(count for (owner, _), count in drawn.items() if owner == of_stage.fingerprint) / len(of_stage)


def normalised(shares: Mapping[str, float]) -> dict[str, float]:
    """The shares, which add up to 1."""
    return {name: share / sum(shares.values()) for name, share in shares.items()}


def identity_of(content: list) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
