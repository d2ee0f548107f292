"""A sweep: which combinations, named how, and real runs of them, killed and gone on with."""

import csv
import json
import signal
import time

import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.experiments.columns import check_columns
from anyformer.pipelines.experiments.samplers import Optuna, drawn, grid, known_combinations
from anyformer.pipelines.experiments.sweep_file import Range, read_sweep, setting
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.recipe_files import shipped
from anyformer.pipelines.reporting.plots import check_by_position
from anyformer.pipelines.reporting.run_log import BY_POSITION_FILE
from anyformer.pipelines.storage.folder_lock import folder_lock
from processes import Process
from safetensors.torch import load_file, save_file


def test_a_grid_has_every_combination_and_names_it_by_what_varies():
    sweep = read_sweep(
        "quickstart", ["model.norm_position=[pre,post]", "training.warmup_steps=[0,10]", "training.bf16=false"]
    )
    found = grid(sweep)
    assert [one.name for one in found][:2] == ["norm_position=pre,warmup_steps=0", "norm_position=pre,warmup_steps=10"]
    assert len(found) == 4 and sweep.fixed == ["training.bf16=false"]
    recipe = load_recipe("quickstart", [*sweep.fixed, *found[-1].settings])
    assert recipe.model.fields["norm_position"] == "post" and recipe.training.warmup_steps == 10
    # A list in brackets of its own is one value; two settings of one name are told apart by their sections.
    listed = read_sweep("quickstart", ["data.files=[[a.txt,b.txt],[c.txt]]", "model.files=[x,y]"])
    assert grid(listed)[0].name == "data.files=a.txt-b.txt,model.files=x"
    written = setting("evaluation.sample_prompts", ["\U0001f600\u2028\x7f \\ud83d"])  # as JSON, which is read as YAML
    assert load_recipe("quickstart", [written]).evaluation.sample_prompts == ["\U0001f600\u2028\x7f \\ud83d"]
    # Values that a folder's name would write alike are told apart; all others keep their plain names.
    names = [one.name for one in grid(read_sweep("quickstart", ["data.files=[größe,gräße,a/b]"]))]
    assert len(set(names)) == 3 and names[2] == "files=a-b" and names[0].startswith("files=gr-e-")


def test_random_combinations_differ_and_more_of_them_begin_with_the_same():
    sweep = read_sweep(
        "quickstart", ["training.learning_rate={min: 1e-4, max: 1e-2, log: true}"], sampler="random", runs=5
    )
    few, many = drawn(sweep, 5, seed=1), drawn(sweep, 9, seed=1)
    assert many[:5] == few and len({one.name for one in many}) == 9
    rates = [one.values["training.learning_rate"] for one in drawn(sweep, 200, seed=2)]
    assert min(rates) >= 1e-4 and max(rates) <= 1e-2 and 60 < sum(rate < 1e-3 for rate in rates) < 140
    assert {Range(1, 3).at(share / 100) for share in range(100)} == {1, 2, 3}
    listed = read_sweep("quickstart", ["training.seed=[1,2,3]"], sampler="random", runs=50)
    assert len(known_combinations(listed, 0)) == 3  # there are no more


def test_optuna_goes_on_as_if_it_had_not_been_stopped():
    pytest.importorskip("optuna")
    sweep = read_sweep(
        "quickstart",
        ["training.learning_rate={min: 1e-4, max: 1e-1, log: true}", "model.norm_position=[pre,post]"],
        sampler="optuna",
        runs=30,
    )

    def reached(values):  # best at 3e-3 and pre
        return abs(values["training.learning_rate"] - 3e-3) + (values["model.norm_position"] == "post")

    def search(count, chosen):
        optuna, found = Optuna(sweep, 3, True, chosen), []
        for number in range(count):
            combination, trial = optuna.choose(number)
            found.append(combination)
            optuna.tell(trial, reached(combination.values))
        return found, optuna.chosen

    whole, _ = search(30, [])
    _, chosen = search(12, [])
    again, _ = search(30, json.loads(json.dumps(chosen)))
    assert again == whole
    assert min(map(reached, (one.values for one in whole))) < 2e-3


