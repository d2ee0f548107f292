"""training.torch_compile: layers compiled in place."""

import pytest
from anyformer.pipelines.training import compiled_layers
from anyformer.pipelines.training.compiled_layers import CompiledLayers, layers_of
from transformers import AutoConfig, AutoModel, TrainerState


@pytest.fixture
def two_layers():
    config = AutoConfig.for_model("bert", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=32)
    return AutoModel.from_config(config)


def test_layers_are_compiled_in_place_and_the_second_step_says_what_it_took(two_layers, monkeypatch, capsys):
    names, state = list(two_layers.state_dict()), TrainerState()
    times = iter([0, 9, 10, 12, 20, 22])
    monkeypatch.setattr(compiled_layers.time, "perf_counter", lambda: float(next(times)))
    callback = CompiledLayers({"backend": "eager"})
    callback.on_train_begin(None, state, None, model=two_layers)
    assert all(layer._compiled_call_impl is not None for layer in layers_of(two_layers))
    assert list(two_layers.state_dict()) == names
    for _ in range(2):
        callback.on_step_begin(None, state, None)
        callback.on_step_end(None, state, None)
    assert capsys.readouterr().err == "anyformer: torch.compile: the layers took 0:07 to compile\n"
