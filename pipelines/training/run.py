"""One run: from a recipe to a trained model in its output folder."""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import TrainingArguments, set_seed

import anyformer

from ..adapters import ADAPTER_CONFIG, load_model
from ..backends import backends_of
from ..data.reference import weights_identity
from ..errors import UserError, reader_left
from ..generation import locate_model
from ..json_text import finite
from ..objectives.base import FinishedModel, Objective
from ..objectives.prepare import PreparedData, prepare_data
from ..plugins import OPTIMIZERS, SCHEDULES
from ..publishing.publish import prepare_folder, publish, resolve_repo_id
from ..recipes.parallelism import check_processes
from ..recipes.schema import Recipe, TrainingSection
from ..reporting.interpret import validations_of
from ..reporting.run_log import COMPLETING
from ..storage.atomic import share_files, write_atomically
from ..storage.cache import sha
from ..storage.checkpoints import STAGING, list_checkpoints, step_of
from ..storage.full_disk import is_disk_full
from ..storage.ownership import find_foreign
from ..storage.plugin_code import plugin_code, save_plugin_code
from .arguments import rows_of, total_steps, training_arguments
from .auto_batch import check_auto_batch, find_batch, found_before, with_rows
from .checkpoints.checkpoint_staging import disk_full_sentence
from .checkpoints.from_weights import set_aside_before
from .checkpoints.run_folder import RunFolder, say
from .checkpoints.safe_load import forged_files_named
from .compiled_layers import compiled_layers
from .dry_run import try_step
from .engines.asked import check_one_device, engine_for
from .engines.deepspeed_engine import gather_experts_whole, start_deepspeed, whole_weights
from .engines.elastic import UNIVERSAL, check_engine_of, reads_universal
from .engines.main_process import broadcast_from_main
from .engines.mesh import engine_name, parameters_of
from .engines.parts_of_rows import check_rows_can_be_shared
from .guards.gradient_norms import GradientNorms
from .guards.safety import watch_of
from .guards.step_guard import StepGuard
from .guards.stop_signal import StopAtOnce
from .learning_rate import share_of_steps
from .log.hardware import hardware_words
from .log.report_page import ReportPage, draw_card_picture, report_finished, spoken
from .log.sample_rows import record_rows
from .log.summary import print_dry_run, print_result, print_start
from .lora import plain, trainable_parameters
from .losses.validation_metrics import ValidationMetrics
from .models import build_model, check_length
from .out_of_memory import is_out_of_memory, out_of_memory_sentence


def train(
    recipe: Recipe, *, dry_run: bool = False, quiet: bool = False, sets_aside: bool = False, began: float | None = None
) -> int:
    """Train (or go on training) the recipe's model and print the result; return the exit code.

    0: finished, also if it had been finished before. 128 + n: stopped by signal n after saving a checkpoint.
    With `dry_run` the data is prepared, the model is built, one step is made on a full batch and one batch of each
    other split is measured; nothing is written to output_dir. With `quiet` only the progress line is printed. With
    `sets_aside` the recipe begins from the run that is in its output_dir, which is renamed first (from_weights.py).
    began: when the command did, by time.monotonic(), which no change of the clock turns back; None: now.

    Raises:
        UserError: a mistake in recipe, data or folders, before any training; during it a full disk, a NaN loss, or too
            little memory.
    """
    began = time.monotonic() if began is None else began
    anyformer.register()
    transformers.utils.logging.disable_progress_bar()  # "Writing model shards" would tear our own line
    arguments = training_arguments(recipe)  # also starts the process group, so that one process prepares the data
    check_one_device(arguments.n_gpu)
    if recipe.training.parallelism is not None:
        check_processes(recipe.training.parallelism, arguments.world_size, f"WORLD_SIZE={arguments.world_size}")
    engine_for(recipe.training).check_run(recipe, StepGuard(recipe.training).decides)
    found = None
    if recipe.training.auto_batch:
        check_auto_batch(recipe)
        if not sets_aside and (found := found_before(recipe)) is not None:
            recipe = with_rows(recipe, found["rows"])
            arguments = training_arguments(recipe)
    if dry_run:
        return check_by_trying(recipe, arguments, found, sets_aside)
    folder, main = RunFolder(recipe, {}, auto_batch=found), arguments.process_index == 0
    if sets_aside:
        broadcast_from_main(main, lambda: set_aside_before(folder.path))
    stop = StopAtOnce(active=main)
    try:
        with folder.held() if main else nullcontext(), stop:
            return start(recipe, folder, arguments, quiet, began)
    except BaseException as error:
        if stop.received is not None:  # whatever it was, the signal was before it
            shutil.rmtree(folder.path / STAGING, ignore_errors=True)
            if not quiet:
                print(stopped_sentence(f"stopped by signal {stop.received}", folder.path))
            stop.close()
            return 128 + stop.received
        if reader_left(error):
            say(stopped_sentence("stopped by a closed output pipe", folder.path))
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        full = is_disk_full(error, folder.path)
        if not full and not is_out_of_memory(error):
            raise
        if main:
            shutil.rmtree(folder.path / STAGING, ignore_errors=True)
        if not full:
            raise UserError(out_of_memory_sentence(folder.recipe, error)) from error
        raise UserError(disk_full_sentence(folder.path, f"a file of {folder.path}")) from error


