"""Optimizers that `training.optim` can name, with the properties that other code needs, such as the size of a state.

Nothing is assumed of an optimizer without a row, which comes from transformers or from a plug-in (plugins.py). This
module imports only the standard library, because recipes are checked with it.
"""

import pkgutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from ..plugins import OPTIMIZERS

FUSED = "adamw_torch_fused"


@dataclass(frozen=True)
class Optimizer:
    """An optimizer and its properties.

    Attributes:
        name: the value of training.optim.
        runs_as: the value of TrainingArguments.optim in place of a name that transformers does not know.
        meaning: the explanation of such a name in the help of training.optim.
        code: "module:class" of an OwnOptimizer, imported when a run begins; None: transformers builds the optimizer.
        elementwise: whether it updates each element of a weight independently, so that weights can be split anywhere.
        whole_matrices: whether its step needs whole matrices; DeepSpeed, which flattens weights, never has them.
        gathers: whether it assembles matrices that are sharded as DTensor (engines/split_matrices.py).
        bytes_per_parameter: size of its state, without the weights; None: not known.
        reads_arguments: whether it reads training.optim_args.
        rates: its further learning rates: {field of the training section and of the log: name for readers}.
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
    """Base class of the optimizers that anyformer itself builds; a subclass implements `build`.

    Its settings are training.optim_args (`section.extra`) or fields of TrainingSection.

    Args:
        row: the optimizer's row. section: the training section of the recipe.
    """

    def __init__(self, row: Optimizer, section):
        self.row, self.section = row, section

    @abstractmethod
    def build(self, model, decayed: set[str], arguments):
        """Return torch's optimizer of the trainable parameters; those named in `decayed` have weight decay.

        arguments: transformers' TrainingArguments.
        """

    def state_bytes(self, model) -> int:
        """Bytes of the optimizer's state for all trained parameters."""
        return (self.row.bytes_per_parameter or 0) * model.num_parameters(only_trainable=True)

    def words(self) -> str:
        """The optimizer's name and settings, as printed when a run begins."""
        return self.row.name

    def describe(self, model) -> str | None:
        """One line about what it does with this model; None: there is nothing to say."""
        return None

    def rates_of(self, optimizer) -> dict[str, float]:
        """{name in the log: current learning rate}; {}: all groups have the rate of the first."""
        return {}


def optimizer_of(name: str) -> Optimizer:
    """The row of `training.optim`; if there is none, a row with nothing but the name."""
    if name in ROWS:
        return ROWS[name]
    return Optimizer(name, FUSED if name in OPTIMIZERS else None)


def own_optimizer(section) -> OwnOptimizer | None:
    """The OwnOptimizer of a training section; None: transformers builds the optimizer."""
    row = optimizer_of(section.optim)
    return None if row.code is None else pkgutil.resolve_name(row.code)(row, section)
