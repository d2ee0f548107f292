"""transformers' pipelines on saved models say what the models say."""

import pytest
import torch
from training_steps import saved_with
from transformers import pipeline

import anyformer

PROMPTS = ["The quick", "Pack my box with five", "How"]


def test_text_generation_continues_as_the_model_does_alone_and_in_padded_batches(model, tokenizer, tmp_path):
    generator = pipeline("text-generation", model=saved_with(tokenizer, model, tmp_path))
    generator.tokenizer.padding_side = "left"
    assert isinstance(generator.model, anyformer.AnyformerDecoderForCausalLM)
    options = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    batched = [found[0]["generated_text"] for found in generator(PROMPTS, batch_size=3, **options)]
    for prompt, text in zip(PROMPTS, batched):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert text == tokenizer.decode(expected[0, ids.shape[1] :], skip_special_tokens=True)
        assert generator(prompt, **options)[0]["generated_text"] == text


def test_feature_extraction_gives_the_hidden_states_of_the_base_model(model, tokenizer, tmp_path):
    features = pipeline("feature-extraction", model=saved_with(tokenizer, model, tmp_path))("fox", return_tensors=True)
    ids = tokenizer("fox", return_tensors="pt")["input_ids"]
    torch.testing.assert_close(features, model.model(ids).last_hidden_state)


def test_text_classification_scores_the_last_token_of_each_text(speaking_config, tokenizer, tmp_path):
    names = {0: "bad", 1: "good", 2: "odd"}
    config = speaking_config(id2label=names, label2id={v: k for k, v in names.items()})
    model = anyformer.AnyformerDecoderForSequenceClassification(config).eval()
    classifier = pipeline("text-classification", model=saved_with(tokenizer, model, tmp_path))
    for batch_size in (1, 3):
        found = classifier(PROMPTS, top_k=None, batch_size=batch_size)
        for prompt, scores in zip(PROMPTS, found):
            ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
            expected = model(ids).logits.softmax(-1)[0]
            assert {s["label"]: s["score"] for s in scores} == pytest.approx(
                {names[i]: p.item() for i, p in enumerate(expected)}, abs=1e-6
            )


def test_token_classification_labels_every_token(speaking_config, tokenizer, tmp_path):
    model = anyformer.AnyformerDecoderForTokenClassification(speaking_config(num_labels=5)).eval()
    entities = pipeline("token-classification", model=saved_with(tokenizer, model, tmp_path), ignore_labels=[])(
        "fox box"
    )
    expected = model(tokenizer("fox box", return_tensors="pt")["input_ids"]).logits.softmax(-1)[0]
    assert [e["word"] for e in entities] == list("fox box")
    assert [e["entity"] for e in entities] == [f"LABEL_{i}" for i in expected.argmax(-1)]
    assert [e["score"] for e in entities] == pytest.approx(expected.max(-1).values.tolist(), abs=1e-6)
