"""The part of an objective that belongs to the training of a model: its config, its loss, its files."""

from typing import TYPE_CHECKING, Any

from .data import Data

if TYPE_CHECKING:
    from .losses import OwnLoss


class Learns:
    """What a model learns from the data: fields of its config, its loss, files beside it.

    shifts_labels: whether labels are aligned with the input ids, so that the model shifts them by one.
    """

    shifts_labels: bool = False

    def __init__(self, data: Data):
        self.objective, self.data, self.tokenizer = data.objective, data, data.tokenizer
        self.recipe, self.settings = self.objective.recipe, self.objective.settings

    def config_fields(self) -> dict[str, Any]:
        """Fields that the objective sets in the model's config."""
        return dict(self.objective.planned().fields)

    def adapt(self, model: Any) -> None:
        """Change a model before it is trained or measured, such as its generation config."""

    def loss(self) -> "OwnLoss | None":
        """The loss of the model's outputs; None: the model computes its own."""
        return None

    def loss_parts(self) -> Any | None:
        """An object that splits the loss of a model with several heads into parts, for the log; None: it has one part.

        It has `losses`, the names of the parts, whose means add up to the loss, the first a mean over labels; and
        sums(outputs, batch, num_items_in_batch) -> {name: (sum, count)}, tensors without gradients, for these parts and
        for further means, such as an accuracy; and logits_of(outputs) -> logits (..., C) for the batch's labels (...).
        """
        return None

    def files(self, config: Any) -> dict[str, str]:
        """Further files for the finished model's folder, {path: text}, such as what other libraries load it by."""
        return {}
