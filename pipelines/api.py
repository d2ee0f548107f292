"""The Python API: `anyformer.train`, `anyformer.evaluate`, `anyformer.predict` and others.

A recipe is given by name, by path or (but for evaluate) as the result of load_recipe; settings are given as mappings:
train("quickstart", training={"max_steps": 50}). Nothing is printed but the progress line of a training.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .adapters import load_model
from .errors import UserError
from .manifest import check_saved_files
from .plugins import objective_of
from .recipes.compose import load_recipe, recipe_from_dict
from .recipes.preset_run import planned_recipe
from .recipes.schema import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .accounting.plan import Plan
    from .checks.check_report import Report
    from .evaluation.evaluate import Evaluation
    from .objectives.data import Data


@dataclass(frozen=True)
class Run:
    """A run in its folder, whether it ended just now or long ago. Its files are read when they are first needed."""

    path: Path
    trust_remote_code: bool = False  # whether code that came with the checkpoint of a fine-tuning may run

    @cached_property
    def facts(self) -> dict[str, Any]:
        """run.json: status, recipe, metrics, samples, versions, data. Raises UserError where there is no run."""
        from .reporting.run_log import read_run

        return read_run(self.path).run

    @property
    def finished(self) -> bool:
        """Whether the run has ended; the same call of `train` continues a run that a signal stopped."""
        return self.facts.get("status") == "finished"

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the finished model: {"validation_loss": ..., "validation_perplexity": ...}."""
        return self.facts.get("metrics", {})

    @property
    def samples(self) -> list[dict[str, str]]:
        """Samples of the finished model: {"prompt": ..., "text": ...}."""
        return self.facts.get("samples", [])

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every logged line of metrics.jsonl that is not damaged, in order."""
        from .reporting.run_log import read_metrics

        return read_metrics(self.path / "metrics.jsonl")[0]

    @cached_property
    def model(self):
        """The finished model, in evaluation mode, as transformers' Auto class loads it from the folder."""
        import transformers

        check_saved_files(self.path, "RUN")
        recipe = self.facts["recipe"] | {"model": {"name_or_path": str(self.path)}, "tokenizer": {}}
        objective = objective_of(recipe_from_dict(recipe, trust_remote_code=self.trust_remote_code))
        auto_class = getattr(transformers, objective.auto_class)
        return load_model(auto_class, self.path, trust_remote_code=self.trust_remote_code).eval()

    @cached_property
    def tokenizer(self):
        """The saved tokenizer; None for a model of images."""
        from .open_tokenizer import open_tokenizer

        check_saved_files(self.path, "RUN")
        is_saved = (self.path / "tokenizer_config.json").is_file()
        return open_tokenizer(self.path, self.trust_remote_code) if is_saved else None


def train(recipe: Recipe | str | Path, *, trust_remote_code: bool = False, **sections: Any) -> Run:
    """Train a recipe's model, or go on with a run that was stopped, and return the run.

    Args:
        recipe: name of a shipped recipe, a YAML file, or the result of load_recipe.
        trust_remote_code: whether code that comes with the checkpoint `model.name_or_path` may run.
        sections: settings that win over the recipe's, such as training={"max_steps": 50}.

    Raises:
        UserError: a mistake in recipe, data or folders, before any training; a full disk or a NaN loss during it.
    """
    from .training.run import train as run

    composed = _composed(recipe, sections, trust_remote_code)
    run(composed, quiet=True)
    return Run(Path(composed.training.output_dir), composed.trust_remote_code)


def prepare_data(recipe: Recipe | str | Path, *, trust_remote_code: bool = False, **sections: Any) -> "Data":
    """The rows of a recipe's splits, its tokenizer or image processor, and the collator that makes batches.

    Rows and collator fit any loop: Trainer(train_dataset=data.rows["train"], data_collator=data.collator, ...).

    Raises:
        UserError: a mistake in the recipe, or data that is missing, empty or unreadable.
    """
    from .objectives.prepare import prepare_data as prepare

    return prepare(_composed(recipe, sections, trust_remote_code))


def evaluate(
    model: str | Path,
    recipe: str | Path | None = None,
    *,
    split: str | None = None,
    max_examples: int | None = None,
    trust_remote_code: bool = False,
    **sections: Any,
) -> "Evaluation":
    """Measure a saved model on the data of a recipe; nothing is written.

    The result has metrics, their 95 % intervals, and answers: prediction and reference of each example.

    Args:
        model: folder of a run or a model, or a Hub repository.
        recipe: the recipe with the data and metrics; None: the run's own.
        split: "test" or "validation"; None: test where the recipe has one.
        max_examples: the largest number of rows to use, spread over the split; None: all.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        UserError: no such model, a model that does not fit the task, or data that is missing.
    """
    from .evaluation.evaluate import evaluate_model
    from .evaluation.request import choose_split, evaluation_recipe

    task = None if recipe is None else str(recipe)
    composed = evaluation_recipe(str(model), task, [], trust_remote_code=trust_remote_code, **sections)
    return evaluate_model(composed, choose_split(composed, split), max_examples=max_examples)


