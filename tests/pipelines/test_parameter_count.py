"""Parameters by arithmetic are those of the models we build, for every preset and every combination of parts."""

import pytest
import torch
from anyformer.modeling.rules.legality import check_legal
from anyformer.pipelines.accounting.parameter_count import count_parameters
from anyformer.pipelines.recipes.compose import load_preset
from anyformer.pipelines.recipes.files import shipped, shipped_yaml
from anyformer.pipelines.recipes.introspection import family_config, family_fields, family_row
from anyformer.pipelines.words import short_number
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

TEXT = ("decoder", "moe", "encoder", "seq2seq")
SIZES = {"vocab_size": 11, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 4}


def built(family: str, fields: dict) -> int:
    config = AutoConfig.for_model(f"anyformer_{family}", **fields)
    row = family_row(family)
    name = row.heads["AutoModel" if row.bidirectional else row.pretraining]
    with torch.device("meta"):
        return row.load(name)(config).num_parameters()


@pytest.mark.parametrize("name", shipped("models"))
def test_every_preset_builds_with_as_many_parameters_as_counted(name):
    family, fields = load_preset(name)
    if family == "vit" or "vocab_size" in fields:  # the number of others leaves embeddings out
        assert shipped_yaml("models", name)["parameters"] == built(family, fields)
    fields = ({"vocab_size": 7} if family in TEXT else {}) | fields
    assert count_parameters(family_config(family, fields)) == built(family, fields)


def choices(**values):
    """A strategy of mappings with one of the values for each name."""
    return st.fixed_dictionaries({name: st.sampled_from(row) for name, row in values.items()})


yes_or_no = (False, True)
SHARED = choices(
    num_key_value_heads=(None, 1, 2),
    head_dim=(None, 6),
    intermediate_size=(None, 24),
    mlp_type=("mlp", "glu"),
    norm_type=("layernorm", "rmsnorm"),
    norm_position=("pre", "post"),
    position_encoding=("none", "learned", "sinusoidal", "rotary", "alibi", "relative", "disentangled"),
    position_offset=(0, 2),
    relative_attention_shared=yes_or_no,
    attention_bias=yes_or_no,
    attention_out_bias=(None, *yes_or_no),
    attention_key_bias=(None, *yes_or_no),
    **dict.fromkeys(("mlp_bias", "norm_bias", "qk_norm", "embedding_norm"), yes_or_no),
    **dict.fromkeys(("tie_word_embeddings", "lm_head_bias"), yes_or_no),
)
MODEL_KINDS = {
    "decoder": choices(num_hidden_layers=(1, 4)),
    "moe": choices(
        num_experts=(2, 4),
        moe_intermediate_size=(None, 8),
        shared_expert_intermediate_size=(0, 8),
        mlp_pattern=(None, ["dense", "sparse"]),
    ),
    "vit": choices(
        image_size=(8, [8, 12]),
        patch_size=(4,),
        num_register_tokens=(0, 2),
        pooler_type=("cls", "mean"),
        pooler_act=(None, "tanh"),
    ),
    "seq2seq": choices(num_decoder_layers=(None, 1, 6)),
    "encoder": choices(
        type_vocab_size=(0, 2),
        embedding_size=(None, 8),
        num_hidden_groups=(None, 1, 2),
        pooler_act=(None, "tanh"),
        add_pooling_layer=yes_or_no,
    ),
    "encoder that skips its first norm": choices(
        skip_first_norm=(True,), embedding_norm=(True,), norm_position=("pre",), num_hidden_layers=(1, 4)
    ),
    "encoder with local attention": choices(
        attention_pattern=(["local_global_attention"], ["full_attention", "local_global_attention"]),
        sliding_window=(3,),
        position_encoding=("none", "learned", "sinusoidal"),
    ),
    "encoder with disentangled attention": choices(
        position_encoding=("disentangled",),
        num_key_value_heads=(None,),
        norm_position=("post",),
        pos_att_type=(None, ["c2p"], ["p2c"], ["p2c", "c2p"]),
        share_att_key=yes_or_no,
        position_buckets=(None, 4),
        max_relative_positions=(None, 8),
        relative_embedding_norm=yes_or_no,
        position_biased_input=yes_or_no,
        mask_decoder_layers=(0, 2),
        conv_kernel_size=(0, 3),
        conv_groups=(1, 2),
    ),
}


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_parameters_are_counted_as_built(kind):
    @settings(max_examples=20, deadline=None)
    @given(SHARED, MODEL_KINDS[kind])
    def law(shared, own):
        family, fields = kind.split()[0], SIZES | shared | own
        known = family_fields(family)
        fields = {name: value for name, value in (fields | {"max_position_embeddings": 32}).items() if name in known}
        counted = family_config(family, fields)
        try:
            check_legal(counted)
        except ValueError:
            assume(False)
        assert count_parameters(counted) == built(family, fields)

    law()


def test_numbers_are_said_as_people_say_them():
    said = {0: "0", 999: "999", 4_981_248: "4.98M", 109_482_240: "109M", 6_738_415_616: "6.74B", 1.5e12: "1.5T"}
    assert {number: short_number(number) for number in said} == said
