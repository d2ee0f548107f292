"""One run: from a recipe to a trained model in its output folder."""

import os
import shutil
import sys
import time
from pathlib import Path

import torch
import transformers

import anyformer

from ..errors import UserError
from ..objectives.perplexity import final_metrics
from ..objectives.prepare import PreparedData, prepare_data
from ..publishing.publish import prepare_folder, publish, resolve_repo_id
from ..recipes.image_checks import sees_images
from ..recipes.schema import Recipe
from ..storage.checkpoints import STAGING
from .arguments import start_deepspeed, training_arguments, whole_weights
from .models import build_model, check_length
from .run_folder import RunFolder
from .summary import print_dry_run, print_result, print_start

SAMPLES = 3  # generated texts that are shown


def train(recipe: Recipe, *, dry_run: bool = False) -> int:
    """Train (or go on training) the recipe's model and print the result; return the exit code.

    0: finished, also if it had been finished before. 128 + n: stopped by signal n after saving a checkpoint.
    With `dry_run` the data is prepared, the model is built and one forward and backward pass is made; nothing is
    written to output_dir.

    Raises:
        UserError: a mistake in recipe, data or folders, before any training; a full disk or a NaN loss during it.
    """
    from transformers import set_seed

    anyformer.register()
    transformers.utils.logging.disable_progress_bar()  # "Writing model shards" would tear our own line
    arguments = training_arguments(recipe)  # also starts the process group, so that one process prepares the data
    main = arguments.process_index == 0
    folder = RunFolder(recipe, {})
    if not dry_run and main:
        folder.check_writable()
        if recipe.publish.repo_id is not None:
            resolve_repo_id(recipe.publish.repo_id)
    with arguments.main_process_first(local=False, desc="preparing data"):
        data = prepare_data(recipe, progress=main and sys.stdout.isatty())
    folder.data = data.facts
    arguments = training_arguments(recipe, rows=row_count(data))
    start_deepspeed(arguments)
    if dry_run:
        set_seed(arguments.seed)
        model = build_model(recipe, data, arguments)
        check_length(recipe, model.config)
        print_dry_run(recipe, data, model)
        return 0

    finished = folder.finished()
    if finished is not None:
        if main:
            print_result(folder.path, finished, again=True)
            publish_finished(recipe, folder, finished)
        return 0
    set_seed(arguments.seed)
    model = build_model(recipe, data, arguments)
    check_length(recipe, model.config)
    trainer = build_trainer(recipe, folder, arguments, data, model)
    checkpoint = agreed_checkpoint(trainer, folder)
    if main:
        folder.write("running", world_size=arguments.world_size)
        print_start(recipe, data, trainer, checkpoint)
    return run(trainer, recipe, folder, data, checkpoint)


def row_count(data: PreparedData) -> int | None:
    """Training rows, or None for a stream."""
    rows = data.rows["train"]
    return len(rows) if hasattr(rows, "__len__") else None


