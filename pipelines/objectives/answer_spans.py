"""Answers as spans of a text: windows over long texts, the tokens of an answer, the best spans of a model's scores."""

from collections.abc import Sequence

from ..lazy import torch

Span = tuple[int, int]  # begin and end of characters, or first and last token


def context_of(offsets: Sequence[Span], sequence_ids: Sequence[int | None]) -> Span:
    """(first, one after the last) of the tokens of a window that stand for the second text, the context."""
    inside = [
        place for place, number in enumerate(sequence_ids) if number == 1 and offsets[place][0] < offsets[place][1]
    ]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def tokens_of_answer(offsets: Sequence[Span], context: Span, answer: Span) -> Span | None:
    """First and last of the tokens that cover the characters of an answer; None where it is not all in the window."""
    first, after = context
    begin, end = answer
    covering = [place for place in range(first, after) if offsets[place][0] < end and offsets[place][1] > begin]
    if not covering:
        return None
    # Inside the window a character may be of no token, at its edges the answer may go on outside.
    begins_inside = covering[0] > first or offsets[first][0] <= begin
    ends_inside = covering[-1] < after - 1 or offsets[after - 1][1] >= end
    return (covering[0], covering[-1]) if begins_inside and ends_inside else None


def best_spans(start, end, context: Span, longest: int, number: int) -> list[tuple[float, int, int]]:
    """The `number` best (score, first token, last token) of a window, the best first.

    start, end: (T,) scores of each token as first and as last one of the answer; a span has the sum of the two. Spans
    lie inside the context and have at most `longest` tokens.
    """
    first, after = context
    size = after - first
    if size == 0:
        return []
    width = min(longest, size)
    ends = torch.nn.functional.pad(end[first:after].float(), (0, width - 1), value=-torch.inf)
    scores = start[first:after].float()[:, None] + ends.unfold(0, width, 1)  # (first token, tokens more)
    values, places = scores.flatten().topk(min(number, scores.numel()))
    found = zip(values.tolist(), places.tolist())
    return [(v, first + p // width, first + p // width + p % width) for v, p in found if v > -torch.inf]
