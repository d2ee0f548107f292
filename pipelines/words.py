"""Words for people: numbers with their nouns, and facts as aligned lines."""

import math
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NewType

from .freed_memory import give_back

BETWEEN_LINES = 60  # seconds
Epochs = NewType("Epochs", str)  # a setting in passes over the data, such as `0.5 epochs`


def epochs_of(text: str) -> float | None:
    """2.0 of `2 epochs`, 1.0 of `epoch`; None for another text."""
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)\s+)?epochs?", text)
    return (float(match[1] or 1) or None) if match else None


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """1 -> `1 document`, 2345 -> `2,345 documents`; `nouns` is the plural if it is irregular."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


def at_limit(number: int, total: int, limit: str) -> str:
    """`12 of 5,452 reach max_length=64`: how many have the largest length; longer ones were cut to it."""
    return f"{number:,} of {total:,} reach{'es' if number == 1 else ''} {limit}" if number else f"none reaches {limit}"


def short_number(count: float) -> str:
    """Return a count as people say it: 4_981_248 -> '4.98M'."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if (rounded := float(f"{count:.3g}")) >= size:
            return f"{rounded / size:.3g}{unit}"
    return f"{count:.0f}"


def human_time(seconds: float) -> str:
    """90 -> '1:30', 3725 -> '1:02:05'."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def short_metric(value: float) -> str:
    """A metric for people: 0.8620, 60.3, 12,345.6."""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"


def with_deviation(mean: float, deviation: float | None) -> str:
    """A mean with its standard deviation, both to the second digit of the latter: 727 ± 13, 0.800 ± 0.012."""
    if not deviation or not math.isfinite(deviation):
        return short_metric(mean) + ("" if deviation is None else f" ± {deviation:g}")
    digits = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


def number_in_words(value: float) -> str:
    """Any number for people: 1,024, 12.3, 0.0510, 3.00e-04."""
    if value and abs(value) < 0.001:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def aligned(facts: Iterable[tuple[str, str]], width: int | None = None) -> str:
    """Facts (label, text) as lines whose texts stand below each other, broken at words; width None: not broken."""
    facts = list(facts)
    margin = max(len(label) for label, _ in facts) + 2
    lines = []
    for label, text in facts:
        head = f"{label:>{margin - 2}}: "
        for line in text.splitlines():
            broken = [line] if width is None else textwrap.wrap(line, max(20, width - margin), break_on_hyphens=False)
            for part in broken:
                lines.append(head + part)
                head = " " * margin
    return "\n".join(lines)


def watched(items: Sequence, what: str) -> Iterator:
    """The items one by one; memory that the work on an item frees is given back. The first process shows how many are
    done: on a terminal by a bar that goes away at the end, elsewhere by a line on standard error every minute."""
    for item in _shown(items, what):
        yield item
        give_back()


def _shown(items: Sequence, what: str) -> Iterator:
    if is_shown():
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, transient=True) as bar:
            yield from bar.track(items, description=what)
    elif os.environ.get("RANK", "0") != "0":
        yield from items
    else:
        began = said = time.monotonic()
        for done, item in enumerate(items):
            now = time.monotonic()
            if done and now - said >= BETWEEN_LINES:
                left = human_time((now - began) / done * (len(items) - done))
                print(f"{what} {done:,} of {len(items):,}, {left} left", file=sys.stderr, flush=True)
                said = now
            yield item


def say(sentences: str | Iterable[str]) -> None:
    """Print lines for the user on standard error, because programs may read the output; once for all processes."""
    sentences = [sentences] if isinstance(sentences, str) else sentences
    for sentence in sentences if os.environ.get("RANK", "0") == "0" else ():
        print(f"anyformer: {sentence}", file=sys.stderr, flush=True)


@cache
def say_once(sentence: str) -> None:
    """Print a line on standard error, once in a process, and in one process of a run."""
    say(sentence)


def is_shown() -> bool:
    """Whether bars of work that is being done are drawn: on a terminal, by the first process."""
    return sys.stdout.isatty() and os.environ.get("RANK", "0") == "0"


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on the terminal of the first process what is being done, with the seconds it has taken, until it is done."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, disable=not is_shown(), transient=True) as bar:
        bar.add_task(what, total=None)
        yield
