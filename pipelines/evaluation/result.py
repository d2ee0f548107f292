"""What was measured of a saved model: facts for a file, and the line above its table."""

from dataclasses import dataclass, field

from ..reporting.interpret import between
from ..words import human_time, short_metric


@dataclass(kw_only=True)
class Result:
    """What was measured of a model, and on what. answers: of each example, for a file of their own."""

    model: str
    task: str
    data: str
    seconds: float
    versions: dict[str, str]
    answers: list[dict] = field(default_factory=list, repr=False)

    def facts(self) -> dict:
        """All but the single answers, as JSON."""
        return {name: value for name, value in vars(self).items() if name != "answers"}

    def head(self, what: str, how: str = "") -> str:
        """The line above the table: `runs/mine on sst2: 872 examples of sst2 (test), 0:12`. what: 872 examples."""
        split = f" ({self.split})" if hasattr(self, "split") else ""
        return f"{self.model} on {self.task}: {what} of {self.data}{split}{how}, {human_time(self.seconds)}"


def with_bounds(value: float, bounds: dict | None) -> str:
    """A metric for people, with its 95 % interval where it has one."""
    return short_metric(value) + (f"  {between(bounds['low'], bounds['high'])}" if bounds else "")
