"""The moving average of the weights: what it is, that it is measured and saved, and that it survives a crash."""

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.checkpoints.weight_average import AVERAGE_FILE, WeightAverage
from processes import end_in_micro_batch, logged_losses
from run_folders import assert_same, assert_same_weights, facts_of, lines_of, saved_weights

TOLERANCE = 1e-12  # float64: the same sums in another order


def steps_of(average: WeightAverage, steps: int = 40):
    """(the model, its weights after each step from the first ones on) of a training that makes random steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).double()
    model[1].bias.requires_grad_(False)
    average.on_train_begin(None, None, None, model=model)
    seen = [{name: p.detach().clone() for name, p in model.named_parameters()}]
    for step in range(1, steps + 1):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        average.update(model, step)
        seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return model, seen


@pytest.mark.parametrize("warmup", [True, False])
def test_the_average_is_the_one_kept_by_hand_and_the_weights_come_back_exactly(warmup):
    average = WeightAverage(0.9, warmup)
    model, seen = steps_of(average)
    for name in ("0.weight", "0.bias", "1.weight"):
        by_hand = seen[0][name]
        for step, weights in enumerate(seen[1:], 1):
            decay = min(0.9, (1 + step) / (10 + step)) if warmup else 0.9
            by_hand = decay * by_hand + (1 - decay) * weights[name]
        assert (average.weights[name] - by_hand).abs().max() < TOLERANCE
    with average.swapped_in(model):
        kept = {name: p.detach().clone() for name, p in model.named_parameters()}
        assert torch.equal(average.weights["0.bias"], seen[-1]["0.bias"])
    assert all(torch.equal(p, seen[-1][name]) for name, p in model.named_parameters())
    average.settle(model)
    assert all(torch.equal(p, kept[name]) for name, p in model.named_parameters())
    assert torch.equal(model[1].bias, seen[-1]["1.bias"])  # what is not trained is not averaged
    assert average.weights == {}


@pytest.mark.slow
def test_the_average_is_measured_saved_and_bit_identical_after_a_kill(tiny_recipe, command, tmp_path, capsys):
    recipe = tiny_recipe(training={"max_steps": 14}, evaluation={"every_steps": 7, "max_rows": None})
    plain, whole, broken, best = (tmp_path / name for name in ("plain", "whole", "broken", "best"))
    assert command("train", recipe, f"training.output_dir={plain}") == 0
    averaged = (command, "train", recipe, "training.ema_decay=0.8")
    assert command(*averaged[1:], f"training.output_dir={whole}") == 0
    assert logged_losses(plain) == logged_losses(whole)  # training does not look at it
    last = whole / "checkpoint-14"
    assert_same_weights(last, plain)
    assert_same(saved_weights(whole), saved_weights(last, AVERAGE_FILE))
    end_in_micro_batch(13, *averaged, f"training.output_dir={broken}", output=tmp_path / "log.txt")
    assert command(*averaged[1:], f"training.output_dir={broken}") == 0
    assert_same_weights(whole, broken)
    measured = [line["validation_loss"] for line in lines_of(whole) if "validation_loss" in line]
    of_average, of_weights = (facts_of(run)["metrics"]["validation_loss"] for run in (whole, plain))
    assert of_average == measured[-1] != of_weights
    # A best model is the average of the step whose average was best.
    assert command(*averaged[1:], f"training.output_dir={best}", "evaluation.best_metric=loss") == 0
    step = facts_of(best)["best_step"]
    assert_same(saved_weights(best), saved_weights(best / f"checkpoint-{step}", AVERAGE_FILE))
    (broken / "run.json").unlink()
    (broken / "checkpoint-14" / AVERAGE_FILE).unlink()  # damage: found by the manifest, the one before is used
    assert command(*averaged[1:], f"training.output_dir={broken}") == 0
    assert "checkpoint-14 is damaged (weight_average.safetensors is missing)" in capsys.readouterr().err
    assert_same_weights(whole, broken)
    assert command("train", recipe, "training.ema_decay=0.8", "--dry-run") == 0


REFUSED = {
    ("training.ema_warmup=false",): r"no effect without training\.ema_decay",
    ("training.ema_decay=0.9", "evaluation.average_checkpoints=2"): "are two averages; keep one",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_averages_that_mean_nothing_are_refused(overrides):
    with pytest.raises(UserError, match=REFUSED[overrides]):
        load_recipe("quickstart", list(overrides))
