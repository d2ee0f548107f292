"""Native twins of encoders and of sequence-to-sequence models: what holds for one of them only."""

import re

import pytest
import torch
import transformers
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.interop.matching import (
    ARCHITECTURES,
    compare,
    effective_fields,
    native_config,
    our_config,
)
from anyformer.pipelines.recipes.compose import load_preset
from family_variants import ZOO, a_share
from native_models import (
    DECODERS,
    MIXTURES,
    NATIVE,
    SEQ2SEQ,
    SWITCHES,
    TOKENS,
    UNTIED,
    assert_same_logits,
    native_model,
)
from native_models import native_config as tiny_native_config
from published_models import PUBLISHED
from transformers import AutoConfig

import anyformer
from anyformer import from_native, to_native

# ------------------------------------------------------------------------------------------------ what they generate


QUICK = ("t5", "bart", "mixtral", "switch")


@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in SEQ2SEQ | SWITCHES | MIXTURES]
    + a_share(DECODERS, 8),
)
def test_twins_write_the_same_text(name, beams):
    reads = name in SEQ2SEQ | SWITCHES
    native = native_model(name, "AutoModelForSeq2SeqLM" if reads else "AutoModelForCausalLM")
    ours = from_native(native)
    generator = torch.Generator().manual_seed(3)
    input_ids = torch.randint(3, TOKENS["vocab_size"], (3, 14), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    side = slice(9, None) if reads else slice(None, 5)  # what is continued ends with its last token
    input_ids[1, side], attention_mask[1, side] = TOKENS["pad_token_id"], 0
    beams = 1 if name in DECODERS else beams
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "num_beams": beams, "do_sample": False}
    inputs |= {"max_new_tokens": 12, "min_new_tokens": 12, "no_repeat_ngram_size": 1}  # not one token for ever
    back = to_native(ours)
    for model in (native, back):
        model.set_attn_implementation("eager")  # transformers 5.17 drops gemma2's soft cap under sdpa
    written = [model.generate(**inputs) for model in (native, ours, back)]
    assert torch.equal(written[0], written[1]) and torch.equal(written[0], written[2])


# ------------------------------------------------------------------------------------------ of one architecture only


