"""Checkpoints of native classes whose files have other names than the model: Mixtral's hold its experts one by one."""

from types import SimpleNamespace

import pytest
import torch
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.training.checkpoints.stored_weights import stored_weights
from anyformer.pipelines.training.checkpoints.weight_average import load_average
from anyformer.pipelines.training.engines.whole import OneProcess
from native_models import native_model
from safetensors.torch import load_file


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "vit"])
def test_a_checkpoint_gives_every_weight_back(name, tmp_path):
    head = "AutoModelForImageClassification" if name == "vit" else "AutoModelForCausalLM"
    model = native_model(name, head)
    expected = {key: x.clone() for key, x in model.state_dict().items()}
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    trainer = SimpleNamespace(model=model, accelerator=SimpleNamespace(unwrap_model=lambda wrapped: wrapped))
    if not OneProcess(TrainingSection("")).load_weights(trainer, tmp_path):  # then Trainer does it
        model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert all(torch.equal(x, expected[key]) for key, x in model.state_dict().items())


def test_a_mean_of_checkpoints_has_the_mean_of_the_experts(tmp_path):
    model = native_model("mixtral")
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        model.save_pretrained(folder)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1.0
    expected = [stored_weights(model, folder) for folder in folders]
    found = load_average(model, folders)
    assert not found.missing_keys and not found.unexpected_keys
    for key, x in model.state_dict().items():
        torch.testing.assert_close(x, (expected[0][key] + expected[1][key]) / 2)
