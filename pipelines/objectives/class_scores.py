"""Scores of tasks whose labels are classes, and the report on single classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..lazy import np, torch
from ..plugins import METRICS
from .scores import Scored, Scores
from .showing import as_png

if TYPE_CHECKING:
    from ..data.examples import Examples
    from ..data.rows import Rows

MOST_PIXELS = 96  # on a side of an image in a report


@dataclass(frozen=True)
class Judged:
    """The model's answers in one pass over rows: arrays (N,) with an entry per answer, in the order of the rows.

    There is one answer per example; with tags one per word, with several classes one per class of each example. given,
    true: predicted and right class numbers, or 0 and 1. confidence: float32, the probability of the predicted answer.
    rows: index of each answer's row in the pass, from 0; None: row i has answer i.
    """

    given: "np.ndarray"
    true: "np.ndarray"
    confidence: "np.ndarray"
    rows: "np.ndarray | None" = None

    def row(self, place: int) -> int:
        """The index of the row that the answer at index `place` belongs to."""
        return place if self.rows is None else int(self.rows[place])


class ClassScores(Scores):
    """Metrics of rows with one class; where classes have no names, as choices, there is no report on them.

    unit: what the class report counts, where that is not rows.
    """

    predicts = "row"
    unit: str = ""

    def predictions(self, logits, labels):
        """Logits (B, C), labels (B,) -> float32 (B, 3): predicted class, right class, the predicted one's probability.

        (B, 2 + C), with the probabilities of all classes, where a metric needs them or `keeps_scores` is set.
        """
        shares = logits.float().softmax(-1)
        needs_all = any(METRICS[name].compares == "probabilities" for name in self.objective.metrics)
        if not self.keeps_scores and not needs_all:
            shares = shares.amax(-1, keepdim=True)
        return torch.cat([torch.stack([logits.argmax(-1), labels], dim=-1).float(), shares], dim=-1)

    def scored(self, predictions) -> Scored:
        """Metrics of the predictions of all rows, an array of shape (rows, 3) or (rows, 2 + C)."""
        predicted, true = predictions[:, :2].astype("int32").T
        judged = Judged(predicted, true, predictions[:, 2:].max(-1))
        probabilities = predictions[:, 2:] if predictions.shape[1] > 3 else None
        return self._compare(predicted.tolist(), true.tolist(), probabilities, judged=judged)

    def named(self, value: int) -> str | int:
        return value if self.data.labels is None else self.data.labels.names[value]

    # ---- the report on single classes after a pass over some rows

    def class_report(
        self, scored: Scored | None, rows: "Rows", numbers: Sequence[int], source: "Examples"
    ) -> dict[str, Any] | None:
        """{"unit", "classes", "matrix", "confused", "calibration", "mistakes"}, as metrics/class_report.py makes them.

        unit: what is counted. mistakes: the most confident wrong answers, each {"row", "place", "confidence", "given",
        "true"} and "text" or "image" (a PNG in base64). row: the row's number in the split. place: where the example
        stands in the data, such as file and line.
        """
        from ..metrics.class_report import calibration, surest_mistakes

        if scored is None or self.data.labels is None:
            return None
        judged, right = scored.judged, scored.judged.given == scored.judged.true
        chosen = surest_mistakes(judged.confidence, right)
        if judged.row(len(right) - 1) + 1 < len(numbers):  # rows without a label have no answer
            numbers = [number for number in numbers if bool((rows[number]["labels"] >= 0).any())]
        of_rows = [numbers[judged.row(place)] for place in chosen]
        examples = zip(range(max(of_rows, default=-1) + 1), self.data.reads.with_rows(self.data, source))
        places = {number: place for number, (place, _) in examples if number in of_rows}
        return {
            "unit": self.unit or f"{self.objective.words.row}s",
            **self._judged_classes(judged),
            "calibration": calibration(judged.confidence, right),
            "mistakes": [
                {"row": number, "place": places[number], "confidence": float(judged.confidence[place])}
                | dict(zip(("given", "true"), self._said(judged, place, rows[number])))
                | self._as_read(judged, place, rows[number])
                for place, number in zip(chosen, of_rows)
            ],
        }

    def _judged_classes(self, judged: Judged) -> dict[str, Any]:
        """ "classes", "matrix" and "confused" of the report."""
        from ..metrics.class_report import confusion, per_class

        names = self.data.labels.names
        return {"classes": per_class(names, judged.given, judged.true)} | confusion(names, judged.given, judged.true)

    def _said(self, judged: Judged, place: int, row: dict) -> tuple[str, str]:
        """(the model's answer, the right answer) in words. place: index into `judged`. row: the answer's row."""
        return self.data.labels.names[judged.given[place]], self.data.labels.names[judged.true[place]]

    def _as_read(self, judged: Judged, place: int, row: dict) -> dict[str, str]:
        """The "text" or "image" of an answer's row, as the model reads it."""
        if "pixel_values" in row:
            return {"image": as_png(row["pixel_values"], MOST_PIXELS)}
        return {"text": " | ".join(texts_of_row(row["input_ids"].tolist(), self.tokenizer))}


def texts_of_row(ids: Sequence[int], tokenizer) -> list[str]:
    """The texts of a row as the model reads them: what lies between its special tokens."""
    special = set(tokenizer.all_special_ids)
    runs = [list(run) for is_special, run in groupby(ids, special.__contains__) if not is_special]
    return [text for run in runs if (text := tokenizer.decode(run).strip())]
