"""Norms of the gradients of each layer: what is logged, and where they cannot be had."""

import json
import math

import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.schema import ParallelismSettings, Recipe, TrainingSection
from anyformer.pipelines.reporting.charts import layers_of
from anyformer.pipelines.training.engines.asked import engine_for
from anyformer.pipelines.training.guards.gradient_norms import layer_of


def test_a_parameter_belongs_to_its_layer_under_any_wrapper():
    assert layer_of("model.layers.3.mlp.experts.7.up_proj.weight") == "model.layers.3"
    assert layer_of("encoder.block.0.layer.1.DenseReluDense.wi.weight") == "encoder.block.0"
    assert layer_of("module._orig_mod.model.layers.11.input_layernorm.weight") == "model.layers.11"
    assert layer_of("model.embed_tokens.weight") == "model.embed_tokens" and layer_of("scale") == "scale"


def test_squares_of_the_norms_of_layers_sum_up_to_the_logged_norm(tiny_recipe, command, tmp_path):
    """Also where gradients are clipped to much less."""
    training = {"max_steps": 5, "max_grad_norm": 0.01, "logging_steps": 2, "log_gradient_norms_per_layer": True}
    assert command("train", tiny_recipe(training=training)) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "gradients.jsonl").read_text().splitlines()]
    logged = {
        line["step"]: line["grad_norm"]
        for line in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        if "grad_norm" in line
    }
    assert [line["step"] for line in lines] == list(logged) and len(lines) >= 3
    for line in lines:
        assert math.hypot(*line["layers"].values()) == pytest.approx(logged[line["step"]], rel=1e-5)
        assert logged[line["step"]] > 0.1
        (norms,) = layers_of(line).values()
        assert [*norms] == [1, 2] and min(norms.values()) > 0
    assert "Gradient norm by layer" in (tmp_path / "run" / "report.html").read_text()


def test_engines_that_split_gradients_are_refused(monkeypatch):
    section = TrainingSection(output_dir="x", log_gradient_norms_per_layer=True)
    engine_for(section).check_run(Recipe(training=section), False)
    section.parallelism = ParallelismSettings(tp=2)
    with pytest.raises(UserError, match="parallelism splits them"):
        engine_for(section).check_run(Recipe(training=section), False)
    section.parallelism = None
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match="FSDP splits them"):
        engine_for(section).check_run(Recipe(training=section), False)
