"""The validation before the first step: where a run begins from a saved model, and never a second time."""

import pytest
import yaml
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.reporting.charts import charts_of_run
from anyformer.pipelines.reporting.interpret import interpret
from anyformer.pipelines.reporting.run_log import read_run
from processes import logged_losses
from run_folders import assert_same_weights, facts_of, lines_of
from task_data import task_recipe


@pytest.fixture
def tuning(tmp_path, command):
    """A recipe that begins from a model of two steps; its name for `train`."""
    recipe = task_recipe(tmp_path, "sequence_classification", training={"max_steps": 2, "learning_rate": 0.01})
    assert command("train", recipe, f"training.output_dir={tmp_path / 'base'}") == 0
    assert all(line["step"] for line in lines_of(tmp_path / "base"))  # from nothing: none before the first step
    settings = yaml.safe_load(recipe.read_text())
    settings |= {"model": {"name_or_path": str(tmp_path / "base")}}
    settings["training"] |= {"max_steps": 6, "save_steps": 3}
    del settings["tokenizer"]
    recipe.write_text(yaml.safe_dump(settings))
    return recipe


def starts_of(run):
    return [line for line in lines_of(run) if line["step"] == 0]


def test_a_run_from_a_saved_model_says_how_good_it_was_before_and_trains_as_without(tuning, tmp_path, command, capsys):
    folders = {name: tmp_path / name for name in ("with", "without")}
    capsys.readouterr()
    assert command("train", tuning, f"training.output_dir={folders['with']}") == 0
    said, facts = capsys.readouterr().out, facts_of(folders["with"])
    (start,), first = starts_of(folders["with"]), facts["validations"][0]
    assert first["step"] == 0 and first["loss"] == start["validation_loss"]
    assert first["loss"] == pytest.approx(facts_of(tmp_path / "base")["metrics"]["validation_loss"])
    assert f"step 0  validation loss {first['loss']:.4f}" in said
    sentence = f"before the first step the validation gave loss {first['loss']:.4f}, accuracy {first['accuracy']:.4f}"
    assert sentence in " ".join(said.split()) and sentence in (folders["with"] / "report.html").read_text()
    loss, *_ = charts_of_run(read_run(folders["with"]))
    assert loss["series"][1]["x"][0] == 0 and loss["series"][1]["y"][0] == pytest.approx(first["loss"], rel=1e-3)
    assert command("train", tuning, f"training.output_dir={folders['without']}", "evaluation.at_start=false") == 0
    assert not starts_of(folders["without"]) and "before the first" not in str(interpret(facts_of(folders["without"])))
    assert logged_losses(folders["with"]) == logged_losses(folders["without"])  # with its dropout
    assert_same_weights(*folders.values())


def test_the_start_is_measured_once_whatever_follows(tuning, tmp_path, command):
    run = tmp_path / "run"
    assert command("train", tuning, "training.max_steps=3", "training.lr_scheduler_type=constant") == 0
    before = starts_of(run)
    assert command("train", tuning, "training.lr_scheduler_type=constant") == 0  # goes on from step 3
    assert starts_of(run) == before and facts_of(run)["validations"][0]["step"] == 0
    for path in run.glob("checkpoint-*/trainer_state.json"):
        path.unlink()
    (run / "run.json").unlink()
    assert command("train", tuning, "training.lr_scheduler_type=constant") == 0  # anew
    assert len(starts_of(run)) == 1


def test_a_setting_says_it_and_needs_validation_data(tmp_path, command, capsys):
    recipe = task_recipe(tmp_path, "sequence_classification", training={"max_steps": 1}, evaluation={"at_start": True})
    assert command("train", recipe) == 0
    assert len(starts_of(tmp_path / "run")) == 1
    assert command("train", recipe, "data.validation_fraction=0.0", "evaluation.every_steps=null") == 2
    assert "evaluation.at_start=true is set, but the data section names no validation data" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"training.eval_on_start.* use evaluation.at_start"):
        load_recipe(str(recipe), ["training.eval_on_start=true"])


def test_a_training_that_makes_the_model_worse_is_named():
    run = {"recipe": {"evaluation": {}}, "validations": [{"step": 0, "loss": 1.0}, {"step": 9, "loss": 2.0}]}
    assert any("at step 0" in said and "made the model worse; lower" in said for said in interpret(run))
