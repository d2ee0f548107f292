"""Native twins of every architecture and head: the same outputs, the same text, and back without losing a bit."""

import dataclasses
import re

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.interop import matching
from anyformer.pipelines.interop.architecture_map import (
    IRRELEVANT,
    Computed,
    Converted,
    MustEqual,
    Same,
    native_fields,
)
from anyformer.pipelines.interop.matching import our_config
from anyformer.pipelines.recipes.introspection import family_fields, family_names, family_row
from native_models import (
    LABELS,
    LLAMA,
    NATIVE,
    TOKENS,
    assert_same_logits,
    assert_same_weights,
    heads_of,
    marked_twin_cases,
    native_config,
    native_model,
    randomise,
)
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, GPT2DoubleHeadsModel, StableLmConfig
from transformers.models.mpt.configuration_mpt import MptAttentionConfig

import anyformer
from anyformer import from_native, to_native


@pytest.mark.parametrize("name, auto_class, native_class", marked_twin_cases())
def test_twins_compute_the_same_and_go_back_bit_equal(name, auto_class, native_class):
    labels = LABELS if auto_class.endswith("Classification") else {}
    native = native_model(name, native_class, **labels)
    ours = from_native(native)
    family = matching.ARCHITECTURES[native.config.model_type].family
    assert type(ours).__name__ == family_row(family).heads[auto_class] and not ours.training
    assert_same_logits(native, ours)
    back = to_native(ours)
    assert type(back) is type(native)
    assert_same_weights(native, back)
    assert_same_logits(back, ours, padded=native.main_input_name == "pixel_values")  # texts: without padding this time
    assert_same_weights(ours, from_native(back))
    if labels:
        assert back.config.id2label == ours.config.id2label == LABELS["id2label"] and ours.config.num_labels == 3


@pytest.mark.parametrize("family", family_names())
def test_every_head_of_ours_has_a_twin_in_some_architecture(family):
    names = [name for name, (model_type, _) in NATIVE.items() if matching.ARCHITECTURES[model_type].family == family]
    own = {"AutoModelForMaskedLM"} if family in ("decoder", "moe") else set()  # no native decoder fills in masks
    assert set(family_row(family).heads) - own == {head for name in names for head in heads_of(name)}


def test_dtype_labels_mode_and_generation_config_survive_and_no_memory_is_shared():
    native = native_model("llama3_tied").to(torch.bfloat16).train()
    native.generation_config = GenerationConfig(eos_token_id=[2, 5], temperature=0.6, top_p=0.9, do_sample=True)
    ours = from_native(native)
    back = to_native(ours)
    for model in (ours, back):
        assert model.dtype == torch.bfloat16 and model.training
        assert model.generation_config.to_diff_dict() == native.generation_config.to_diff_dict()
        assert model.config.tie_word_embeddings and model.lm_head.weight is model.get_input_embeddings().weight
    assert_same_weights(native, back)
    pointers = [{p.data_ptr() for p in model.parameters()} for model in (native, ours, back)]
    assert not (pointers[0] & pointers[1]) and not (pointers[1] & pointers[2])
    assert native.dtype == torch.bfloat16 and native.training


def test_what_a_cross_encoder_puts_on_its_numbers_survives():
    how = {"activation_fn": "torch.nn.modules.linear.Identity"}
    native = native_model("bert", "BertForSequenceClassification", num_labels=1, sentence_transformers=how)
    ours = from_native(native)
    assert ours.config.sentence_transformers == to_native(ours).config.sentence_transformers == how


def test_weights_of_several_dtypes_keep_each_theirs():
    native = native_model("llama2").to(torch.bfloat16)
    native.model.norm.float()
    assert from_native(native).model.norm.weight.dtype == torch.float32
    assert_same_weights(native, to_native(from_native(native)))


# ------------------------------------------------------------------------------------------------------ the tables


@pytest.mark.parametrize("name", matching.ARCHITECTURES)
def test_every_field_of_a_native_config_is_accounted_for(name):
    architecture = matching.ARCHITECTURES[name]
    assert native_fields(CONFIG_MAPPING[name]) <= architecture.known_fields() | set(architecture.same_fields)
    if name == "mpt":
        assert {f"attn_config.{field}" for field in native_fields(MptAttentionConfig())} <= set(architecture.fields)


@pytest.mark.parametrize("name", matching.ARCHITECTURES)
def test_every_field_of_ours_in_a_table_exists(name):
    architecture = matching.ARCHITECTURES[name]
    known = set(family_fields(architecture.family))
    ours = {*architecture.fixed}
    for row in architecture.fields.values():
        assert row is IRRELEVANT or isinstance(row, str | MustEqual | Same | Converted | Computed)
        ours |= {row} if isinstance(row, str) else {row.ours} if isinstance(row, Converted) else set()
    assert ours <= known


# ------------------------------------------------------------------------------------------------ what has no twin