def stopped_sentence(stopped: str, folder: Path) -> str:
    """What a user reads when the run was `stopped` outside the training steps."""
    found = list_checkpoints(folder)
    if not found:
        return f"{stopped} before the first checkpoint; the same command starts again"
    return f"{stopped}; {found[0]} is complete; the same command goes on from there"


def prepared(recipe: Recipe, arguments, per_step: int | None = None) -> tuple[PreparedData, TrainingArguments]:
    """The data, prepared by the main process first, and the arguments of a run that knows their length.

    per_step: rows of a step of the run that goes on; None: as the recipe says.
    """
    main = arguments.process_index == 0
    if recipe.model.name_or_path is not None:
        locate_model(recipe.model.name_or_path, "model.name_or_path")
    with arguments.main_process_first(local=False, desc="preparing data"):
        data = prepare_data(recipe, progress=main and sys.stdout.isatty(), for_training=True)
    if recipe.training.lora is not None:
        data.facts["base_weights"] = sha(weights_identity(recipe.model.name_or_path))
    rows = data.rows["train"]
    arguments = training_arguments(recipe, None if rows.is_stream else len(rows), per_step)
    check_rows_can_be_shared(recipe, rows)
    start_deepspeed(arguments)
    return data, arguments


def total_steps_with(data: PreparedData, arguments) -> Callable[[TrainingSection], int | None]:
    """RunFolder.total_steps of a run with these data and rows of a step."""
    rows = data.rows["train"]
    return partial(total_steps, rows=None if rows.is_stream else len(rows), per_step=rows_of(arguments))


def check_by_trying(recipe: Recipe, arguments, found: dict | None, sets_aside: bool = False) -> int:
    """The dry run: prepare the data, build the model, make one step and measure one batch; keep nothing of it."""
    data, arguments = prepared(recipe, arguments)
    if not sets_aside:
        RunFolder(recipe, data.facts, total_steps_with(data, arguments)).check_free()
    set_seed(arguments.seed)
    model = build_model(recipe, data, arguments, quiet=True)
    check_length(data.objective, model.config, trains=True)
    if recipe.training.auto_batch and found is None:
        recipe, arguments, found = with_found_batch(recipe, data, model, arguments)

    def trial_trainer(trial: Recipe, trial_arguments):
        return build_trainer(trial, RunFolder(trial, data.facts), trial_arguments, data, model)

    trainer, facts = try_step(recipe, arguments, data, trial_trainer)
    if arguments.process_index == 0:
        print_dry_run(data, trainer, facts | {"auto_batch": found})
    return 0


def with_found_batch(recipe: Recipe, data: PreparedData, model, arguments) -> tuple[Recipe, TrainingArguments, dict]:
    """The recipe, and its arguments, with the most rows at a time that fit; and what run.json says of them."""
    from accelerate.utils import gather_object

    rows, per_step = data.rows["train"], rows_of(arguments)
    length = None if rows.is_stream else len(rows)

    def trial_trainer(trial: Recipe):
        trial_arguments = training_arguments(trial, length, per_step)
        return build_trainer(trial, RunFolder(trial, data.facts), trial_arguments, data, model)

    def agree(fit: int) -> int:
        return min(gather_object([fit]))

    found = find_batch(recipe, data, model, arguments, trial_trainer, agree)
    recipe = with_rows(recipe, found["rows"])
    return recipe, training_arguments(recipe, length, per_step), found