def build_trainer(recipe: Recipe, folder: RunFolder, arguments, data: PreparedData, model):
    import json

    from torch.utils.data import Subset

    from .trainer import AnyformerTrainer

    validation = data.rows.get("validation")
    most = recipe.evaluation.max_rows
    if validation is not None and most is not None and most < len(validation):
        # Spread over all rows: the first ones belong to few documents, whose loss says little about the rest.
        validation = Subset(validation, [i * len(validation) // most for i in range(most)])
    if recipe.evaluation.every_steps is not None and validation is None:
        raise UserError("evaluation.every_steps is set, but the data section names no validation data")
    return AnyformerTrainer(
        model=model,
        args=arguments,
        train_dataset=data.rows["train"],
        eval_dataset=validation,
        data_collator=data.objective.collator(data.packed),
        processing_class=data.processor,
        run_identity=json.dumps(folder.identity() | {"world_size": arguments.world_size}),
        muon_learning_rate=recipe.training.muon_learning_rate if recipe.training.optim == "muon" else None,
        predicts_next=data.objective.predicts_next,
        scorer=data.objective if hasattr(data.objective, "outcome") else None,
    )


def agreed_checkpoint(trainer, folder: RunFolder) -> Path | None:
    """The checkpoint to go on from, looked for by one process and told to all."""
    from accelerate.utils import broadcast_object_list

    found: list = [None, None]
    if trainer.accelerator.is_main_process:
        try:
            found[0] = folder.checkpoint_to_resume(trainer.args.world_size)
        except UserError as error:
            found[1] = str(error)  # all processes must stop, not one while the others wait
    broadcast_object_list(found)
    if found[1] is not None:
        raise UserError(found[1])
    return found[0]


def run(trainer, recipe: Recipe, folder: RunFolder, data: PreparedData, checkpoint: Path | None) -> int:
    """Train, evaluate, save and report."""
    started = time.time()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.stop_signal.received is not None and trainer.state.global_step < trainer.state.max_steps:
        if trainer.accelerator.is_main_process:
            print(
                f"stopped by signal {trainer.stop_signal.received} after step {trainer.state.global_step}; "
                f"saved {folder.path / f'checkpoint-{trainer.state.global_step}'}; the same command goes on from there"
            )
        return 128 + trainer.stop_signal.received
    trainer.guard.check()
    average(trainer, recipe)
    metrics = evaluate_splits(trainer, recipe, data)
    save_final(trainer, folder)
    if hasattr(data.objective, "generate"):
        found, samples = generate_splits(trainer, recipe, data)
        metrics |= found
    elif hasattr(data.objective, "pictures"):
        samples, found = [], finish_pixels(trainer, recipe, folder, data)
        metrics |= found
    else:
        samples = write_samples(trainer, recipe, data)
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:  # nobody waits from here on: an error of the upload stops no other process
        facts = {
            "metrics": metrics,
            "parameters": sum(getattr(p, "ds_numel", p.numel()) for p in trainer.model.parameters()),
            "steps": trainer.state.global_step,
            "best_step": trainer.state.best_global_step,
            "world_size": trainer.args.world_size,
            "engine": type(trainer.model_wrapped).__name__,  # what really ran: DDP, DeepSpeedEngine, ...
            "wall_seconds": round(time.time() - started, 1),
            "samples": samples,
            "signatures": getattr(data.objective, "signatures", {}),
        }
        folder.write("finished", **facts)
        prepare_folder(folder.path)
        print_result(folder.path, folder.identity() | facts)
        publish_finished(recipe, folder, facts)
    return 0


def average(trainer, recipe: Recipe) -> None:
    """Average the newest checkpoints where the recipe asks for it."""
    wanted = recipe.evaluation.average_checkpoints
    if wanted is not None:
        found = trainer.load_average(wanted)
        if trainer.accelerator.is_main_process:
            print(f"the final model is the mean of the newest {found} checkpoints")


def evaluate_splits(trainer, recipe: Recipe, data: PreparedData) -> dict:
    """The metrics of the whole validation and test splits: {"validation_loss": ..., "test_perplexity": ...}."""
    metrics = {}
    train_store = getattr(data.rows["train"], "store", None)
    for split, rows in data.rows.items():
        if split == "train":
            continue
        result = trainer.evaluate(rows, metric_key_prefix=split)
        if sees_images(recipe) and recipe.task is None:
            loss = result[f"{split}_loss"]
            found = {"loss": loss} | data.objective.final_metrics(recipe.evaluation.metrics, loss)
        elif recipe.task is None:
            names = [n for n in recipe.evaluation.metrics if n != "unigram_perplexity" or train_store is not None]
            nll, predictions = result[f"{split}_nll"], result[f"{split}_predictions"]
            found = final_metrics(names, nll, predictions, rows, train_store, len(data.tokenizer))
        else:  # what can be measured on the model's own answers comes later, from the saved model
            known = ["loss", *recipe.evaluation.metrics]
            found = {name: result[f"{split}_{name}"] for name in known if f"{split}_{name}" in result}
        metrics |= {f"{split}_{name}": value for name, value in found.items()}
    return metrics


def generate_splits(trainer, recipe: Recipe, data: PreparedData) -> tuple[dict, list[dict]]:
    """Metrics of the generated texts of every split but train, and some of them as samples.

    Every process answers for a share of the rows, with a model loaded from the saved files: they are proved to load,
    and it does not matter how the engine has split the trained one.
    """
    from accelerate.utils import gather_object

    auto_class, arguments = getattr(transformers, data.objective.auto_class), trainer.args
    with whole_weights(arguments):
        model = auto_class.from_pretrained(recipe.training.output_dir, dtype=torch.float32)
    model = model.to(arguments.device).eval()
    metrics, samples = {}, []
    for split, rows in data.rows.items():
        if split == "train":
            continue
        mine = list(range(arguments.process_index, len(rows), arguments.world_size))
        texts = data.objective.generate(model, rows, mine, arguments.per_device_eval_batch_size)
        found = dict(gather_object(list(zip(mine, texts))))
        texts, references = [found[i] for i in range(len(rows))], rows.texts("target")
        measured = data.objective.measure_texts(texts, references)
        metrics |= {f"{split}_{name}": value for name, value in measured.items()}
        some = range(min(SAMPLES, len(rows)))
        samples = [
            {"prompt": s, "reference": references[i], "text": texts[i]} for i, s in zip(some, rows.texts("source"))
        ]
    prompts = recipe.evaluation.sample_prompts
    if prompts:
        samples = [{"prompt": p, "text": t} for p, t in zip(prompts, data.objective.generate_texts(model, prompts))]
    return metrics, samples


def finish_pixels(trainer, recipe: Recipe, folder: RunFolder, data: PreparedData) -> dict:
    """What the finished model's features know of the classes, and a picture of images that it completes.

    One process alone does it, with a model loaded from the saved files.
    """
    from ..objectives.pixel_results import PICTURE, complete_some, probe_metrics

    if not trainer.accelerator.is_main_process:
        return {}
    with whole_weights(trainer.args):
        model = transformers.AutoModelForCausalLM.from_pretrained(recipe.training.output_dir, dtype=torch.float32)
    model = model.to(trainer.args.device).eval()
    metrics = {}
    for split, rows in data.rows.items():
        if split != "train":
            found = probe_metrics(model, recipe, data.rows["train"], rows)
            metrics |= {f"{split}_{name}": value for name, value in found.items()}
            complete_some(model, data.objective, recipe, rows, folder.path / PICTURE)
    return metrics


def save_final(trainer, folder: RunFolder) -> None:
    """Save the finished model into the run folder: written beside it first, then moved, config.json last."""
    staged = folder.path / STAGING / "final"
    trainer.save_model(str(staged), _internal_call=True)
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        for file in sorted(staged.iterdir(), key=lambda f: f.name == "config.json"):
            os.replace(file, folder.path / file.name)
        shutil.rmtree(folder.path / STAGING, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()


def write_samples(trainer, recipe: Recipe, data: PreparedData) -> list[dict]:
    """Let the finished model continue the recipe's prompts; the saved files are read, so they are proved to load."""
    if not (trainer.accelerator.is_main_process and recipe.evaluation.sample_prompts):
        return []
    from ..generation import generate_text

    # Under ZeRO-3 a model would be loaded in shards, by processes that are not here.
    with whole_weights(trainer.args):
        return [
            {
                "prompt": prompt,
                "text": generate_text(
                    recipe.training.output_dir,
                    prompt,
                    max_new_tokens=recipe.evaluation.sample_tokens,
                    top_p=recipe.evaluation.sample_top_p,
                    seed=recipe.training.seed,
                ),
            }
            for prompt in recipe.evaluation.sample_prompts
        ]


def publish_finished(recipe: Recipe, folder: RunFolder, facts: dict) -> None:
    """Push to the Hub where the recipe asks for it and it has not happened yet: a failed upload is tried again."""
    repo_id = recipe.publish.repo_id
    if repo_id is None or facts.get("published") == repo_id:
        return
    publish(folder.path, repo_id, private=recipe.publish.private, license=recipe.publish.license)
    known = (
        "metrics",
        "parameters",
        "steps",
        "best_step",
        "world_size",
        "engine",
        "wall_seconds",
        "samples",
        "signatures",
    )
    folder.write("finished", **{name: facts[name] for name in known if name in facts}, published=repo_id)
