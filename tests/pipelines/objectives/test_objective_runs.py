"""Whole runs of the objectives that change rows at random: what is hidden is the same again after a kill."""

import pytest
from run_folders import lines_of


def mixture(*parts):
    """Of rows so long that both together are passed over as often as the others."""
    return {"name": "mixture", "sequence_length": 64, "parts": list(parts)}


RUNS = {
    "masked": ("encoder", {"name": "masked"}),
    "whole words": ("encoder", {"name": "masked", "masking": "whole_word"}),
    "sentence_pairs": ("encoder", {"name": "sentence_pairs", "pairs": "sentence_order", "sequence_length": 44}),
    "span_corruption": ("seq2seq", {"name": "span_corruption"}),
    "denoising": ("seq2seq", {"name": "denoising"}),
    "mixture_of_denoisers": ("seq2seq", {"name": "mixture_of_denoisers"}),
    "prefix_lm": ("decoder", {"name": "prefix_lm"}),
    "fill_in_the_middle": ("moe", {"name": "fill_in_the_middle"}),
    "mixture": ("decoder", mixture({"name": "causal"}, {"name": "fill_in_the_middle"})),
    "read both ways": ("decoder", mixture({"name": "masked"}, {"name": "causal"})),
    "mixture of noise": ("seq2seq", mixture({"name": "denoising", "weight": 1.3}, {"name": "span_corruption"})),
}


def recipe_of(tiny_recipe, name, **training):
    family, objective = RUNS[name]
    return tiny_recipe(
        model={"family": family},
        objective={"sequence_length": 32} | objective,
        data={"max_documents": 4},  # a pass of a few steps: epochs begin on both sides of the kill
        training={"max_steps": 20, "per_device_train_batch_size": 32} | training,
        evaluation={"metrics": ["perplexity"], "every_steps": 5},
    )


def validations(run):
    return {line["step"]: line["validation_loss"] for line in lines_of(run) if "validation_loss" in line}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_hides_the_same_again_past_the_end_of_an_epoch(tiny_recipe, whole_and_killed, name):
    whole, broken = whole_and_killed(13, recipe_of(tiny_recipe, name))
    assert validations(whole) == validations(broken) and len(validations(whole)) == 4
    epochs = [line["epoch"] for line in lines_of(whole) if "loss" in line]
    assert max(epochs) > 2


@pytest.mark.slow
def test_workers_do_not_change_what_is_hidden(tiny_recipe, command, tmp_path):
    losses = []
    for workers in (0, 2):
        recipe = recipe_of(tiny_recipe, "masked", max_steps=16, dataloader_num_workers=workers)
        assert command("train", recipe, f"training.output_dir={tmp_path / str(workers)}") == 0
        losses.append([line["loss"] for line in lines_of(tmp_path / str(workers)) if "loss" in line])
    assert losses[0] == losses[1] and len(losses[0]) >= 16
