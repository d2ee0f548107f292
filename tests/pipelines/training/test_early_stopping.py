"""Laws of early stopping: it ends where transformers' callback ends, keeps the best model, and survives a kill."""

import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.arguments import training_arguments
from anyformer.pipelines.training.guards.early_stopping import EarlyStopping
from family_variants import a_share
from processes import end_in_micro_batch, logged_losses
from run_folders import facts_of, lines_of
from task_data import task_recipe
from transformers import TrainerState

PATIENCE = 2


def recipe_of(folder, **evaluation):
    return task_recipe(
        folder,
        "sequence_classification",
        training={"max_steps": 60, "learning_rate": 0.05, "save_steps": 7},  # too fast to improve for long
        evaluation={"every_steps": 4, "best_metric": "loss", "patience": PATIENCE, **evaluation},
    )


@pytest.mark.slow
def test_the_run_ends_when_it_improves_no_more_also_after_kills_and_says_why(tmp_path, command, capsys):
    recipe, whole, broken = recipe_of(tmp_path), tmp_path / "whole", tmp_path / "broken"
    assert command("train", recipe, f"training.output_dir={whole}") == 0
    printed = capsys.readouterr().out
    facts = facts_of(whole)
    losses = [entry["loss"] for entry in facts["validations"]]
    best, last = facts["best_step"], facts["steps"]
    assert last < 60 and last == best + 4 * PATIENCE and losses.index(min(losses)) == best // 4 - 1
    assert facts["metrics"]["validation_loss"] == pytest.approx(min(losses))
    sentence = f"ended after step {last} of 60: loss was no better in the last {PATIENCE} validations"
    assert sentence in facts["ended_early"] and sentence in printed

    # Between the validations that were no better, and after the last of them.
    arguments = ("train", recipe, f"training.output_dir={broken}", "training.save_steps=2")
    end_in_micro_batch(last - 1, command, *arguments, output=tmp_path / "log.txt")
    assert command(*arguments) == 0
    other = facts_of(broken)
    assert other["steps"] == last and other["metrics"] == facts["metrics"] and other["best_step"] == best
    for name in ("run.json", "config.json", "model.safetensors"):
        (broken / name).unlink()
    capsys.readouterr()
    assert command(*arguments) == 0  # from the checkpoint of the last step: none is left to make
    assert facts_of(broken)["steps"] == last and facts_of(broken)["metrics"] == facts["metrics"]
    assert f"checkpoint-{last}" in capsys.readouterr().out


PAIRS = {
    "model": {"family": "encoder"},
    "objective": {"name": "sentence_pairs", "sequence_length": 48},
    "data": {"validation_fraction": 0.3},
}


@pytest.mark.parametrize(
    "metric, best, sections",
    [("perplexity", min, {}), pytest.param("pair_accuracy", max, PAIRS, marks=pytest.mark.slow)],
    ids=["perplexity", "pairs"],
)
def test_a_metric_that_every_validation_measures_may_choose_the_best_one(tiny_recipe, command, metric, best, sections):
    """Of losses, and counted beside them: no answers of the finished model are needed."""
    evaluation = {"metrics": ["perplexity", *({"pair_accuracy"} & {metric})], "every_steps": 3}
    evaluation |= {"best_metric": metric, "patience": 2, "max_rows": None}
    recipe = tiny_recipe(**sections | {"evaluation": evaluation, "training": {"max_steps": 12, "learning_rate": 0.1}})
    assert command("train", recipe) == 0
    facts = facts_of(recipe.parent / "run")
    values = [entry[metric] for entry in facts["validations"]]
    assert values.index(best(values)) == facts["best_step"] // 3 - 1
    assert facts["metrics"][f"validation_{metric}"] == pytest.approx(best(values))


WRITTEN = [("translation", "chrf", {"max_new_tokens": 6}), ("question_answering", "answer_f1", {})]


