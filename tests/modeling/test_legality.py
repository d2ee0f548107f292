"""Every illegal config is refused when it is built, with one sentence that says what is legal."""

import math
from itertools import islice
from types import SimpleNamespace
from typing import get_args

import pytest
from anyformer.modeling.rules import legality
from anyformer.modeling.rules.bounds import BOUNDS
from anyformer.modeling.rules.legality import (
    INITIALIZER_RANGE,
    check_legal,
    faults,
)
from anyformer.pipelines.recipes import introspection
from family_variants import LINEAR, WINDOW, WINDOWS
from huggingface_hub.errors import StrictDataclassClassValidationError
from yielded_lines import lines_of, lines_that_yield

from anyformer import (
    AnyformerDecoderConfig,
    AnyformerEncoderConfig,
    AnyformerMoeConfig,
    AnyformerSeq2SeqConfig,
    AnyformerViTConfig,
)

LATENT = {"kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10}
NULL_FULL = WINDOWS | {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention": None}}
CASES = {
    "v_head_dim is not set, but latent_attention layers need it": LATENT | {"v_head_dim": None},
    "num_key_value_heads=2 is not for latent_attention, which": LATENT | {"num_key_value_heads": 2},
    "qk_norm=True is not for latent_attention": LATENT | {"qk_norm": True},
    "of head_dim=8 8 channels rotate; leave head_dim null": LATENT | {"head_dim": 8},
    "initializer_range=0.1 spreads no weight where fan_in_init=True": {"initializer_range": 0.1, "fan_in_init": True},
    "num_attention_heads=7 does not divide hidden_size=256; 4, 8 and": {"hidden_size": 256, "num_attention_heads": 7},
    "num_key_value_heads=3 does not divide num_attention_heads=8": {"num_key_value_heads": 3},
    "head_dim=5 is odd": {"head_dim": 5},
    "position_encoding='rotery' is not known; known: none, learned, sinusoidal": {"position_encoding": "rotery"},
    "norm_position='middle' is not known": {"norm_position": "middle"},
    "norm_position.full_attention='middle' is not known": {"norm_position": {"full_attention": "middle"}},
    "norm_position.linear_attention='pre' is read by no layer; layers of this model are full_attention": {
        "norm_position": {"full_attention": "pre", "linear_attention": "pre"}
    },
    "norm_position has no entry for 'linear_attention', which layers": LINEAR | {"norm_position": {}},
    "norm_position='both' does not go with block='parallel'": {"block": "parallel", "norm_position": "both"},
    "add_cross_attention=True does not go with block='parallel'": {"block": "parallel", "add_cross_attention": True},
    "num_nextn_predict_layers=1 adds modules that read no encoder": {
        "num_nextn_predict_layers": 1,
        "add_cross_attention": True,
    },
    "parallel_norms=3 is not known": {"block": "parallel", "parallel_norms": 3},
    "parallel_norms=2 is read by block='parallel' alone": {"parallel_norms": 2},
    "qk_norm_width=True says what qk_norm=True norms": {"qk_norm_width": True},
    "no_rope_layers=[1, 0] must hold a number for each of num_hidden_layers=8": {"no_rope_layers": [1, 0]},
    "no_rope_layers=[0, 1, 1, 1, 1, 1, 1, 1] differs from [1, 0, 1, 0, 1, 0, 1, 0], which the null entries": NULL_FULL
    | {"no_rope_layers": [0] + [1] * 7},
    "no_rope_layers=[0] is read by position_encoding='rotary' alone": {
        "no_rope_layers": [0],
        "position_encoding": "alibi",
    },
    "attention_gate='row' is not known; known: head, channel": {"attention_gate": "row"},
    "attention_gate='head' does not go with linear_attention": {"attention_gate": "head", **LINEAR},
    "hidden_act='gelu' is not read by mlp_type='clamped_glu'": {"mlp_type": "clamped_glu", "hidden_act": "gelu"},
    "swiglu_limit=5.0 and swiglu_alpha=1.702 are read by mlp_type='clamped_glu'": {"swiglu_limit": 5.0},
    "attention_sinks=True and position_at='queries_keys' are two classes of attention": {
        "attention_sinks": True,
        "position_at": "queries_keys",
        "position_encoding": "learned",
    },
    "attention_sinks=True is a part of softmax attention over tokens, and linear": {"attention_sinks": True, **LINEAR},
    "num_key_value_heads=1 is odd, but differential_attention=True pairs heads": {
        "num_key_value_heads": 1,
        "differential_attention": True,
    },
    "attention_dropout=0.1 would differ in the two softmaxes": {
        "attention_dropout": 0.1,
        "differential_attention": True,
    },
    "num_nextn_predict_layers=1 adds modules behind the layers, which the first": {
        "num_nextn_predict_layers": 1,
        "value_residual": True,
    },
    "prefix_lm=True does not go with linear_attention, which reads": {"prefix_lm": True, **LINEAR},
    "rope_parameters is null for every kind of layer": {"rope_parameters": {"full_attention": None}},
    "layer_types names 1 layers, but num_hidden_layers=8": {"layer_types": ["full_attention"]},
    "linear_key_head_dim=4 is used by no layer; name gated_delta_attention or": {"linear_key_head_dim": 4},
    "say different things; leave layer_types null": {
        "num_hidden_layers": 1,
        "attention_pattern": ["full_attention"],
        "layer_types": ["sliding_attention"],
    },
    "attention_pattern holds 'dense', which a decoder does not have; known": {"attention_pattern": ["dense"]},
    "rope_parameters has no entry for 'full_attention', which layers of this model use": WINDOWS
    | {"rope_parameters": {"sliding_attention": {"rope_type": "default"}}},
    "rope_parameters.strided_attention is read by no layer: strided_attention layers read that of full_attention": {
        "attention_pattern": ["strided_attention"],
        "attention_stride": 4,
        "rope_parameters": {kind: {"rope_type": "default"} for kind in ("full_attention", "strided_attention")},
    },
    "sliding_window=1 must be at least 2": WINDOW | {"sliding_window": 1},
    "attention_chunk_size=1 must be at least 2": {
        "attention_pattern": ["chunked_attention"],
        "attention_chunk_size": 1,
    },
    "factor=nan is not": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": math.nan}},
    "rope_parameters.sliding_attention.rope_type='spiral' is not known": WINDOW
    | {"rope_parameters": {"sliding_attention": {"rope_type": "spiral"}}},
    "rope_parameters.partial_rotary_factor=0.12": {"head_dim": 64, "rope_parameters": {"partial_rotary_factor": 0.12}},
    "relative_attention_max_distance=16": {"position_encoding": "relative", "relative_attention_max_distance": 16},
    "attn_temperature_tuning=True is for layers without positions, and": {"attn_temperature_tuning": True},
    "attn_temperature_tuning=True does not go with linear_attention": LINEAR
    | {"attn_temperature_tuning": True, "position_encoding": "none"},
    "qk_l2_norm=True is for rotated queries, not for": {"qk_l2_norm": True, "position_encoding": "alibi"},
    "qk_l2_norm=True and qk_norm=True are two norms": {"qk_l2_norm": True, "qk_norm": True},
    "position_at='layers' says where position embeddings are added": {"position_at": "layers"},
    "position_at='queries_keys' does not go with linear_attention": LINEAR
    | {"position_at": "queries_keys", "position_encoding": "learned"},
    "position_encoding='alibi' adds to single scores, which linear_attention": LINEAR | {"position_encoding": "alibi"},
    "attn_logit_softcapping=5.0 acts on single scores, which": LINEAR | {"attn_logit_softcapping": 5.0},
    "position_encoding='learned' numbers": {"segment_length": 4, "memory_length": 4, "position_encoding": "learned"},
    "layer_types holds 'linear_attention', which a": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
}


DISENTANGLED = {"position_encoding": "disentangled"}
ENCODER_CASES = {
    "position_at='layers' adds hidden_size=512 channels; leave embedding_size=64 null": {
        "position_at": "layers",
        "position_encoding": "learned",
        "embedding_size": 64,
    },
    "pooler_type='max' is not known; known: cls, mean": {"pooler_type": "max"},
    "num_hidden_groups=3 does not divide num_hidden_layers=8; 2, 4": {"num_hidden_groups": 3},
    "num_hidden_groups=1 shares weights between layers, which must then be alike": WINDOWS | {"num_hidden_groups": 1},
    "one kind of attention in attention_pattern, and": {"num_hidden_groups": 2, "skip_first_norm": True},
    "skip_first_norm=True needs norm_position='pre', block='sequential' and embedding_norm": {"skip_first_norm": True},
    "pos_att_type=['c2p', 'p2p'] is not known; known: c2p, p2c": DISENTANGLED | {"pos_att_type": ["c2p", "p2p"]},
    "position_encoding='relative' does not go with local_global_attention": {
        "position_encoding": "relative",
        "attention_pattern": ["local_global_attention"],
        "sliding_window": 4,
    },
    "task_head_transform=True makes 64 channels of": {"task_head_transform": True, "embedding_size": 64},
    "mask_decoder_layers=2 needs position_encoding='disentangled' and": DISENTANGLED | {"mask_decoder_layers": 2},
    "mask_decoder_layers=1 adds absolute": DISENTANGLED
    | {"mask_decoder_layers": 1, "norm_position": "post", "embedding_size": 64},
    "position_biased_input=True is for position_encoding='disentangled'; with": {"position_biased_input": True},
    "conv_kernel_size=4 must be odd, or 0 for no convolution": {"conv_kernel_size": 4},
    "conv_groups=3 does not divide hidden_size=512; 2, 4 and 8 do": {"conv_kernel_size": 3, "conv_groups": 3},
    "'linear_attention', which an encoder": LINEAR,
    "sliding_window is not set, but local_global_attention layers": {"attention_pattern": ["local_global_attention"]},
    "sliding_window=4 is used by no layer; name sliding_attention or local_global_attention in": {"sliding_window": 4},
}
SEQ2SEQ_CASES = {
    "block='parallel' has no place for attention to the encoder's tokens": {"block": "parallel"},
    "no_rope_layers=[1, 1, 1, 1, 1, 1, 1, 0] names the layers of one stack": {
        "position_encoding": "rotary",
        "no_rope_layers": [1] * 7 + [0],
    },
    "rope_parameters.full_attention=None, layers without positions, is for models of one stack": NULL_FULL,
    "position_encoding='disentangled' needs bidirectional attention; a sequence-to-sequence model can": DISENTANGLED,
    "names the encoder's layers only; name attention_pattern": {
        "layer_types": ["sliding_attention", "full_attention"] * 4,
        "sliding_window": 4,
    },
}
OUTPUT_CASES = {
    "output_vocab_size=8 must be at most vocab_size=7": {"output_vocab_size": 8, "vocab_size": 7},
    "output_vocab_size=6 gives the head rows of its own": {"output_vocab_size": 6, "tie_word_embeddings": True},
}
VIT_CASES = {
    "image_size=[8, 8, 8] is no number of pixels": {"image_size": [8, 8, 8], "patch_size": 4},
    "patch_size=5 does not divide image_size=28; 2, 4 and 7 do": {"image_size": 28, "patch_size": 5},
    "position_encoding='alibi' counts distances in a row of tokens": {"position_encoding": "alibi"},
    "hidden_size=6 is no multiple of 4": {
        "hidden_size": 6,
        "num_attention_heads": 1,
        "position_encoding": "sinusoidal",
    },
    "rope_type='yarn' stretches rows of tokens": {
        "position_encoding": "rotary",
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 2.0},
    },
    "position_encoding='rotary' rotates": {"position_encoding": "rotary", "hidden_size": 12, "num_attention_heads": 2},
    "use_distillation_token=True stands beside the class": {"use_distillation_token": True, "pooler_type": "mean"},
    "distillation_head=True reads the distillation token": {"distillation_head": True},
    "num_experts=4 needs a balancing loss": {"num_experts": 4},
}
EXPERTS = {"num_experts": 4, "num_hidden_layers": 2}
MOE_CASES = {
    "num_experts is null": {"num_experts": None},
    "num_experts_per_tok=5 is more than num_experts=4": {"num_experts_per_tok": 5},
    "norm_topk_prob=True makes the weight": {"num_experts_per_tok": 1},
    "num_experts=4 is used by no layer": {"mlp_pattern": ["dense"]},
    "mlp_pattern=['spare'] is not known; known: dense, sparse": {"mlp_pattern": ["spare"]},
    "mlp_layer_types names 1 layers, but num_hidden_layers=2": {"mlp_layer_types": ["sparse"]},
    "say different things": {"mlp_pattern": ["sparse"], "mlp_layer_types": ["dense", "sparse"]},
    "router_scoring='tanh' is not known": {"router_scoring": "tanh"},
    "shared_expert_gate=True needs a shared expert": {"shared_expert_gate": True},
    "n_group=2 and topk_group=None belong together; set both, or leave both null": {"n_group": 2},
    "n_group=3 does not divide num_experts=4": {"n_group": 3, "topk_group": 1},
    "router_scoring='sigmoid' compares them by their best two experts; at most 2 do": {
        "n_group": 4,
        "topk_group": 2,
        "router_scoring": "sigmoid",
    },
    "topk_group=1 must be at most n_group=4, and at least 2: so many groups": {"n_group": 4, "topk_group": 1},
}
ALL_CASES = [
    *((AnyformerDecoderConfig, sentence, fields) for sentence, fields in OUTPUT_CASES.items()),
    *((AnyformerViTConfig, sentence, fields) for sentence, fields in VIT_CASES.items()),
    *((AnyformerDecoderConfig, sentence, fields) for sentence, fields in CASES.items()),
    (AnyformerDecoderConfig, "attention_dropout=1.0 must be at least 0 and below 1", {"attention_dropout": 1.0}),
    (AnyformerDecoderConfig, "num_experts=4 is not for a dense decoder; use family moe", {"num_experts": 4}),
    *((AnyformerMoeConfig, sentence, EXPERTS | fields) for sentence, fields in MOE_CASES.items()),
    *((AnyformerEncoderConfig, sentence, fields) for sentence, fields in ENCODER_CASES.items()),
    *((AnyformerSeq2SeqConfig, sentence, fields) for sentence, fields in SEQ2SEQ_CASES.items()),
]


@pytest.mark.parametrize("config_class, sentence, fields", ALL_CASES, ids=[case[1] for case in ALL_CASES])
def test_every_illegal_combination_is_refused_with_its_sentence(config_class, sentence, fields):
    # What a family's config does not even have is looked at after it is built, and then wrapped.
    with pytest.raises((ValueError, StrictDataclassClassValidationError)) as error:
        config_class(**fields)
    words = str(error.value.__cause__ if isinstance(error.value, StrictDataclassClassValidationError) else error.value)
    assert sentence in words
    assert "\n" not in words


@pytest.mark.parametrize("family", ["decoder", "moe", "encoder", "seq2seq", "vit"])
def test_every_number_has_bounds_which_are_looked_at_before_anything_counts_up_to_it(family):
    fields = introspection.family_fields(family)
    defaults = {name: field.default for name, field in fields.items()} | {"model_type": f"anyformer_{family}"}
    check_legal(SimpleNamespace(**defaults))
    for name, field in fields.items():
        types = {field.type, *get_args(field.type)}
        if name.endswith("_token_id") or not types & {int, float}:  # a config need not know its tokenizer
            continue
        least, greatest = BOUNDS.get(name, (0, 10**18))
        for wrong in (least - 1, greatest + 1, *([math.nan] if float in types else [])):
            with pytest.raises(ValueError, match=f"{name}={wrong}"):
                check_legal(SimpleNamespace(**(defaults | {name: wrong})))


def test_the_spread_of_weights_where_none_is_given_is_written_twice_alike():
    assert AnyformerDecoderConfig().initializer_range == INITIALIZER_RANGE


def test_no_refusal_is_without_a_case():
    """Each refuses some config above first: one that never does is dead, or hidden by one before it."""
    refusing = set()
    for config_class, _, fields in ALL_CASES:
        config = config_class()
        plain = {name: getattr(config, name, None) for name in config_class.__dataclass_fields__}
        # As the config sees itself when it is checked first: what is derived is not derived yet.
        derived = ("num_key_value_heads", "head_dim", "layer_types", "embedding_size", "num_hidden_groups")
        plain |= {name: None for name in derived if name in plain}
        given = SimpleNamespace(**(plain | {"model_type": config_class.model_type} | fields))
        refusing |= set(islice(lines_of(faults(given)), 1))
    assert lines_that_yield(legality) - refusing == set()
