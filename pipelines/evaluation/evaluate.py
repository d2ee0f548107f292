"""`anyformer evaluate`: a saved model, ours or transformers' own, on the task or the text of a recipe.

All is the recipe's but the model: data, how it becomes rows, metrics. The numbers are those that training reports at
its end, because the same code computes them.
"""

import json
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import transformers
from rich.console import Console
from rich.table import Table
from torch.utils.data import Subset
from transformers.utils import logging

import anyformer

from ..data.corpora import open_corpora
from ..data.examples import open_examples
from ..data.packing import tokenize_corpus
from ..errors import UserError
from ..metrics import compute_metrics
from ..objectives import OBJECTIVES
from ..objectives.image_data import image_rows, make_job, open_splits
from ..objectives.perplexity import final_metrics
from ..objectives.pixel_results import complete_some, probe_metrics
from ..objectives.prepare import cache_folder
from ..objectives.tasks import TASKS
from ..recipes.checkpoint_overrides import with_fields
from ..recipes.checks import COMPARES
from ..recipes.image_checks import sees_images
from ..recipes.schema import Recipe
from ..storage.checkpoints import write_atomically
from ..tokenizers.load import train_or_load_tokenizer
from ..tokenizers.special_tokens import tokenizer_section
from ..training.arguments import training_arguments
from ..training.models import check_length
from ..training.progress import human_time
from ..training.run_folder import package_versions
from ..training.trainer import AnyformerTrainer

OF_WHOLE_TEXTS = ("word_perplexity", "unigram_perplexity")


@dataclass
class Evaluation:
    """What was measured, and on what; `vars` of it is what the JSON file holds.

    examples: how many rows: examples of a task, or packed rows of text. metrics: name -> number. signatures: metric ->
    the settings and versions its number depends on, where it says so.
    """

    model: str
    task: str
    split: str
    data: str
    examples: int
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
    trust_remote_code: bool = False,
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
    config = load(transformers.AutoConfig, recipe, trust_remote_code)
    check_length(recipe, config)
    names = [name for name in recipe.evaluation.metrics if max_examples is None or name not in OF_WHOLE_TEXTS]
    train_store = None
    if sees_images(recipe) and recipe.task is None:
        job, every = image_rows(recipe, cache_folder(recipe))
        rows = every[split]
    elif recipe.task is None:
        job, rows, train_store = open_text(recipe, split, names)
        names = [name for name in names if name != "unigram_perplexity" or train_store is not None]
    else:
        job, rows = open_task(recipe, split, config)
    model = load(getattr(transformers, job.auto_class), recipe, trust_remote_code)
    chosen = list(range(len(rows)))
    if max_examples is not None and max_examples < len(rows):
        chosen = [i * len(rows) // max_examples for i in range(max_examples)]
    result = evaluate_rows(recipe, job, model, rows if len(chosen) == len(rows) else Subset(rows, chosen))
    metrics, signatures = {"loss": result["loss"]}, {}
    if sees_images(recipe) and recipe.task is None:
        metrics |= job.final_metrics(names, result["loss"])
        if hasattr(job, "pictures"):
            metrics |= probe_metrics(model, recipe, every["train"], rows)
            if picture is not None and complete_some(model, job, recipe, rows, picture):
                print(f"completed images are drawn in {picture}")
    elif recipe.task is None:
        sums = result["nll"], result["predictions"]
        metrics |= final_metrics(names, *sums, rows, train_store, len(job.tokenizer))
    elif hasattr(job, "generate"):
        texts = job.generate(model, rows, chosen, training_arguments(recipe).per_device_eval_batch_size)
        references = rows.texts("target")
        found, signatures = compute_metrics(names, texts, [references[i] for i in chosen])
        metrics |= found
    else:
        metrics |= {name: result[name] for name in names}
    return Evaluation(
        model=recipe.model.name_or_path,
        task=recipe.name,
        split=split,
        data=getattr(rows, "name", None) or rows.store.name,
        examples=len(chosen),
        metrics=metrics,
        signatures=signatures,
        seconds=round(time.time() - started, 1),
        versions=package_versions(),
        recipe=recipe.to_dict(),
    )


# ------------------------------------------------------------------------------------------------------- model


def load(auto_class, recipe: Recipe, trust_remote_code: bool):
    """The checkpoint's config, or its model with all weights that the task needs; raise UserError otherwise."""
    source, is_model = recipe.model.name_or_path, auto_class is not transformers.AutoConfig
    kwargs = {"dtype": "auto", "output_loading_info": True} if is_model else {}
    if is_model and recipe.model.fields:
        kwargs["config"] = load(transformers.AutoConfig, recipe, trust_remote_code)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # transformers' table of missing weights, which our sentence sums up
    try:
        loaded = auto_class.from_pretrained(source, trust_remote_code=trust_remote_code, **kwargs)
    except (OSError, ValueError, ImportError) as error:
        # transformers explains over several lines; the first says what is missing.
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"MODEL={source} cannot be loaded by {auto_class.__name__}: {reason}") from error
    finally:
        logging.set_verbosity(verbosity)
    if not is_model:
        return with_fields(loaded, recipe.model.fields, source)
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would go on with random ones
        raise UserError(
            f"MODEL={source} was not trained for this: it has no {missing[0]} for {type(model).__name__}; train it "
            f"first, with anyformer train {recipe.name} model.name_or_path={source}"
        )
    return model.eval()


