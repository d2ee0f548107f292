"""What bears on the steps after a resumption may not change between them, wherever it is set or lies."""

import json

import pytest
from family_variants import a_share
from processes import Process, end_in_micro_batch
from run_folders import facts_of
from task_data import reviews, task_recipe

FOLLOWS = {"max_steps": 8, "save_steps": 2, "lr_scheduler_type": "reduce_lr_on_plateau"}


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
def test_a_rate_that_follows_validations_goes_on_with_the_same_ones_alone(tmp_path, command, capsys, schedule):
    reviews(tmp_path / "held.jsonl", 30, seed=3)
    recipe = task_recipe(
        tmp_path,
        "sequence_classification",
        training=FOLLOWS | {"lr_scheduler_type": schedule},
        evaluation={"every_steps": 2, "best_metric": "loss"},
        data={"validation_files": str(tmp_path / "held.jsonl")},
    )
    end_in_micro_batch(6, command, "train", recipe, output=tmp_path / "log.txt")
    changes = {"best_metric": "accuracy", "every_steps": 1, "max_rows": 7}
    settings = [f"evaluation.{name}={value}" for name, value in changes.items()]
    for setting in [*settings, "training.per_device_eval_batch_size=3"]:
        assert command("train", recipe, setting) == 2, setting
        assert f"{setting.split('=')[0]} is " in capsys.readouterr().err
    held = (tmp_path / "held.jsonl").read_text()
    (tmp_path / "held.jsonl").write_text(held.replace("film", "book"))
    assert command("train", recipe) == 2
    assert "the data that validations measure has changed since" in capsys.readouterr().err
    (tmp_path / "held.jsonl").write_text(held)
    # What only tells, or acts at the end, may change.
    assert command("train", recipe, "evaluation.metrics=[accuracy,f1_macro]", "evaluation.patience=50") == 0


def test_the_best_of_other_rows_is_no_rival(tmp_path, command):
    """The same metric of other validation rows begins anew to look for the best model."""
    steady = {"max_steps": 6, "lr_scheduler_type": "constant", "learning_rate": 1e-6, "save_steps": 3}
    best = {"every_steps": 3, "best_metric": "accuracy", "max_rows": 1}
    recipe = task_recipe(tmp_path, "sequence_classification", training=steady, evaluation=best)
    assert command("train", recipe) == 0
    assert command("train", recipe, "evaluation.max_rows=20", "training.max_steps=12") == 0
    assert facts_of(tmp_path / "run")["best_step"] > 6


METRIC = """
from anyformer import register_metric, register_schedule
from beside import SHARE

@register_schedule("halved")
def halved(step, total, warmup):
    return 0.5 * SHARE
"""


@pytest.mark.parametrize("stages", a_share([False, True], 2), ids=["plain", "stages"])
def test_a_plug_in_that_changed_is_another_run(tiny_recipe, command, tmp_path, stages, monkeypatch):
    plugin, log, beside = tmp_path / "mine.py", tmp_path / "log.txt", tmp_path / "beside.py"
    monkeypatch.syspath_prepend(tmp_path)
    plugin.write_text(METRIC)
    beside.write_text("SHARE = 1")
    halves = [{"until": 0.5, "sequence_length": 24}, {"until": 1.0}]
    sections = {"stages": halves} if stages else {}
    recipe = tiny_recipe(training={"lr_scheduler_type": "halved", "max_steps": 8, "save_steps": 2})
    words = ["--plugin", plugin, "train", recipe, *(f"{name}={json.dumps(value)}" for name, value in sections.items())]
    end_in_micro_batch(5, command, *words, output=log)

    def ends(code, *arguments) -> str:
        process = Process(command, *arguments, output=log)
        assert process.wait() == code, process.text()
        return process.text()

    plugin.write_text(METRIC.replace("0.5", "0.25"))
    assert f"the plug-in {plugin} has changed since" in ends(2, *words)
    plugin.write_text(METRIC)
    beside.write_text("SHARE = 2")
    assert f"the plug-in {plugin} has changed since" in ends(2, *words)
    beside.write_text("SHARE = 1")
    (tmp_path / "moved.py").write_text(METRIC)  # the same code under another name
    ends(0, "--plugin", tmp_path / "moved.py", *words[2:])
    plugin.write_text(METRIC + "\n# another version\n")
    assert "the plug-in" in ends(2, *words, "training.max_steps=12", "--extend")  # also once it has finished
