"""What a law finds: comparisons of one model with itself, each with its verdict."""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "fails"
    NOT_CLAIMED = "not claimed"  # the class does not promise it, and `why` says where
    NOT_ASKED = "not asked"  # the question could not be put; `why` is what came up


@dataclass(frozen=True)
class Finding:
    """One comparison. difference and tolerance: in units of the largest number expected; None where none was measured.

    why: of a failure, as far as the source shows it, or of a verdict that is none.
    steps: the lines of a reproducer that follow those that make the model. way_out: what a user can do about a failure.
    """

    what: str
    verdict: Verdict
    difference: float | None = None
    tolerance: float | None = None
    why: str = ""
    steps: tuple[str, ...] = ()
    way_out: str = ""


def not_claimed(what: str, why: str, **fields) -> Finding:
    """A finding about what the class does not promise."""
    return Finding(what, Verdict.NOT_CLAIMED, why=why, **fields)


def of_difference(what: str, difference: float, tolerance: float, **fields) -> Finding:
    """A finding that holds where a measured difference is within its tolerance; the fields are about its failure."""
    if difference <= tolerance:
        return Finding(what, Verdict.HOLDS, difference, tolerance)
    return Finding(what, Verdict.FAILS, difference, tolerance, **fields)


def of_fact(what: str, is_so: bool, **fields) -> Finding:
    """A finding about something that is so or is not; the fields are about its failure."""
    return Finding(what, Verdict.FAILS, **fields) if not is_so else Finding(what, Verdict.HOLDS)


def difference(got: torch.Tensor, expected: torch.Tensor, scale: float | None = None) -> float:
    """The largest difference of two tensors in units of `scale`, by default of the largest number expected.

    Infinite for another shape, and where one of them is not a number.
    """
    if got.shape != expected.shape:
        return math.inf
    if not got.numel():
        return 0.0
    got, expected = got.detach().double(), expected.detach().double()
    apart = (got - expected).abs().max().item()
    scale = scale or expected.abs().max().item() or 1.0
    return apart / scale if math.isfinite(apart) and math.isfinite(scale) else math.inf
