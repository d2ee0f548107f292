"""The dry run: one training step with all that a run does around it, in a temporary folder."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory

import torch
from transformers import TrainerCallback, TrainingArguments

from ...data.rows import Rows, evenly_spread, steps_of_epoch
from ...errors import UserError, first_line
from ...recipes.checks import FOLLOWS_VALIDATIONS
from ...recipes.global_batch import rows_per_step
from ...recipes.schema import Recipe
from ..arguments import data_ranks, total_steps, training_arguments
from ..engines.mesh import local
from ..log.progress import ProgressLine
from ..session import Session
from ..stages.stage_run import StageRun
from .out_of_memory import is_out_of_memory, out_of_memory_sentence


class OneStep(TrainerCallback):
    """Stops after the first optimizer step. finite: whether all gradients of that step were finite."""

    finite = True

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.finite = all(torch.isfinite(local(p.grad)).all() for p in model.parameters() if p.grad is not None)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


@contextmanager
def one_sentence(session: Session, stage: StageRun | None) -> Iterator[None]:
    """Turn any error of the trial into a UserError, such as one of too little memory or of unchecked options.

    session: of the run. stage: the one that is tried.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise UserError(out_of_memory_sentence(session.recipe, session.engine, error, stage)) from error
        what = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"the first step of the run fails ({what}); --debug shows where") from error


def trial_recipe(recipe: Recipe, rows: Rows, arguments: TrainingArguments, folder: str, micro_batch: int) -> Recipe:
    """The recipe with its schedule and batch, but without trackers, validations and average of checkpoints.

    A step is one forward pass, because gradient accumulation needs no more memory. arguments: those of the run.
    micro_batch: rows of that forward pass.
    """
    ranks = data_ranks(recipe.training, arguments.world_size)
    steps = total_steps(recipe.training, steps_of_epoch(rows.in_epoch, rows_per_step(recipe.training, ranks)))
    changed: dict = dict(
        output_dir=folder,
        max_steps=steps if steps is not None else recipe.training.max_steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=1,
        global_batch_size=None,
        report_to="none",
        logging_steps=1,
    )
    if recipe.training.lr_scheduler_type in FOLLOWS_VALIDATIONS:  # the trial has no validations
        changed |= {"lr_scheduler_type": "constant", "lr_scheduler_kwargs": {}}
    validations = dict.fromkeys(("every_steps", "best_metric", "patience", "average_checkpoints"))
    return recipe.with_(training=changed, evaluation=validations)


def try_step(session: Session, model) -> tuple:
    """Make one optimizer step and evaluate one batch of each other split; returns (trainer, facts).

    session: the run's (session.py). facts: "loss", "finite" (whether the gradients are), "rows" (of the batch), "where"
    (` of stage 2`), and "other losses" (of one batch of each other split).
    """
    recipe, arguments, data = session.recipe, session.arguments, session.data
    rows, micro_batch = data.rows["train"], arguments.per_device_train_batch_size
    run = None
    if session.stages:  # the stage with the largest batch is tried
        run = max(session.stages, key=lambda stage: stage.micro_batch * stage.row_length)
        recipe, rows, data, micro_batch = run.stage.recipe, run.rows, run.data, run.micro_batch
    with TemporaryDirectory(prefix="anyformer-dry-run-") as folder:
        ranks = data_ranks(recipe.training, arguments.world_size)
        trial = trial_recipe(recipe, rows, arguments, folder, micro_batch)
        trained = replace(data, rows={**session.data.rows, "train": rows}, stages=session.data.stages)
        step = OneStep()
        with one_sentence(session, run):
            arguments_of_trial = training_arguments(trial, session.engine)
            trainer = replace(session, recipe=trial, arguments=arguments_of_trial, data=trained).trainer(model)
            trainer.args.save_strategy = "no"
            trainer.remove_callback(ProgressLine)
            trainer.add_callback(step)
            trainer.train()
        batch = micro_batch * ranks
        facts = {
            "loss": next((entry["loss"] for entry in trainer.state.log_history if "loss" in entry), math.nan),
            "finite": step.finite,
            "where": "" if run is None else f" of stage {run.stage.number + 1}",
            "rows": min(batch, rows.in_epoch),
            "other losses": {},
        }
        for split, others in data.rows.items():
            if split != "train":
                some = evenly_spread(len(others), trainer.args.per_device_eval_batch_size * ranks)
                with one_sentence(session, run):
                    measured = trainer.evaluate(torch.utils.data.Subset(others, some), metric_key_prefix=split)
                facts["other losses"][split] = measured[f"{split}_loss"]
    return trainer, facts
