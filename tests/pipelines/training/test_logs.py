"""Laws of what a run logs: names, steps, warm-up, and what trackers get of it."""

import importlib.util
import json
import math
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from anyformer.pipelines.metrics import wilson
from anyformer.pipelines.recipes.row_words import Words
from anyformer.pipelines.reporting.charts import layers_of
from anyformer.pipelines.reporting.interpret import interpret, validations_of, with_interval
from anyformer.pipelines.training.learning_rate import begin_above_zero
from anyformer.pipelines.training.log.progress import describe
from anyformer.pipelines.training.log.summary import print_result
from anyformer.pipelines.training.log.throughput_log import ThroughputLog
from family_variants import a_share
from run_folders import lines_of
from transformers import get_scheduler

SCHEDULES = {
    "linear": {},
    "cosine": {},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "inverse_sqrt": {},
    "constant_with_warmup": {},
    "warmup_stable_decay": {"num_decay_steps": 4, "warmup_type": "cosine"},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2},
}


def rates(name, warmup, mended, steps=20):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(name, optimizer, warmup, steps, scheduler_specific_kwargs=SCHEDULES[name])
    if mended:
        begin_above_zero(scheduler, warmup)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        assert scheduler.get_last_lr() == [found[-1]]
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_step_of_a_warm_up_is_wasted_and_what_follows_keeps_its_rates(name):
    theirs, ours = rates(name, 5, False), rates(name, 5, True)
    assert 0 < ours[0] < ours[1] < ours[4] < 1 or theirs[0] > 0
    assert ours[5:] == theirs[5:]
    if name in ("linear", "cosine"):
        assert ours[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])
    assert rates(name, 0, True) == rates(name, 0, False)


def test_a_warm_up_that_reaches_the_peak_a_step_early_stays_there(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "warmup_lr_rate": 0.0})
    assert max(rates("cosine_warmup_with_min_lr", 5, True)) == 1


def test_validations_the_last_step_and_the_end_are_logged_by_one_name(tiny_recipe, command, tmp_path, capsys):
    training = {"max_steps": 12, "logging_steps": 7, "save_steps": 12, "optim": "muon", "warmup_steps": 0}
    assert command("train", tiny_recipe(training=training, evaluation={"every_steps": 6})) == 0
    lines = lines_of(tmp_path / "run")
    assert [line["step"] for line in lines if "loss" in line] == [1, 7, 12]
    trained = [line for line in lines if "loss" in line]
    assert min(line["learning_rate"] for line in trained) > 0
    # Each of the two rates by the name of its setting: 5e-3 for AdamW, 0.02 for Muon.
    assert [line["muon_learning_rate"] / line["learning_rate"] for line in trained] == pytest.approx([4, 4, 4])
    measured = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in measured] == [6, 12, 12]  # the last one on all rows
    assert all(line["validation_perplexity"] > 1 for line in measured)
    assert not any(name.startswith("eval_") for line in lines for name in line)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    final, total = run["metrics"], run["data"]["validation"]["rows"]
    assert {name: value for line in lines for name, value in line.items() if name in final} == final
    printed = capsys.readouterr().out.splitlines()
    some = f"on 8 of {total} rows"
    assert sum("validation loss" in line and line.endswith(some) for line in printed) == 2
    assert sum(f"validations during training were {some}" in line for line in printed) == 1
    assert f"validations during training were {some}" in (tmp_path / "run" / "README.md").read_text()
    assert (tmp_path / "run" / "report.html").read_text().count(f"validation {some}") == 1
    assert any("muon at 0.02 (muon_learning_rate), adamw at 0.005 (learning_rate)" in line for line in printed)
    steps = {line.split()[1]: line for line in printed if line.startswith("step ") and "epoch" in line}
    assert f"lr {trained[0]['learning_rate']:.2e}, Muon {trained[0]['muon_learning_rate']:.2e}  " in steps["1/12"]
    assert "ETA" not in steps["1/12"] and "ETA" in steps["7/12"] and "epoch 0." in steps["1/12"]