@pytest.mark.parametrize(
    "words, says",
    [
        (["training.learning_rate=1e-3"], "nothing varies; give values in brackets"),
        (["training.learning_rate=[1e-3,1e-3]"], "training.learning_rate=[0.001, 0.001] names 0.001 twice"),
        (["evaluation.metrics=[]"], "nothing varies"),
        (["training.learning_rate={min: 1, max: 0}"], "is no range; min must be below max"),
        (["training.learning_rate={min: 0, max: 1}"], "is a range, which a grid cannot walk"),
        (["training.seed=[1,2]", "--runs", "2"], "--runs 2: a grid tries every combination"),
        (["training.seed=[1,2]", "--sampler", "random"], "--sampler random needs --runs"),
        (["training.seed=[1,2]", "--metric", "acuracy"], "--metric acuracy: the recipe measures loss, perplexity"),
        (["training.sead=[1,2]"], "training.sead"),
        (["model.norm_position=[pre,past]"], "norm_position=past: model.norm_position"),
        (["training.seed=[1,2]", "publish.repo_id=me/it"], "does not go with a sweep"),
        (["training.seed=[1,2]", "--columns", "cache_bytes"], "columns: 'cache_bytes' is not known; did you mean"),
        (["training.seed=[1,2]", "--columns", "mfu,mfu"], "columns: mfu is named twice"),
        (["training.seed=[1,2]", "--evaluate", "runs/none"], "MODEL=runs/none: no such folder"),
        (["training.seed=[1,2]", "--max-examples", "3"], "--max-examples 3 is of --evaluate and of by_position"),
        (
            ["evaluation.bootstrap=[1,2]", "--evaluate", ".", "--seeds", "2"],
            "is of runs that are trained; leave it out, or evaluate",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_one_sentence(words, says, tiny_recipe, tmp_path, command, capsys):
    assert command("sweep", tiny_recipe(), *words) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "run-sweep").exists()


@pytest.mark.parametrize("name", list(shipped("experiments")))
def test_each_shipped_experiment_makes_recipes(name):
    sweep = read_sweep(name, [])
    assert len(grid(sweep)) > 1
    for combination in grid(sweep):
        load_recipe(sweep.settings.recipe, [*sweep.fixed, *combination.settings])


def test_a_file_of_a_sweep_has_variants_and_names_its_mistakes(tiny_recipe, tmp_path):
    tiny_recipe()
    path = tmp_path / "mine.yaml"
    text = "recipe: tiny.yaml\ntraining: {max_steps: 3}\nvary: {training.seed: [1, 2]}\n"
    variants = "{sines: {model: {position_encoding: sinusoidal}}, none: {model: {position_encoding: none}}}"
    path.write_text(f"{text}variants: {variants}\n")
    sweep = read_sweep(str(path), ["training.seed=[5,6,7]"])
    assert [one.name for one in grid(sweep)][2:4] == ["sines,seed=7", "none,seed=5"]
    recipe = load_recipe(sweep.settings.recipe, [*sweep.fixed, *grid(sweep)[3].settings])
    assert (recipe.model.fields["position_encoding"], recipe.training.seed, recipe.training.max_steps) == ("none", 5, 3)
    mistakes = {"varry: {}": "mean vary", "seeds: 0.5": "sweep mine.seeds=0.5 is not an", "sampler: girds": "mean grid"}
    for more, says in mistakes.items():
        path.write_text(f"{text}{more}\n")
        with pytest.raises(UserError, match=says):
            read_sweep(str(path), [])


def table_in(folder) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))


