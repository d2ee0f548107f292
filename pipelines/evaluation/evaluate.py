"""`anyformer evaluate`: a saved model, ours or transformers' own, on the task or the text of a recipe.

Everything but the model comes from the recipe: the data, how it becomes rows, the metrics. The numbers are those that
training reports at its end, because the same code computes them.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import transformers
from torch.utils.data import Dataset, Subset

from ..backends import backends_of
from ..likelihoods.without_logits import without_logits
from ..metrics.significance import Comparison, interval_by_formula, intervals, kept_comparisons
from ..objectives.answers import FinishedModel
from ..objectives.base import Objective
from ..objectives.data import Data
from ..objectives.documents_apart import check_documents_apart
from ..objectives.prepare import prepare_data
from ..objectives.scores import Scored, Scores
from ..patches import replaced, write
from ..plugins import METRICS, objective_of
from ..recipes.schema import Recipe
from ..reporting.console import print_table
from ..training.arguments import training_arguments
from ..training.models import check_length
from ..training.trainer import AnyformerTrainer
from ..words import counted, say
from .class_tables import print_classes
from .result import Began, Result, asked_of, metric_cells
from .saved_model import load, open_config


class Evaluation(Result):
    """The metrics of a task.

    examples: the number of rows. max_examples: the limit on them that was asked for. rows: what they are called, such
    as "examples". account: of what came in for the split. metrics: name -> number. signatures: metric -> the settings
    and versions that its number depends on, if it names any. intervals: metric -> {"low", "high", "method"}, its 95 %
    confidence interval. answers: {"row", "prediction", "reference"} of each example, if there are references, and its
    "part" if one run has several tasks. compared: what the metrics were computed from. backends: what computed
    attention and experts. classes: as Scores.class_report.
    validation: the metrics of the run's validation, which are shown beside.
    """

    validation: dict[str, float] = {}

    split: str
    examples: int
    max_examples: int | None
    rows: str
    account: list[dict]
    metrics: dict[str, float]
    signatures: dict[str, str]
    intervals: dict[str, dict]
    compared: list[Comparison]
    classes: dict | None

    def facts(self) -> dict:
        left_out = ("compared",) if self.classes else ("compared", "classes")
        return {name: value for name, value in super().facts().items() if name not in left_out}

    def show(self) -> None:
        """Print the metrics as a table below a line that says what was measured."""
        head = self.head(counted(self.examples, self.rows.removesuffix("s")))
        columns, cells = ["metric", "value"], metric_cells(self.metrics, self.intervals)
        if self.validation:
            before = dict(metric_cells(self.validation, {}))
            columns, cells = [*columns, "validation of the run"], [[*row, before.get(row[0], "")] for row in cells]
        console = print_table(head, columns, cells)
        for name, signature in self.signatures.items():
            console.print(f"{name}: {signature}", markup=False)
        if self.classes is not None:
            print_classes(self.classes)


@dataclass
class PreparedEvaluation:
    """A checked evaluation: everything but the weights. All user errors have been raised by now.

    names: metrics to report. chosen: the numbers of the rows that are measured, at most max_examples. began: made
    before anything was read.
    """

    recipe: Recipe
    split: str
    data: Data
    names: list[str]
    chosen: list[int]
    began: Began
    max_examples: int | None

    def load_model(self):
        """The model, in evaluation mode. Raises UserError where it cannot be loaded, or lacks the head."""
        objective = self.data.objective
        return load(getattr(transformers, objective.auto_class), self.recipe, objective.unused_weights)


def evaluate_model(
    recipe: Recipe, split: str, *, max_examples: int | None = None, picture: Path | None = None
) -> Evaluation:
    """Evaluate the recipe's checkpoint on one split of its data.

    Args:
        recipe: as evaluation_recipe gives it.
        max_examples: the most rows to measure (for question_answering: questions, each with all its windows), spread
            evenly over the split. Perplexities of a whole text (word_perplexity, unigram_perplexity) are then left out.
        picture: PNG file for the images that a model of pixels completes; None: none are completed.

    Raises:
        UserError: a model that cannot be loaded or was not made for the task, classes that are not the task's, or data
            that is missing or unreadable.
    """
    return measure(prepare_evaluation(recipe, split, max_examples), picture)


def prepare_evaluation(recipe: Recipe, split: str, max_examples: int | None = None) -> PreparedEvaluation:
    """Check a recipe's checkpoint against its data and make the rows: evaluate_model without the measuring."""
    began = Began.now(recipe)
    config, objective = open_config(recipe), objective_of(recipe)
    check_length(objective, config)
    is_part = max_examples is not None
    names = [name for name in recipe.evaluation.metrics if not (is_part and METRICS[name].whole_text)]
    splits = splits_to_measure(objective, split, names)
    data = prepare_data(recipe, splits=splits, model_config=config)
    rows = data.rows[split]
    say(f"{split}: {note}" for note in rows.notes)
    chosen = rows.of_examples(max_examples) if is_part else list(range(len(rows)))
    return PreparedEvaluation(recipe, split, data, names, chosen, began, max_examples)


def splits_to_measure(objective: Objective, split: str, metrics: Sequence[str]) -> list[str]:
    """The splits whose rows are needed: `split`, and `train` where a metric or class weights are computed from it.

    A stream is not read for a metric.
    """
    of_metric = any(METRICS[name].needs_train for name in metrics) and not objective.recipe.data.streaming
    of_loss = objective.settings.weighs_by_train and split != "train"
    return [split, "train"] if of_metric or of_loss else [split]