@pytest.mark.parametrize("task", ["", "SequenceClassification", "QuestionAnswering", "TokenClassification", "MaskedLM"])
def test_longformer_heads_make_the_same_tokens_global_where_nobody_says_which(task):
    generator = torch.Generator().manual_seed(3)
    input_ids = torch.randint(3, TOKENS["vocab_size"], (2, 30), generator=generator)
    input_ids[:, [8, 9, 29]] = 2  # a question, two separators, a context, an end
    native = native_model("longformer", f"AutoModelFor{task}" if task else "AutoModel")
    with torch.no_grad():
        here, there = (model(input_ids) for model in (native, from_native(native)))
    for name in {"logits", "start_logits", "last_hidden_state"} & set(here):
        torch.testing.assert_close(here[name], there[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name, fields, tied",
    [("deberta", {"legacy": False}, True), ("deberta_v3", {"legacy": False}, True), ("bert", UNTIED, False)],
)
def test_debertas_head_that_reads_the_embeddings_becomes_a_tied_one_and_a_head_of_its_own_is_kept(name, fields, tied):
    native = native_model(name, "AutoModelForMaskedLM", **fields)
    ours = from_native(native)
    assert ours.config.tie_word_embeddings is tied is (ours.lm_head.weight is ours.get_input_embeddings().weight)
    assert_same_logits(native, ours)
    assert_same_logits(ours, to_native(ours))


@pytest.mark.parametrize("name, tied", [("t5", True), ("t5_v1_1", False), ("mt5", True)])
def test_whether_t5_ties_its_head_is_read_from_the_weights_and_the_scale_from_the_config(name, tied):
    native = native_model(name, "AutoModelForSeq2SeqLM")
    ours = from_native(native)
    assert ours.config.tie_word_embeddings is tied is (ours.lm_head.weight is ours.get_input_embeddings().weight)
    assert ours.config.logit_multiplier == (32**-0.5 if name == "t5" else 1.0)
    back = to_native(ours)
    assert (back.lm_head.weight is back.shared.weight) is tied
    if name.startswith("t5"):
        assert back.config.scale_decoder_outputs is native.config.scale_decoder_outputs is tied


@pytest.mark.parametrize("name", ["t5", "umt5"])
def test_new_weights_of_t5_spread_as_transformers_draws_them(name):
    sizes = {"d_model": 64, "d_kv": 24, "d_ff": 256, "num_heads": 4, "vocab_size": 300, "dropout_rate": 0.0}
    native = transformers.AutoModelForSeq2SeqLM.from_config(transformers.AutoConfig.for_model(name, **sizes))
    theirs = from_native(native)
    config = type(theirs.config)(**(theirs.config.to_dict() | {"fan_in_init": True, "scale_residual_init": False}))
    ours = type(theirs)(config)
    for (name, drawn), (_, expected) in zip(ours.named_parameters(), theirs.named_parameters()):
        # transformers draws a head of its own with deviation 1 (v1.1), which makes logits of deviation 8 here.
        if drawn.ndim == 2 and name != "lm_head.weight":
            noise = 0.05 + 5 / drawn.numel() ** 0.5
            assert drawn.std().item() == pytest.approx(expected.std().item(), rel=noise), name


def test_tables_that_transformers_would_tie_and_that_differ_are_refused():
    native = native_model("t5", "AutoModelForSeq2SeqLM")
    native.decoder.embed_tokens.weight = torch.nn.Parameter(torch.randn_like(native.shared.weight))
    with pytest.raises(UserError, match=re.escape("t5 with decoder.embed_tokens.weight that differs from")):
        from_native(native)


@pytest.mark.parametrize(
    "variant, native_name",
    [
        ("encoder-bert", "BertForMaskedLM"),
        ("seq2seq-t5", "T5ForConditionalGeneration"),
        ("seq2seq-switch", "SwitchTransformersForConditionalGeneration"),
        ("moe-mixtral", "MixtralForCausalLM"),
        ("moe-qwen3", "Qwen3MoeForCausalLM"),
    ],
)
def test_a_model_of_ours_goes_native(variant, native_name):
    ours = next(each for each in ZOO if str(each) == variant).model(torch.float32)
    native = to_native(ours)
    assert type(native).__name__ == native_name
    assert_same_logits(ours, native)


# ------------------------------------------------------------------------------------------------ what has no twin


def test_a_head_that_the_architecture_does_not_have_is_refused():
    for name, class_name in (
        ("roberta", "AnyformerEncoderForPreTraining"),
        ("deberta", "AnyformerEncoderForMultipleChoice"),
        ("marian", "AnyformerSeq2SeqForSequenceClassification"),
    ):
        ours = getattr(anyformer, class_name)(our_config(tiny_native_config(name)))
        with pytest.raises(UserError, match=f"{NATIVE[name][0]} has no counterpart of {class_name} in transformers"):
            to_native(ours)


def test_the_padding_token_of_roberta_decides_where_positions_begin():
    config = our_config(tiny_native_config("roberta"))
    assert native_config(config)[0].native == "roberta"
    config.pad_token_id = 0
    assert "position_offset (2 here, 1 there)" in compare(ARCHITECTURES["roberta"], config).differences
    with pytest.raises(UserError, match=re.escape("position_offset (2 here, ")):
        native_config(config)


CHECKPOINTS = [name for name, row in PUBLISHED.items() if row.model_type]
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_preset_computes_what_the_published_config_says(name):
    family, fields = load_preset(name)
    preset, published = (
        {key: value for key, value in effective_fields(config).items() if key not in TOKEN_IDS}
        for config in (AutoConfig.for_model(f"anyformer_{family}", **fields), our_config(PUBLISHED[name].config()))
    )
    assert preset == published


def test_the_start_token_is_read_and_never_predicted():
    native = native_model("imagegpt", "ImageGPTForCausalImageModeling")
    ours = from_native(native)
    assert ours.lm_head.weight.shape == (16, 32) and ours.get_input_embeddings().weight.shape == (17, 32)
    drawn = ours.generate(torch.full((4, 1), 16), max_new_tokens=20, do_sample=True, top_k=0, temperature=5.0)
    assert drawn[:, 1:].max() < 16
    labels = torch.randint(16, (2, 10))
    same = native(input_ids=labels, labels=labels).loss
    torch.testing.assert_close(ours(input_ids=labels, labels=labels).loss, same)
