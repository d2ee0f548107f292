"""Native twins of mixtures of experts: what holds for them only."""

import re

import pytest
import transformers
from anyformer.pipelines.interop.matching import ARCHITECTURES, native_config, our_config
from native_models import assert_same_logits, assert_same_weights, native_model
from native_models import native_config as tiny_native_config
from packaging.version import Version
from safetensors import safe_open

import anyformer
from anyformer import from_native, to_native

LIMITS_EXPERTS = Version(transformers.__version__) >= Version(
    "5.23"
)  # transformers < 5.23: Switch's capacity has no effect


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_checkpoint_with_a_tensor_for_each_expert_is_read_and_written(name, tmp_path):
    native = native_model(name)
    native.save_pretrained(tmp_path / "native")
    with safe_open(tmp_path / "native" / "model.safetensors", "pt") as file:
        assert any(re.search(r"experts\.3\.(w1|gate_proj)\.weight$", key) for key in list(file.keys()))
    ours = from_native(tmp_path / "native")
    assert_same_logits(native, ours)
    ours.save_pretrained(tmp_path / "ours")
    again = anyformer.AnyformerMoeForCausalLM.from_pretrained(tmp_path / "ours")
    to_native(again).save_pretrained(tmp_path / "back")
    assert_same_weights(native, type(native).from_pretrained(tmp_path / "back"))


# ------------------------------------------------------------------------------------------ of one architecture only


@pytest.mark.skipif(not LIMITS_EXPERTS, reason="transformers before 5.23 does not apply expert_capacity")
def test_a_full_expert_of_switch_leaves_out_the_same_tokens():
    full = native_model("switch", "AutoModelForSeq2SeqLM", expert_capacity=5)
    ours, unlimited = from_native(full), from_native(native_model("switch", "AutoModelForSeq2SeqLM"))
    assert (ours.config.expert_capacity, unlimited.config.expert_capacity) == (5, 64)
    assert_same_logits(full, ours)
    with pytest.raises(AssertionError):  # it was reached
        assert_same_logits(full, unlimited)
    assert_same_logits(ours, to_native(ours))


def test_a_model_without_limit_goes_to_switch_with_one_that_no_row_reaches():
    config = our_config(tiny_native_config("switch"))
    config.expert_capacity = None
    architecture, native = native_config(config)
    assert architecture.native == "switch_transformers" and native.expert_capacity > 10**9
    assert our_config(native).expert_capacity is None


@pytest.mark.parametrize(
    "layers, sparse", [((4, 4), (2, 2)), ((4, 3), (4, 3)), ((6, 6), (2, 2)), ((12, 12), (6, 6)), ((3, 3), (1, 1))]
)
def test_sparse_layers_of_switch_are_where_its_class_puts_them(layers, sparse):
    fields = {"num_layers": layers[0], "num_decoder_layers": layers[1]}
    fields |= {"num_sparse_encoder_layers": sparse[0], "num_sparse_decoder_layers": sparse[1]}
    native = transformers.SwitchTransformersModel(tiny_native_config("switch", **fields))
    ours = from_native(native)
    for stack in ("encoder", "decoder"):
        theirs = [block.is_sparse for block in getattr(native, stack).block]
        assert [hasattr(layer.mlp, "experts") for layer in getattr(ours, stack).layers] == theirs
    assert ARCHITECTURES["switch_transformers"].read(to_native(ours).config)["mlp_pattern"] == ours.config.mlp_pattern


def test_training_fields_of_routers_are_kept():
    for name, fields in {
        "mixtral": {"router_aux_loss_coef": 0.03, "router_jitter_noise": 0.1},
        "qwen3_moe": {"router_aux_loss_coef": 0.03},
        "switch": {"router_aux_loss_coef": 0.03, "router_z_loss_coef": 0.2, "router_jitter_noise": 0.1},
    }.items():
        ours = our_config(tiny_native_config(name, **fields))
        back = native_config(ours)[1]
        assert {key: getattr(ours, key) for key in fields} == {key: getattr(back, key) for key in fields} == fields