@pytest.mark.slow
def test_runs_of_a_sweep_are_ordinary_ones_gone_on_with_after_a_signal(tiny_recipe, command, tmp_path, capsys):
    recipe, folder = tiny_recipe(), tmp_path / "run-sweep"
    words = ("sweep", recipe, "training.learning_rate=[5e-3,1e-9]", "model.norm_position=[pre,post]", "--jobs", "2")
    stopped = Process(command, *words, output=tmp_path / "first.txt")
    stopped.wait_until(lambda: any(folder.glob("*/checkpoint-*")))
    stopped.kill(signal.SIGTERM)
    assert stopped.wait() == 128 + signal.SIGTERM, stopped.text()
    assert "stopped; the same command goes on from there" in stopped.text()
    assert command(*words) == 0
    assert "going on from" in "".join(log.read_text() for log in folder.glob("*.log"))
    shown = capsys.readouterr().out
    rows = table_in(folder)
    assert [row["state"] for row in rows] == ["finished"] * 4
    assert "norm_position" in (folder / "comparison.html").read_text() and "comparison.html" in shown
    assert shown.index("0.005") < shown.index("1e-09")
    alone, varied = tmp_path / "alone", {"training.learning_rate": "0.005", "model.norm_position": "post"}
    own = [f"{name}={value}" for name, value in varied.items()]
    assert command("train", recipe, *own, f"training.output_dir={alone}") == 0
    (same,) = (row for row in rows if varied.items() <= row.items())
    run = json.loads((alone / "run.json").read_text())
    assert float(same["validation_loss"]) == run["metrics"]["validation_loss"]


def test_columns_and_perplexities_by_position_are_of_models_that_have_them():
    words, masked = load_recipe("quickstart", []), load_recipe("wikitext2_mlm", [])
    check_columns(["mfu", "decoding_tokens_per_second"], words)
    check_columns(["mfu"], masked)
    check_by_position("by_position=64", words)
    with pytest.raises(UserError, match="decoding_tokens_per_second is of models that write, and objective"):
        check_columns(["decoding_tokens_per_second"], masked)
    with pytest.raises(UserError, match="by_position=64 measures next-token predictions"):
        check_by_position("by_position=64", masked)


@pytest.mark.slow
def test_a_sweep_measures_what_its_file_asks_for_in_the_end(tiny_recipe, command, tmp_path, capsys):
    tiny_recipe(training={"max_steps": 4, "log_gradient_norms_per_layer": True})
    path, folder = tmp_path / "mine.yaml", tmp_path / "out"
    columns = ["cache_bytes_per_token", "decoding_tokens_per_second", "grad_norm"]
    path.write_text(
        f"recipe: tiny.yaml\ncolumns: {json.dumps(columns)}\nby_position: 60\nmax_examples: 4\n"
        "vary: {model.num_key_value_heads: [1, 4], model.position_encoding: [alibi, learned]}\n"
    )
    words = ("sweep", path, "--out", folder)
    assert command(*words) == 0
    shown = capsys.readouterr().out
    assert "decoding tokens per second" in shown
    rows = {row["folder"].rpartition("/")[2]: row for row in table_in(folder)}
    few = rows["num_key_value_heads=1,position_encoding=alibi"]
    many = rows["num_key_value_heads=4,position_encoding=alibi"]
    # 2 layers x (keys and values) x groups x 8 channels x 4 bytes
    assert (float(few["cache_bytes_per_token"]), float(many["cache_bytes_per_token"])) == (128.0, 512.0)
    assert all(float(row["decoding_tokens_per_second"]) > 0 for row in rows.values())
    page = (folder / "comparison.html").read_text()
    for title in ("cache bytes per token", "Perplexity by position", "Gradient norm by layer, first step logged"):
        assert title in page
    first = folder / "num_key_value_heads=1,position_encoding=alibi"
    before = [(first / name).stat().st_mtime_ns for name in ("columns.json", BY_POSITION_FILE)]
    assert command(*words) == 0  # nothing is made or measured again
    assert [(first / name).stat().st_mtime_ns for name in ("columns.json", BY_POSITION_FILE)] == before
    path.write_text(path.read_text().replace("max_examples: 4", "max_examples: 5"))
    assert command(*words) == 0  # the perplexities are of more rows
    assert json.loads((first / BY_POSITION_FILE).read_text())["rows"] == 5


