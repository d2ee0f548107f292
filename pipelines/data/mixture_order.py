"""Which row of which source stands at each number of a mixture: a function of the number alone, nothing is stored."""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

_ROUNDS = 4  # of the Feistel network: with four it is a pseudo-random permutation (Luby and Rackoff 1988)


class Draw(NamedTuple):
    """A row of a mixture: its source, its number in it, and how often that source was read whole before."""

    source: str
    row: int
    turn: int


class MixtureOrder:
    """The rows of several sources by shares, without end: numbers 0, 1, 2, ... through all epochs of a run.

    Before number n, n * share rows of each source have come, to within one row (of four sources or more at times 1.3,
    whatever n). A source is read whole before a row of it comes again, in another order in each turn; which row its
    k-th one is depends on the seed, its name and its size alone, not on the shares.

    The numbers are divided by a tree: at each fork, of the first n that reach it round(n * share of the left branch) go
    left. Sources of small shares are joined first, as in Huffman's tree, which keeps the roundings from adding up.

    Args:
        sizes: source -> its rows. shares: source -> share of the rows, relative to the others'. seed: of the order.
        drawn: source -> its rows that came before, as `drawn_before` of an order gives them: it goes on after them.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        shares: Mapping[str, float],
        seed: int,
        drawn: Mapping[str, int] | None = None,
    ):
        self.sizes, self.seed = dict(sizes), seed
        self.shares = {name: shares[name] / sum(shares[each] for each in sizes) for name in sizes}
        self.begun = dict.fromkeys(sizes, 0) | dict(drawn or {})
        self._root = _joined([(Fraction(shares[name]), name) for name in sizes])

    def identity(self) -> list:
        """JSON of what decides, beside the sizes and the seed, which row stands where."""
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
        """How many rows of each source come before a number, with those that came before this order."""
        found, branches = dict(self.begun), [(self._root, number)]
        for branch, count in branches:
            if isinstance(branch, str):
                found[branch] += count
            else:
                left, right, *share = branch
                gone = _rounded(count, *share)
                branches += [(left, gone), (right, count - gone)]
        return found

    def first_repeated(self) -> int:
        """The number before which, from this order's beginning on, no source gives a row twice."""
        low, high = 0, sum(self.sizes.values())
        while low < high:
            middle = (low + high + 1) // 2
            drawn = self.drawn_before(middle)
            within = all(drawn[name] - self.begun[name] <= size for name, size in self.sizes.items())
            low, high = (middle, high) if within else (low, middle - 1)
        return low


def _joined(branches: list[tuple]) -> tuple | str:
    """(left, right, left's share of both as a numerator and a denominator) of trees, or names, with their shares.

    The smallest two are joined first.
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
    """The shares of the rows that the weights of sources mean (data.weights_by), in proportion.

    by: "tokens": the weights are shares of the tokens, which rows of equal length have as many of; "documents": of the
    documents; a number T: a source has its tokens ** (1 / T) for each 1 of weight (temperature sampling, Devlin 2018).
    """
    if by == "tokens":
        return dict(weights)
    if by == "documents":
        return {name: weight * tokens[name] / documents[name] for name, weight in weights.items()}
    return {name: weight * tokens[name] ** (1 / by) for name, weight in weights.items()}
