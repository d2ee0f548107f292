"""What people read about an objective or task: names of its rows, its loss, its samples and its finished model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any


def your_text(settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The example of a model that reads a text."""
    return "your text", {}


@dataclass(frozen=True)
class Words:
    """Words of an objective. `step` and `use` may name settings: "rows x {0.sequence_length} tokens".

    row: what a row is called. step: the unit of a batch's size, printed after a number; "": rows. loss: the unit of the
    loss. sample: the heading above a sample, with the `prompt` in it. answers: whether a sample answers its prompt;
    otherwise it continues it. use: the command that runs the finished model, with {folder} in it. picture: the file in
    the run's folder that is shown as its sample. example: from the settings of a saved recipe to an example (input,
    options) for transformers' pipeline. hub_task: the Hub's pipeline tag of the model, where its head does not imply
    it. hub_tags: further tags of a published model.
    """

    row: str = "row"
    step: str = ""
    loss: str = "nats per token"
    sample: str = "sample after {prompt!r}"
    answers: bool = False
    use: str = "anyformer train RECIPE model.name_or_path={folder}"
    picture: str | None = None
    example: Callable[[Mapping[str, Any]], tuple[Any, dict[str, Any]]] = your_text
    hub_task: str | None = None
    hub_tags: tuple[str, ...] = ()

    def of(self, settings: Any) -> "Words":
        """The words with the values of the settings that they name."""
        step = self.step or f"{self.row}s"
        return replace(self, step=step.format(settings), use=self.use.format(settings, folder="{folder}"))


# Of tasks that answer examples of a file.
PREDICTS = Words(row="example", loss="nats per example", use="anyformer predict {folder} FILE")