def start(recipe: Recipe, folder: RunFolder, arguments, quiet: bool, began: float) -> int:
    """Prepare everything, find out whether there is something left to do, and do it."""
    main = arguments.process_index == 0
    if main and recipe.publish.repo_id is not None:
        resolve_repo_id(recipe.publish.repo_id)
    data, arguments = prepared(recipe, arguments, broadcast_from_main(main, folder.rows_per_step_before))
    folder.data, folder.total_steps = data.facts, total_steps_with(data, arguments)
    folder.rows_per_step = rows_of(arguments)
    finished = broadcast_from_main(main, folder.finished)
    if finished is not None:
        if main and not quiet:
            print_result(folder.path, finished, data.objective, again=True)
        if main:
            publish_finished(recipe, folder, finished)
        return 0
    set_seed(arguments.seed)
    model = build_model(recipe, data, arguments, quiet)
    plugin_code(model.config)  # which is saved with the model: what cannot be is said now
    check_length(data.objective, model.config, trains=True)
    if recipe.training.auto_batch and folder.auto_batch is None:
        recipe, arguments, folder.auto_batch = with_found_batch(recipe, data, model, arguments)
        folder.recipe = recipe
    trainer = build_trainer(recipe, folder, arguments, data, model)
    checkpoint = broadcast_from_main(main, lambda: checkpoint_to_go_on(trainer, folder))
    if main:
        if checkpoint is not None:
            folder.keep_versions_of(checkpoint)
            trainer.staging.run_identity = identity_text(folder, arguments)
        folder.write(
            "running",
            world_size=arguments.world_size,
            rows_per_step=rows_of(arguments),
            total_steps=folder.total_steps(recipe.training),
            hardware=hardware_words(arguments.device),
        )
        with spoken("rows.json", folder.path):
            record_rows(folder, data)
        if recipe.training.log_gradient_norms_per_layer:
            trainer.add_callback(GradientNorms(folder.path))
        trainer.add_callback(ReportPage(folder.path))
    if main and not quiet:
        print_start(recipe, data, trainer, checkpoint, folder.auto_batch)
    if checkpoint is not None and checkpoint.parent.name == UNIVERSAL:
        reads_universal(trainer)
    try:
        return run(trainer, recipe, folder, data, checkpoint, quiet, began)
    finally:
        trainer.close_trackers()
        if main:
            shutil.rmtree(folder.path / UNIVERSAL, ignore_errors=True)


def identity_text(folder: RunFolder, arguments) -> str:
    """What each checkpoint of the run says of it."""
    sizes = {"world_size": arguments.world_size, "rows_per_step": rows_of(arguments)}
    return json.dumps(folder.identity() | sizes)


def build_trainer(recipe: Recipe, folder: RunFolder, arguments, data: PreparedData, model):
    from .checkpoints.weight_average import WeightAverage
    from .trainer import AnyformerTrainer

    section = recipe.training
    measures = ValidationMetrics(data.objective, data.rows.get("validation"), recipe.evaluation)
    gather_experts_whole(model)
    engine, collator = engine_for(section), data.objective.collator(data.packed)
    trainer = AnyformerTrainer(
        model=model,
        args=arguments,
        train_dataset=data.rows["train"],
        eval_dataset=measures.validated(),
        data_collator=engine.collator(collator),
        processing_class=data.processor,
        run_identity=identity_text(folder, arguments),
        muon_learning_rate=section.muon_learning_rate if section.optim == "muon" else None,
        parts_of=data.objective.parts_of,
        average=None if section.ema_decay is None else WeightAverage(section.ema_decay, section.ema_warmup),
        shifts_labels=data.objective.shifts_labels,
        scorer=data.objective.scorer(),
        own_loss=data.objective.loss(),
        logits_of=data.objective.logits_of(),
        patience=recipe.evaluation.patience,
        loss_parts=data.objective.loss_parts(),
        shares=partial(share_of_steps, section) if section.restarts or section.lr_scheduler_type in SCHEDULES else None,
        optimizer_cls_and_kwargs=(OPTIMIZERS[section.optim], {"lr": section.learning_rate})
        if section.optim in OPTIMIZERS
        else None,
        validation_metrics=measures,
        engine=engine,
        audits_samples=section.audit_samples,
        watch=watch_of(section, recipe.trust_remote_code),
        parallelism=section.parallelism,
    )
    if section.torch_compile:
        trainer.add_callback(compiled_layers(section, trainer))
    return trainer


