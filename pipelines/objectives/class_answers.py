"""How single classes come off: the answers of the last pass over some rows, and the report that is made of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..lazy import np

if TYPE_CHECKING:
    from ..data.examples import Examples
    from ..data.rows import Rows


@dataclass
class Answers:
    """Arrays (N,), an entry for each answer, in the order of the rows: some bytes each.

    An answer is of an example, of tags of a word, of several classes of each class of an example. given, true: numbers
    of classes, or 0 and 1. confidence: float32, the probability of what is given. rows: which of the rows an entry is
    of, from 0; None: one each.
    """

    given: "np.ndarray"
    true: "np.ndarray"
    confidence: "np.ndarray"
    rows: "np.ndarray | None" = None

    def row(self, place: int) -> int:
        """Which of the rows the entry at a place is of."""
        return place if self.rows is None else int(self.rows[place])

    @property
    def count(self) -> int:
        return self.row(len(self.true) - 1) + 1


class ClassReports:
    """What tasks of classes share that report on single classes; those of several, or of words, differ in parts."""

    answers: Answers | None = None

    def class_report(self, rows: "Rows", numbers: Sequence[int], source: "Examples") -> dict[str, Any] | None:
        """{"unit", "classes", "matrix", "confused", "calibration", "mistakes"}, as metrics/class_report.py has them.

        unit: what is counted. mistakes: the wrong answers that were surest, {"row", "place", "confidence", "given",
        "true"} and "text" or "image" (a PNG in base64) of each. row: its number in the split. place: where it stands in
        the data, such as file and line.
        """
        from ..metrics.class_report import calibration, surest_mistakes

        if self.answers is None:
            return None
        found, right = self.answers, self.answers.given == self.answers.true
        chosen = surest_mistakes(found.confidence, right)
        if found.count < len(numbers):  # rows without a label have no answer
            numbers = [number for number in numbers if bool((rows[number]["labels"] >= 0).any())]
        of_rows, places = [numbers[found.row(place)] for place in chosen], {}
        if not rows.facts.get("empty"):  # of sentences without a word there is no row, and numbers are others
            places = places_of(source, [*self.columns().values()][-1], of_rows)
        return {
            "unit": self.unit,
            **self.judged_classes(),
            "calibration": calibration(found.confidence, right),
            "mistakes": [
                {"row": number, "place": places.get(number), "confidence": float(found.confidence[place])}
                | dict(zip(("given", "true"), self.said(place, rows[number])))
                | self.as_read(place, rows[number])
                for place, number in zip(chosen, of_rows)
            ],
        }

    @property
    def unit(self) -> str:
        """What the report counts."""
        return f"{self.row_noun}s"

    def judged_classes(self) -> dict[str, Any]:
        """ "classes", "matrix" and "confused" of the report."""
        from ..metrics.class_report import confusion, per_class

        found, names = self.answers, self.label_names
        return {"classes": per_class(names, found.given, found.true)} | confusion(names, found.given, found.true)

    def said(self, place: int, row: dict) -> tuple[str, str]:
        """(what was said, what is right) of an answer; row: that it is of."""
        return self.label_names[self.answers.given[place]], self.label_names[self.answers.true[place]]

    def as_read(self, place: int, row: dict) -> dict[str, str]:
        """The "text" or "image" of an answer's row, as the model reads it."""
        return {"text": " | ".join(texts_of_row(row["input_ids"].tolist(), self.tokenizer))}


def places_of(source: "Examples", column: str, numbers: Iterable[int]) -> dict[int, str]:
    """Where examples stand in their data, such as file and line, by number. column: one to read, beside no other."""
    wanted = set(numbers)
    counted = zip(range(max(wanted, default=-1) + 1), source.only(column))
    return {number: place for number, (place, _) in counted if number in wanted}


def texts_of_row(ids: Sequence[int], tokenizer) -> list[str]:
    """The texts of a row as the model reads them: what lies between its special tokens."""
    special = set(tokenizer.all_special_ids)
    runs = [list(run) for is_special, run in groupby(ids, special.__contains__) if not is_special]
    return [text for run in runs if (text := tokenizer.decode(run).strip())]
