"""Sequence-to-sequence models in PEFT and transformers' pipelines."""

import pytest
import torch
from family_variants import SEQ2SEQS, tokens
from tiny_tokenizers import trained_on
from training_steps import fit, saved_with, spread
from transformers import AutoModelForSeq2SeqLM, pipeline
from transformers.models.bart.modeling_bart import shift_tokens_right

from anyformer import AnyformerSeq2SeqForConditionalGeneration

TEXTS = ["the quick brown fox", "a lazy dog sleeps near the old house", "we like foxes"]


def translated() -> dict:
    """Two padded sources and their targets."""
    mask = (torch.arange(12) < torch.tensor([[12], [9]])).long()
    labels = tokens(2, 9, seed=1)
    labels[1, 6:] = -100
    return {"input_ids": tokens(2, 12).masked_fill(mask == 0, 0), "attention_mask": mask, "labels": labels}


# ---- PEFT


@pytest.mark.parametrize("how", ["ia3", "prompt"])
def test_other_adapters_train_and_leave_the_model_as_it_is(tiny_seq2seq_config, how):
    peft = pytest.importorskip("peft")
    model = AnyformerSeq2SeqForConditionalGeneration(tiny_seq2seq_config(**SEQ2SEQS["t5"]))
    batch = translated()
    before = {name: p.clone() for name, p in model.named_parameters()}
    if how == "ia3":
        modules = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
        config = peft.IA3Config(task_type="SEQ_2_SEQ_LM", **modules)
    else:
        config = peft.PromptTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=4)
    adapted = peft.get_peft_model(model, config)
    losses = fit(adapted, batch, steps=30, lr=5e-2)
    assert losses[-1] < losses[0] - 1e-3  # a few prompt vectors move a frozen fresh model little
    for name, p in model.named_parameters():
        if (original := name.replace(".base_layer", "")) in before:
            assert torch.equal(p, before[original]), name
    source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    generated = adapted.generate(**source, max_new_tokens=5, do_sample=False)
    if how == "ia3":
        merged = adapted.merge_and_unload()
        assert torch.equal(merged.generate(**source, max_new_tokens=5, do_sample=False), generated)


# ---- pipelines


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Trained as a recipe's is; every text ends in <|endoftext|>."""
    folder = tmp_path_factory.mktemp("tokenizer")
    return trained_on("\n".join(TEXTS * 8), folder, type="byte_bpe", vocab_size=300, framing="eos")


@pytest.fixture
def saved(tiny_seq2seq_config, tokenizer, tmp_path):
    """Factory: a model with random weights and the folder that it is saved in with its tokenizer."""

    def make(cls, variant, **fields):
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        ids |= {"bos_token_id": None, "decoder_start_token_id": tokenizer.pad_token_id}
        model = spread(cls(tiny_seq2seq_config(**SEQ2SEQS[variant] | ids | {"vocab_size": len(tokenizer)} | fields)))
        return model, saved_with(tokenizer, model, tmp_path)

    return make


@torch.no_grad()
@pytest.mark.parametrize("variant", ["original", "t5", "bart"])
@pytest.mark.parametrize("beams", [1, 3])
def test_text_to_text_is_a_tokenizer_and_generate(saved, tokenizer, variant, beams):
    """transformers 5 has no pipeline for it any more (text2text-generation, translation, summarization)."""
    _, folder = saved(AnyformerSeq2SeqForConditionalGeneration, variant)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(model) is AnyformerSeq2SeqForConditionalGeneration
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": beams}
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    together = tokenizer.batch_decode(model.generate(**batch, **options), skip_special_tokens=True)
    for text, found in zip(TEXTS, together):
        alone = model.generate(**tokenizer(text, return_tensors="pt"), **options)
        assert found == tokenizer.decode(alone[0], skip_special_tokens=True)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["original", "t5", "bart"])
def test_feature_extraction_gives_the_decoders_hidden_states_of_the_text_itself_as_barts(saved, tokenizer, variant):
    model, folder = saved(AnyformerSeq2SeqForConditionalGeneration, variant)
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    expected = model.model(
        ids, decoder_input_ids=shift_tokens_right(ids, 0, model.config.decoder_start_token_id)
    ).last_hidden_state
    got = pipeline("feature-extraction", model=folder)(TEXTS[0], return_tensors=True)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
