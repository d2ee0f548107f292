"""training.torch_compile: layers compiled in place."""

import pytest
from anyformer.pipelines.training.compiled_layers import CompiledLayers, layers_of
from transformers import AutoConfig, AutoModel


@pytest.fixture
def two_layers():
    config = AutoConfig.for_model("bert", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=32)
    return AutoModel.from_config(config)


def test_layers_are_compiled_in_place(two_layers):
    names = list(two_layers.state_dict())
    CompiledLayers({"backend": "eager"}).on_train_begin(None, None, None, model=two_layers)
    assert all(layer._compiled_call_impl is not None for layer in layers_of(two_layers))
    assert list(two_layers.state_dict()) == names
