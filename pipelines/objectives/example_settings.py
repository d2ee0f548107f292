"""What a recipe may say of data whose rows are labelled examples or images."""

from ..errors import UserError
from ..recipes.data_section import DERIVED_FROM_TEXT
from .base import Objective

# Settings of the data that are of plain text alone: (name, default).
SOURCES_OF_TEXT = (("source", None), ("mixture", []), ("streaming", False))
COLUMNS_OF_TEXT = (("text_field", "text"), ("document", "file"))


def check_examples(objective: Objective) -> None:
    """Raise UserError for settings of the data that are of plain text alone, where rows are examples or images."""
    data, is_task = objective.recipe.data, objective.section == "task"
    reads_text = data.derive in DERIVED_FROM_TEXT
    what, learner = ("labelled examples", "a task") if is_task else ("images", "an objective of images")
    for name, default in SOURCES_OF_TEXT:
        if getattr(data, name) != default and not reads_text:
            raise UserError(f"data.{name} does not go with {learner}; give {what} by data.files or data.dataset")
    for name, default in COLUMNS_OF_TEXT:
        if getattr(data, name) != default and not reads_text:
            raise UserError(
                f"data.{name} has no effect with {learner}; the {objective.section} section names the columns"
            )
