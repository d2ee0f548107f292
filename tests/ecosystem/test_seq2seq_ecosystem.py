"""Sequence-to-sequence models in PEFT, transformers' pipelines, torch.compile and torch.export."""

import logging

import pytest
import torch
from anyformer.pipelines.data.corpora import open_corpora
from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
from anyformer.pipelines.tokenizers.load import train_or_load_tokenizer
from family_variants import SEQ2SEQS, gradients_of, tokens
from torch import nn
from training_steps import fit
from transformers import AutoModelForSeq2SeqLM, pipeline
from transformers.models.bart.modeling_bart import shift_tokens_right

from anyformer import (
    AnyformerSeq2SeqEncoderModel,
    AnyformerSeq2SeqForConditionalGeneration,
    AnyformerSeq2SeqForSequenceClassification,
)

TOLERANCE = 1e-5  # fp32: merged weights and compiled sums add up in another order
TEXTS = ["the quick brown fox", "a lazy dog sleeps near the old house", "we like foxes"]


def translated() -> dict:
    """Two padded sources and their targets."""
    mask = (torch.arange(12) < torch.tensor([[12], [9]])).long()
    labels = tokens(2, 9, seed=1)
    labels[1, 6:] = -100
    return {"input_ids": tokens(2, 12).masked_fill(mask == 0, 0), "attention_mask": mask, "labels": labels}


def classified() -> dict:
    return translated() | {"labels": torch.tensor([0, 1])}


# ---- PEFT

ADAPTED = [(AnyformerSeq2SeqForConditionalGeneration, "SEQ_2_SEQ_LM", name) for name in ("original", "t5", "umt5")]
ADAPTED += [(AnyformerSeq2SeqForSequenceClassification, "SEQ_CLS", "bart")]