def checkpoint_to_go_on(trainer, folder: RunFolder) -> Path | None:
    """The checkpoint that the run goes on from, None where it begins; raises UserError for one it must not read."""
    found = folder.checkpoint_to_resume()
    if found is None:
        return None
    check_engine_of(found, trainer.engine)
    if trainer.parallelism is not None and trainer.parallelism.sp > 1:
        raise UserError(
            f"{found} is of a run with sp, whose loader cannot begin in the middle of the rows; choose another "
            f"output_dir, or begin from its weights with --from-weights"
        )
    if trainer.engine.reads_pickles:
        check_own(found, folder.recipe)
    return trainer.engine.resumable(found, trainer.args.world_size, trainer.trusts_checkpoints)


def check_own(checkpoint: Path, recipe: Recipe) -> None:
    """Raise UserError where a sharded checkpoint, which is read with pickle, is not this user's own.

    Its files are those of its manifest, whose checksums have been verified.
    """
    foreign = None if recipe.trust_remote_code else find_foreign(checkpoint)
    if foreign is not None:
        raise UserError(
            f"{checkpoint}: {foreign}, and resuming under DeepSpeed or FSDP runs whatever code its files hold; if you "
            f"trust them, make a copy of your own and resume that, or add --trust-remote-code"
        )


def run(
    trainer, recipe: Recipe, folder: RunFolder, data: PreparedData, checkpoint: Path | None, quiet: bool, began: float
) -> int:
    """Train, evaluate, save and report."""
    with forged_files_named(checkpoint, trainer.engine.loads_by_itself):
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    stopped = trainer.stop_signal.agree(trainer.args)
    if stopped is not None:
        step = trainer.state.global_step
        if trainer.accelerator.is_main_process and not quiet:
            print(
                stopped_sentence(f"stopped by signal {stopped}", folder.path)
                if trainer.has_ended
                else f"stopped by signal {stopped} after step {step}; saved {folder.path / f'checkpoint-{step}'}; the "
                f"same command goes on from there"
            )
        return 128 + stopped
    trainer.guard.check()
    validations = validations_of(trainer.state.log_history, trainer.validation_metrics.names)
    average(trainer, recipe, quiet)
    trained = trainable_parameters(trainer.model)
    metrics = evaluate_splits(trainer, recipe, data)
    check_finite(metrics, folder.path)
    save_final(trainer, folder, data.objective)
    found, samples = finish(trainer, recipe, data)
    metrics |= found
    trainer.log_final(metrics)
    trainer.accelerator.wait_for_everyone()
    # After the last barrier: a failed upload cannot hang the other processes.
    if trainer.accelerator.is_main_process:
        facts = facts_of(trainer, recipe, data, metrics, samples, trained, validations)
        facts["wall_seconds"] = round(time.monotonic() - began, 1)  # of this command
        if checkpoint is not None:
            facts["resumed_at"] = step_of(checkpoint)
        facts = finite(facts)  # the result reads the same when it is printed again
        folder.write(COMPLETING, **facts)
        draw_card_picture(folder.path)
        prepare_folder(folder.path)
        report_finished(folder.path, trainer.args, recipe.trust_remote_code)
        folder.write("finished", **facts)
        if not quiet:
            print_result(folder.path, folder.identity() | facts, data.objective)
        publish_finished(recipe, folder, facts)
    return 0


def facts_of(trainer, recipe: Recipe, data, metrics: dict, samples, trained: int, validations) -> dict:
    """What run.json says of a trained model. trained: parameters that the training changed."""
    facts = {
        "metrics": metrics,
        "parameters": parameters_of(trainer.model),
        "trained_parameters": trained,
        "steps": trainer.state.global_step,
        "best_step": trainer.state.best_global_step,
        "world_size": trainer.args.world_size,
        "rows_per_step": rows_of(trainer.args),
        "hardware": hardware_words(trainer.args.device),
        "engine": engine_name(trainer.model_wrapped),  # what really ran: DDP, DeepSpeedEngine, a mesh, ...
        "backends": backends_of(plain(trainer.model)),
        **trainer.throughput.facts(),
        "samples": samples,
        "validations": validations,
        "signatures": data.objective.signatures,
        **trainer.steps.facts(),
        **({"collapsed_layers": trainer.routers.collapsed} if trainer.routers.collapsed else {}),
    }
    if trainer.stopped_early:
        facts["ended_early"] = trainer.early_stopping.sentence(trainer.state, recipe.evaluation.best_metric)
    return facts


