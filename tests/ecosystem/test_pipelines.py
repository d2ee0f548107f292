"""transformers' pipelines on saved models say what the models say."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForQuestionAnswering, pipeline

import anyformer

PROMPTS = ["The quick", "Pack my box with five", "How"]


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_text_generation_continues_as_the_model_does_alone_and_in_padded_batches(model, tokenizer, tmp_path):
    generator = pipeline("text-generation", model=save(model, tokenizer, tmp_path))
    generator.tokenizer.padding_side = "left"
    assert isinstance(generator.model, anyformer.AnyformerDecoderForCausalLM)
    options = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    batched = [found[0]["generated_text"] for found in generator(PROMPTS, batch_size=3, **options)]
    for prompt, text in zip(PROMPTS, batched):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert text == tokenizer.decode(expected[0, ids.shape[1] :], skip_special_tokens=True)
        assert generator(prompt, **options)[0]["generated_text"] == text


def test_text_generation_answers_chats_and_samples_from_a_seed(model, tokenizer, tmp_path):
    generator = pipeline("text-generation", model=save(model, tokenizer, tmp_path))
    chat = [{"role": "user", "content": "fox?"}]
    (answer,) = generator(chat, max_new_tokens=5, do_sample=False)
    assert [turn["role"] for turn in answer["generated_text"]] == ["user", "assistant"]
    samples = []
    for _ in range(2):
        torch.manual_seed(3)
        samples.append(generator("fox", max_new_tokens=8, do_sample=True, num_return_sequences=2))
    assert samples[0] == samples[1] and len(samples[0]) == 2


def test_feature_extraction_gives_the_hidden_states_of_the_base_model(model, tokenizer, tmp_path):
    features = pipeline("feature-extraction", model=save(model, tokenizer, tmp_path))("fox", return_tensors=True)
    ids = tokenizer("fox", return_tensors="pt")["input_ids"]
    torch.testing.assert_close(features, model.model(ids).last_hidden_state)


def test_text_classification_scores_the_last_token_of_each_text(speaking_config, tokenizer, tmp_path):
    names = {0: "bad", 1: "good", 2: "odd"}
    config = speaking_config(id2label=names, label2id={v: k for k, v in names.items()})
    model = anyformer.AnyformerDecoderForSequenceClassification(config).eval()
    classifier = pipeline("text-classification", model=save(model, tokenizer, tmp_path))
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
    entities = pipeline("token-classification", model=save(model, tokenizer, tmp_path), ignore_labels=[])("fox box")
    expected = model(tokenizer("fox box", return_tensors="pt")["input_ids"]).logits.softmax(-1)[0]
    assert [e["word"] for e in entities] == list("fox box")
    assert [e["entity"] for e in entities] == [f"LABEL_{i}" for i in expected.argmax(-1)]
    assert [e["score"] for e in entities] == pytest.approx(expected.max(-1).values.tolist(), abs=1e-6)


def test_question_answering_scores_the_spans_of_the_context(speaking_config, tokenizer, tmp_path):
    """transformers 5 has no pipeline for it any more; its Auto class and a tokenizer's offsets are all one needs."""
    model = anyformer.AnyformerDecoderForQuestionAnswering(speaking_config()).eval()
    loaded = AutoModelForQuestionAnswering.from_pretrained(save(model, tokenizer, tmp_path))
    encoded = tokenizer("Who?", "The fox.", return_tensors="pt", return_offsets_mapping=True)
    context = torch.tensor([sequence == 1 for sequence in encoded.sequence_ids()])
    offsets = encoded.pop("offset_mapping")[0][context]
    outputs = loaded(encoded["input_ids"])
    scores = outputs.start_logits[0, context, None] + outputs.end_logits[0, context]
    start, end = divmod(scores.triu().where(scores.triu() != 0, -torch.inf).argmax().item(), len(offsets))
    assert start <= end and "The fox."[offsets[start][0] : offsets[end][1]]
    assert torch.equal(outputs.start_logits, model(encoded["input_ids"]).start_logits)


def test_a_causal_checkpoint_is_the_backbone_of_every_head(model, tokenizer, tmp_path):
    """Pretrain, then fine-tune: only the new head is fresh."""
    folder = save(model, tokenizer, tmp_path)
    for name in ("SequenceClassification", "TokenClassification", "QuestionAnswering"):
        head = getattr(anyformer, f"AnyformerDecoderFor{name}").from_pretrained(folder)
        for key, value in AutoModelForCausalLM.from_pretrained(folder).model.state_dict().items():
            assert torch.equal(head.model.state_dict()[key], value), (name, key)