@pytest.mark.parametrize(
    "stages", a_share([[], [{"until": 2, "sequence_length": 24}, {"until": 8}]], 2), ids=["", "stages"]
)
def test_a_loss_of_fewer_steps_than_usual_says_of_how_many_it_is(stages, tiny_recipe, command, tmp_path, capsys):
    """The first one after a resume is of the steps since the checkpoint; a run that was not killed says nothing."""
    sections = {"training": {"max_steps": 8, "save_steps": 3, "save_total_limit": 3}}
    sections["training"] |= {"gradient_accumulation_steps": 2}
    recipe = tiny_recipe(**sections, evaluation={"every_steps": 2})
    content = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump(content | ({"stages": stages} if stages else {})))
    run, each = tmp_path / "run", tmp_path / "each"
    assert command("train", recipe, f"training.output_dir={each}") == 0
    assert command("train", recipe, "training.logging_steps=4") == 0
    assert not any("mean_of_steps" in line for line in lines_of(run))
    assert "training of" not in (run / "report.html").read_text()
    (run / "run.json").unlink()  # as if it had been killed after step 5
    for step in (6, 8):
        shutil.rmtree(run / f"checkpoint-{step}")
    capsys.readouterr()
    assert command("train", recipe, "training.logging_steps=4") == 0
    losses = {line["step"]: line["loss"] for line in lines_of(each) if "loss" in line}
    trained = {line["step"]: line for line in lines_of(run) if "loss" in line}
    assert {step: line.get("mean_of_steps") for step, line in trained.items()} == {1: None, 4: 1, 8: None}
    assert trained[4]["loss"] == pytest.approx(losses[4], abs=1e-6)
    assert [line["mean_of_steps"] for line in lines_of(run) if "train_loss" in line] == [5]
    printed = capsys.readouterr().out
    assert f"loss {losses[4]:.4f} of 1 step  " in printed and printed.count(" of 1 step") == 1
    assert "training of 1 step at 4" in (run / "report.html").read_text()


