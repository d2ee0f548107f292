"""Every illegal config is refused when it is built, with one sentence that says what is legal."""

from types import SimpleNamespace

import pytest
from anyformer.modeling.legality import check_legal

from anyformer import AnyformerDecoderConfig

CASES = {
    "num_attention_heads=7 does not divide hidden_size=256; 4, 8 and 16 do": {
        "hidden_size": 256,
        "num_attention_heads": 7,
    },
    "num_key_value_heads=3 does not divide num_attention_heads=8": {"num_key_value_heads": 3},
    "head_dim=5 is odd": {"head_dim": 5},
    "position_encoding='rotery' is not known; known: none, learned, sinusoidal, rotary, alibi, relative": {
        "position_encoding": "rotery"
    },
    "norm_type='batchnorm' is not known": {"norm_type": "batchnorm"},
    "norm_position='middle' is not known": {"norm_position": "middle"},
    "mlp_type='moe' is not known": {"mlp_type": "moe"},
    "rope_type='spiral' is not known": {"rope_parameters": {"rope_type": "spiral"}},
    "num_hidden_layers=0 is not a positive number": {"num_hidden_layers": 0},
    "attention_dropout=1.5 is not a probability": {"attention_dropout": 1.5},
    "layer_types names 1 layers, but num_hidden_layers=8": {"layer_types": ["full_attention"]},
    "sliding_attention layers need sliding_window": {"attention_pattern": ["sliding_attention"]},
    "strided_attention layers need attention_stride": {"attention_pattern": ["strided_attention"]},
    "sliding_window=256 is used by no layer; name sliding_attention in attention_pattern": {"sliding_window": 256},
    "attention_stride=4 is used by no layer": {"attention_stride": 4},
    "sliding_window=0 is not a positive number": {"sliding_window": 0},
    "say different things; leave layer_types null": {
        "num_hidden_layers": 1,
        "attention_pattern": ["full_attention"],
        "layer_types": ["sliding_attention"],
    },
    "attention_pattern holds 'dense', which a decoder does not have; known: full_attention, sliding_attention, "
    "strided_attention": {"attention_pattern": ["dense"]},
    "rope_parameters has no entry for 'full_attention', which layers of this model use": {
        "attention_pattern": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
        "rope_parameters": {"sliding_attention": {"rope_type": "default"}},
    },
    "rope_parameters.sliding_attention.rope_type='spiral' is not known": {
        "attention_pattern": ["sliding_attention"],
        "sliding_window": 4,
        "rope_parameters": {"sliding_attention": {"rope_type": "spiral"}},
    },
    "rope_parameters.partial_rotary_factor=0.12 rotates 7 of 64 channels": {
        "head_dim": 64,
        "rope_parameters": {"partial_rotary_factor": 0.12},
    },
    "relative_attention_max_distance=16 must be above half of relative_attention_num_buckets=32": {
        "position_encoding": "relative",
        "relative_attention_max_distance": 16,
    },
    "which a decoder does not have": {"num_hidden_layers": 1, "layer_types": ["chunked_attention"]},
}


@pytest.mark.parametrize("sentence", CASES)
def test_every_illegal_combination_is_refused_with_its_sentence(sentence):
    with pytest.raises(ValueError) as error:
        AnyformerDecoderConfig(**CASES[sentence])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_the_table_reads_plain_namespaces_too():
    fields = {n: getattr(AnyformerDecoderConfig(), n) for n in AnyformerDecoderConfig.__dataclass_fields__}
    check_legal(SimpleNamespace(**fields))
    with pytest.raises(ValueError, match="does not divide"):
        check_legal(SimpleNamespace(**(fields | {"head_dim": None, "num_attention_heads": 7})))


def test_a_derived_config_round_trips(tmp_path):
    config = AnyformerDecoderConfig(hidden_size=96, num_attention_heads=6, mlp_type="mlp")
    config.save_pretrained(tmp_path)
    again = AnyformerDecoderConfig.from_pretrained(tmp_path)
    assert again.head_dim == 16 and again.intermediate_size == 384 and again.num_key_value_heads == 6
    assert again.to_diff_dict() == config.to_diff_dict()
