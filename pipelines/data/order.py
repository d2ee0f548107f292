"""The order of rows: each number's source and row are computed from the number alone, nothing is stored."""

from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, reduce
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

WITHOUT_END = 2**62  # numbers: no run comes so far
_ROUNDS = 4  # of the Feistel network: with four it is a pseudo-random permutation (Luby and Rackoff 1988)


class Draw(NamedTuple):
    """A row of a source: its number there, and how many passes over that source came before."""

    source: Hashable
    row: int
    turn: int


class Place(NamedTuple):
    """A row's part, its number there, how often it came before in the epoch (turn) and can come at most (turns).

    turns is 0 where `turn` counts through all epochs. inner: the row's place in the part, if that has parts, too.
    """

    part: str
    number: int
    turn: int
    turns: int
    inner: "Place | None" = None


class Order:
    """The rows of several sources as one sequence: numbers 0, 1, 2, ... through all epochs of a run.

    Numbers come in stretches; in each, the sources have shares. The first n rows of a stretch hold n * share rows of
    each source, to within one row (with four sources or more sometimes 1.3, for any n). Every row of a source comes
    once before one comes again, also over the borders of stretches. In a shuffled order each turn of a source has
    another order, which depends on the seed, the source's name and its size alone, not on shares and stretches.

    A binary tree divides the numbers: of the first n that reach a fork, round(n * share of the left branch) go left.
    Sources of small shares are joined first, as in Huffman's tree, which keeps rounding errors from adding up.

    Args:
        sizes: source -> number of its rows. stretches: (source -> relative share of the rows, number of rows) of each.
        seed: of the order in which a source's rows come; None: as they stand in it. lasting: sources that go on in each
        epoch where they were, while all others begin anew. names: source -> its name, if that is another.
    """

    def __init__(
        self,
        sizes: Mapping[Hashable, int],
        stretches: Sequence[tuple[Mapping[Hashable, float], int]],
        seed: int | None = None,
        lasting: Collection[Hashable] = (),
        names: Mapping[Hashable, str] | None = None,
    ):
        self.sizes, self.seed, self.lasting = dict(sizes), seed, frozenset(lasting)
        self.shares, self.names = dict(stretches[0][0]), names or {source: str(source) for source in sizes}
        self._trees = [
            joined([(Fraction(share), source) for source, share in shares.items()]) for shares, _ in stretches
        ]
        self._ends = [0, *accumulate(count for _, count in stretches)]
        self._begun = list(accumulate(self.drawn_by_stretch(self._ends[-1]), added, initial=dict.fromkeys(sizes, 0)))
        self._per_epoch = {source: self._begun[-1][source] for source in lasting}
        self.goes_on = bool(lasting) or self._ends[-1] >= WITHOUT_END
        self.length = self._ends[-1] if self._ends[-1] < WITHOUT_END else self._first_repeated()

    @classmethod
    def by_shares(cls, sizes: Mapping[str, int], shares: Mapping[str, float], seed: int) -> "Order":
        """An order without end; an epoch ends before a row would come twice in it."""
        return cls(sizes, [({source: shares[source] for source in sizes}, WITHOUT_END)], seed)

    def draw(self, number: int) -> Draw:
        """The row at a number >= 0."""
        epoch, number = divmod(number, self._ends[-1])
        stretch = bisect_right(self._ends, number) - 1
        branch, number = self._trees[stretch], number - self._ends[stretch]
        while isinstance(branch, Fork):
            before, after = branch.to_left(number), branch.to_left(number + 1)
            branch, number = (branch.left, before) if after > before else (branch.right, number - before)
        place = self._begun[stretch][branch] + number + epoch * self._per_epoch.get(branch, 0)
        turn, row = divmod(place, self.sizes[branch])
        if self.seed is not None:
            row = permuted(row, self.sizes[branch], _key(self.seed, self.names[branch], turn))
        return Draw(branch, row, turn)

    def drawn_before(self, number: int) -> dict[Hashable, int]:
        """The number of rows of each source before a number of the first epoch, or of an order without end."""
        return reduce(added, self.drawn_by_stretch(number), dict.fromkeys(self.sizes, 0))

    def drawn_by_stretch(self, number: int) -> Iterator[dict[Hashable, int]]:
        """drawn_before, for each stretch the rows of its own sources in it alone."""
        for tree, begin, end in zip(self._trees, self._ends, self._ends[1:]):
            counts, branches = {}, [(tree, min(max(number, begin), end) - begin)]
            for branch, count in branches:
                if isinstance(branch, Fork):
                    gone = branch.to_left(count)
                    branches += [(branch.left, gone), (branch.right, count - gone)]
                else:
                    counts[branch] = count
            yield counts

    def _first_repeated(self) -> int:
        """The greatest number before which no source repeats a row."""
        low, high = 0, sum(self.sizes.values())
        while low < high:
            middle = (low + high + 1) // 2
            within = all(drawn <= self.sizes[source] for source, drawn in self.drawn_before(middle).items())
            low, high = (middle, high) if within else (low, middle - 1)
        return low


class Fork(NamedTuple):
    """Two branches, each a source or a fork. numerator / denominator: left's share in both."""

    left: Hashable
    right: Hashable
    numerator: int
    denominator: int

    def to_left(self, number: int) -> int:
        """How many of the first `number` go left: number * share, rounded, without the errors of floats."""
        return (2 * number * self.numerator + self.denominator) // (2 * self.denominator)


def added(first: Mapping[Hashable, int], second: Mapping[Hashable, int]) -> dict[Hashable, int]:
    return {source: count + second.get(source, 0) for source, count in first.items()}


def joined(branches: list[tuple]) -> Hashable:
    """Join (share, source or fork) pairs to one tree; the two of the smallest shares are joined first."""
    while len(branches) > 1:
        branches.sort(key=lambda branch: branch[0], reverse=True)
        (right, small), (left, large) = branches.pop(), branches.pop()
        branches.append((left + right, Fork(large, small, *(left / (left + right)).as_integer_ratio())))
    return branches[0][1]


@lru_cache(maxsize=256)
def _key(seed: int, name: str, turn: int) -> bytes:
    return blake2b(f"{seed}:{turn}:{name}".encode(), digest_size=16).digest()


def permuted(place: int, size: int, key: bytes) -> int:
    """Where a pseudo-random permutation of range(size), chosen by the key, puts a place, in constant memory.

    A Feistel network permutes the numbers of an even count of bits; those that leave the range go through it again
    (cycle walking, Black and Rogaway 2002).
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for step in range(_ROUNDS):
            digest = blake2b(b"%d:%d" % (step, right), key=key, digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        place = left << half | right
        if place < size:
            return place


def shares_of(
    weights: Mapping[str, float], by: str | float, tokens: Mapping[str, int], documents: Mapping[str, int]
) -> dict[str, float]:
    """The relative shares of the rows that the weights of sources stand for (data.weights_by).

    by: "tokens": weights are shares of the tokens, and so of the rows, which are equally long; "documents": of the
    documents; a number T: a source's share is weight * tokens ** (1 / T) (temperature sampling, Devlin 2018).
    """
    if by == "tokens":
        return dict(weights)
    if by == "documents":
        return {name: weight * tokens[name] / documents[name] for name, weight in weights.items()}
    return {name: weight * tokens[name] ** (1 / by) for name, weight in weights.items()}
