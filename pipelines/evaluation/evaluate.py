"""`anyformer evaluate`: a saved model, ours or transformers' own, on the task or the text of a recipe.

All is the recipe's but the model: data, how it becomes rows, metrics. The numbers are those that training reports at
its end, because the same code computes them.
"""

import json
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import transformers
from rich.console import Console
from rich.table import Table
from torch.utils.data import Subset

import anyformer

from ..adapters import load_config, load_model
from ..data.rows import Rows
from ..errors import UserError, loading_reason
from ..objectives.base import FinishedModel, Objective, evenly_spread
from ..objectives.prepare import prepare_data
from ..plugins import METRICS, objective_of
from ..recipes.checkpoint_overrides import with_fields
from ..recipes.schema import Recipe
from ..storage.checkpoints import write_atomically
from ..training.arguments import training_arguments
from ..training.interpret import with_interval
from ..training.models import check_length
from ..training.progress import human_time
from ..training.run_folder import package_versions
from ..training.trainer import AnyformerTrainer
from ..transformers_logging import errors_only


@dataclass
class Evaluation:
    """What was measured, and on what; `vars` of it is what the JSON file holds.

    examples: how many rows. rows: what they are called, such as "examples". metrics: name -> number.
    signatures: metric -> the settings and versions its number depends on, where it says so.
    """

    model: str
    task: str
    split: str
    data: str
    examples: int
    rows: str
    metrics: dict[str, float]
    signatures: dict[str, str]
    seconds: float
    versions: dict[str, str]
    recipe: dict


def evaluate_model(
    recipe: Recipe,
    split: str,
    *,
    max_examples: int | None = None,
    picture: Path | None = None,
) -> Evaluation:
    """Evaluate the recipe's checkpoint on one split of its data.

    Args:
        recipe: as evaluation_recipe gives it.
        max_examples: at most so many rows, spread evenly over the split. Perplexities that are of a whole text
            (word_perplexity, unigram_perplexity) are then left out.
        picture: PNG file for the images that a model of pixels completes; None: it completes none.

    Raises:
        UserError: a model that cannot be loaded or was not made for the task, classes that are not the task's, or data
            that is missing or unreadable.
    """
    started = time.time()
    anyformer.register()
    transformers.utils.logging.disable_progress_bar()
    config = load(transformers.AutoConfig, recipe)
    objective = objective_of(recipe)
    check_length(objective, config)
    partial = max_examples is not None
    names = [name for name in recipe.evaluation.metrics if not (partial and METRICS[name].whole_text)]
    splits = objective.splits_to_measure(split, names)
    data = prepare_data(recipe, progress=sys.stdout.isatty(), splits=splits, model_config=config)
    objective, rows = data.objective, data.rows[split]
    model = load(getattr(transformers, objective.auto_class), recipe, objective.unused_weights)
    chosen = evenly_spread(len(rows), max_examples) if partial else list(range(len(rows)))
    result = evaluate_rows(recipe, objective, model, rows, chosen)
    train = data.rows.get("train")
    metrics = {"loss": result["loss"]} | objective.metrics_of_pass(names, result, rows, train)
    finished = FinishedModel(
        recipe.model.name_or_path, lambda: model, training_arguments(recipe).per_device_eval_batch_size
    )
    metrics |= objective.measure(finished, rows, chosen, train)
    if picture is not None and objective.draw(finished, rows, picture):
        print(f"samples are drawn in {picture}")
    return Evaluation(
        model=recipe.model.name_or_path,
        task=recipe.name,
        split=split,
        data=rows.name,
        examples=len(chosen),
        rows=f"{objective.row_noun}s",
        metrics=metrics,
        signatures=objective.signatures,
        seconds=round(time.time() - started, 1),
        versions=package_versions(),
        recipe=recipe.to_dict(),
    )


# ------------------------------------------------------------------------------------------------------- model


def load(auto_class, recipe: Recipe, unused: tuple[str, ...] = ()):
    """The checkpoint's config, or its model with all weights that the task needs; raise UserError otherwise.

    unused: how the names of weights begin that the task makes no use of.
    """
    source, is_model = recipe.model.name_or_path, auto_class is not transformers.AutoConfig
    kwargs = {"dtype": "auto", "output_loading_info": True} if is_model else {}
    if is_model and recipe.model.fields:
        kwargs["config"] = load(transformers.AutoConfig, recipe)
    try:
        with errors_only():  # transformers has a table of missing weights, which our sentence sums up
            if is_model:
                loaded = load_model(auto_class, source, trust_remote_code=recipe.trust_remote_code, **kwargs)
            else:
                loaded = load_config(source, trust_remote_code=recipe.trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"MODEL={source} cannot be loaded by {auto_class.__name__}: {loading_reason(error)}") from error
    if not is_model:
        return with_fields(loaded, recipe.model.fields, source)
    model, info = loaded
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(unused))
    if missing:  # transformers would go on with random ones
        raise UserError(
            f"MODEL={source} was not trained for this: it has no {missing[0]} for {type(model).__name__}; train it "
            f"first, with anyformer train {recipe.name} model.name_or_path={source}"
        )
    return model.eval()


# --------------------------------------------------------------------------------------------------- measuring


def evaluate_rows(recipe: Recipe, objective: Objective, model, rows: Rows, chosen: list[int]) -> dict[str, float]:
    """Loss and whatever else a pass over the rows `chosen` gives, as training measures it."""
    objective.prepare_model(model)
    with tempfile.TemporaryDirectory(prefix="anyformer-evaluate-") as folder:
        scratch = replace(recipe, training=replace(recipe.training, output_dir=folder))  # Trainer wants a folder
        trainer = AnyformerTrainer(
            model=model,
            args=training_arguments(scratch),
            eval_dataset=rows if len(chosen) == len(rows) else Subset(rows, chosen),
            data_collator=objective.collator(rows.is_packed),
            processing_class=objective.tokenizer,  # nothing is saved
            shifts_labels=objective.shifts_labels,
            scorer=objective.scorer(),
            own_loss=objective.loss(),
            loss_parts=objective.loss_parts(),
            logits_of=objective.logits_of(),
            labels_per_item=objective.labels_per_item,
        )
        result = trainer.evaluate(metric_key_prefix="final")
    return {name.removeprefix("final_"): value for name, value in result.items()}


# --------------------------------------------------------------------------------------------------- reporting


def print_evaluation(result: Evaluation) -> None:
    """The numbers as a table, with what they are of."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{result.model} on {result.task}: {result.examples:,} {result.rows} of {result.data} ({result.split}), "
        f"{human_time(result.seconds)}",
        markup=False,
    )
    table = Table("metric", "value", title=None, show_edge=False)
    table.columns[1].justify = "right"
    for name, value in result.metrics.items():
        table.add_row(name.replace("_", " "), with_interval(name, value, {"examples": result.examples}))
    console.print(table)
    for name, signature in result.signatures.items():
        console.print(f"{name}: {signature}", markup=False)


def write_evaluation(result: Evaluation, path: Path) -> None:
    """Write the result as JSON, complete or not at all."""
    write_atomically(path, json.dumps(vars(result), indent=1, ensure_ascii=False) + "\n")
