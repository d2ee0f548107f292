"""The law of scaling: found again from losses made by it, and fitted to a ladder of real runs."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.experiments.ladder import ladder, steps_of, widths_of
from anyformer.pipelines.experiments.scaling_law import Law, bootstrap, fit, interval
from anyformer.pipelines.recipes.compose import load_recipe

PUBLISHED = Law(irreducible=1.69, a=406.4, b=410.7, alpha=0.34, beta=0.28)  # Hoffmann et al. 2022, equation 10
SIZES, LENGTHS = (np.array(grid).ravel() for grid in np.meshgrid(np.geomspace(1e6, 1e9, 5), np.geomspace(1e7, 1e11, 5)))


def test_a_law_is_found_again_from_losses_made_by_it():
    law = fit(SIZES, LENGTHS, PUBLISHED.loss(SIZES, LENGTHS))
    assert (law.alpha, law.beta) == pytest.approx((0.34, 0.28), abs=2e-3)
    assert law.irreducible == pytest.approx(1.69, abs=1e-2)
    assert law.loss(1e10, 1e12) == pytest.approx(PUBLISHED.loss(1e10, 1e12), rel=1e-3)
    assert law.share_of_parameters == pytest.approx(0.28 / 0.62, abs=2e-3)


@pytest.mark.slow
def test_intervals_hold_the_exponents_of_noisy_losses():
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(len(SIZES)))
    losses = PUBLISHED.loss(SIZES, LENGTHS) * noise
    law = fit(SIZES, LENGTHS, losses)
    others = bootstrap(SIZES, LENGTHS, losses, law, 12, seed=0)
    low, high = interval([other.beta for other in others], 0.99)
    assert low < 0.28 < high and high - low < 0.1
    with pytest.raises(ValueError, match="6 runs, of several sizes"):
        fit(SIZES[:5], LENGTHS[:5], losses[:5])


def test_the_rungs_of_a_ladder_keep_the_size_of_heads_and_the_shares_of_the_width():
    recipe = load_recipe("stdlib_moe_dense", ["training.output_dir=runs/x"])
    widths, steps = widths_of(recipe, None), steps_of(recipe, None)
    assert (widths, steps) == ([64, 96, 128, 192, 256], [100, 200, 400])
    load = partial(load_recipe, "stdlib_moe_dense")
    rungs = ladder(recipe, [64, 128, 256], steps, load)
    assert len(rungs) == 9 and [rung.values["width"] for rung in rungs][-1] == 256
    narrow = rungs[0].recipe
    fields = narrow.model.fields
    assert (fields["hidden_size"], fields["num_attention_heads"], fields["num_key_value_heads"]) == (64, 2, 1)
    assert fields["intermediate_size"] == 176 and narrow.training.max_steps == 100
    assert narrow.training.output_dir == "runs/x/width-64-steps-100"
    recipe = recipe.with_(training={"output_dir": "runs/rates: a #1"})  # as YAML a mapping, and a comment
    assert ladder(recipe, [64], steps, load)[0].recipe.training.output_dir == "runs/rates: a #1/width-64-steps-100"
    with pytest.raises(UserError, match="give three or more"):
        widths_of(recipe, [64, 128])
    with pytest.raises(UserError, match="100 is no multiple of 32"):
        ladder(recipe, [64, 100, 128], steps, load)
    with pytest.raises(UserError, match="runs of two lengths"):
        steps_of(recipe, [5])
    with pytest.raises(UserError, match="160 has 5 heads, which 4 key and value heads for 8 do not divide; choose"):
        ladder(recipe, [160], steps, load)


@pytest.mark.slow
def test_a_ladder_of_runs_is_measured_fitted_and_drawn(tiny_recipe, command, tmp_path, capsys):
    recipe, run = tiny_recipe(), tmp_path / "run"
    ladder_of = ("--widths", "16,32,48,64", "--steps", "4,8", "--bootstrap", "8")
    argv = ("scaling", recipe, f"training.output_dir={run}", *ladder_of)
    assert command(*argv) == 0
    shown = capsys.readouterr().out
    result = json.loads((run / "scaling.json").read_text())
    assert [r["fitted"] for r in result["runs"]].count(False) == 2 and "held out" in shown and "Kaplan" in shown
    assert all(abs(r["predicted"] / r["loss"] - 1) < 0.2 for r in result["runs"])
    assert (run / "scaling.png").stat().st_size > 10_000
    assert command(*argv) == 0  # nothing is trained again
    assert json.loads((run / "scaling.json").read_text()) == result
    larger = (*argv, "--predict", "128:16", "--devices", "1xH100-80GB", "--price", "3")
    assert command(*larger) == 0
    run_of_it = json.loads((run / "scaling.json").read_text())["larger"]
    assert run_of_it["loss"] is None and run_of_it["cost"] == pytest.approx(3 * run_of_it["hours"])
    assert run_of_it["tokens"] == 2 * max(r["tokens"] for r in result["runs"])
    assert run_of_it["interval"][0] <= run_of_it["predicted"] <= run_of_it["interval"][1]
    folder = Path(run_of_it["folder"])
    folder.mkdir()
    of_another = json.loads((run / "width-64-steps-8" / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(of_another | {"status": "running"}))  # as of a run that goes on
    assert command(*larger) == 0
    assert json.loads((run / "scaling.json").read_text())["larger"] == run_of_it
    shutil.rmtree(folder)
    assert command("train", recipe, f"training.output_dir={run}", *run_of_it["settings"]) == 0
    capsys.readouterr()
    assert command(*larger) == 0
    measured = json.loads((run / "scaling.json").read_text())["larger"]
    assert measured["loss"] > 0 and measured | {"loss": None} == run_of_it
    assert f"measured {measured['loss']:.4f}" in capsys.readouterr().out
    assert command(*argv, "--price", "3") == 2 and "--predict WIDTH:STEPS" in capsys.readouterr().err
    assert command(*argv[:-4], "--steps", "4") == 2
    assert "a law needs runs of two lengths" in capsys.readouterr().err


def test_a_ladder_of_stages_is_refused(command, capsys):
    assert command("scaling", "stdlib_stages") == 2
    assert "stages do not go with scaling" in capsys.readouterr().err
