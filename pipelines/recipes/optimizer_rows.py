"""Optimizers that `training.optim` can name: a row says what other code asks of one, such as the bytes of its states.

An optimizer of transformers without a row, or of a plug-in (plugins.py), is taken for one of which nothing is known.
Standard library only: recipes are checked by these rows.
"""

import pkgutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..plugins import OPTIMIZERS

if TYPE_CHECKING:
    import torch
    from transformers import TrainingArguments

FUSED = "adamw_torch_fused"


@dataclass(frozen=True)
class Optimizer:
    """What is known of an optimizer.

    Attributes:
        name: the value of training.optim.
        runs_as: for a name that transformers does not know: what TrainingArguments.optim is in its place.
        meaning: of such a name, in the help of training.optim.
        code: "module:class" of an OwnOptimizer, imported when a run begins; None: transformers builds the optimizer.
        elementwise: whether it looks at each number of a weight alone, so that it does not matter who holds which.
        whole_matrices: whether its step needs a matrix whole, as DeepSpeed, which flattens weights, never has it.
        gathers: whether it brings together matrices that processes share as DTensor (engines/split_matrices.py).
        bytes_per_parameter: of its states, beside the weights; None: not known.
        reads_arguments: whether it reads training.optim_args.
        rates: {field of the training section and of the log: word for readers} of learning rates of its own.
    """

    name: str
    runs_as: str | None = None
    meaning: str = ""
    code: str | None = None
    elementwise: bool = False
    whole_matrices: bool = False
    gathers: bool = False
    bytes_per_parameter: int | None = None
    reads_arguments: bool = True
    rates: dict[str, str] = field(default_factory=dict)


ROWS = {
    row.name: row
    for row in (
        Optimizer("adamw", FUSED, "fused", elementwise=True, bytes_per_parameter=8, reads_arguments=False),
        Optimizer(
            "muon",
            FUSED,
            "matrices by Muon, the rest by AdamW",
            code="anyformer.pipelines.training.optimizers:Muon",
            whole_matrices=True,
            gathers=True,
            bytes_per_parameter=8,
            reads_arguments=False,
            rates={"muon_learning_rate": "Muon"},
        ),
        Optimizer("adamw_torch", elementwise=True, bytes_per_parameter=8, reads_arguments=False),
        Optimizer(FUSED, elementwise=True, bytes_per_parameter=8, reads_arguments=False),
        Optimizer("sgd", elementwise=True, bytes_per_parameter=0),
        Optimizer("rmsprop", elementwise=True, bytes_per_parameter=4),
        Optimizer("adagrad", elementwise=True, bytes_per_parameter=4),
        Optimizer("lion_32bit", bytes_per_parameter=4),
        Optimizer("adamw_8bit", bytes_per_parameter=2),
        Optimizer("adamw_bnb_8bit", bytes_per_parameter=2),
        Optimizer("adamw_torch_8bit", bytes_per_parameter=2),
        Optimizer("lion_8bit", bytes_per_parameter=1),
    )
}
RATES = {field: word for row in ROWS.values() for field, word in row.rates.items()}


class OwnOptimizer(ABC):
    """An optimizer with code of its own, as a recipe's training section sets it. A subclass has `build`.

    Its own settings come by training.optim_args (`section.extra`), or are fields of TrainingSection.

    Args:
        row: its row. section: the training section of the recipe.
    """

    def __init__(self, row: Optimizer, section):
        self.row, self.section = row, section

    @abstractmethod
    def build(self, model, decayed: set[str], arguments: "TrainingArguments") -> "torch.optim.Optimizer":
        """The optimizer of the model's trainable parameters, of which those named in `decayed` have weight decay."""

    def state_bytes(self, model) -> int:
        """Bytes of its states of all trained parameters."""
        return (self.row.bytes_per_parameter or 0) * model.num_parameters(only_trainable=True)

    def words(self) -> str:
        """What a run's start says of it: its name, and settings."""
        return self.row.name

    def describe(self, model) -> str | None:
        """One line about what it does with this model; None: nothing is to be said."""
        return None

    def rates_of(self, optimizer: "torch.optim.Optimizer") -> dict[str, float]:
        """{name in the log: learning rate}, as the schedule has set them; {}: the first group's is that of all."""
        return {}


def optimizer_of(name: str) -> Optimizer:
    """The row of `training.optim`; where it has none, a row that knows nothing but the name."""
    if name in ROWS:
        return ROWS[name]
    return Optimizer(name, FUSED if name in OPTIMIZERS else None)


def own_optimizer(section) -> OwnOptimizer | None:
    """What builds a training section's optimizer where that has code of its own; None: transformers does."""
    row = optimizer_of(section.optim)
    return None if row.code is None else pkgutil.resolve_name(row.code)(row, section)