@pytest.mark.parametrize("cls, task_type, name", ADAPTED, ids=lambda value: getattr(value, "__name__", value))
def test_lora_on_all_linear_trains_saves_loads_and_merges(tiny_seq2seq_config, tmp_path, cls, task_type, name):
    peft = pytest.importorskip("peft")
    head = "score" if task_type == "SEQ_CLS" else "lm_head"
    batch = classified() if task_type == "SEQ_CLS" else translated()
    base = cls(tiny_seq2seq_config(**SEQ2SEQS[name]))
    base.save_pretrained(tmp_path / "base")
    frozen = {name: p.clone() for name, p in base.named_parameters() if not name.startswith("score")}
    linears = {name for name, module in base.named_modules() if isinstance(module, nn.Linear)}

    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules="all-linear", task_type=task_type))
    adapted = {name for name, module in base.named_modules() if isinstance(module, peft.tuners.lora.Linear)}
    assert adapted == linears - {head} and any("cross_attn" in name for name in adapted)
    model(**batch).loss.backward()
    for parameter, p in model.named_parameters():
        if "lora_B" in parameter:  # a block that read a weight past its module would leave the adapter without one
            assert p.grad is not None and p.grad.abs().sum() > 0, parameter
    assert any("score" in name for name, p in model.named_parameters() if p.requires_grad) == (task_type == "SEQ_CLS")
    model.zero_grad()

    losses = fit(model, batch)
    assert losses[-1] < losses[0] - 0.05
    for parameter, p in base.named_parameters():
        if (original := parameter.replace(".base_layer", "")) in frozen:
            assert torch.equal(p, frozen[original]), parameter

    with torch.no_grad():
        expected = model(**batch).logits
        model.save_pretrained(tmp_path / "adapter")
        again = peft.PeftModel.from_pretrained(cls.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
        assert torch.equal(again(**batch).logits, expected)
        source = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        options = {"max_new_tokens": 6, "do_sample": False}
        generated = again.generate(**source, **options) if task_type == "SEQ_2_SEQ_LM" else None
        merged = again.merge_and_unload()
        assert type(merged) is cls
        torch.testing.assert_close(merged(**batch).logits, expected, atol=TOLERANCE, rtol=TOLERANCE)
        if generated is not None:
            assert torch.equal(merged.generate(**source, **options), generated)
        merged.save_pretrained(tmp_path / "merged")
        alone = cls.from_pretrained(tmp_path / "merged").eval()
        assert torch.equal(alone(**batch).logits, merged(**batch).logits)


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
    (folder / "text.txt").write_text("\n".join(TEXTS * 8))
    corpus = open_corpora(DataSection(files=str(folder / "text.txt"), validation_fraction=0))["train"]
    section = TokenizerSection(type="byte_bpe", vocab_size=300, framing="eos")
    return train_or_load_tokenizer(section, corpus, folder, progress=False)


@pytest.fixture
def saved(tiny_seq2seq_config, tokenizer, tmp_path):
    """Factory: a model with random weights and the folder that it is saved in with its tokenizer."""

    def make(cls, variant, **fields):
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        ids |= {"bos_token_id": None, "decoder_start_token_id": tokenizer.pad_token_id}
        model = cls(tiny_seq2seq_config(**SEQ2SEQS[variant] | ids | {"vocab_size": len(tokenizer)} | fields)).eval()
        with torch.no_grad():  # logits of a fresh model are all but equal
            for p in model.parameters():
                if p.dim() > 1:
                    p.normal_(std=0.3)
        model.save_pretrained(tmp_path / cls.__name__)
        tokenizer.save_pretrained(tmp_path / cls.__name__)
        return model, str(tmp_path / cls.__name__)

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
def test_text_classification_answers_with_the_names_of_the_config(saved, tokenizer):
    names = {0: "bad", 1: "good", 2: "odd"}
    labels = {"id2label": names, "label2id": {v: k for k, v in names.items()}}
    model, folder = saved(AnyformerSeq2SeqForSequenceClassification, "bart", **labels)
    classify = pipeline("text-classification", model=folder)
    assert type(classify.model) is AnyformerSeq2SeqForSequenceClassification
    for batch_size in (1, 3):
        for text, scores in zip(TEXTS, classify(TEXTS, top_k=None, batch_size=batch_size)):
            expected = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
            assert {s["label"]: s["score"] for s in scores} == pytest.approx(
                {names[i]: p.item() for i, p in enumerate(expected)}, abs=1e-5
            )


@torch.no_grad()
def test_zero_shot_classification_asks_which_hypothesis_is_entailed(saved, tokenizer):
    names = {0: "contradiction", 1: "neutral", 2: "entailment"}
    labels = {"id2label": names, "label2id": {v: k for k, v in names.items()}}
    model, folder = saved(AnyformerSeq2SeqForSequenceClassification, "bart", **labels)
    candidates = ["good", "bad"]
    found = pipeline("zero-shot-classification", model=folder)(TEXTS[0], candidates)
    pairs = [tokenizer(TEXTS[0], f"This example is {label}.", return_tensors="pt") for label in candidates]
    scores = torch.stack([model(**pair).logits[0, 2] for pair in pairs]).softmax(0)
    expected = dict(zip(candidates, scores.tolist()))
    assert dict(zip(found["labels"], found["scores"])) == pytest.approx(expected, abs=1e-5)


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


@torch.no_grad()
def test_feature_extraction_gives_the_encoders_hidden_states(saved, tokenizer):
    """An encoder's own class is named, because AutoModel stands for both halves, as in T5."""
    model, folder = saved(AnyformerSeq2SeqForConditionalGeneration, "t5")
    encoder = AnyformerSeq2SeqEncoderModel.from_pretrained(folder, key_mapping={r"^model\.encoder": "encoder"}).eval()
    got = pipeline("feature-extraction", model=encoder, tokenizer=tokenizer)(TEXTS[0], return_tensors=True)
    expected = model.get_encoder()(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


# ---- torch.compile and torch.export of the classifier (the others: tests/modeling/test_seq2seq.py)


@pytest.fixture
def fresh_compiler():
    logging.getLogger("torch.__trace").handlers.clear()  # pytest would collect a record of every traced tensor
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "umt5"])
def test_a_compiled_classifier_has_the_loss_and_gradients_of_the_eager_one(tiny_seq2seq_config, fresh_compiler, name):
    model = AnyformerSeq2SeqForSequenceClassification(tiny_seq2seq_config(**SEQ2SEQS[name])).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    batch = classified()
    got = gradients_of(model, lambda: compiled(**batch).loss)
    expected = gradients_of(model, lambda: model(**batch).loss)
    torch.testing.assert_close(compiled(**batch).loss, model(**batch).loss, atol=TOLERANCE, rtol=TOLERANCE)
    assert got.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(got[parameter], gradient, atol=TOLERANCE, rtol=1e-4, msg=parameter)


@pytest.mark.slow
@torch.no_grad()
def test_an_exported_classifier_serves_every_batch_and_length(tiny_seq2seq_config):
    model = AnyformerSeq2SeqForSequenceClassification(tiny_seq2seq_config(**SEQ2SEQS["bart"])).eval()
    # 3: the decoder reads the text shifted by one, and torch takes an axis of 1 for a special case
    sizes = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=3, max=64)}

    def inputs(batch, length):
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[-1, length - 3 :] = 0
        return {"input_ids": tokens(batch, length).masked_fill(mask == 0, 0), "attention_mask": mask}

    shapes = {"input_ids": sizes, "attention_mask": sizes}
    program = torch.export.export(model, (), inputs(2, 12), dynamic_shapes=shapes, strict=False).module()
    for batch, length in ((2, 12), (3, 17), (4, 60)):
        row = inputs(batch, length)
        torch.testing.assert_close(program(**row).logits, model(**row).logits, atol=TOLERANCE, rtol=TOLERANCE)