def predict(
    model: str | Path,
    given: str | Path | Iterable[Any],
    *,
    out: str | Path | None = None,
    read: dict[str, str] | None = None,
    columns: Sequence[str] | None = None,
    top: int | None = None,
    threshold: float | None = None,
    batch_size: int = 16,
    max_new_tokens: int | None = None,
    trust_remote_code: bool = False,
) -> "list[dict[str, Any]] | Path":
    """A saved model's answers to rows without labels: each row's columns, `prediction`, and what belongs to it.

    A row that cannot be answered has the prediction None, and its `reason`.

    Args:
        model: folder of a run or a model, or a Hub name. The recipe beside it, else its head, decides what is read.
        given: files and folders (tables, images, texts), or rows as mappings.
        out: .jsonl, .csv or .parquet to write; the same call goes on with one that was interrupted. None: the answers
            are returned.
        read: {name of a column in the training recipe: its name here}.
        columns: those of the rows that are returned, or written, beside the answers; None: all.
        top: so many of the best classes, {"answer", "score"} of each, stand in `top` in place of all `scores`.
        threshold: a prediction with a lower score is None, with the reason "unsure".
        batch_size: rows in a batch.
        max_new_tokens: the most tokens that a model writes; None: as its generation config says, else 256.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        UserError: no such model or file, scores that the model does not give, or no row that can be answered.
    """
    from .prediction.answer_files import AnswerFile
    from .prediction.predict import prepare_prediction, run_prediction

    how: dict[str, Any] = {"read": read, "columns": columns, "top": top, "threshold": threshold}
    how |= {"batch_size": batch_size, "max_new_tokens": max_new_tokens}
    file = None if out is None else AnswerFile(Path(out))
    answers: list[dict[str, Any]] = []
    run_prediction(prepare_prediction(model, given, trust_remote_code=trust_remote_code, **how), file, answers.extend)
    return answers if file is None else file.path


def plan(
    recipe: Recipe | str | Path,
    devices: str = "cpu",
    *,
    stage: str | None = None,
    context: int | None = None,
    mfu: float = 0.4,
    per_node: int = 8,
    **sections: Any,
) -> "Plan":
    """Estimate what a recipe's run would take: parameters, bytes on each device, FLOPs, time; no data is read.

    Args:
        recipe: as for `train`, or the name of a preset; a name that both have means the recipe.
        devices: such as 8xH100-80GB, or cpu.
        stage: how states are shared: none, zero1, zero2, zero3 or fsdp; None: the recipe's, else the first that fits.
        context: tokens in the KV cache of generation; None: as many as the model has positions.
        mfu: the share of the devices' peak FLOP/s that is reached.
        per_node: devices of a machine, whose processes share its memory.

    Raises:
        UserError: a mistake in the recipe, or unknown devices.
    """
    from .accounting.devices import devices_of
    from .accounting.plan import plan_run

    is_preset = False
    if not isinstance(recipe, Recipe):
        (recipe, is_preset), sections = planned_recipe(str(recipe), **sections), {}
    composed = _composed(recipe, sections, False)
    options: dict[str, Any] = {"context": context, "mfu": mfu, "per_node": per_node}
    return plan_run(composed, devices_of(devices), stage=stage, until_trained=is_preset, **options)


def check(
    model: "PreTrainedModel | str | Path",
    *,
    laws: Iterable[str] | None = None,
    real: bool = False,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> "Report":
    """Test whether a model keeps the promises, called laws, that a training relies on.

    Args:
        model: a model, of which a copy in fp32 is tested; or a folder, a recipe, a preset or a name on the Hub, of
            whose config a tiny twin is tested.
        laws: names of `anyformer.pipelines.checks.laws.LAWS`; None: all.
        real: test the weights of a folder or of a name on the Hub instead of a twin.
        device: cpu or cuda.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        UserError: no such model or law, or a kind of model that cannot be checked.
    """
    from .checks.check_report import report_of
    from .checks.laws import laws_named
    from .checks.made import check_device, subject_of, subject_of_model

    names = laws_named(laws)
    check_device(device)
    if isinstance(model, str | Path):
        options: dict[str, Any] = {"real": real, "device": device, "trust_remote_code": trust_remote_code}
        return report_of(subject_of(str(model), **options), str(model), names)
    return report_of(subject_of_model(model, device), type(model).__name__, names)


def _composed(recipe: Recipe | str | Path, sections: dict[str, Any], trust_remote_code: bool) -> Recipe:
    if not isinstance(recipe, Recipe):
        return load_recipe(recipe, trust_remote_code=trust_remote_code, **sections)
    if sections:
        raise UserError(f"{next(iter(sections))}: give settings to load_recipe; this recipe is composed already")
    return recipe.with_(trust_remote_code=recipe.trust_remote_code or trust_remote_code)
