"""The end of a run: the model is averaged, evaluated, saved, sampled from, described and published."""

import math
import os
import shutil
import time

import torch
import transformers
from accelerate.utils import gather_object

from ..accounting.lora import is_adapted, plain
from ..adapters import ADAPTER_CONFIG, load_model, merge_weights, words_of_base
from ..backends import backends_of
from ..errors import UserError
from ..manifest import MANIFEST
from ..objectives.answers import Answers, FinishedModel
from ..objectives.data import Data
from ..publishing.publish import prepare_folder, publish
from ..recipes.schema import MINIMAL_PAIRS
from ..reporting.interpret import validations_of
from ..reporting.report import REPORT, write_report
from ..reporting.run_log import CLASSES_FILE, COMPLETING
from ..storage.atomic import share_files, write_atomically
from ..storage.checkpoints import STAGING
from ..storage.json_text import finite, json_text
from ..storage.model_folder import write_manifest
from ..storage.plugin_code import save_plugin_code
from ..words import working
from .arguments import rows_of
from .engines.deepspeed_engine import whole_weights
from .log.hardware import hardware_words
from .log.progress import new_metrics
from .log.report_page import draw_card_picture, spoken
from .log.summary import print_result
from .session import Session


def complete(session: Session, trainer, resumed_at: int | None) -> None:
    """Turn the folder of a trained model into that of a finished run, with metrics, samples, card and report.

    resumed_at: the step from which this command resumed the run; None: it began the run.
    """
    validations = validations_of(trainer.state.log_history, trainer.measures.names)
    average(session, trainer)
    trained = session.engine.parameters_of(trainer.model, trained=True)
    metrics, signatures, classes = evaluate_splits(session, trainer)
    check_finite(session, metrics)
    save_final(session, trainer)
    finished = finished_model(session)
    with working("answers and samples of the finished model"):
        measured, of_answers, samples = look_at_finished(session, finished)
    metrics |= measured
    signatures |= of_answers
    trainer.log(new_metrics(metrics, trainer.state))
    trainer.accelerator.wait_for_everyone()
    # After the last barrier: a failed upload cannot hang the other processes.
    if session.is_main:
        facts = facts_of(session, trainer, metrics, signatures, samples, trained, validations)
        facts |= trainer.throughput.facts()
        facts["wall_seconds"] = round(time.monotonic() - session.began, 1)  # of this command alone
        if resumed_at is not None:
            facts["resumed_at"] = resumed_at
        if classes:
            write_atomically(session.folder.path / CLASSES_FILE, json_text(classes))
        write_finished(session, finite(facts))  # NaN becomes null: the result prints the same from run.json
        for tracker in trainer.trackers:
            with spoken("samples and report of the tracker", session.folder.path):
                tracker.show(samples, session.folder.path / REPORT)


def write_finished(session: Session, facts: dict) -> None:
    """Write card, report and run.json, whose status is "finished" only after all else. Only for the main process."""
    folder = session.folder
    facts |= folder.record().facts()
    folder.write(COMPLETING, **facts)
    with working("writing card and report"):
        draw_card_picture(folder.path)
        prepare_folder(folder.path)
        with spoken("report.html", folder.path):
            write_report(folder.path)
    write_manifest(folder.path)
    folder.write("finished", **facts)
    if not session.quiet:
        print_result(folder.path, folder.identity() | facts, session.data.objective.words)
    publish_finished(session, facts)


def facts_of(session: Session, trainer, metrics: dict, signatures: dict, samples, trained: int, validations) -> dict:
    """The entries of run.json about a trained model. trained: number of parameters that the training changed."""
    facts = {
        "metrics": metrics,
        "parameters": session.engine.parameters_of(trainer.model),
        "trained_parameters": trained,
        **({"base_dtype": words_of_base(trainer.model.config.to_dict())} if is_adapted(trainer.model) else {}),
        "steps": trainer.state.global_step,
        "best_step": trainer.state.best_global_step,
        "world_size": session.arguments.world_size,
        "rows_per_step": rows_of(session.arguments),
        **session.facts_of_stages(),
        "hardware": hardware_words(session.arguments.device),
        "engine": session.engine.running(trainer.model_wrapped),  # by the wrapper: DDP, DeepSpeedEngine, a mesh, ...
        "backends": backends_of(plain(trainer.model)),
        "samples": samples,
        "validations": validations,
        "signatures": signatures,
        **trainer.steps.facts(),
        **({"collapsed_layers": trainer.routers.collapsed} if trainer.routers.collapsed else {}),
    }
    if trainer.stopped_early:
        facts["ended_early"] = trainer.early_stopping.sentence(trainer.state, session.recipe.evaluation.best_metric)
    return facts


def average(session: Session, trainer) -> None:
    """Average the newest checkpoints where the recipe asks for it."""
    most = session.recipe.evaluation.average_checkpoints
    if most is not None:
        number = trainer.load_average(most)
        if session.is_main and not session.quiet:
            print(f"the final model is the mean of the newest {number} checkpoints")