@pytest.mark.slow
def test_a_sweep_over_seeds_says_in_the_terminal_whether_its_differences_are_sure(tiny_recipe, command, capsys):
    recipe = tiny_recipe(training={"max_steps": 6}, evaluation={"every_steps": None})
    assert command("sweep", recipe, "training.learning_rate=[5e-3,1e-9]", "--seeds", "3", "--jobs", "2") == 0
    verdict = capsys.readouterr().out.split("Is the difference sure?")[1]
    row = next(line for line in verdict.splitlines() if "validation loss" in line)
    assert "learning_rate=0.005" in row and "learning_rate=1e-09" in row
    assert (" yes " in row, " no " in row) == ((p := float(row.split("p = ")[1])) < 0.05, p >= 0.05)


@pytest.mark.slow
def test_a_saved_model_is_measured_with_each_combination(tiny_recipe, command, tmp_path, capsys):
    run, recipe = tmp_path / "run", tiny_recipe()
    assert command("train", recipe, "training.max_steps=2") == 0
    words = ("sweep", recipe, "objective.sequence_length=[16,32]", "--evaluate", run, "--metric", "perplexity")
    assert command(*words, "--max-examples", "5") == 0
    folder = tmp_path / "run-sweep"
    rows = table_in(folder)
    assert [row["state"] for row in rows] == ["finished"] * 2 and {row["examples"] for row in rows} == {"5"}
    assert command("evaluate", run, recipe, "objective.sequence_length=16", "--max-examples", "5") == 0
    alone = json.loads((run / "evaluation-tiny-5-examples.json").read_text())
    assert float(rows[0]["perplexity"]) == alone["metrics"]["perplexity"]
    files = sorted(folder.glob("*.json"))
    before = [file.stat().st_mtime_ns for file in files]
    capsys.readouterr()
    assert command(*words, "--max-examples", "5") == 0
    assert [file.stat().st_mtime_ns for file in files] == before and "perplexity" in capsys.readouterr().out
    assert command(*words, "--max-examples", "4") == 0  # other sizes are measured, and so is another model
    assert {row["examples"] for row in table_in(folder)} == {"4"}
    between = [file.stat().st_mtime_ns for file in files]
    save_file(
        {name: x * 2 for name, x in load_file(run / "model.safetensors").items()},
        run / "model.safetensors",
        {"format": "pt"},
    )
    assert command(*words, "--max-examples", "4") == 0
    assert all(file.stat().st_mtime_ns > time for file, time in zip(files, between))


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_the_others_are_made(tiny_recipe, command, tmp_path, capsys):
    settings = ("training.learning_rate=[5e-3,1e12]", "training.max_grad_norm=0", "training.max_steps=8")
    assert command("sweep", tiny_recipe(), *settings) == 1
    good, bad = table_in(tmp_path / "run-sweep")
    assert good["state"] == "finished" and "loss" in bad["state"] and not bad["validation_loss"]
    shown = capsys.readouterr().out
    assert bad["state"] in shown and "1 of 2 runs failed; the same command tries them again" in shown


def hold(folder):
    folder.mkdir()
    with folder_lock(folder):
        (folder / "held").touch()
        time.sleep(60)


def test_a_second_sweep_of_one_folder_is_refused(tiny_recipe, command, tmp_path, capsys):
    folder = tmp_path / "run-sweep"
    first = Process(hold, folder)
    first.wait_until((folder / "held").exists)
    assert command("sweep", tiny_recipe(), "training.learning_rate=[1e-3,3e-3]") == 2
    assert f"the sweep in {folder} is being made by process {first.pid} on" in capsys.readouterr().err
    first.kill()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])  # with two it may be chosen again while it runs
def test_optuna_s_runs_are_made_and_a_combination_chosen_twice_is_one_run(jobs, tiny_recipe, command, tmp_path):
    pytest.importorskip("optuna")
    words = ("sweep", tiny_recipe(), "model.norm_position=[pre,post]", "training.max_steps=4", "--sampler", "optuna")
    assert command(*words, "--runs", "3", "--jobs", jobs) == 0
    folder = tmp_path / "run-sweep"
    assert len(json.loads((folder / "chosen.json").read_text())["chosen"]) == 3
    assert len((folder / "sweep.csv").read_text().splitlines()) == 1 + len(list(folder.glob("*/run.json"))) == 3
    assert (folder / "comparison.html").is_file()
