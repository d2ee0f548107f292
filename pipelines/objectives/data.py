"""What is known before a model is made: facts about the model that a recipe names, and the prepared data of a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from anyformer.modeling.families import Family

from ..errors import loading
from ..recipes.introspection import family_row
from ..recipes.schema import Recipe

if TYPE_CHECKING:
    from ..data.rows import Rows
    from ..recipes.stage_plan import Stage
    from .answers import Answers
    from .base import Objective
    from .learns import Learns
    from .losses import OwnLoss
    from .reads import Reads
    from .scores import Scores


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the recipe's model.

    measured: the config of the finished model that is measured, whose classes the data must have; None: a training.
    split: the split that it is measured on.
    """

    recipe: Recipe
    measured: Any = None
    split: str = "train"

    @property
    def family(self) -> Family | None:
        """The model's family; None for a checkpoint."""
        return None if self.recipe.model.family is None else family_row(self.recipe.model.family)

    @cached_property
    def config(self) -> Any:
        """The checkpoint's config, or for fresh weights what the recipe says of one. Raises UserError if none loads."""
        from ..adapters import load_config
        from ..recipes.checks import config_namespace

        name = self.recipe.model.name_or_path
        if name is None:
            return config_namespace(self.recipe)
        with loading(f"model.name_or_path={name!r}"):
            return load_config(name, trust_remote_code=self.recipe.trust_remote_code)


@dataclass(frozen=True)
class Data:
    """The prepared data of an objective.

    processor: saved with the model: a tokenizer or an image processor. labels: what `reads` knows of the labels once it
    has seen all splits, such as Classes; None: there is nothing to know. rows: split -> Rows. facts: for run.json and
    the model card. sources: split -> what its rows were made of, as Reads.open gives it. stages: the stages of the
    recipe, each with the data of its length and its training rows. parts: label -> the data of a part, where several
    objectives are learned together. lesson: the loss that learns a teacher's answers, which are in the rows; None: the
    recipe has no teacher, or nothing is trained.
    """

    objective: "Objective"
    reads: "Reads"
    processor: Any = None
    labels: Any = None
    rows: "Mapping[str, Rows]" = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Any] = field(default_factory=dict)
    stages: "Sequence[tuple[Stage, Data, Rows]]" = ()
    parts: "Mapping[str, Data]" = field(default_factory=dict)
    lesson: "OwnLoss | None" = None

    def learns(self) -> "Learns":
        """What the model learns from these data."""
        return self.objective.Learns(self)

    def scores(self, keeps_scores: bool = False) -> "Scores":
        """The measures of the rows. keeps_scores: as Scores has it."""
        return self.objective.Scores(self, keeps_scores)

    def answers(self) -> "Answers":
        """What a finished model is asked."""
        return self.objective.Answers(self)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; None where the model reads no text."""
        return self.processor if self.objective.tokens is not None else None

    @property
    def collator(self) -> Callable[[list[dict]], dict]:
        """Makes a batch of rows; a `transformers.Trainer` takes it as `data_collator`."""
        return self.collator_of(is_packed(self))

    def collator_of(self, packed: bool) -> Callable[[list[dict]], dict]:
        """The collator of rows, some of which hold several documents (packed) or none does."""
        collate = self.reads.collator(self, packed)
        return collate if self.lesson is None else self.lesson.beside_rows(collate)


def is_packed(data: Data) -> bool:
    """Whether any row may hold more than one document."""
    return any(rows.is_packed for rows in (*data.rows.values(), *(rows for *_, rows in data.stages)))