@pytest.mark.parametrize("kind, metric, task", a_share(WRITTEN, 2), ids=[kind for kind, *_ in WRITTEN])
def test_a_metric_of_written_answers_may_choose_the_best_one(tmp_path, command, kind, metric, task):
    """Validations write the answers then: as the finished model does, and the training does not notice it."""
    evaluation = {"metrics": [metric], "best_metric": metric}
    recipe = task_recipe(tmp_path, kind, evaluation=evaluation, training={"max_steps": 10}, task=task)
    assert command("train", recipe) == 0
    facts = facts_of(tmp_path / "run")
    values = [entry[metric] for entry in facts["validations"]]
    assert len(set(values)) > 1 and values.index(max(values)) == facts["best_step"] // 5 - 1
    assert facts["metrics"][f"validation_{metric}"] == pytest.approx(max(values))

    other = tmp_path / "other"
    assert command("train", recipe, "evaluation.best_metric=null", f"training.output_dir={other}") == 0
    assert logged_losses(other) == logged_losses(tmp_path / "run")
    assert not any(metric in entry for entry in facts_of(other)["validations"])


def test_a_metric_of_whole_texts_is_none_of_validations(tiny_recipe):
    evaluation = {"metrics": ["perplexity", "word_perplexity"], "best_metric": "word_perplexity", "every_steps": 3}
    with pytest.raises(UserError, match=r"is not measured during training; did you mean perplexity\?$"):
        load_recipe(str(tiny_recipe(evaluation=evaluation)))


def test_what_may_change_between_a_run_and_its_resumption_holds_in_what_follows(tmp_path, command):
    """Steps between logs, validations and checkpoints; and another metric begins anew to look for the best model."""
    steady = {"max_steps": 6, "lr_scheduler_type": "constant", "learning_rate": 0.05, "save_steps": 3}
    evaluation = {"every_steps": 3, "best_metric": "loss"}
    recipe = task_recipe(tmp_path, "sequence_classification", training=steady, evaluation=evaluation)
    assert command("train", recipe, "training.logging_steps=2") == 0
    changed = ["training.save_steps=4", "training.logging_steps=1", "evaluation.every_steps=2"]
    changed += ["evaluation.at_start=true"]  # the run has been measured at its start
    changed += ["evaluation.best_metric=accuracy", "evaluation.patience=50", "training.max_steps=14"]
    assert command("train", recipe, *changed) == 0
    facts = facts_of(tmp_path / "run")
    later = {entry["step"]: entry["accuracy"] for entry in facts["validations"] if entry["step"] > 6}
    assert [entry["step"] for entry in facts["validations"]] == [3, 6, 8, 10, 12, 14]
    assert list(later) == [8, 10, 12, 14]
    assert facts["best_step"] == next(step for step, value in later.items() if value == max(later.values()))
    assert {"checkpoint-12", "checkpoint-14"} <= {path.name for path in (tmp_path / "run").iterdir()}
    logged = [line["step"] for line in lines_of(tmp_path / "run") if "learning_rate" in line]
    assert logged == [1, 2, 4, 6, *range(7, 15)]


def test_a_schedule_that_follows_validations_needs_their_metric(tmp_path, command):
    schedule = {"max_steps": 8, "lr_scheduler_type": "reduce_lr_on_plateau"}
    recipe = task_recipe(tmp_path, "sequence_classification", training=schedule, evaluation={"every_steps": 2})
    with pytest.raises(UserError, match="reduce_lr_on_plateau follows a metric of the validations; set"):
        load_recipe(str(recipe))
    assert command("train", recipe, "evaluation.best_metric=loss", "--dry-run") == 0
    assert command("train", recipe, "evaluation.best_metric=loss") == 0
    facts = facts_of(tmp_path / "run")
    losses = [entry["loss"] for entry in facts["validations"]]
    assert losses.index(min(losses)) == facts["best_step"] // 2 - 1
    assert command("evaluate", tmp_path / "run") == 0
    for metric, mode in {"loss": "min", "accuracy": "max"}.items():
        arguments = training_arguments(load_recipe(str(recipe), [f"evaluation.best_metric={metric}"]))
        assert arguments.lr_scheduler_kwargs["mode"] == mode


def test_patience_needs_something_to_improve(tmp_path):
    with pytest.raises(UserError, match=r"evaluation.patience needs evaluation.best_metric, such as loss"):
        load_recipe(str(recipe_of(tmp_path, best_metric=None)))
    with pytest.raises(UserError, match=r"evaluation.patience=0"):
        load_recipe(str(recipe_of(tmp_path, patience=0)))


def test_a_metric_that_no_validation_has_is_said_to_be_undefined():
    stopping = EarlyStopping(PATIENCE)
    said = stopping.sentence(TrainerState(global_step=8, max_steps=60), "pearson")
    assert said.startswith("ended after step 8 of 60: pearson was undefined (NaN) in all validations")
