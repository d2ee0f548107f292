"""A new family is its file, its config and its row: nothing else names it."""

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal

import anyformer.modeling
import pytest
import torch
from anyformer.modeling.families import FAMILIES
from anyformer.pipelines.recipes.schema import ModelSection
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import anyformer

# The file stands beside those of modeling/, so that its models are saved with their code.
TOY = '''"""The toy family: decoders with a width of their own."""

from huggingface_hub.dataclasses import strict
from transformers import GenerationMixin

from .base import AnyformerPreTrainedModel
from .configuration import AnyformerDecoderConfig
from .decoder import CausalLanguageModel, CausalModel
from .families import FAMILIES


@strict
class AnyformerToyConfig(AnyformerDecoderConfig):
    model_type = "anyformer_toy"

    toy_width: int = 8  # what a toy has and nothing else


class AnyformerToyPreTrainedModel(AnyformerPreTrainedModel):
    config_class = AnyformerToyConfig
    auto_classes = FAMILIES["anyformer_toy"].heads


class AnyformerToyModel(CausalModel, AnyformerToyPreTrainedModel):
    pass


class AnyformerToyForCausalLM(CausalLanguageModel, AnyformerToyPreTrainedModel, GenerationMixin):
    base_class = AnyformerToyModel
'''
ROW = replace(
    FAMILIES["anyformer_decoder"],
    words="a toy",
    module="toy",
    config="AnyformerToyConfig",
    config_module="toy",
    heads={"AutoModel": "AnyformerToyModel", "AutoModelForCausalLM": "AnyformerToyForCausalLM"},
)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The toy's file in a folder with links to those of modeling/, and its row."""
    folder = tmp_path / "modeling"
    folder.mkdir()
    for file in Path(anyformer.modeling.__file__).parent.glob("*.py"):
        (folder / file.name).symlink_to(file)
    (folder / "toy.py").write_text(TOY)
    monkeypatch.setattr(anyformer.modeling, "__path__", [*anyformer.modeling.__path__, str(folder)])
    monkeypatch.setitem(FAMILIES, "anyformer_toy", ROW)
    (choices,) = [field for field in fields(ModelSection) if field.name == "family"]  # made of the rows, at import
    monkeypatch.setattr(choices, "type", Literal[tuple(name.removeprefix("anyformer_") for name in FAMILIES)] | None)
    anyformer.register()
    yield
    del sys.modules["anyformer.modeling.toy"]


def test_a_new_family_is_its_file_its_config_and_its_row(toy, tiny_recipe, command, capsys):
    assert command("list", "fields", "toy") == 0
    assert "model.toy_width: what a toy has and nothing else" in capsys.readouterr().out
    recipe = tiny_recipe(model={"family": "toy", "toy_width": 16}, training={"max_steps": 2, "save_steps": 2})
    assert command("train", recipe) == 0
    config = AutoConfig.from_pretrained("run")
    assert type(config) is ROW.load("AnyformerToyConfig") and config.toy_width == 16
    model = AutoModelForCausalLM.from_pretrained("run")
    assert type(model) is ROW.load("AnyformerToyForCausalLM")
    assert type(AutoModel.from_pretrained("run")) is ROW.load("AnyformerToyModel")
    model.save_pretrained("again")
    same = AutoModelForCausalLM.from_pretrained("again").state_dict()
    assert all(torch.equal(weight, same[name]) for name, weight in model.state_dict().items())
    # It also loads without anyformer.
    assert {"toy.py", "decoder.py", "stack.py"} <= {path.name for path in Path("again").iterdir()}
