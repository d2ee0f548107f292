"""Encoders in sentence-transformers and transformers' pipelines."""

import json

import pytest
import torch
from family_variants import ENCODERS
from tiny_tokenizers import trained_on
from torch import nn
from training_steps import saved_with, spread
from transformers import pipeline

import anyformer

TEXTS = ["the quick brown fox", "a lazy dog sleeps near the old house", "we like foxes"]


# ---- tokenizers, sentence-transformers, pipelines


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Trained as a recipe's is; framed as [CLS] text [SEP] with segments."""
    text = "\n".join([*TEXTS, "this example is good", "this example is bad"] * 8)
    folder = tmp_path_factory.mktemp("tokenizer")
    return trained_on(text, folder, type="wordpiece", vocab_size=90, framing="cls_sep")


@pytest.fixture
def saved(tiny_encoder_config, tokenizer, tmp_path):
    """Factory: a model of a head with random weights, and the folder that it is saved in with its tokenizer."""

    def make(head: str, variant="bert", **fields):
        ids = {f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in ("pad", "cls", "sep", "mask")}
        config = tiny_encoder_config(**ENCODERS[variant] | {"vocab_size": len(tokenizer)} | ids | fields)
        model = spread(getattr(anyformer, f"AnyformerEncoder{head}")(config))
        return model, saved_with(tokenizer, model, tmp_path / head)

    return make


def read(tokenizer, *texts, **options):
    return tokenizer(*texts, return_tensors="pt", padding=True, **options)


@pytest.mark.parametrize("head, variant", [("Model", "bert"), ("ForMaskedLM", "bert"), ("ForMaskedLM", "modernbert")])
def test_sentence_transformers_embeds_by_the_mean_of_real_tokens_and_trains(saved, tokenizer, tmp_path, head, variant):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    model, folder = saved(head, variant)
    encoder = getattr(model, "model", model)
    words = Transformer(folder, model_kwargs={"trust_remote_code": True})
    assert type(words.model) is anyformer.AnyformerEncoderModel
    embedder = sentence_transformers.SentenceTransformer(modules=[words, Pooling(32, "mean")], device="cpu")
    got = embedder.encode(TEXTS, convert_to_tensor=True)
    for text, embedding in zip(TEXTS, got):  # in a padded batch as alone
        expected = encoder(**read(tokenizer, text)).last_hidden_state[0].mean(0)
        torch.testing.assert_close(embedding, expected, atol=1e-5, rtol=1e-5)

    features = [embedder.preprocess([a]) for a in (TEXTS[0], TEXTS[1])]
    criterion, target = CosineSimilarityLoss(embedder), torch.tensor([0.0])
    optimizer = torch.optim.SGD(embedder.parameters(), lr=1e-2)
    embedder.train()
    found = []
    for _ in range(4):
        loss = criterion([dict(f) for f in features], target)
        loss.backward()
        assert encoder is not words.model and all(p.grad is not None for n, p in words.named_parameters() if "mlp" in n)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    assert found[-1] < found[0]
    embedder.eval().save(str(tmp_path / "embedder"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "embedder"), device="cpu")
    expected = embedder.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(again.encode(TEXTS, convert_to_tensor=True), expected, atol=1e-6, rtol=0)


