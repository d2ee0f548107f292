"""Several seeds in one command: ordinary runs, none made twice, and what they have in common."""

import json
import statistics
from dataclasses import replace

import pytest
from anyformer.pipelines.experiments.seeds import seed_study
from anyformer.pipelines.experiments.study import READ, kept
from anyformer.pipelines.recipes.compose import load_recipe
from processes import run_ranks
from run_folders import assert_same_weights
from task_data import task_recipe
from test_distributed import rank_main


def recipe_of(folder, **sections):
    how = {"training": {"max_steps": 4}, "evaluation": {"every_steps": None}}
    return task_recipe(folder, "sequence_classification", **how | sections)


def test_each_seed_is_a_run_of_its_own_made_once_and_their_metrics_are_compared(tmp_path, command, capsys):
    recipe, alone = recipe_of(tmp_path), tmp_path / "alone"
    assert command("train", recipe, "--seeds", "2", "training.seed=7") == 0
    folder, printed = tmp_path / "run", capsys.readouterr().out
    result = json.loads((folder / "seeds.json").read_text())
    assert result["seeds"] == [7, 8] and "mean ± deviation" in printed and "seed-7" in printed
    runs = {name: json.loads((folder / name / "run.json").read_text()) for name in ("seed-7", "seed-8")}
    for name, row in result["metrics"].items():
        assert row["values"] == {run: facts["metrics"][name] for run, facts in runs.items()}
        assert row["mean"] == pytest.approx(sum(row["values"].values()) / 2)
        assert row["deviation"] == pytest.approx(statistics.stdev(row["values"].values()))
    assert result["metrics"].keys() == runs["seed-7"]["metrics"].keys() and "test_accuracy" in result["metrics"]
    assert command("train", recipe, "training.seed=8", f"training.output_dir={alone}") == 0
    assert_same_weights(folder / "seed-8", alone)
    written = (folder / "seed-7" / "model.safetensors").stat().st_mtime_ns
    assert command("train", recipe, "--seeds", "7,9") == 0  # the first is finished
    assert (folder / "seed-7" / "model.safetensors").stat().st_mtime_ns == written
    found = json.loads((folder / "seeds.json").read_text())["metrics"]
    assert found["test_loss"]["values"].keys() == {"seed-7", "seed-9"}
    (member,) = seed_study(load_recipe(str(recipe)), [7]).members
    data = kept(member)["data"]
    assert kept(member, data) and all(kept(member, data | {name: "of other data"}) is None for name in READ)
    assert kept(replace(member, recipe=member.recipe.with_(training={"learning_rate": 0.5}))) is None
    for file in (tmp_path / "sequence_classification.jsonl", member.folder / "model.safetensors", member.file):
        before = file.read_bytes()
        file.write_bytes(before[:-1] + b" ")
        assert kept(member) is None
        file.write_bytes(before)
        assert kept(member) is not None


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--seeds", "0"], "--seeds 0 is no number of seeds"),
        (["--seeds", "1,1"], "--seeds 1,1 is no number of seeds"),
        (["--seeds", "many"], "--seeds many is no number of seeds"),
        (["--seeds", "2", "publish.repo_id=me/it"], "publish.repo_id='me/it' does not go with --seeds"),
        (["--seeds", "2", "training.deepspeed=zero2"], "--seeds does not go with DeepSpeed"),
    ],
)
def test_seeds_that_cannot_be_run_are_one_sentence(arguments, says, tmp_path, command, capsys):
    assert command("train", recipe_of(tmp_path), *arguments) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_several_processes_train_several_seeds(tmp_path, command):
    run_ranks(2, rank_main, command, recipe_of(tmp_path), "--seeds", "2", folder=tmp_path)
    result = json.loads((tmp_path / "run" / "seeds.json").read_text())
    assert result["metrics"]["test_accuracy"]["values"].keys() == {"seed-42", "seed-43"}
    assert json.loads((tmp_path / "run" / "seed-43" / "run.json").read_text())["world_size"] == 2
