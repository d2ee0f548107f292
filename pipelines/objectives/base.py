"""The interface of everything a model can learn: pretraining objectives and fine-tuning tasks alike.

An Objective makes every decision that depends on what is learned: settings, data, rows and batches, the model's head,
metrics, what is shown at the end. The other pipelines call this interface and never test for an objective's name.
Recipes are checked with it before any work, so numpy and torch are imported lazily (lazy.py), and modules that only a
run needs are imported inside methods: each import delays every command.
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

# Bounds of settings for `doc`: SHARE for shares and probabilities, TOKENS for the number of tokens of a text.
SHARE, TOKENS = {"at_least": 0, "at_most": 1}, {"at_least": 2, "at_most": 2**20}


class FamiliesWith:
    """`Objective.families`: all families with one of the given heads (Auto classes), by default the objective's."""

    def __init__(self, *heads: str):
        self.heads = heads

    def __get__(self, objective: "Objective | None", cls: "type[Objective]") -> tuple[str, ...]:
        heads = set(self.heads or (cls.auto_class,))
        return tuple(name for name in family_names() if heads & family_row(name).heads.keys())


class Objective(Measuring, ABC):
    """What a model learns, bound to one recipe. A subclass is registered by `register_objective` (plugins.py).

    `anyformer list` prints the first line of its docstring. Class attributes:

    name: the objective's name in a recipe. section: the recipe's section that names it, "objective" (plain text or
    images) or "task" (labelled examples). Settings: dataclass of its settings, a subclass of ObjectiveSettings.
    auto_class: transformers' Auto class of the model; a property where it depends on the recipe's model, so read it
    from an instance. families: the families of fresh models, by default all with such a head; a checkpoint may be any.
    special_tokens: what a tokenizer trained for it puts around a text ("none", "cls_sep" or "eos"; see
    recipes/special_tokens.py); None: it reads no text. sentinels: the number of tokens <extra_id_N> that it needs.
    shifts_labels: whether labels are aligned with the input ids, so that the model shifts them by one.
    compares: the kind of values that its metrics compare (MetricRow.compares). default_metrics: the metrics where the
    recipe names none. validates_metrics: whether validations during training measure all of them.
    asks_for: the kind of answers in `questions`, which few-shot evaluation puts to any language model: "classes" (it
    then has `label_names`), "numbers", "texts", or "" (no questions). answer_column: the column of these answers.
    parts: the objectives that it consists of, by label; empty for most objectives.
    continues_prompts: whether the finished model gets evaluation.sample_prompts.
    predicts_each_position: whether every token is predicted once, from the tokens before it, so that losses can be
    compared by text and by position.
    hub_task: the Hub's pipeline tag of the model, where its head does not imply it. loss_unit: the unit of the loss.
    samples_are_answers: whether a sample answers its prompt; otherwise it continues it. sample_words: the words before
    the prompt in a sample's heading. picture: the file in the run's folder that is shown as its sample.
    row_noun: what a row is called. legend_words: what the marks of `show` mean, as showing.legend takes it. use: the
    command that runs the finished model, with {folder} in it. sequences_per_row: sequences that the model reads per
    row, such as 2 for pairs of texts. unused_weights: prefixes of the names of weights that the model has and the
    objective does not use. hub_tags: further tags of a published model.
    share_of_usual_rate: factor on the model's usual learning rate (recipes/usual_rates.py).
    shares_batches: whether its rows can share a batch with other objectives' rows (mixture.py): its rows are plain
    text, its batches hold no keys but mixture.KEYS, and the model computes the loss.
    in_stages: whether the last pipeline stage can compute the loss: a causal model's loss, from the batch alone.
    finishes_on: the processes on which `finish` uses the saved model: "none", "one" or "all".
    answers_by: the Auto class of the model that answers rows without labels (`predict`); "": none does, and an
    objective chosen by the model's head answers instead (of_heads.py).
    taught: what a teacher (teachers.py) can predict for its rows: "tokens", "classes", "tags", "vectors" or "nothing".
    stratified_by: the column of the classes by which splits of the data can be stratified; None: there is none.
    in_parts_of_rows: whether a row can be split over processes (sequence and context parallelism).
    is_start_where_null: the setting whose null means the model from which the training starts; None: there is none.

    new_head: after `prepare`, why the checkpoint's head is not kept, in words; "": it is, if there is one.

    After `prepare`, `processor` (a tokenizer or an image processor) is what is saved with the model.
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
    is_start_where_null: ClassVar[str | None] = None
    answers_by: str = ""
    stratified_by: str | None = None
    new_head: str = ""

    def __init_subclass__(cls, **kwargs):
        """Derive the subclass's Settings with a field `name`, whose default is the objective's name."""
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            body = {"__annotations__": {"name": str}, "name": doc("what the model learns", cls.name)}
            body |= {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Settings"}
            cls.Settings = dataclass(type("Settings", (cls.Settings,), body))

    def __init__(self, recipe: Recipe):
        self.recipe, self.settings, self.seed = recipe, recipe.learned, recipe.training.seed
        self.processor: Any = None
        self.signatures: dict[str, str] = {}  # metric -> settings and versions that its value depends on

    @property
    def tokenizer(self):
        """The tokenizer; None where the model reads no text."""
        return self.processor if self.special_tokens is not None else None

    @property
    def family(self) -> Family | None:
        """The model's family; None for a checkpoint."""
        return None if self.recipe.model.family is None else family_row(self.recipe.model.family)

    @cached_property
    def config(self) -> Any:
        """The checkpoint's config, or for fresh weights what the recipe says of one. Raises UserError if none loads."""
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
        """Rows per forward pass in evaluation."""
        training = self.recipe.training
        return training.extra.get("per_device_eval_batch_size") or training.per_device_train_batch_size

    @property
    def setting(self) -> str:
        """How errors name the objective: `objective.name=masked`."""
        return f"{self.section}.name={self.name}"

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring, without its full stop."""
        return (cls.__doc__ or cls.name).strip().splitlines()[0].rstrip(".")

    @classmethod
    def takes_metric(cls, row: Any) -> bool:
        """Whether a registered metric (MetricRow) can be computed from what is predicted here."""
        return row.fits(cls.compares)

    @classmethod
    def metric_names(cls) -> list[str]:
        """The metrics that the objective can report in addition to the loss."""
        return [name for name, row in METRICS.items() if cls.takes_metric(row)]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that are reported in addition to the loss."""
        return self.recipe.evaluation.metrics

    def text_columns(self) -> dict[str, str]:
        """{setting: the column that it names} for each text of an example; {} where the objective reads no texts."""
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
        from ..metrics import check_tokenize

        check_tokenize(self.recipe.evaluation.bleu_tokenize, self.metric_names())
        if self.recipe.evaluation.sample_prompts and not self.continues_prompts:
            raise UserError(
                f"evaluation.sample_prompts has no effect with {self.setting}, which does not learn to continue a "
                f"text; remove it"
            )

    def refuse_idle(self, names: Sequence[str], because: str, belongs_to: str) -> None:
        """Raise UserError for the first of the settings `names` that is set although it has no effect.

        A setting counts as set if it differs from its default, because saved recipes spell out all defaults. because:
        the setting and value with which they have no effect; belongs_to: the one with which they have.
        """
        for row in fields(self.settings):
            value = getattr(self.settings, row.name)
            if row.name in names and value != default_of(row):
                raise UserError(
                    f"{self.section}.{row.name}={show(value)} has no effect with {because}; it belongs to {belongs_to}"
                )

    def data_sections(self) -> list[DataSection]:
        """The data sections that are read: the recipe's, or one for each part of a mixture or multi-task."""
        return [self.recipe.data]

    def check_data(self) -> None:
        """Raise UserError for data settings that exclude each other; reads no file."""
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
        """{setting: its value} of the settings that bound how many tokens the model reads or writes at once."""
        return {}

    # ---- known before any data is read: what `anyformer plan` counts

    def row_lengths(self) -> tuple[int | None, int | None]:
        """The most (tokens of a row that the model reads, tokens that an encoder-decoder's decoder writes).

        None: as many as the model has positions or an image has patches.
        """
        most = max((length for length in self.lengths().values() if length is not None), default=None)
        return most, most

    def labelled_share(self) -> float:
        """The share of a row's tokens that are predicted."""
        return 1.0

    def planned_vocabulary(self) -> int | None:
        """Size of the tokenizer's vocabulary; None where a pretrained tokenizer would have to be loaded."""
        from ..tokenizers.load import planned_size

        return planned_size(self.recipe.tokenizer)

    def planned_fields(self) -> dict[str, Any]:
        """The `config_fields` that change the number of weights, as far as the recipe alone determines them."""
        return {}

    def further_costs(self) -> list[str]:
        """Sentences about costs of a run that `anyformer plan` does not count."""
        return []

    def check_length(self, most: int, field: str = "the model's max_position_embeddings") -> None:
        """Raise UserError where rows are longer than the `most` positions for which a model has embeddings."""
        self._refuse_longer(most, field, f"; at most {most} works: learned positions need one for each token")

    def check_context(self, most: int) -> None:
        """Raise UserError where rows are longer than `most`, the max_position_embeddings that the config would state.

        Training would work with positions that are not learned, but the saved config would be wrong.
        """
        way_out = ", the context it would be saved with; set model.max_position_embeddings={length} or {name}={most}"
        self._refuse_longer(most, "the model's max_position_embeddings", way_out)

    def _refuse_longer(self, most: int, field: str, way_out: str) -> None:
        for name, length in self.lengths().items():
            if length is not None and length > most:
                name = f"{self.section}.{name}"
                said = f"{name}={length} is longer than {field}={most}"
                raise UserError(said + way_out.format(length=length, name=name, most=most))

    def check_model_length(self, most: int) -> None:
        """`check_length` once the model and the tokenizer exist; subclasses add checks that need them."""
        self.check_length(most)

    # ---- data

    @abstractmethod
    def open(self) -> dict[str, Any]:
        """{split: its source, as `rows` takes it}, `train` first. Raises UserError."""

    @abstractmethod
    def prepare(self, splits: dict[str, Any], cache: Path, progress: bool) -> None:
        """Set `processor` and whatever else the rows of all splits depend on. Raises UserError."""

    def corpus(self, source: Any) -> Any | None:
        """The text of one split as documents for a tokenizer (data.documents.Corpus); None: there is no text."""
        return None

    @abstractmethod
    def rows(self, source: Any, split: str, cache: Path, progress: bool = False) -> "Rows":
        """The rows of one split; callers make those of `train` first. Raises UserError."""

    def prepare_share(self, source: Any, split: str, cache: Path, share: "Share", progress: bool = False) -> int:
        """Make one machine's share of the shards that `rows` of this split reads; return how many it made."""
        raise TypeError(f"{type(self).__name__} allows shares (check_shares), but has no prepare_share of its own")

    def check_shares(self) -> None:
        """Raise UserError where the rows cannot be prepared in shares."""
        raise UserError(f"--shard is for plain text, and {self.setting} reads examples; leave it out")

    def try_examples(self, examples: list, prepared: bool) -> None:
        """Raise UserError if `prepare` or, once `prepared`, `rows` would for one of these examples (place, row)."""

    def completed(self, rows: "dict[str, Rows]", cache: Path, progress: bool) -> "dict[str, Rows]":
        """The rows of all splits with whatever is expensive to add; by now all of them are known to be valid."""
        return rows

    def before_training(self) -> None:
        """Raise UserError if something that the training needs beside its data is missing; no data is read yet."""

    def for_training(self, rows: "dict[str, Rows]", sources: dict[str, Any], cache: Path) -> "dict[str, Rows]":
        """The completed rows of all splits as the training and its validations use them. Raises UserError."""
        return rows

    @abstractmethod
    def collator(self, packed: bool) -> Callable[[list[dict]], dict]:
        """The function from rows to a batch. packed: whether some rows hold several documents."""

    @abstractmethod
    def processor_fingerprint(self) -> str:
        """A string that is equal for processors that turn every input into the same model inputs."""

    def describe(self, rows: "Rows") -> str:
        """A description of one split's rows in a line or two, for people."""
        return f"{counted(len(rows), self.row_noun)} of {rows.name}"

    def notes_of_rows(self) -> list[str]:
        """Sentences a user should read about the rows that were just read."""
        return []

    # ---- the model

    def config_fields(self) -> dict[str, Any]:
        """Fields that the objective sets in the model's config."""
        return {}

    def prepare_model(self, model) -> None:
        """Change a model before it is trained or measured, such as its generation config."""

    def loss(self) -> "OwnLoss | None":
        """The loss of the model's outputs, once the training rows are made; None: the model computes its own."""
        return None

    def files(self, config) -> dict[str, str]:
        """Further files for the finished model's folder, {path: text}, such as what other libraries load it by."""
        return {}

    def logits_of(self) -> Callable[[Any], Any] | None:
        """A function from a model's outputs to logits (..., C) for labels (...); None: they are `outputs.logits`."""
        return None

    # ---- words

    def step_words(self) -> str:
        """The unit of a batch's size, printed after a number: `rows x 1024 tokens`."""
        return f"{self.row_noun}s"

    def sample_title(self, prompt: str) -> str:
        """The heading above a sample."""
        return f"{self.sample_words} {prompt!r}"

    @classmethod
    def example_of_use(cls, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """An example (input, options) for transformers' pipeline; settings: the objective's, from a saved recipe."""
        return "your text", {}

    def how_to_use(self, folder: Path) -> str:
        """The command that runs the finished model."""
        return self.use.format(folder=folder)

    def legend(self):
        """What the marks of `show` mean: a rich Text."""
        from .showing import legend

        return legend(self.legend_words)

    def show(self, console, rows: "Rows", number: int, row: dict) -> None:
        """Print row `number`, for `anyformer preview`."""
        console.print(f"{self.row_noun} {number}: {row}", markup=False)

    def collated(self, rows: "Rows", number: int, row: dict) -> dict:
        """A batch of this row alone, as training sees it in its first epoch."""
        from ..data.batch_keys import EPOCH, ROW_IDS

        return self.collator(rows.is_packed)([{ROW_IDS: number, EPOCH: 0} | row])


# Data settings that only plain text has: (name, default).
SOURCES_OF_TEXT = (("source", None), ("mixture", []), ("streaming", False))
COLUMNS_OF_TEXT = (("text_field", "text"), ("document", "file"))


def check_examples(objective: Objective) -> None:
    """Raise UserError for data settings that only plain text has, in an objective whose rows are examples or images."""
    data, is_task = objective.recipe.data, objective.section == "task"
    reads_text = data.derive in DERIVED_FROM_TEXT
    noun, learner = ("labelled examples", "a task") if is_task else ("images", "an objective of images")
    for name, default in () if reads_text else SOURCES_OF_TEXT:
        if getattr(data, name) != default:
            raise UserError(f"data.{name} does not go with {learner}; give {noun} by data.files or data.dataset")
    for name, default in () if reads_text else COLUMNS_OF_TEXT:
        if getattr(data, name) != default:
            where = f"the {objective.section} section names the columns"
            raise UserError(f"data.{name} has no effect with {learner}; {where}")
