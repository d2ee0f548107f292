"""One run: from a recipe to a trained model in its output folder."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import transformers
from transformers import set_seed

from ..errors import UserError, reader_left
from ..publishing.publish import resolve_repo_id
from ..recipes.schema import Recipe
from ..recipes.stage_plan import of_stage
from ..storage.atomic import is_disk_full
from ..storage.checkpoints import STAGING, list_checkpoints, step_of
from ..storage.plugin_code import plugin_code
from ..storage.record import Record
from ..words import say
from .arguments import rows_of
from .checkpoints.checkpoint_staging import disk_full_sentence
from .checkpoints.resume import Verdict
from .checkpoints.safe_load import forged_files_named
from .engines.elastic import UNIVERSAL, reads_universal
from .finish import complete, publish_finished
from .fit.dry_run import try_step
from .fit.out_of_memory import is_out_of_memory, out_of_memory_sentence
from .guards.gradient_norms import GradientNorms
from .guards.stop_signal import StopAtOnce
from .log.hardware import hardware_words
from .log.report_page import ReportPage, record_rows, spoken
from .log.summary import print_dry_run, print_result, print_start
from .models import build_model, check_length
from .session import Session


def train(recipe: Recipe, *, dry_run: bool = False, quiet: bool = False, began: float | None = None) -> int:
    """Train (or go on training) the recipe's model and print the result; return the exit code.

    The code is 0 if the run is finished, also if it was before, and 128 + n if signal n stopped it.
    With `dry_run` the data is prepared, the model is built, one step is made on a full batch and one batch of each
    other split is evaluated; nothing is written to output_dir. With `quiet` only the progress line is printed.
    began: time.monotonic() when the command began; None: now.

    Raises:
        UserError: before training, for mistakes in recipe, data or folders; during it, for a full disk, a NaN loss or
            too little memory.
    """
    transformers.utils.logging.disable_progress_bar()  # "Writing model shards" would break our progress line
    began = time.monotonic() if began is None else began
    session = Session.of(recipe, began, quiet or dry_run, is_trial=dry_run)  # the engine
    if dry_run:
        return check_by_trying(session)
    stop = StopAtOnce(active=session.is_main)
    with ended_in_a_sentence(session, stop), session.folder.held() if session.is_main else nullcontext(), stop:
        if session.is_main and recipe.publish.repo_id is not None:
            resolve_repo_id(recipe.publish.repo_id)
        session.prepare()  # the data
        verdict = session.from_main(session.resume.verdict)
        if verdict.kind == "finished":
            return finished_before(session, verdict)
        model = fresh_model(session)
        trainer = session.trainer(model)
        checkpoint = begin(session, trainer, verdict)
        return go(session, trainer, checkpoint)
    return 128 + stop.received


@contextmanager
def ended_in_a_sentence(session: Session, stop: StopAtOnce) -> Iterator[None]:
    """End the block on a signal, with a sentence; errors of a full disk or of too little memory become UserErrors."""
    folder = session.folder.path
    try:
        yield
    except BaseException as error:
        if stop.received is None:  # otherwise the error follows from the signal, whatever it is
            raise_as_sentence(session, error)
        shutil.rmtree(folder / STAGING, ignore_errors=True)
        if not session.quiet:
            print(stopped_sentence(f"stopped by signal {stop.received}", folder))
        stop.close()


def raise_as_sentence(session: Session, error: BaseException) -> None:
    """Raise the error that ended a run; errors of a full disk or of too little memory are raised as UserErrors."""
    folder = session.folder.path
    if reader_left(error):
        say(stopped_sentence("stopped by a closed output pipe", folder))
    if isinstance(error, UserError) or not isinstance(error, Exception):
        raise error
    full = is_disk_full(error, folder)
    if not full and not is_out_of_memory(error):
        raise error
    if session.is_main:
        shutil.rmtree(folder / STAGING, ignore_errors=True)
    if not full:
        stage = None if session.staged is None else session.staged.current
        raise UserError(out_of_memory_sentence(session.recipe, session.engine, error, stage)) from error
    raise UserError(disk_full_sentence(folder, f"a file of {folder}")) from error


def stopped_sentence(stopped: str, folder: Path) -> str:
    """The message for a run that was stopped outside the training steps; `stopped` is its beginning."""
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        return f"{stopped} before the first checkpoint; the same command starts again"
    return f"{stopped}; {checkpoints[0]} is complete; the same command goes on from there"


def fresh_model(session: Session):
    """The model to train, seeded, and checked against the data."""
    set_seed(session.arguments.seed)
    model = build_model(session.recipe, session.data, session.arguments, session.engine, session.quiet)
    if (base := session.recipe.model.name_or_path) is not None:
        before = session.data.facts["base_weights"]
        session.from_main(lambda: Record(before).check_still(base, "model.name_or_path", alone=True))
    check_length(session.data.objective, model.config, trains=True, data=session.data)
    for run in session.stages:
        with of_stage(run.stage.number):
            check_length(run.data.objective, model.config, trains=True, data=run.data)
    plugin_code(model.config)  # saved with the model after training; raises its errors now
    return model


def check_by_trying(session: Session) -> int:
    """The dry run: prepare the data, build the model, make one step and evaluate a batch of each other split."""
    session.prepare()
    session.resume.check_free()
    model = fresh_model(session)
    trainer, facts = try_step(session, model)
    if session.is_main:
        print_dry_run(session.data, trainer, facts, session.stages)
    return 0


def finished_before(session: Session, verdict: Verdict) -> int:
    """Print the result of a run that is finished already, and publish it if it is not; return the exit code, 0."""
    if session.is_main:
        if not session.quiet:
            print_result(session.folder.path, verdict.identity, session.data.objective.words, again=True)
        publish_finished(session, verdict.identity)
    return 0


def begin(session: Session, trainer, verdict: Verdict) -> Path | None:
    """Write the beginning of the run into its folder, and print it; return the checkpoint to go on from, if any."""
    checkpoint = verdict.checkpoint
    if checkpoint is not None:
        trusted = session.recipe.trust_remote_code
        checkpoint = session.from_main(
            partial(session.engine.resumable, checkpoint, session.arguments.world_size, trusted)
        )
    if session.is_main:
        write_beginning(session, trainer, verdict)
        if not session.quiet:
            print_start(session.recipe, session.data, trainer, checkpoint, session.stages)
    if checkpoint is not None and checkpoint.parent.name == UNIVERSAL:
        reads_universal(trainer)
    return checkpoint


def write_beginning(session: Session, trainer, verdict: Verdict) -> None:
    """Write run.json and rows.json, and add the callbacks that write gradient norms and the report page."""
    folder, arguments = session.folder, session.arguments
    if verdict.checkpoint is not None:
        folder.go_on_from(step_of(verdict.checkpoint), verdict.identity)
        trainer.staging.run_identity = session.identity_text()
    for tracker in trainer.trackers:
        tracker.run_id = folder.tracker_id
    folder.write(
        "running",
        world_size=arguments.world_size,
        rows_per_step=rows_of(arguments),
        total_steps=session.resume.total_steps(session.recipe.training),
        hardware=hardware_words(arguments.device),
        **session.facts_of_stages(),
    )
    with spoken("rows.json", folder.path):
        record_rows(folder, session.data)
    if session.recipe.training.log_gradient_norms_per_layer:
        trainer.add_callback(GradientNorms(folder.path))
    trainer.add_callback(ReportPage(folder.path))


def go(session: Session, trainer, checkpoint: Path | None) -> int:
    """Train, and complete the run's folder unless a signal has stopped the training; return the exit code."""
    try:
        with forged_files_named(checkpoint, session.engine.loads_by_itself):
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        stopped = trainer.stop_signal.agree(trainer.args)
        if stopped is None:
            trainer.guard.check()
            complete(session, trainer, None if checkpoint is None else step_of(checkpoint))
            return 0
        if session.is_main and not session.quiet:
            print(sentence_of_stop(session, trainer, stopped))
        return 128 + stopped
    finally:
        for tracker in trainer.trackers:
            tracker.close()
        if session.is_main:
            shutil.rmtree(session.folder.path / UNIVERSAL, ignore_errors=True)


def sentence_of_stop(session: Session, trainer, stopped: int) -> str:
    """The message for a run whose training a signal has stopped. stopped: the signal's number."""
    step, folder = trainer.state.global_step, session.folder.path
    if trainer.has_ended:
        return stopped_sentence(f"stopped by signal {stopped}", folder)
    return (
        f"stopped by signal {stopped} after step {step}; saved {folder / f'checkpoint-{step}'}; the same command goes "
        f"on from there"
    )
