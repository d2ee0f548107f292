"""The findings of a law: comparisons of one model with itself, each with its verdict."""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "fails"
    NOT_CLAIMED = "not claimed"  # the class does not promise the law, for the reason `why`
    NOT_ASKED = "not asked"  # the comparison could not be made; `why` is the error


@dataclass(frozen=True)
class Finding:
    """One comparison. difference and tolerance: relative to the largest expected value; None if nothing was measured.

    why: the cause of a failure, as far as the model's source shows it, or the reason for another verdict.
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
    """A finding that holds if a difference is within its tolerance; the fields are set only if it fails."""
    if difference <= tolerance:
        return Finding(what, Verdict.HOLDS, difference, tolerance)
    return Finding(what, Verdict.FAILS, difference, tolerance, **fields)


def of_fact(what: str, is_so: bool, **fields) -> Finding:
    """A finding that holds if `is_so`; the fields are set only if it fails."""
    return Finding(what, Verdict.FAILS, **fields) if not is_so else Finding(what, Verdict.HOLDS)


def difference(got: torch.Tensor, expected: torch.Tensor, scale: float | None = None) -> float:
    """The largest difference of two tensors relative to `scale`, by default to the largest expected value.

    Infinite if the shapes differ or a value is not finite.
    """
    if got.shape != expected.shape:
        return math.inf
    if not got.numel():
        return 0.0
    got, expected = got.detach().double(), expected.detach().double()
    apart = (got - expected).abs().max().item()
    scale = scale or expected.abs().max().item() or 1.0
    return apart / scale if math.isfinite(apart) and math.isfinite(scale) else math.inf
