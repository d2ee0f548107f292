"""The row of everything a model can learn, pretraining objectives and fine-tuning tasks alike, and its four parts.

An Objective is known before any data: its name, settings and their check, the model's head, words. What comes later
belongs to its parts, each with an interface of its own: Reads (reads.py) makes rows and batches, Learns (learns.py) the
loss, Scores (scores.py) the metrics, Answers (answers.py) what a finished model is asked. The other pipelines call
these and never test for an objective's name. Recipes are checked with this module before any work, so numpy and torch
are imported lazily (lazy.py), and modules that only a run needs are imported inside methods: each import delays every
command.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from ..errors import UserError
from ..plugins import METRICS, OWN_BATCHES, TEACHERS, WHOLE_MODEL, WHOLE_ROWS
from ..recipes.data_section import DERIVED_FROM_TEXT, reads_text
from ..recipes.introspection import check_beside, family_names, family_row
from ..recipes.row_words import Words
from ..recipes.schema import ObjectiveSettings, Recipe, doc
from .answers import Answers
from .data import ModelFacts
from .learns import Learns
from .reads import Reads
from .scores import Scores
from .tokens import Tokens, check_tokenizer

# Bounds of settings for `doc`: SHARE for shares and probabilities, TOKENS for the number of tokens of a text.
SHARE, TOKENS = {"at_least": 0, "at_most": 1}, {"at_least": 2, "at_most": 2**20}


@dataclass(frozen=True)
class Planned:
    """What `anyformer plan` counts.

    lengths: the most (tokens of a row that the model reads, tokens that an encoder-decoder's decoder writes); None: as
    many as the model has positions or an image has patches. sequences: that the model reads per row, such as 2 for
    pairs of texts. labelled: the share of a row's tokens that are predicted. fields: those of `Learns.config_fields`
    that change the number of weights, as far as the recipe alone determines them.
    """

    lengths: tuple[int | None, int | None]
    sequences: int = 1
    labelled: float = 1.0
    fields: Mapping[str, Any] = field(default_factory=dict)


class FamiliesWith:
    """`Objective.families`: all families with one of the given heads (Auto classes), by default the objective's."""

    def __init__(self, *heads: str):
        self.heads = heads

    def __get__(self, objective: "Objective | None", cls: "type[Objective]") -> tuple[str, ...]:
        heads = set(self.heads or (cls.auto_class,))
        return tuple(name for name in family_names() if heads & family_row(name).heads.keys())


class Objective:
    """What a model learns, bound to one recipe. A subclass is registered by `register_objective` (plugins.py).

    `anyformer list` prints the first line of its docstring. Class attributes:

    name: the objective's name in a recipe. section: the recipe's section that names it, "objective" (plain text or
    images) or "task" (labelled examples). Settings: dataclass of its settings, a subclass of ObjectiveSettings.
    Reads, Learns, Scores, Answers: the classes of its parts.
    auto_class: transformers' Auto class of the model; a property where it depends on the recipe's model, so read it
    from an instance. families: the families of fresh models, by default all with such a head; a checkpoint may be any.
    needs: what not every run offers: OWN_BATCHES (its rows share no batch with other objectives' rows: their batches
    hold further keys, or the loss is not the model's), WHOLE_MODEL (the last pipeline stage cannot compute the loss),
    WHOLE_ROWS (no row is split over processes).
    tokens: what its tokenizer needs (tokens.py); None: it reads no text. words: what people read about it.
    compares, also_compares: the kinds of values that its metrics compare (MetricRow.compares). default_metrics: the
    metrics where the recipe names none. gives: the columns of an answer to a row; its "score" is the probability of its
    "prediction".
    asks_for: the kind of the answers in `Reads.questions`, which few-shot evaluation puts to any language model:
    "classes", "numbers" or "texts"; None: no questions.
    parts: the objectives that it consists of, by label; empty for most objectives.
    continues_prompts: whether the finished model gets evaluation.sample_prompts.
    predicts_each_position: whether every token is predicted once, from the tokens before it, so that losses can be
    compared by text and by position.
    unsmoothed: what label smoothing has no effect on; "": it has an effect.
    unused_weights: prefixes of the names of weights that the model has and the objective does not use.
    row_labels: {name: shape in a row} of labels that are not one for each token (a word: a field of the config); None:
    a model that reads the row gives them.
    taught: what a teacher (teachers.py) can predict for its rows: "tokens", "classes", "tags", "vectors" or "nothing".
    """

    name: ClassVar[str]
    section: ClassVar[str] = "objective"
    Settings: ClassVar[type] = ObjectiveSettings
    Reads: ClassVar[type[Reads]]
    Learns: ClassVar[type[Learns]] = Learns
    Scores: ClassVar[type[Scores]] = Scores
    Answers: ClassVar[type[Answers]] = Answers
    auto_class: ClassVar[str]
    families: ClassVar[tuple[str, ...]] = FamiliesWith()
    needs: frozenset[str] = frozenset({OWN_BATCHES, WHOLE_MODEL, WHOLE_ROWS})
    tokens: ClassVar[Tokens | None] = None
    words: Words = Words()
    compares: ClassVar[str | None] = None
    also_compares: ClassVar[tuple[str, ...]] = ()
    default_metrics: ClassVar[tuple[str, ...]] = ()
    gives: ClassVar[tuple[str, ...]] = ("prediction",)
    asks_for: str | None = None
    parts: "Mapping[str, Objective]" = MappingProxyType({})
    continues_prompts: ClassVar[bool] = False
    predicts_each_position: ClassVar[bool] = False
    unsmoothed: ClassVar[str] = ""
    unused_weights: ClassVar[tuple[str, ...]] = ()
    row_labels: ClassVar[Mapping[str, tuple[int | str, ...]] | None] = MappingProxyType({})
    taught: ClassVar[str] = "nothing"

    def __init_subclass__(cls, **kwargs):
        """Derive the subclass's Settings with a field `name`, whose default is the objective's name."""
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            body = {"__annotations__": {"name": str}, "name": doc("what the model learns", cls.name)}
            body |= {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Settings"}
            cls.Settings = dataclass(type("Settings", (cls.Settings,), body))

    def __init__(self, recipe: Recipe):
        self.recipe, self.settings, self.seed = recipe, recipe.learned, recipe.training.seed
        self.facts, self.words = ModelFacts(recipe), self.words.of(self.settings)

    @property
    def setting(self) -> str:
        """How errors name the objective: `objective.name=masked`."""
        return f"{self.section}.name={self.name}"

    @classmethod
    def metric_names(cls) -> list[str]:
        """The metrics that the objective can report in addition to the loss."""
        kinds = (cls.compares, *cls.also_compares)
        fitting = {name: row for name, row in METRICS.items() if any(map(row.fits, kinds))}
        return [name for name, row in fitting.items() if cls.predicts_each_position or not row.every_token]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that are reported in addition to the loss."""
        return self.recipe.evaluation.metrics

    def metrics_of_answers(self) -> list[str]:
        """The metrics that are computed from answers; validations do so if one is evaluation.best_metric."""
        return []

    def check(self) -> None:
        """Raise UserError for the first setting of the recipe that does not go with this objective."""
        from ..metrics import check_tokenize

        if not reads_text(self):
            _check_examples(self)
        check_tokenize(self.recipe.evaluation.bleu_tokenize, self.metric_names())
        why = f"has no effect with {self.setting}, which does not learn to continue a text; remove it"
        check_beside("evaluation", self.recipe.evaluation, [("sample_prompts", not self.continues_prompts, why)])
        why = f"has no effect on {self.unsmoothed}; remove it"
        check_beside("training", self.recipe.training, [("label_smoothing_factor", bool(self.unsmoothed), why)])
        if self.recipe.teacher is not None:
            TEACHERS[self.taught](self.Reads(self)).check()

    def check_tokenizer(self) -> None:
        """Raise UserError for a tokenizer section that does not go with the objective."""
        check_tokenizer(self)

    def check_metrics(self, names: Sequence[str] | None = None) -> None:
        """Raise UserError for a metric that this objective cannot report.

        names: of the classes, once they are known; None: those of the settings, if it has such a setting.
        """
        from ..metrics import check_metrics

        names = names or getattr(self.settings, "label_names", None)
        check_metrics(self.metrics, self.metric_names(), self.setting, len(names) if names else None)

    def for_rows(self, asked: Sequence[dict[str, Any]] | None = None) -> "Objective":
        """The objective with what its settings leave to the content of the rows; by default itself.

        asked: some rows to answer; None: those of the recipe's data. Raises UserError where they cannot be read.
        """
        return self

    # ---- known before any data is read: what `anyformer plan` counts

    def lengths(self) -> dict[str, int | None]:
        """{setting: its value} of the settings that bound how many tokens the model reads or writes at once."""
        names = ("sequence_length", "max_length", "max_target_length")
        return {name: getattr(self.settings, name) for name in names if hasattr(self.settings, name)}

    def planned(self) -> Planned:
        """What is known of the rows and the model before any data."""
        most = max((length for length in self.lengths().values() if length is not None), default=None)
        return Planned((most, most))


def refuse_idle(objective: Objective, names: Sequence[str], because: str, belongs_to: str) -> None:
    """Raise UserError for the first of the settings `names` that is set although it has no effect.

    because: the setting and value with which they have no effect; belongs_to: the one with which they have.
    """
    why = f"has no effect with {because}; it belongs to {belongs_to}"
    check_beside(objective.section, objective.settings, [(f"{name}=", True, why) for name in names])


def _check_examples(objective: Objective) -> None:
    """Raise UserError for data settings that only plain text has, in an objective whose rows are examples or images."""
    data, is_task = objective.recipe.data, objective.section == "task"
    reads_text = data.derive in DERIVED_FROM_TEXT
    noun, learner = ("labelled examples", "a task") if is_task else ("images", "an objective of images")
    for name, default in () if reads_text else (("source", None), ("mixture", []), ("streaming", False)):
        if getattr(data, name) != default:
            raise UserError(f"data.{name} does not go with {learner}; give {noun} by data.files or data.dataset")
    why = f"has no effect with {learner}; the {objective.section} section names the columns"
    check_beside("data", data, [("text_field", not reads_text, why), ("document", not reads_text, why)])
