"""training.torch_compile: layers compiled in place, always or where a probe says that it pays back."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from anyformer.pipelines.training import compiled_layers
from anyformer.pipelines.training.compiled_layers import CompiledLayers, Probe, layers_of
from processes import logged_losses
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, TrainerState

EAGER = {"backend": "eager"}  # traces the layers and runs what it found as it is: the same sums


def is_compiled(layer) -> bool:
    return layer._compiled_call_impl is not None


@pytest.fixture
def two_layers():
    config = AutoConfig.for_model("bert", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=32)
    return AutoModel.from_config(config)


def begin(wanted, model, refused=None, saved=None):
    callback = CompiledLayers(wanted, EAGER, refused, nullcontext)
    attributes = {"CompiledLayers": {"args": {}, "attributes": {"chosen": saved}}}
    callback.on_train_begin(None, TrainerState(stateful_callbacks=attributes), None, model=model)
    return callback


def test_what_a_probe_saves_counts_compiling_more_than_once():
    assert Probe(eager=1.0, compiled=0.5, compiling=30.0).saves(400) == 400 * 0.5 - 60
    assert Probe(eager=1.0, compiled=0.99, compiling=30.0).saves(10**6) < 0  # within what three passes can tell


def test_layers_are_compiled_in_place_and_share_the_code(two_layers):
    names = list(two_layers.state_dict())
    assert begin(True, two_layers).chosen and all(map(is_compiled, layers_of(two_layers)))
    assert list(two_layers.state_dict()) == names


@pytest.mark.parametrize("saved", [True, False, None])
def test_a_resumed_run_goes_on_as_it_was(saved, two_layers):
    callback = begin("auto", two_layers, saved=saved)
    assert callback.chosen is saved and callback.state()["attributes"] == {"chosen": saved}
    assert all(is_compiled(layer) == bool(saved) for layer in layers_of(two_layers))


@pytest.mark.parametrize("wanted", [True, "auto"])
def test_the_first_compiled_step_says_what_compiling_took(wanted, two_layers, monkeypatch, capsys):
    times = iter([0, 9, 10, 12] if wanted is True else [*range(2 * compiled_layers.PROBED), 100, 109, 110, 112])
    monkeypatch.setattr(compiled_layers.time, "perf_counter", lambda: float(next(times)))
    monkeypatch.setattr(CompiledLayers, "_choose", lambda *args: (True, "it pays back"))
    callback, state = begin(wanted, two_layers), TrainerState()
    for _ in range(2 if wanted is True else compiled_layers.PROBED + 2):
        callback.on_step_begin(None, state, None, model=two_layers)
        callback.on_step_end(None, state, None, model=two_layers)
    assert all(map(is_compiled, layers_of(two_layers)))
    assert capsys.readouterr().err.splitlines()[-1].endswith("torch.compile: the layers took 0:07 to compile")


def test_auto_leaves_engines_and_models_without_layers_as_they_are(two_layers, capsys):
    assert begin("auto", two_layers, refused="beside DeepSpeed").chosen is False
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace()
    assert begin("auto", model).chosen is False
    said = capsys.readouterr().err
    assert "torch.compile: left out beside DeepSpeed" in said and "as Linear has no layers" in said


def test_a_short_run_is_not_probed(tiny_recipe, command, tmp_path, capsys):
    assert command("train", tiny_recipe(training={"max_steps": 8}), "training.torch_compile=auto") == 0
    assert "torch.compile: left out, as 0:0" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_chosen_by_a_probe_trains_the_same_curve(tiny_recipe, command, tmp_path, monkeypatch, capsys):
    recipe = tiny_recipe(training={"max_steps": 16}, model={"hidden_dropout": 0.1})
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    assert command("train", recipe, f"training.output_dir={plain}") == 0
    monkeypatch.setattr(compiled_layers, "WORTH_A_PROBE", 0.0)
    monkeypatch.setattr(Probe, "saves", lambda self, passes: float(passes))
    overrides = ["training.torch_compile=auto", "training.torch_compile_backend=eager"]
    assert command("train", recipe, *overrides, f"training.output_dir={compiled}") == 0
    assert "a compiled layer takes" in capsys.readouterr().err
    curves = [torch.tensor(logged_losses(run)) for run in (compiled, plain)]
    torch.testing.assert_close(*curves, atol=1e-4, rtol=0)  # norms are computed another way where they are compiled
    assert load_file(compiled / "model.safetensors").keys() == load_file(plain / "model.safetensors").keys()


def test_a_backend_of_compiling_is_refused_where_nothing_is_compiled(tiny_recipe, command, capsys):
    assert command("train", tiny_recipe(), "training.torch_compile_backend=eager", "--dry-run") == 2
    assert (
        "training.torch_compile_backend has no effect without training.torch_compile; set both"
        in capsys.readouterr().err
    )