def evaluate_splits(session: Session, trainer) -> tuple[dict, dict, dict]:
    """Evaluate whole splits: ({"validation_loss": ..., "test_perplexity": ...}, {metric: its signature}, {split: report
    of each class}).

    Only tasks with classes have reports, and only in the main process. Metrics of generated answers are measured later,
    in `look_at_finished`.
    """
    metrics, signatures, classes, data, scores = {}, {}, {}, session.data, trainer.scores
    for split, rows in data.rows.items():
        if split == "train":
            continue
        result = pass_over(trainer, rows, split)
        computed = scores.of_pass(session.recipe.evaluation.metrics, result, rows, data.rows["train"])
        computed |= {name: result[name] for name in [MINIMAL_PAIRS] if name in result}
        own = {"loss": result["loss"]} if "predictions" in result else {}  # of no counted label there is none
        metrics |= {f"{split}_{name}": value for name, value in (own | computed).items()}
        signatures |= trainer.scored.signatures if trainer.scored else {}
        if session.is_main:
            with spoken(CLASSES_FILE, session.folder.path):
                report = scores.class_report(trainer.scored, rows, range(len(rows)), data.sources[split])
                classes |= {} if report is None else {split: report}
    return metrics, signatures, classes


def pass_over(trainer, rows, split: str) -> dict[str, float]:
    """{name: value} of a pass over all rows of a split: of the last one, if rows and weights are the same."""
    last = trainer.last_pass
    if last is None or last[0] is not rows or last[1] != trainer.state.global_step:
        trainer.evaluate(rows, metric_key_prefix=split)
    return trainer.last_pass[2]


def check_finite(session: Session, metrics: dict) -> None:
    """Raise UserError if the final model's loss on the validation or test split is NaN or infinite."""
    for split in ("validation", "test"):
        loss = metrics.get(f"{split}_loss", 0.0)
        if not math.isfinite(loss):
            raise UserError(
                f"{split}_loss of the final model is {loss}, so the run in {session.folder.path} has not been "
                f"finished; look at the rows of {split}, or lower training.learning_rate and train into another "
                f"output_dir"
            )


def finished_model(session: Session) -> FinishedModel:
    """The saved model, loaded from its files when it is first used.

    This proves that the files load, and works however the engine has split the trained model.
    """
    arguments, folder = session.arguments, session.recipe.training.output_dir

    def load():
        auto_class = getattr(transformers, session.data.objective.auto_class)
        trust = {"trust_remote_code": session.recipe.trust_remote_code}
        return load_model(auto_class, folder, dtype=torch.float32, **trust).to(arguments.device).eval()

    return FinishedModel(folder, load, arguments.per_device_eval_batch_size)


def look_at_finished(session: Session, finished: FinishedModel) -> tuple[dict, dict, list[dict]]:
    """(metrics, their signatures, samples) of what the finished model generates."""
    arguments, data = session.arguments, session.data
    answers = data.answers()
    where = answers.finishes_on
    if where == "none" or (where == "one" and not session.is_main):
        return {}, {}, []
    if where == "all":
        finished.index, finished.count, finished.gather = arguments.process_index, arguments.world_size, gather_object
    # Under ZeRO-3 transformers would shard the model over all processes, but not all of them may load it here.
    with whole_weights(arguments):
        return answers_of_splits(data, answers, finished)


def answers_of_splits(data: Data, answers: Answers, finished: FinishedModel) -> tuple[dict, dict, list[dict]]:
    """(metrics, their signatures, samples) of a finished model's answers, on all splits but `train`."""
    scores, scored, metrics, signatures = data.scores(), None, {}, {}
    for split, rows in data.rows.items():
        if split != "train":
            scored = scores.of_answers(finished, rows, range(len(rows)))
            metrics |= {f"{split}_{name}": value for name, value in scored.values.items()}
            signatures |= scored.signatures
    return metrics, signatures, answers.samples(finished, data.rows, scored)


def save_final(session: Session, trainer) -> None:
    """Save the finished model into the run folder: it is written into a staging folder, then moved, its config last.

    The files of Learns are written before: without them other libraries would load the model in another way.
    """
    folder, lora = session.folder.path, session.recipe.training.lora
    staged = folder / STAGING / "final"
    if lora is not None and lora.merge:
        trainer.model = merge_weights(trainer.model.float())  # the sum is not rounded to the base's dtype
    trainer.save_model(str(staged), _internal_call=True)
    trainer.accelerator.wait_for_everyone()
    if session.is_main:
        for name, text in session.data.learns().files(trainer.model.config).items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_atomically(folder / name, text)
        if lora is None:
            save_plugin_code(staged, plain(trainer.model).config)
        share_files(staged.iterdir())
        (folder / MANIFEST).unlink(missing_ok=True)  # of the shorter run that this one goes on from
        for file in sorted(staged.iterdir(), key=lambda f: f.name in ("config.json", ADAPTER_CONFIG)):
            os.replace(file, folder / file.name)
        shutil.rmtree(folder / STAGING, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()


def publish_finished(session: Session, facts: dict) -> None:
    """Push the model to the Hub if the recipe asks for it and no earlier command has; a failed upload is retried."""
    settings = session.recipe.publish
    if settings.repo_id is None or facts.get("published") == settings.repo_id:
        return
    publish(session.folder.path, settings.repo_id, private=settings.private, license=settings.license)
    session.folder.add(published=settings.repo_id)