def test_a_cross_encoder_scores_pairs(saved, tokenizer):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model, folder = saved("ForSequenceClassification", num_labels=1)
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[0])]
    got = sentence_transformers.CrossEncoder(folder, device="cpu").predict(pairs, convert_to_tensor=True)
    expected = [model(**read(tokenizer, *pair)).logits[0, 0].sigmoid() for pair in pairs]
    torch.testing.assert_close(got, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_a_run_of_pairs_with_numbers_opens_as_a_cross_encoder_that_gives_these_numbers(tmp_path):
    """Not their sigmoid, which is what it would take of a model with one output; also from a checkpoint's head."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from anyformer.pipelines.cli.commands import main
    from task_data import task_recipe

    task = {"name": "sequence_regression", "text_field": "text", "text_pair_field": "other", "max_length": 40}
    recipe = task_recipe(tmp_path, "sequence_classification", task=task, data=numbers_of_pairs(tmp_path))
    again = ["training.max_steps=2", f"model={{name_or_path: {tmp_path / 'run'}}}", "tokenizer={}"]
    assert main(["train", str(recipe), "training.max_steps=2"]) == 0
    assert main(["train", str(recipe), *again, f"training.output_dir={tmp_path / 'again'}"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    for name in ("run", "again"):
        encoder = sentence_transformers.CrossEncoder(str(tmp_path / name), device="cpu")
        got = encoder.predict([(row["text"], row["other"]) for row in rows], convert_to_tensor=True)
        metrics = json.loads((tmp_path / name / "run.json").read_text())["metrics"]
        error = (got - torch.tensor([float(row["label"]) for row in rows])).square().mean()
        assert error.item() == pytest.approx(metrics["test_loss"], rel=1e-4)


def numbers_of_pairs(folder) -> dict:
    from task_data import pairs

    return {"files": str(pairs(folder / "train.jsonl")), "test_files": str(pairs(folder / "test.jsonl", 12, seed=1))}


def test_losses_of_pairs_are_those_of_sentence_transformers(in_float64):
    pytest.importorskip("sentence_transformers")
    from anyformer.pipelines.objectives.losses import Cosine, InBatchNegatives
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss

    states, batch = torch.randn(10, 1, 8), {"labels": torch.rand(5)}
    texts = [states[0::2, 0], states[1::2, 0]]
    for ours, theirs in (
        (Cosine("mean"), CosineSimilarityLoss(None)),
        (InBatchNegatives("mean", 20.0), MultipleNegativesRankingLoss(None)),
    ):
        got = ours.total({"last_hidden_state": states}, batch) / ours.weight(batch)
        torch.testing.assert_close(got, theirs.compute_loss_from_embeddings(texts, batch["labels"]))


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_run_of_sentence_similarity_opens_in_sentence_transformers(tmp_path, pooling):
    """The embeddings are those whose cosines the run was measured by, long texts cut at the same token."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from anyformer.pipelines.cli.commands import main
    from task_data import task_recipe

    sections = {"training": {"max_steps": 2}, "task": {"pooling": pooling, "max_length": 6}}
    recipe = task_recipe(tmp_path, "sentence_similarity", **sections)
    assert main(["train", str(recipe)]) == 0
    embedder = sentence_transformers.SentenceTransformer(str(tmp_path / "run"), device="cpu")
    rows = [json.loads(line) for line in (tmp_path / "sentence_similarity-test.jsonl").read_text().splitlines()]
    vectors = [embedder.encode([row[name] for row in rows], convert_to_tensor=True) for name in ("text", "other")]
    cosines = nn.functional.cosine_similarity(*vectors)
    labels = torch.tensor([row["label"] / 5 for row in rows])
    metrics = json.loads((tmp_path / "run" / "run.json").read_text())["metrics"]
    assert (cosines - labels).square().mean().item() == pytest.approx(metrics["test_loss"], abs=1e-5)
    assert embedder.similarity_fn_name == "cosine" and embedder.max_seq_length == 6


@torch.no_grad()
@pytest.mark.parametrize("variant", ["bert", "modernbert", "deberta_v3"])
def test_fill_mask_answers_with_the_tokens_that_the_model_finds_likeliest(saved, tokenizer, variant):
    model, folder = saved("ForMaskedLM", variant)
    fill = pipeline("fill-mask", model=folder)
    assert type(fill.model) is anyformer.AnyformerEncoderForMaskedLM
    texts = [f"the {tokenizer.mask_token} brown fox", f"a lazy dog sleeps near the {tokenizer.mask_token} house"]
    for text, found in zip(texts, fill(texts, top_k=4)):
        tokens = read(tokenizer, text)
        probabilities = model(**tokens).logits[tokens["input_ids"] == tokenizer.mask_token_id][0].softmax(-1)
        best = probabilities.topk(4)
        assert [answer["token"] for answer in found] == best.indices.tolist()
        assert [answer["score"] for answer in found] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert "fox" in found[0]["sequence"] or "house" in found[0]["sequence"]
    assert len(fill(f"{tokenizer.mask_token} quick {tokenizer.mask_token}")) == 2
    (only,) = fill(texts[0], targets=["fox"])
    assert only["token_str"] == "fox"


@torch.no_grad()
def test_text_classification_answers_with_the_names_of_the_config(saved, tokenizer):
    names = {0: "bad", 1: "good", 2: "odd"}
    model, folder = saved("ForSequenceClassification", id2label=names, label2id={v: k for k, v in names.items()})
    classify = pipeline("text-classification", model=folder)
    for batch_size in (1, 3):
        for text, scores in zip(TEXTS, classify(TEXTS, top_k=None, batch_size=batch_size)):
            expected = model(**read(tokenizer, text)).logits.softmax(-1)[0]
            assert {s["label"]: s["score"] for s in scores} == pytest.approx(
                {names[i]: p.item() for i, p in enumerate(expected)}, abs=1e-5
            )
    pair = classify({"text": TEXTS[0], "text_pair": TEXTS[1]})  # the pair's segments reach the model
    assert pair["score"] == pytest.approx(
        model(**read(tokenizer, *TEXTS[:2])).logits.softmax(-1).max().item(), abs=1e-5
    )
