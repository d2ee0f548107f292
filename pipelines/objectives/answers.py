"""The part of an objective that a finished model is asked by: rows without labels, prompts, pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..data.account import Account
from .data import Data

if TYPE_CHECKING:
    from ..data.rows import Rows
    from .scores import Scored

SAMPLES = 3  # generated texts that are shown at the end


@dataclass
class FinishedModel:
    """A trained model and how to run it, for metrics and samples that a pass over the rows does not give.

    path: folder or Hub name that it loads from. load: loads it, in evaluation mode, on its device. batch_size: rows
    per forward pass. index, count: this process among those that share the work. gather: a list of this process's
    results -> that of all processes.
    """

    path: str
    load: Callable[[], Any]
    batch_size: int
    index: int = 0
    count: int = 1
    gather: Callable[[list], list] = field(default=list)

    @cached_property
    def model(self):
        """The model, loaded when it is first asked for."""
        return self.load()

    def shared(self, numbers: Sequence[int], answer: Callable[[list[int]], list]) -> list:
        """`answer(numbers)`, in the order of `numbers`; each process computes a share of it."""
        mine = list(numbers[self.index :: self.count])
        results = dict(self.gather(list(zip(mine, answer(mine)))))
        return [results[number] for number in numbers]


class Answers:
    """What is asked of a model, and what it answers.

    head: the Auto class of the model that answers rows without labels; "": none does, and an objective that is chosen
    by the model's head answers instead (of_heads.py). finishes_on: the processes that use the finished model at the end
    of a run: "none", "one" or "all". account: of the rows that `asked` has read and `predict` has answered.
    """

    head: ClassVar[str] = ""
    finishes_on: str = "none"

    def __init__(self, data: Data):
        self.objective, self.data, self.processor, self.tokenizer = data.objective, data, data.processor, data.tokenizer
        self.recipe, self.settings = self.objective.recipe, self.objective.settings
        self.account = Account()

    def check_prompts(self, most: int) -> None:
        """Raise UserError for a prompt of the recipe that leaves a model of `most` positions no room for an answer."""

    def asked(self, row: dict, place: str) -> Any:
        """What the model reads of a row without a label, in the form that `predict` takes. Raises UserError."""
        raise TypeError(f"{type(self).__name__} answers no rows; what the model's head says does (of_heads.py)")

    def predict(self, finished: FinishedModel, asked: list) -> list[dict[str, Any]]:
        """The answers {"prediction": ..., further columns} to some rows. asked: what `asked` returned for each."""
        raise TypeError(f"{type(self).__name__} answers no rows; what the model's head says does (of_heads.py)")

    def samples(self, finished: FinishedModel, splits: "dict[str, Rows]", scored: "Scored | None") -> list[dict]:
        """Outputs of the finished model to show: {"prompt", "text", and "reference" where there is one}.

        scored: what Scores.of_answers returned for the last of the splits; None: nothing was measured.
        """
        return [] if scored is None else list(scored.samples)

    def draw(self, finished: FinishedModel, rows: "Rows", path: Path) -> bool:
        """Write a picture of the model's outputs for some rows to `path`; return whether there is one."""
        return False
