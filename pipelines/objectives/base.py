"""The interface of everything a model can learn: pretraining objectives and fine-tuning tasks alike.

An Objective owns every decision that depends on what is learned: its settings, the data it reads, rows and batches,
the model's head, metrics, what is shown at the end. The rest of the pipelines calls this interface and asks for no
names. Recipes are checked with it before any work, so numpy and torch are those of lazy.py; what only a run needs is
imported here inside methods, because each file that a command enters takes time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from anyformer.modeling.families import Family

from ..errors import UserError, loading
from ..plugins import METRICS
from ..recipes.data_section import DERIVED_FROM_TEXT
from ..recipes.introspection import family_names, family_row
from ..recipes.schema import DataSection, ObjectiveSettings, Recipe, doc
from ..recipes.types import default_of, show
from ..words import counted
from .measuring import Measuring

if TYPE_CHECKING:
    from ..data.documents import Share
    from ..data.rows import Rows
    from .losses import OwnLoss

# Bounds of settings, as `doc` takes them: of shares and probabilities, and of the tokens of a text.
SHARE, TOKENS = {"at_least": 0, "at_most": 1}, {"at_least": 2, "at_most": 2**20}


class FamiliesWith:
    """`Objective.families`: those with one of these heads (Auto classes), by default with that of the objective."""

    def __init__(self, *heads: str):
        self.heads = heads

    def __get__(self, objective: "Objective | None", cls: "type[Objective]") -> tuple[str, ...]:
        heads = set(self.heads or (cls.auto_class,))
        return tuple(name for name in family_names() if heads & family_row(name).heads.keys())


class Objective(Measuring, ABC):
    """What a model learns, bound to one recipe. A subclass is registered by `register_objective` (plugins.py).

    The first line of its docstring is what `anyformer list` prints. Class attributes:

    name: what the recipe's section names. section: that section, "objective" (plain text or images) or "task"
    (labelled examples). Settings: dataclass of its own settings, a subclass of ObjectiveSettings.
    auto_class: transformers' Auto class of the model; a property where it depends on the recipe's model, so ask an
    instance. families: of fresh models; a checkpoint may be any. By default those that have such a head.
    special_tokens: what a tokenizer trained for it puts around a text ("none", "cls_sep" or "eos"; see
    recipes/special_tokens.py); None: it reads no text. sentinels: further tokens <extra_id_N> that it needs.
    shifts_labels: whether labels stand beside their own token and the model shifts them by one.
    compares: what its metrics compare, in the words of the registry of metrics. default_metrics: where the recipe
    names none. validates_metrics: whether validations during training measure them all (`metrics_of_validations`).
    asks_for: what any language model can be asked for, whose examples `questions` gives: "classes" (it then has
    `label_names`), "numbers", "texts", or "" (nothing). answer_column: the column of these answers.
    parts: the objectives that it is made of, by their names; of most objectives there are none.
    continues_prompts: whether evaluation.sample_prompts are put to the finished model.
    predicts_each_position: whether every token is predicted once, from those before it: then texts can be compared, and
    positions.
    hub_task: the Hub's name of what the model is for, where its head does not say it. loss_unit: what the loss counts.
    samples_are_answers: whether a sample answers its prompt; otherwise it continues it. sample_words: what stands
    before the prompt in the heading above a sample. picture: file of the run's folder that is shown as its sample.
    row_noun: what a row is called. legend_words: what the marks of `show` mean, as showing.legend takes it. use: the
    command that puts the finished model to work, {folder} in it. sequences_per_row: how many the model reads for it,
    such as both texts of a pair. unused_weights: how the names of weights begin that the model has and the objective
    makes no use of. hub_tags: tags of a published model, beside our own.
    share_of_usual_rate: of the learning rate that is usual for the model (recipes/usual_rates.py).
    shares_batches: whether its rows may stand in a batch beside other objectives' (mixture.py): they are of plain text,
    its batches hold what mixture.KEYS names alone, and the loss is the model's.
    in_stages: whether the last stage of a pipeline can compute its loss: that of a causal model, from its batch alone.
    finishes_on: the processes on which `finish` has something to do with the saved model: "none", "one" or "all".
    answers_by: the Auto class of the model that answers rows without labels (`predict`); "": it answers none, and what
    the model's head says is asked in its place (of_heads.py).
    taught: what a teacher (teachers.py) can say of its rows: "tokens", "classes", "tags", "vectors" or "nothing".
    stratified_by: the column of each example's class, of which parts of the data may get their shares; None: none.
    in_parts_of_rows: whether processes may each hold a part of a row, whose labels stand beside their own tokens.

    After `prepare`: `processor` is saved with the model (a tokenizer or an image processor), `tokenizer` is it or None.
    """

    name: ClassVar[str]
    section: ClassVar[str] = "objective"
    Settings: ClassVar[type] = ObjectiveSettings
    auto_class: ClassVar[str]
    families: ClassVar[tuple[str, ...]] = FamiliesWith()
    special_tokens: ClassVar[str | None] = None
    sentinels: ClassVar[int] = 0
    shifts_labels: ClassVar[bool] = False
    compares: ClassVar[str | None] = None
    default_metrics: ClassVar[tuple[str, ...]] = ()
    validates_metrics: ClassVar[bool] = False
    asks_for: str = ""
    answer_column: str | None = None
    label_names: list[str] = []
    parts: Mapping[str, "Objective"] = MappingProxyType({})
    continues_prompts: ClassVar[bool] = False
    predicts_each_position: ClassVar[bool] = False
    hub_task: ClassVar[str | None] = None
    loss_unit: ClassVar[str] = "nats per token"
    samples_are_answers: ClassVar[bool] = False
    sample_words: ClassVar[str] = "sample after"
    picture: ClassVar[str | None] = None
    row_noun: ClassVar[str] = "row"
    legend_words: str = ""
    use: ClassVar[str] = "anyformer train RECIPE model.name_or_path={folder}"
    sequences_per_row: int = 1
    unused_weights: ClassVar[tuple[str, ...]] = ()
    hub_tags: ClassVar[tuple[str, ...]] = ()
    share_of_usual_rate: ClassVar[float] = 1.0
    shares_batches: ClassVar[bool] = False
    in_stages: ClassVar[bool] = False
    finishes_on: str = "none"
    taught: ClassVar[str] = "nothing"
    in_parts_of_rows: ClassVar[bool] = False
    answers_by: str = ""
    stratified_by: str | None = None

    def __init_subclass__(cls, **kwargs):
        """Give the subclass's Settings its name as the default of `name`."""
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            body = {"__annotations__": {"name": str}, "name": doc("what the model learns", cls.name)}
            body |= {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Settings"}
            cls.Settings = dataclass(type("Settings", (cls.Settings,), body))

    def __init__(self, recipe: Recipe):
        self.recipe, self.settings, self.seed = recipe, recipe.learned, recipe.training.seed
        self.processor: Any = None
        self.signatures: dict[str, str] = {}  # metric -> settings and versions that its number depends on

    @property
    def tokenizer(self):
        """The tokenizer; None where the model reads no text."""
        return self.processor if self.special_tokens is not None else None

    @property
    def family(self) -> Family | None:
        """The row of the model's family; None for a checkpoint."""
        return None if self.recipe.model.family is None else family_row(self.recipe.model.family)

    @cached_property
    def config(self) -> Any:
        """The model's config, of fresh weights as far as the recipe says it. Raises UserError where none loads."""
        import anyformer

        from ..adapters import load_config
        from ..recipes.checks import config_namespace

        name = self.recipe.model.name_or_path
        if name is None:
            return config_namespace(self.recipe)
        anyformer.register()
        with loading(f"model.name_or_path={name!r}"):
            return load_config(name, trust_remote_code=self.recipe.trust_remote_code)

    @property
    def batch_size(self) -> int:
        """Rows that a model answers at once."""
        training = self.recipe.training
        return training.extra.get("per_device_eval_batch_size") or training.per_device_train_batch_size

    @property
    def setting(self) -> str:
        """How errors name it: `objective.name=masked`."""
        return f"{self.section}.name={self.name}"

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring, for `anyformer list`."""
        return (cls.__doc__ or cls.name).strip().splitlines()[0].rstrip(".")

    @classmethod
    def takes_metric(cls, row: Any) -> bool:
        """Whether a metric, as registered, is of what is predicted here."""
        return row.fits(cls.compares)

    @classmethod
    def metric_names(cls) -> list[str]:
        """The metrics that it can report beside the loss."""
        return [name for name, row in METRICS.items() if cls.takes_metric(row)]

    @property
    def metrics(self) -> list[str]:
        """The metrics that are reported beside the loss, by their names in the registry."""
        return self.recipe.evaluation.metrics

    def text_columns(self) -> dict[str, str]:
        """{setting: the column of the data that it names} of the texts of an example; {} where it reads none."""
        return {}

    # ---- the recipe, before anything is read

    def check_family(self) -> None:
        """Raise UserError for a family of models that this objective does not train."""
        family = self.recipe.model.family
        if family is not None and family not in self.families:
            raise UserError(
                f"model.family={family} does not go with {self.setting}; it takes {' or '.join(self.families)}"
            )

    def check(self) -> None:
        """Raise UserError for the first setting of the recipe that does not go with this objective."""
        if self.recipe.evaluation.sample_prompts and not self.continues_prompts:
            raise UserError(
                f"evaluation.sample_prompts has no effect with {self.setting}, which does not learn to continue a "
                f"text; remove it"
            )

    def refuse_idle(self, names: Sequence[str], because: str, belongs_to: str) -> None:
        """Raise UserError for the first of the settings `names` that is set, where they say nothing.

        Set is what differs from the default: saved recipes spell all defaults out. because: the setting for which they
        say nothing, with its value; belongs_to: that with which they would.
        """
        for row in fields(self.settings):
            value = getattr(self.settings, row.name)
            if row.name in names and value != default_of(row):
                raise UserError(
                    f"{self.section}.{row.name}={show(value)} has no effect with {because}; it belongs to {belongs_to}"
                )

    def data_sections(self) -> list[DataSection]:
        """The sections that say what is read: the recipe's, or those of the parts of a task."""
        return [self.recipe.data]

    def check_data(self) -> None:
        """Raise UserError for settings of the data that exclude each other; no file is touched."""
        from ..recipes.data_section import check_data

        for data in self.data_sections():
            check_data(data)

    def check_tokenizer(self) -> None:
        """Raise UserError for a tokenizer section that does not go with this objective."""

    def check_metrics(self) -> None:
        """Raise UserError for a metric that this objective cannot report."""
        from ..metrics import check_metrics

        names = self.label_names or getattr(self.settings, "label_names", None)
        check_metrics(self.metrics, self.metric_names(), self.setting, len(names) if names else None)

    def lengths(self) -> dict[str, int | None]:
        """Settings that say how many tokens the model reads or writes at once, by name."""
        return {}

    # ---- known before any data is read: what `anyformer plan` counts

    def row_lengths(self) -> tuple[int | None, int | None]:
        """(tokens of a row that the model reads, tokens that the decoder of an encoder-decoder writes), at most.

        None: as many as the model has positions, or patches of an image.
        """
        most = max((length for length in self.lengths().values() if length is not None), default=None)
        return most, most

    def labelled_share(self) -> float:
        """The share of a row's tokens that is predicted."""
        return 1.0

    def planned_vocabulary(self) -> int | None:
        """Entries of the tokenizer; None where a pretrained one would have to be loaded."""
        from ..tokenizers.load import planned_size

        return planned_size(self.recipe.tokenizer)

    def planned_fields(self) -> dict[str, Any]:
        """Those of `config_fields` that change the number of weights, as far as the recipe says them."""
        return {}

    def further_costs(self) -> list[str]:
        """Sentences on what a run takes that `plan` does not count."""
        return []

    def check_length(self, most: int, field: str = "the model's max_position_embeddings") -> None:
        """Raise UserError where rows are longer than the `most` positions that a model has vectors for."""
        self._refuse_longer(most, field, f"; at most {most} works: learned positions need one for each token")

    def check_context(self, most: int) -> None:
        """Raise UserError where rows are longer than the `most` tokens that a model would be saved as made for.

        Positions without vectors of their own would let it pass, and the saved config would not be true.
        """
        way_out = ", the context it would be saved with; set model.max_position_embeddings={length}"
        self._refuse_longer(most, "the model's max_position_embeddings", way_out)

    def _refuse_longer(self, most: int, field: str, way_out: str) -> None:
        for name, length in self.lengths().items():
            if length is not None and length > most:
                said = f"{self.section}.{name}={length} is longer than {field}={most}"
                raise UserError(said + way_out.format(length=length))

    def check_model_length(self, most: int) -> None:
        """check_length for a built model."""
        self.check_length(most)

    # ---- data

    @abstractmethod
    def open(self) -> dict[str, Any]:
        """The sources of each split, `train` first; whatever `rows` takes. Raises UserError."""

    @abstractmethod
    def prepare(self, splits: dict[str, Any], cache: Path, progress: bool) -> None:
        """Make `processor` and whatever else the rows of all splits depend on. Raises UserError."""

    def corpus(self, source: Any) -> Any | None:
        """The text of one split as documents (data.documents.Corpus), as a tokenizer reads it; None: there is none."""
        return None

    @abstractmethod
    def rows(self, source: Any, split: str, cache: Path, progress: bool = False) -> "Rows":
        """The rows of one split; those of `train` are asked for first. Raises UserError."""

    def prepare_share(self, source: Any, split: str, cache: Path, share: "Share", progress: bool = False) -> int:
        """Make one machine's share of what `rows` of this split reads; return how many shards that was."""
        raise TypeError(f"{type(self).__name__} allows shares (check_shares), but has no prepare_share of its own")

    def check_shares(self) -> None:
        """Raise UserError where the rows cannot be prepared in shares."""
        raise UserError(f"--shard is for plain text, and {self.setting} reads examples; leave it out")

    def try_examples(self, examples: list, prepared: bool) -> None:
        """Raise UserError where `prepare` or `rows` would for one of these examples, (place, row) each."""

    def completed(self, rows: "dict[str, Rows]", cache: Path, progress: bool) -> "dict[str, Rows]":
        """The rows of all splits, with what is dear to compute: by now no mistake can be in any of them."""
        return rows

    def before_training(self) -> None:
        """Raise UserError for what a training needs beside its data, and is not there; nothing is read yet."""

    def for_training(self, rows: "dict[str, Rows]", sources: dict[str, Any], cache: Path) -> "dict[str, Rows]":
        """The completed rows of all splits as they are trained and validated. Raises UserError."""
        return rows

    @abstractmethod
    def collator(self, packed: bool) -> Callable[[list[dict]], dict]:
        """What makes a batch of rows. packed: whether some row holds several documents, where that matters."""

    @abstractmethod
    def processor_fingerprint(self) -> str:
        """Equal for processors that make the same model inputs of everything."""

    def describe(self, rows: "Rows") -> str:
        """The rows of one split in a line or two, for people."""
        return f"{counted(len(rows), self.row_noun)} of {rows.name}"

    # ---- the model

    def config_fields(self) -> dict[str, Any]:
        """Fields of the model's config that belong to the objective."""
        return {}

    def prepare_model(self, model) -> None:
        """Change a model before it is trained or measured, such as its generation config."""

    def loss(self) -> "OwnLoss | None":
        """What computes the loss of the model's outputs, after the training rows are made; None: the model itself."""
        return None

    def files(self, config) -> dict[str, str]:
        """Further files of the finished model's folder, path in it -> text, such as what other libraries load it by."""
        return {}

    def logits_of(self) -> Callable[[Any], Any] | None:
        """What takes the logits (..., C) of labels (...) out of a model's outputs; None: they are `outputs.logits`."""
        return None

    # ---- words

    def step_words(self) -> str:
        """What an optimizer step is counted in, after a number: `rows x 1024 tokens`."""
        return f"{self.row_noun}s"

    def sample_title(self, prompt: str) -> str:
        """The heading above a sample."""
        return f"{self.sample_words} {prompt!r}"

    @classmethod
    def example_of_use(cls, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """(input, options) with which transformers' pipeline is called; settings: of its section of a saved recipe."""
        return "your text", {}

    def how_to_use(self, folder: Path) -> str:
        """One line that puts the finished model to work."""
        return self.use.format(folder=folder)

    def legend(self):
        """What the marks of `show` mean: a rich Text."""
        from .showing import legend

        return legend(self.legend_words)

    def show(self, console, rows: "Rows", number: int, row: dict) -> None:
        """Print row `number`, for `anyformer preview`."""
        console.print(f"{self.row_noun} {number}: {row}", markup=False)

    def collated(self, rows: "Rows", number: int, row: dict) -> dict:
        """The batch of this row alone, as training sees it in its first epoch."""

        from ..data.batch_keys import EPOCH, ROW_IDS

        return self.collator(rows.is_packed)([{ROW_IDS: number, EPOCH: 0} | row])


# Settings of the data that are of plain text alone: (name, default).
SOURCES_OF_TEXT = (("source", None), ("mixture", []), ("streaming", False))
COLUMNS_OF_TEXT = (("text_field", "text"), ("document", "file"))


def check_examples(objective: Objective) -> None:
    """Raise UserError for settings of the data that are of plain text alone, where rows are examples or images."""
    data, is_task = objective.recipe.data, objective.section == "task"
    reads_text = data.derive in DERIVED_FROM_TEXT
    what, learner = ("labelled examples", "a task") if is_task else ("images", "an objective of images")
    for name, default in () if reads_text else SOURCES_OF_TEXT:
        if getattr(data, name) != default:
            raise UserError(f"data.{name} does not go with {learner}; give {what} by data.files or data.dataset")
    for name, default in () if reads_text else COLUMNS_OF_TEXT:
        if getattr(data, name) != default:
            where = f"the {objective.section} section names the columns"
            raise UserError(f"data.{name} has no effect with {learner}; {where}")