# -------------------------------------------------------------------------------------------------------- rows


def open_text(recipe: Recipe, split: str, metrics: list[str]):
    """(objective, packed rows of a split, tokens of the training text where a metric needs them and it is stored)."""
    cache, section = cache_folder(recipe), recipe.objective
    corpora = open_corpora(recipe.data)
    tokenizer = train_or_load_tokenizer(tokenizer_section(recipe), corpora["train"], cache, progress=False)
    objective = OBJECTIVES[section.name](section, tokenizer, recipe.training.seed)
    needs_train = "unigram_perplexity" in metrics and not recipe.data.streaming
    stores = {
        name: tokenize_corpus(
            corpora[name], tokenizer, cache, add_bos=section.add_bos, add_eos=section.add_eos, progress=False
        )
        for name in ([split, "train"] if needs_train else [split])
    }
    return objective, objective.rows(stores[split], "pad"), stores.get("train")


def open_task(recipe: Recipe, split: str, config):
    """(task, encoded examples of a split); `config` is the model's, which says what its classes are called."""
    cache, section, images = cache_folder(recipe), recipe.task, sees_images(recipe)
    task_class, columns_of, _ = (None, None, None) if images else TASKS[section.name]
    splits = open_splits(recipe) if images else open_examples(recipe.data, columns_of(section))
    if COMPARES[section.name] == "classes":
        section.label_names = agreed_classes(recipe, splits[split].source.class_names(section.label_field), config)
    if images:
        task = make_job(recipe, splits, cache)
    else:
        tokenizer = train_or_load_tokenizer(tokenizer_section(recipe), None, cache, progress=False)
        task = task_class(section, tokenizer, splits["train"], cache, recipe.evaluation.metrics)
    return task, task.rows(splits[split], cache)


def agreed_classes(recipe: Recipe, in_data: list[str] | None, config) -> list[str]:
    """The classes' names, in the order of the model's outputs.

    Raises:
        UserError: the recipe, or else the data, has other classes or another order of them.
    """
    models = [config.id2label[number] for number in range(config.num_labels)]
    tasks = recipe.task.label_names or in_data
    unnamed = models == [f"LABEL_{number}" for number in range(config.num_labels)]
    if tasks is None or list(tasks) == models:
        return models
    if unnamed and len(tasks) == len(models):
        return list(tasks)
    raise UserError(
        f"MODEL={recipe.model.name_or_path} tells {', '.join(models)} apart, but the classes of {recipe.name} are "
        f"{', '.join(tasks)}; if they mean the same, in this order, add task.label_names='[{', '.join(models)}]'"
    )


# --------------------------------------------------------------------------------------------------- measuring


def evaluate_rows(recipe: Recipe, job, model, rows) -> dict[str, float]:
    """Loss and whatever else a pass over the rows gives, as training measures it."""
    whole = getattr(rows, "dataset", rows)
    if hasattr(job, "prepare_model"):
        job.prepare_model(model)
    with tempfile.TemporaryDirectory(prefix="anyformer-evaluate-") as folder:
        scratch = replace(recipe, training=replace(recipe.training, output_dir=folder))  # Trainer wants a folder
        trainer = AnyformerTrainer(
            model=model,
            args=training_arguments(scratch),
            eval_dataset=rows,
            data_collator=job.collator(packed=getattr(whole, "is_packed", True)),
            processing_class=getattr(job, "tokenizer", None),  # nothing is saved
            shifts_labels=job.predicts_next,
            scorer=job if hasattr(job, "predictions") else None,
        )
        result = trainer.evaluate(metric_key_prefix="final")
    return {name.removeprefix("final_"): value for name, value in result.items()}


# --------------------------------------------------------------------------------------------------- reporting


def print_evaluation(result: Evaluation) -> None:
    """The numbers as a table, with what they are of."""
    console = Console(highlight=False, soft_wrap=True)
    what = "packed rows" if result.recipe["task"] is None else "examples"
    console.print(
        f"{result.model} on {result.task}: {result.examples:,} {what} of {result.data} ({result.split}), "
        f"{human_time(result.seconds)}",
        markup=False,
    )
    table = Table("metric", "value", title=None, show_edge=False)
    table.columns[1].justify = "right"
    for name, value in result.metrics.items():
        table.add_row(name.replace("_", " "), f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}")
    console.print(table)
    for name, signature in result.signatures.items():
        console.print(f"{name}: {signature}", markup=False)


def write_evaluation(result: Evaluation, path: Path) -> None:
    """Write the result as JSON, complete or not at all."""
    write_atomically(path, json.dumps(vars(result), indent=1, ensure_ascii=False) + "\n")
