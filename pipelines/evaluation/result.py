"""The result of measuring a saved model: facts for a file, answers for another, and the line above its table."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..objectives.prepare import cache_of
from ..recipes.schema import Recipe
from ..recipes.secrets import without_signatures
from ..reporting.interpret import between
from ..reporting.run_log import RUN_FILE, read_run
from ..storage.atomic import write_atomically
from ..storage.json_text import json_text
from ..storage.record import Record, package_versions
from ..words import human_time, short_metric

VALIDATION = "validation_"
# Reads the examples once more: of each "place", the file and line, and the texts that the model is asked.
Asked = Callable[[], Iterable[dict[str, Any]]]


@dataclass(frozen=True)
class Began:
    """The beginning of a measurement. at: by time.time(). record: of the model and the data before they were read."""

    at: float
    record: Record
    settings: dict[str, Any]

    @classmethod
    def now(cls, recipe: Recipe, settings: dict | None = None) -> "Began":
        """A measurement that begins now. settings: those that are not in the recipe."""
        cache_of(recipe)  # where the hashes of the data are kept
        known = recipe.to_dict() | {"settings": settings}
        return cls(time.time(), Record.now(recipe.model.name_or_path, known), known)

    def facts(self, recipe: Recipe) -> dict[str, Any]:
        """The seconds since then and the record, for a result's JSON.

        Raises UserError where the model or the data has been changed meanwhile.
        """
        self.record.check_still(recipe.model.name_or_path, "MODEL", self.settings)
        return {"seconds": round(time.time() - self.at, 1)} | self.record.facts()


class Measured:
    """What `anyformer evaluate` has measured. A subclass has facts(), plain data for JSON, and show(), which prints.

    answers: one for each example, which are written to a separate file. asked: reads the examples in the order by which
    answers number them; None: answers say what was asked.
    """

    answers: Sequence[dict] = ()
    asked: Asked | None = None

    def draw(self, picture: Path) -> bool:
        """Draw the result into a PNG file; return whether there is something to draw."""
        return False


class Result(Measured):
    """The result of measuring a model. Attributes: model, task, data, seconds, versions, and those in `facts`.

    began: made before anything was read.

    Raises UserError where the model or the data has been changed meanwhile.
    """

    seconds: float

    def __init__(self, recipe: Recipe, data: str, began: Began, answers: list[dict], /, **facts: Any):
        self.model, self.task, self.data, self.answers = recipe.model.name_or_path, recipe.name, data, answers
        self.versions = package_versions()
        vars(self).update(began.facts(recipe), **facts)

    def facts(self) -> dict:
        """Everything but the single answers and examples, as plain data for JSON."""
        return {name: value for name, value in vars(self).items() if name not in ("answers", "asked")}

    def head(self, what: str, how: str = "") -> str:
        """The line above the table: `runs/mine on sst2: 872 examples of sst2 (test), 0:12`. what: 872 examples."""
        split = f" ({self.split})" if hasattr(self, "split") else ""
        return f"{self.model} on {self.task}: {what} of {self.data}{split}{how}, {human_time(self.seconds)}"


def with_examples(answers: Sequence[dict], asked: Asked | None) -> Sequence[dict]:
    """Answers with what the model was asked.

    Answers of several parts are returned unchanged, because a mixture numbers its rows anew.
    """
    if asked is None or any("part" in answer for answer in answers):
        return answers
    numbers = {answer["row"] for answer in answers}
    examples = {number: example for number, example in enumerate(asked()) if number in numbers}
    return [{"row": answer["row"]} | examples.get(answer["row"], {}) | answer for answer in answers]


def asked_of(reads, examples: Callable[[], Iterable[tuple[str, dict]]]) -> Asked | None:
    """The reader of examples (place, columns) of an objective's Reads, if it asks for anything."""
    if not reads.objective.Answers.head:
        return None

    def asked() -> Iterator[dict[str, Any]]:
        columns = None
        for place, row in examples():
            columns = columns or list(reads.asked_columns(row).values())
            yield {"place": place} | {column: row[column] for column in columns if isinstance(row[column], str | list)}

    return asked


def validation_of(model: str) -> dict[str, float]:
    """{metric: value} of the validation at the end of a run; {} of a model that is no run."""
    folder = Path(model).expanduser()
    metrics = read_run(folder).metrics if (folder / RUN_FILE).is_file() else {}
    return {name.removeprefix(VALIDATION): value for name, value in metrics.items() if name.startswith(VALIDATION)}


def metric_cells(metrics: dict[str, float], intervals: dict[str, dict]) -> list[list[str]]:
    """The name of each metric, and its value with its 95 % interval where it has one."""
    return [[name.replace("_", " "), with_bounds(value, intervals.get(name))] for name, value in metrics.items()]


def with_bounds(value: float, bounds: dict | None) -> str:
    return short_metric(value) + (f"  {between(bounds['low'], bounds['high'])}" if bounds else "")


def write_json(facts: dict, path: Path) -> None:
    """Write a result as JSON, complete or not at all, its URLs without signatures."""
    write_atomically(path, json_text(without_signatures(facts)) + "\n")


def write_lines(rows: Sequence[dict], path: Path) -> None:
    """Write rows as JSONL, complete or not at all."""
    write_atomically(path, "".join(json_text(row, None) + "\n" for row in rows))
