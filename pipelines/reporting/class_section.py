"""The scores of single classes in a run, for its page: classes.json, prepared for drawing."""

import json
from typing import Any

from .run_log import CLASSES_FILE, RunLog

MOST_WITH_NUMBERS = 20  # classes of a matrix whose cells have room for their numbers
MOST_DRAWN = 60
SPLITS = ("test", "validation")


def classes_of(log: RunLog) -> list[dict[str, Any]]:
    """The reports of a finished run's splits, the test split first: those of Scores.class_report, "split" and, if
    classes are confused, "picture" (`picture_of`). Empty where there is no report, or none that can be read."""
    file = log.folder / CLASSES_FILE
    if not log.is_finished or not log.run.get("metrics") or not file.is_file():  # without: of another model
        return []
    try:
        of_splits = json.loads(file.read_text(encoding="utf-8"))
        reports = [{"split": split, **of_splits[split]} for split in SPLITS if split in of_splits]
        return [one | ({"picture": picture_of(**one["matrix"])} if one.get("matrix") else {}) for one in reports]
    except (ValueError, KeyError, TypeError):
        log.damaged.append(f"{CLASSES_FILE} is damaged and not shown; anyformer evaluate measures the classes again")
        return []


def picture_of(names: list[str], counts: list[list[int]]) -> dict[str, Any]:
    """{"names", "rows": [(name, examples, cells)], "numbers", "left_out"} of a confusion matrix.

    A cell: (number, its share of the row, whether it is right, words). numbers: whether cells show theirs. left_out:
    classes beyond MOST_DRAWN; those with the most mistakes are drawn.
    """
    totals, columns = [sum(row) for row in counts], [sum(column) for column in zip(*counts)]
    wrong = [total + column - 2 * counts[n][n] for n, (total, column) in enumerate(zip(totals, columns))]
    shown = sorted(sorted(range(len(names)), key=lambda n: -wrong[n])[:MOST_DRAWN])

    def cell(row: int, column: int) -> tuple[int, float, bool, str]:
        number = counts[row][column]
        outcome = "right" if row == column else f"taken for {names[column]}"
        words = f"{names[row]}: {number:,} of {totals[row]:,} {outcome}"
        return number, number / max(1, totals[row]), row == column, words

    return {
        "names": [names[n] for n in shown],
        "rows": [(names[row], totals[row], [cell(row, column) for column in shown]) for row in shown],
        "numbers": len(shown) <= MOST_WITH_NUMBERS,
        "left_out": len(names) - len(shown),
    }