def average(trainer, recipe: Recipe, quiet: bool = False) -> None:
    """Average the newest checkpoints where the recipe asks for it."""
    wanted = recipe.evaluation.average_checkpoints
    if wanted is not None:
        found = trainer.load_average(wanted)
        if trainer.accelerator.is_main_process and not quiet:
            print(f"the final model is the mean of the newest {found} checkpoints")


def evaluate_splits(trainer, recipe: Recipe, data: PreparedData) -> dict:
    """The metrics of the whole validation and test splits: {"validation_loss": ..., "test_perplexity": ...}.

    What is measured on the finished model's own answers comes later, in `finish`.
    """
    metrics = {}
    for split, rows in data.rows.items():
        if split == "train":
            continue
        measured = trainer.evaluate(rows, metric_key_prefix=split)
        result = {name.removeprefix(f"{split}_"): value for name, value in measured.items()}
        found = data.objective.metrics_of_pass(recipe.evaluation.metrics, result, rows, data.rows["train"])
        metrics |= {f"{split}_{name}": value for name, value in ({"loss": result["loss"]} | found).items()}
    return metrics


def check_finite(metrics: dict, folder: Path) -> None:
    """Raise UserError where the loss of the final model on a whole split is NaN or infinite."""
    for split in ("validation", "test"):
        loss = metrics.get(f"{split}_loss", 0.0)
        if not math.isfinite(loss):
            raise UserError(
                f"{split}_loss of the final model is {loss}, so the run in {folder} has not been finished; look at the "
                f"rows of {split}, or lower training.learning_rate and train into another output_dir"
            )


def finish(trainer, recipe: Recipe, data: PreparedData) -> tuple[dict, list[dict]]:
    """Metrics and samples that the finished model gives.

    It is loaded from the saved files: they are proved to load, and it does not matter how the engine has split the
    trained one.
    """
    from accelerate.utils import gather_object

    arguments, where = trainer.args, data.objective.finishes_on
    if where == "none" or (where == "one" and not trainer.accelerator.is_main_process):
        return {}, []

    def load():
        auto_class = getattr(transformers, data.objective.auto_class)
        model = load_model(
            auto_class, recipe.training.output_dir, dtype=torch.float32, trust_remote_code=recipe.trust_remote_code
        )
        return model.to(arguments.device).eval()

    finished = FinishedModel(recipe.training.output_dir, load, arguments.per_device_eval_batch_size)
    if where == "all":
        finished.index, finished.count, finished.gather = arguments.process_index, arguments.world_size, gather_object
    # Under ZeRO-3 a model would be loaded in shards, by processes that are not here.
    with whole_weights(arguments):
        return data.objective.finish(finished, data.rows)


def save_final(trainer, folder: RunFolder, objective: Objective) -> None:
    """Save the finished model into the run folder: written beside it first, then moved, its config last.

    The objective's files are there before it: other libraries would load the model otherwise without them.
    """
    staged, lora = folder.path / STAGING / "final", folder.recipe.training.lora
    if lora is not None and lora.merge:
        trainer.model = trainer.model.merge_and_unload()
    trainer.save_model(str(staged), _internal_call=True)
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        for name, text in objective.files(trainer.model.config).items():
            (folder.path / name).parent.mkdir(exist_ok=True)
            write_atomically(folder.path / name, text)
        if lora is None:
            save_plugin_code(staged, plain(trainer.model).config)
        share_files(staged.iterdir())
        for file in sorted(staged.iterdir(), key=lambda f: f.name in ("config.json", ADAPTER_CONFIG)):
            os.replace(file, folder.path / file.name)
        shutil.rmtree(folder.path / STAGING, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()


def publish_finished(recipe: Recipe, folder: RunFolder, facts: dict) -> None:
    """Push to the Hub where the recipe asks for it and it has not happened yet: a failed upload is tried again."""
    repo_id = recipe.publish.repo_id
    if repo_id is None or facts.get("published") == repo_id:
        return
    publish(folder.path, repo_id, private=recipe.publish.private, license=recipe.publish.license)
    folder.add(published=repo_id)