PARTLY = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    "name, fields, words",
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("mpt", {"attn_config": {"clip_qkv": 6.0}}, "attn_config.clip_qkv=6.0"),
        ("llama2", {"rope_parameters": PARTLY}, "partial_rotary_factor=0.5"),
        ("gemma3", {"attn_logit_softcapping": 0.5}, "attn_logit_softcapping=0.5 has no anyformer twin; None has one"),
        ("roberta", {"pad_token_id": None}, "pad_token_id=None"),
        ("albert", {"embedding_size": 32}, "embedding_size=32"),
        ("albert", {"num_hidden_layers": 3, "num_hidden_groups": 2}, "num_hidden_groups=2 does not divide"),
        ("deberta", {"pos_att_type": ["c2p", "p2p"]}, "pos_att_type=['c2p', 'p2p']"),
        ("longformer", {"attention_window": [8, 8, 4]}, "attention_window=[8, 8, 4]"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": PARTLY, "sliding_attention": PARTLY}},
            "rope_parameters.full_attention.partial_rotary_factor=0.5",
        ),
        ("bart", {"decoder_ffn_dim": 64}, "decoder_ffn_dim=64 has no anyformer twin; encoder_ffn_dim's 48 has one"),
        ("switch", {"num_sparse_decoder_layers": 1}, "num_sparse_encoder_layers=2 of 4 and"),
        ("vit", {"patch_size": [8, 4]}, "patch_size=[8, 4] has no anyformer twin; a square, 8, has one"),
        ("vit", {"image_size": 25}, "patch_size=8 does not divide image_size=25; 1, 5 and 25 do"),
    ],
)
def test_a_value_that_changes_the_maths_and_has_no_field_is_refused(name, fields, words):
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        our_config(native_config(name, **fields))
    assert str(caught.value).startswith(NATIVE[name][0]) and str(caught.value).count(". ") == 0


def test_a_field_that_a_newer_transformers_adds_is_refused_unless_at_its_default(monkeypatch):
    architecture = matching.ARCHITECTURES["llama"]
    fields = {name: row for name, row in architecture.fields.items() if name != "pretraining_tp"}
    monkeypatch.setitem(matching.ARCHITECTURES, "llama", dataclasses.replace(architecture, fields=fields))
    assert from_native(native_model("llama2")) is not None
    with pytest.raises(UserError, match="pretraining_tp=2 is not known"):
        our_config(native_config("llama2", pretraining_tp=2))


@pytest.mark.parametrize(
    "name, fields, nearest, differing",
    [
        ("llama2", {"norm_type": "layernorm"}, "llama", "norm_type ('layernorm' here, 'rmsnorm' there)"),
        ("llama2", {"qk_norm": True, "mlp_bias": True}, "llama", "qk_norm (True here, False there)"),
        ("llama2", {"rope_parameters": PARTLY}, "llama", "'partial_rotary_factor'"),
        ("llama2", {"position_encoding": "alibi", "alibi_bias_max": 4.0}, "llama", "position_encoding"),
        ("gemma3", {"attention_multiplier": 1.6}, "gemma3_text", "attention_multiplier (1.6 here, 1.0 there)"),
        ("bert", {"type_vocab_size": 0}, "bert", "type_vocab_size (0 here, 1 there)"),
        ("deberta", {"mask_decoder_layers": 2}, "deberta", "mask_decoder_layers (2 here, 0 there)"),
        ("t5", {"logit_multiplier": 0.5}, "t5", "logit_multiplier (0.5 here,"),
        ("marian", {"norm_eps": 1e-6}, "marian", "norm_eps (1e-06 here, 1e-05 there)"),
        ("mixtral", {"router_bias_update_rate": 0.1}, "mixtral", "router_bias_update_rate ('above 0' here, 0.0 there)"),
    ],
)
def test_a_config_without_twin_is_refused_with_the_nearest_and_what_differs(name, fields, nearest, differing):
    config = our_config(native_config(name))
    config = type(config)(**config.to_dict() | {"layer_types": None} | fields)
    with pytest.raises(UserError, match="no native twin") as caught:
        matching.native_config(config)
    assert f"the nearest, {nearest}, differs in " in str(caught.value) and differing in str(caught.value)


def test_layer_types_with_one_rotation_are_a_twin_and_with_two_are_none(tiny_config):
    sliding = {"attention_pattern": ["full_attention", "sliding_attention"], "sliding_window": 6}
    sliding |= {"attention_bias": True, "attention_out_bias": False}  # Qwen2's
    one, two = ({"rope_type": "default", "rope_theta": theta} for theta in (1e4, 1e6))
    same = tiny_config(**sliding, rope_parameters={"full_attention": one, "sliding_attention": dict(one)})
    ours = randomise(anyformer.AnyformerDecoderForCausalLM(same))
    assert_same_logits(ours, to_native(ours))
    other = tiny_config(**sliding, rope_parameters={"full_attention": one, "sliding_attention": two})
    with pytest.raises(UserError, match="rope_parameters"):
        to_native(anyformer.AnyformerDecoderForCausalLM(other))


def test_an_unknown_architecture_a_foreign_head_and_the_wrong_direction_are_refused(tiny_config):
    other = AutoModelForCausalLM.from_config(StableLmConfig(**(TOKENS | LLAMA)))
    ours = anyformer.AnyformerDecoderForCausalLM(tiny_config())
    for refused, words in (
        (lambda: from_native(other), "model_type='stablelm' has no anyformer twin"),
        (lambda: from_native(GPT2DoubleHeadsModel(native_config("gpt2"))), "GPT2DoubleHeadsModel has no counterpart"),
        (lambda: from_native(ours), "AnyformerDecoderForCausalLM is an anyformer model already"),
        (lambda: to_native(other), "StableLmForCausalLM is no anyformer model"),
        (lambda: from_native(native_model("gpt2"), dtype="auto"), "dtype has no effect on a model that is loaded"),
    ):
        with pytest.raises(UserError, match=re.escape(words)):
            refused()
