"""The order of a mixture: each number's source and row are computed from the number alone, nothing is stored."""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

_ROUNDS = 4  # of the Feistel network: with four it is a pseudo-random permutation (Luby and Rackoff 1988)


class Draw(NamedTuple):
    """A row of a mixture: its source, its number there, and how many passes over that source came before."""

    source: str
    row: int
    turn: int


class MixtureOrder:
    """An endless sequence of the rows of several sources by shares: numbers 0, 1, 2, ... through all epochs of a run.

    The first n rows hold n * share rows of each source, to within one row (with four sources or more sometimes 1.3, for
    any n). Every row of a source comes once before one comes again, in another order in each turn; the k-th row of a
    source depends on the seed, the source's name and its size alone, not on the shares.

    A binary tree divides the numbers: of the first n that reach a fork, round(n * share of the left branch) go left.
    Sources of small shares are joined first, as in Huffman's tree, which keeps rounding errors from adding up.

    Args:
        sizes: source -> number of its rows. shares: source -> relative share of the rows. seed: of the order.
        drawn: source -> number of its rows that came before, from `drawn_before` of the order that this one continues.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        shares: Mapping[str, float],
        seed: int,
        drawn: Mapping[str, int] | None = None,
    ):
        self.sizes, self.seed = dict(sizes), seed
        self.shares = {name: shares[name] / sum(shares[source] for source in sizes) for name in sizes}
        self.begun = dict.fromkeys(sizes, 0) | dict(drawn or {})
        self._root = _joined([(Fraction(shares[name]), name) for name in sizes])

    def identity(self) -> list:
        """JSON of what determines the order, apart from the sizes and the seed."""
        return [self.shares, self.begun]

    def draw(self, number: int) -> Draw:
        """The row at a number >= 0."""
        branch = self._root
        while not isinstance(branch, str):
            left, right, *share = branch
            before, after = _rounded(number, *share), _rounded(number + 1, *share)
            branch, number = (left, before) if after > before else (right, number - before)
        turn, place = divmod(self.begun[branch] + number, self.sizes[branch])
        return Draw(branch, permuted(place, self.sizes[branch], _key(self.seed, branch, turn)), turn)

    def drawn_before(self, number: int) -> dict[str, int]:
        """The number of rows of each source before a number, including those that came before this order."""
        counts, branches = dict(self.begun), [(self._root, number)]
        for branch, count in branches:
            if isinstance(branch, str):
                counts[branch] += count
            else:
                left, right, *share = branch
                gone = _rounded(count, *share)
                branches += [(left, gone), (right, count - gone)]
        return counts

    def first_repeated(self) -> int:
        """The greatest number before which no source repeats a row, from this order's beginning on."""
        low, high = 0, sum(self.sizes.values())
        while low < high:
            middle = (low + high + 1) // 2
            drawn = self.drawn_before(middle)
            within = all(drawn[name] - self.begun[name] <= size for name, size in self.sizes.items())
            low, high = (middle, high) if within else (low, middle - 1)
        return low


def _joined(branches: list[tuple]) -> tuple | str:
    """Join (share, tree or name) pairs to one tree: (left, right, numerator and denominator of left's share in both).

    The two of the smallest shares are joined first.
    """
    while len(branches) > 1:
        branches.sort(key=lambda branch: branch[0], reverse=True)
        (right, small), (left, large) = branches.pop(), branches.pop()
        branches.append((left + right, (large, small, *(left / (left + right)).as_integer_ratio())))
    return branches[0][1]


def _rounded(number: int, numerator: int, denominator: int) -> int:
    """number * numerator / denominator, rounded, without the errors of floats."""
    return (2 * number * numerator + denominator) // (2 * denominator)


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