def tensorboard_runs(folder) -> dict[str, dict]:
    """{run: {name: [(step, value), ...]}} of the event files below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for place in {path.parent for path in folder.rglob("events.out.tfevents.*")}:
        events = EventAccumulator(str(place)).Reload()
        scalars = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
        found[str(place.relative_to(folder))] = scalars
    return found


def trackio_runs(folder) -> dict[str, dict]:
    found = {}
    for path in folder.glob("*.db"):
        rows = sqlite3.connect(path).execute("select run_name, metrics from metrics order by id").fetchall()
        for run, metrics in rows:
            values = json.loads(metrics)
            for name, value in values.items():
                found.setdefault(run, {}).setdefault(name, []).append((values["train/global_step"], value))
    return found


@pytest.fixture
def tracker(request, tmp_path, monkeypatch) -> str:
    """A tracker that is installed and writes below the test's folder alone."""
    if importlib.util.find_spec(request.param) is None:  # not imported here: trackio reads TRACKIO_DIR when it is
        pytest.skip(f"extra `{request.param}` is not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DIR", "WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["tensorboard", "trackio", "wandb"], indirect=True)
def test_a_tracker_gets_one_run_with_the_final_metrics_in_it(tracker, tiny_recipe, command, tmp_path):
    shown = {"sample_prompts": ["the"], "sample_tokens": 4}
    recipe = tiny_recipe(training={"max_steps": 4}, evaluation={"every_steps": 2, **shown})
    assert command("train", recipe, f"training.report_to={tracker}") == 0
    if tracker == "wandb":
        assert not (tmp_path / "wandb").exists()
        (place,) = tmp_path.glob("run/wandb/offline-run-*")
        (table,), (page,) = place.glob("files/media/table/samples*"), place.glob("files/media/html/report*")
        assert json.loads(table.read_text())["data"][0][0] == "the" and "<html" in page.read_text()
        (log,) = place.glob("*.wandb")
        assert b"max_training_bytes" in log.read_bytes()  # of the recipe
        return
    if tracker == "trackio":
        assert "the" in json.dumps([one["samples"] for one in trackio_runs(tmp_path / "trackio").values()])
        (artifact,) = sqlite3.connect(next((tmp_path / "trackio").glob("*.db"))).execute("select name from artifacts")
        assert artifact == ("report",)
    runs = tensorboard_runs(tmp_path) if tracker == "tensorboard" else trackio_runs(tmp_path / "trackio")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert list(runs) == ["run/tensorboard" if tracker == "tensorboard" else f"run {facts['tracker_id']}"]
    (series,), final = runs.values(), facts["metrics"]
    for name in ("loss", "perplexity", "unigram_perplexity"):
        assert series[f"validation/{name}"][-1] == (4, pytest.approx(final[f"validation_{name}"], rel=1e-6))
    assert [step for step, _ in series["validation/perplexity"]] == [2, 4, 4]
    assert [step for step, _ in series["train/loss"]] == [1, 2, 3, 4]
    assert not any(name.startswith(("eval", "train/validation")) for name in series)


def tracked(tracker: str, run: Path) -> set:
    """The ids or names of the runs that a tracker has of a run; for TensorBoard the folders of its files."""
    if tracker == "wandb":
        return {place.name.split("-")[3] for place in run.glob("wandb/offline-run-*")}
    if tracker == "tensorboard":
        return set(tensorboard_runs(run))
    from trackio.utils import TRACKIO_DIR  # of the first test that has imported it

    names = "select run_name from metrics where run_name like ?"
    return {row for path in TRACKIO_DIR.glob("*.db") for row in sqlite3.connect(path).execute(names, [f"{run.name} %"])}


@pytest.mark.parametrize(
    "tracker", [pytest.param("tensorboard", marks=pytest.mark.slow), "trackio", "wandb"], indirect=True
)
def test_a_resumed_run_goes_on_in_the_same_run_of_its_tracker(tracker, tiny_recipe, command, tmp_path, monkeypatch):
    recipe = tiny_recipe(training={"report_to": tracker, "save_steps": 2, "lr_scheduler_type": "constant"})
    run, other = tmp_path / "resumed", tmp_path / "other" / "resumed"
    for steps in (2, 4):  # the second goes on from the first's last checkpoint
        assert command("train", recipe, f"training.max_steps={steps}", f"training.output_dir={run}") == 0
    assert len(tracked(tracker, run)) == 1
    if tracker != "tensorboard":  # a run that does not go on from one is another, and the user's own id wins
        monkeypatch.setenv("WANDB_RUN_ID", "chosen")
        assert command("train", recipe, "training.max_steps=2", f"training.output_dir={other}") == 0
        assert len(tracked(tracker, run) | tracked(tracker, other)) == 2
        assert tracker != "wandb" or tracked(tracker, other) == {"chosen"}


def test_of_several_processes_the_line_names_the_slowest_and_the_one_that_waits_longest_for_data():
    args = SimpleNamespace(device=torch.device("cpu"), world_size=2, bf16=False, fp16=False)
    log = ThroughputLog(args, flop_count=SimpleNamespace(layers=0))

    def with_a_slow_one(here):
        return torch.cat([here, torch.stack([torch.tensor([0.5, here[0, 1] / 3])])])

    logs = log.collect(lambda x, _: x, with_a_slow_one)
    assert logs["data_share"] == 0 and logs["slowest_speed"] == pytest.approx(0.5)
    said = describe({"loss": 1.0, "learning_rate": 0.1} | logs)
    assert said.endswith("data up to 50% (rank 1)  slowest rank 1 (50%)")
    args.world_size = 1
    assert "slowest_rank" not in log.collect(lambda x, _: x, with_a_slow_one)


# ------------------------------------------------------------------------------------------------ what the end says


def test_a_model_no_better_than_counting_is_called_so():
    metrics = {"validation_perplexity": 600.0, "validation_unigram_perplexity": 550.9}
    (said,) = interpret({"metrics": metrics})
    assert "counting tokens alone (550.9)" in said and "training.max_steps" in said
    assert interpret({"metrics": metrics | {"validation_perplexity": 60.3}}) == []
    run = {"metrics": {"test_accuracy": 0.6}, "data": {"test": {"classes": {"sad": 3, "glad": 7}}}}
    assert "always answering glad" in interpret(run)[0] and "0.7000" in interpret(run)[0]
    assert interpret(run | {"metrics": {"test_accuracy": 0.8}}) == []


def test_a_better_validation_before_the_last_is_named_with_the_setting_that_keeps_it():
    history = [
        *(
            {"step": step, "validation_loss": loss, "validation_perplexity": 2.0}
            for step, loss in ((50, 3.4), (150, 3.2))
        ),
        {"step": 160, "loss": 2.0},
        {"step": 200, "validation_loss": 3.5, "validation_perplexity": 2.0},
    ]
    run = {
        "recipe": {"evaluation": {"metrics": ["perplexity"]}},
        "validations": validations_of(history, ["perplexity"]),
    }
    (said,) = interpret(run)
    assert "step 150 (loss 3.2000" in said and said.endswith("evaluation.best_metric=loss would keep that model")
    for setting in ({"best_metric": "loss"}, {"average_checkpoints": 2}):
        assert interpret(run | {"recipe": {"evaluation": setting}}) == []
    assert interpret(run | {"validations": run["validations"][:2]}) == []  # the last one is the best
    classes = [{"step": 5, "loss": 1.0, "accuracy": 0.9}, {"step": 9, "loss": 2.0, "accuracy": 0.95}]
    assert interpret({"recipe": {"evaluation": {"metrics": ["accuracy"]}}, "validations": classes}) == []


def test_a_share_of_examples_is_shown_with_wilsons_interval():
    low, high = wilson(0.8, 100)  # as statsmodels' proportion_confint(80, 100, method="wilson")
    assert (low, high) == (pytest.approx(0.7112, abs=1e-4), pytest.approx(0.8666, abs=1e-4))
    assert wilson(1.0, 10)[1] == 1 and wilson(0.0, 10)[0] == 0
    assert with_interval("accuracy", 0.8, {"examples": 100}) == "0.8000  (95 %: 0.711 to 0.867)"
    several = {"examples": 900, "parts": {"trec": 100, "stsb": 800}}
    assert with_interval("accuracy_trec", 0.8, several) == "0.8000  (95 %: 0.711 to 0.867)"
    assert with_interval("accuracy", 0.8, {}) == "0.8000" and with_interval("f1", 0.8, {"examples": 9}) == "0.8000"


def test_squares_of_the_norms_of_layers_sum_up_to_the_logged_norm(tiny_recipe, command, tmp_path):
    """Also where gradients are clipped to much less."""
    training = {"max_steps": 5, "max_grad_norm": 0.01, "logging_steps": 2, "log_gradient_norms_per_layer": True}
    assert command("train", tiny_recipe(training=training)) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "gradients.jsonl").read_text().splitlines()]
    logged = {line["step"]: line["grad_norm"] for line in lines_of(tmp_path / "run") if "grad_norm" in line}
    assert [line["step"] for line in lines] == list(logged) and len(lines) >= 3
    for line in lines:
        assert math.hypot(*line["layers"].values()) == pytest.approx(logged[line["step"]], rel=1e-5)
        assert logged[line["step"]] > 0.1
        (norms,) = layers_of(line).values()
        assert [*norms] == [1, 2] and min(norms.values()) > 0
    assert "Gradient norm by layer" in (tmp_path / "run" / "report.html").read_text()


def test_samples_may_look_like_markup(capsys, tmp_path):
    run = {"steps": 1, "wall_seconds": 1.0, "world_size": 1}
    run["samples"] = [{"prompt": "[INST] hi [/INST]", "text": "[/b]"}]
    print_result(tmp_path, run, Words())
    assert "sample after '[INST] hi [/INST]'" in capsys.readouterr().out