def measure_all(prepared: Sequence[PreparedEvaluation]) -> list[Evaluation]:
    """Measure several models or tasks, after each model has been loaded once with its head, and dropped.

    Raises UserError for a model that cannot be loaded, before any work.
    """
    for each in {(one.recipe.model.name_or_path, one.data.objective.auto_class): one for one in prepared}.values():
        each.load_model()
    return [measure(each) for each in prepared]


def measure(prepared: PreparedEvaluation, picture: Path | None = None) -> Evaluation:
    """Measure the model of a prepared evaluation; `picture` and errors are those of evaluate_model."""
    began = replace(prepared.began, at=time.time())
    recipe, data, chosen = prepared.recipe, prepared.data, prepared.chosen
    rows, train, source = data.rows[prepared.split], data.rows.get("train"), data.sources[prepared.split]
    scores, answers = data.scores(keeps_scores=True), data.answers()
    name = recipe.model.name_or_path
    model = prepared.load_model()
    if rows.is_packed:
        check_documents_apart(model, name, data, [rows])
    with kept_comparisons() as of_pass:
        measured = rows if len(chosen) == len(rows) else Subset(rows, chosen)
        result, scored = evaluate_rows(recipe, data, scores, model, measured, rows.is_packed)
    classes = scores.class_report(scored, rows, chosen, source)
    metrics = {"loss": result["loss"]} | scores.of_pass(prepared.names, result, rows, train)
    finished = FinishedModel(name, lambda: model, recipe.training.evaluation_rows)
    with kept_comparisons() as of_answers:
        of_model = scores.of_answers(finished, rows, chosen)
    metrics |= of_model.values
    compared = [each.of_rows(chosen) for each in of_pass]
    compared += [each.of_rows(chosen) if each.rows is None else each for each in of_answers]
    if picture is not None and answers.draw(finished, rows, picture):
        print(f"samples are drawn in {picture}")
    return Evaluation(
        recipe,
        rows.name,
        began,
        [answer for comparison in compared for answer in answers_of(scores, comparison)],
        split=prepared.split,
        examples=len(chosen),
        max_examples=prepared.max_examples,
        rows="rows" if rows.is_packed else f"{data.objective.words.row}s",
        account=rows.account.to_json(),
        metrics=metrics,
        signatures=(scored.signatures if scored else {}) | of_model.signatures,
        backends=backends_of(model),
        recipe=with_class_names(recipe, data).to_dict(),
        # A mixture does not record how many pairs pair_accuracy counts.
        intervals=bounds_of(recipe, compared, metrics, len(chosen) if "examples" in rows.facts else None),
        compared=compared,
        classes=classes,
        asked=asked_of(data.reads, partial(data.reads.with_rows, data, source)),
    )


def bounds_of(
    recipe: Recipe, compared: list[Comparison], metrics: dict[str, float], examples: int | None
) -> dict[str, dict]:
    """The 95 % intervals of metrics, by a formula where the examples are counted and nothing else gives one."""
    bounds: dict[str, dict] = {}
    for comparison in compared:
        bounds |= intervals(comparison, metrics, recipe.evaluation.bootstrap, recipe.training.seed)
    if examples is not None:
        without_bounds = {name: value for name, value in metrics.items() if name not in bounds}
        by_formula = {name: interval_by_formula(name, value, examples) for name, value in without_bounds.items()}
        bounds |= {name: row for name, row in by_formula.items() if row is not None}
    return bounds


def with_class_names(recipe: Recipe, data: Data) -> Recipe:
    """The recipe with the names of the model's classes, where it names none."""
    names = data.learns().config_fields().get("id2label", {}).values()
    if not names or getattr(recipe.learned, "label_names", names) is not None:
        return recipe
    return recipe.with_(**{recipe.learned_section: {"label_names": list(names)}})


def answers_of(scores: Scores, comparison: Comparison) -> list[dict]:
    """{"row", "prediction", "reference"} of each example, and its "part" where there are several.

    The row is the example's number in the split, else among the answers. "scores" are the probabilities of all classes,
    where examples have classes.
    """
    part, owner, of_part = comparison.part, scores, {}
    if part is not None:
        owner, of_part = scores.data.parts[part].scores(), {"part": part}
    pairs = zip(comparison.predictions, comparison.references, strict=True)
    numbers = range(len(comparison.references)) if comparison.rows is None else comparison.rows
    answers = [
        {"row": number, **of_part, "prediction": owner.named(predicted), "reference": owner.named(true)}
        for number, (predicted, true) in zip(numbers, pairs)
    ]
    if comparison.probabilities is not None:
        for answer, scores in zip(answers, comparison.probabilities):
            answer["scores"] = {owner.named(number): float(score) for number, score in enumerate(scores)}
    return answers


# --------------------------------------------------------------------------------------------------- measuring


def evaluate_rows(
    recipe: Recipe, data: Data, scores: Scores, model, rows: Dataset, packed: bool
) -> tuple[dict[str, float], Scored | None]:
    """(loss and further numbers of a pass over some rows, as training measures them; what was scored).

    packed: as for `collator`.
    """
    learns = data.learns()
    learns.adapt(model)
    without_logits(model)
    with tempfile.TemporaryDirectory(prefix="anyformer-evaluate-") as folder:
        scratch = replace(recipe, training=replace(recipe.training, output_dir=folder))  # Trainer needs a folder
        arguments = training_arguments(scratch)
        write(arguments, "_n_gpu", min(1, arguments.n_gpu))
        with replaced(model, is_quantized=False):
            trainer = AnyformerTrainer(
                model=model,
                args=arguments,
                eval_dataset=rows,
                data_collator=data.collator_of(packed),
                processing_class=data.tokenizer,  # only for saving, which does not happen here
                learns=learns,
                scores=scores,
            )
        result = trainer.evaluate(metric_key_prefix="final")
    return {name.removeprefix("final_"): value for name, value in result.items()}, trainer.scored
