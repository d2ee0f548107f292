"""Optimizers that `training.optim` can name, with the properties that other code needs, such as the size of a state.

Nothing is assumed of an optimizer without a row, which comes from transformers or from a plug-in (plugins.py). This
module imports only the standard library, because recipes are checked with it.
"""

import pkgutil
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
        code: "module:class" of what builds it, such as Muon, imported when a run begins; None: transformers does.
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


def optimizer_of(name: str) -> Optimizer:
    """The row of `training.optim`; if there is none, a row with nothing but the name."""
    if name in ROWS:
        return ROWS[name]
    return Optimizer(name, FUSED if name in OPTIMIZERS else None)


def own_optimizer(section):
    """What builds the optimizer of a training section and tells of it, such as Muon; None: transformers builds it."""
    code = optimizer_of(section.optim).code
    return None if code is None else pkgutil.resolve_name(code)(section)
