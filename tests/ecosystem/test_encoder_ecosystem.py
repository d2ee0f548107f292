"""Encoders in PEFT, sentence-transformers, transformers' pipelines, torch.compile and torch.export."""

import json
import logging
from itertools import groupby

import pytest
import torch
from anyformer.pipelines.data.corpora import open_corpora
from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
from anyformer.pipelines.tokenizers.load import train_or_load_tokenizer
from family_variants import ENCODERS, encoder_row, gradients_of
from torch import nn
from training_steps import fit
from transformers import pipeline

import anyformer

TOLERANCE = 1e-5  # fp32: merged weights and compiled sums add up in another order
TEXTS = ["the quick brown fox", "a lazy dog sleeps near the old house", "we like foxes"]


def class_of(head: str):
    return getattr(anyformer, f"AnyformerEncoder{head}")


def labelled(config, head: str) -> dict:
    """Two rows and what the head is to say of them."""
    row = encoder_row(config, 16, batch=2)
    if head == "ForQuestionAnswering":
        return row | {"start_positions": torch.tensor([1, 5]), "end_positions": torch.tensor([4, 9])}
    if head == "ForSequenceClassification":
        return row | {"labels": torch.tensor([0, 1])}
    if head == "ForTokenClassification":
        return row | {"labels": row["input_ids"] % 2}
    if head == "ForMultipleChoice":
        choices = {name: torch.stack((x, x.flip(0)), dim=1) for name, x in row.items()}
        return choices | {"labels": torch.tensor([0, 1])}
    return row | {"labels": row["input_ids"].masked_fill(row["input_ids"] % 3 != 0, -100)}


def answers(model, batch):
    outputs = model(**batch)
    return outputs.start_logits if "start_logits" in outputs else outputs.logits


# ---- PEFT

HEADS = {  # head, PEFT's task type, modules that stay whole
    "ForMaskedLM": (None, {"lm_head"}),
    "ForSequenceClassification": ("SEQ_CLS", {"score"}),
    "ForTokenClassification": ("TOKEN_CLS", {"score"}),
    "ForQuestionAnswering": ("QUESTION_ANS", {"qa_outputs"}),
}
ADAPTED = [("ForMaskedLM", name) for name in ("bert", "albert", "deberta", "longformer", "modernbert")]
ADAPTED += [(head, name) for head in HEADS if head != "ForMaskedLM" for name in ("bert", "modernbert")]


@pytest.mark.parametrize("head, name", ADAPTED)
def test_lora_on_all_linear_trains_saves_loads_and_merges(tiny_encoder_config, tmp_path, head, name):
    peft = pytest.importorskip("peft")
    task_type, kept = HEADS[head]
    base = class_of(head)(tiny_encoder_config(**ENCODERS[name]))
    base.save_pretrained(tmp_path / "base")
    frozen = {name: p.clone() for name, p in base.named_parameters() if name.split(".")[0] not in kept}
    linears = {name for name, module in base.named_modules() if isinstance(module, nn.Linear)}
    batch = labelled(base.config, head)
    if head == "ForQuestionAnswering":
        batch.pop("token_type_ids", None)  # PEFT's own forward for this task takes them and drops them

    # PEFT knows itself which module is the head of SEQ_CLS and of language models; elsewhere one says it
    own = {"exclude_modules": list(kept)} if task_type in ("TOKEN_CLS", "QUESTION_ANS") else {}
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type=task_type, **own)
    model = peft.get_peft_model(base, config)
    adapted = {name for name, module in base.named_modules() if isinstance(module, peft.tuners.lora.Linear)}
    assert adapted == linears - kept
    model(**batch).loss.backward()
    for parameter, p in model.named_parameters():
        if "lora_B" in parameter:  # a block that read a weight past its module would leave the adapter without one
            assert p.grad is not None and p.grad.abs().sum() > 0, parameter
    trained = {parameter for parameter, p in model.named_parameters() if p.requires_grad}
    assert any("score" in parameter or "qa_outputs" in parameter for parameter in trained) == (task_type is not None)
    model.zero_grad()

    losses = fit(model, batch)
    assert losses[-1] < losses[0] - 0.05
    for parameter, p in base.named_parameters():
        if (original := parameter.replace(".base_layer", "")) in frozen:
            assert torch.equal(p, frozen[original]), parameter

    with torch.no_grad():
        expected = answers(model, batch)
        model.save_pretrained(tmp_path / "adapter")
        again = peft.PeftModel.from_pretrained(class_of(head).from_pretrained(tmp_path / "base"), tmp_path / "adapter")
        assert torch.equal(answers(again.eval(), batch), expected)
        merged = again.merge_and_unload()
        assert type(merged) is class_of(head)
        torch.testing.assert_close(answers(merged, batch), expected, atol=TOLERANCE, rtol=TOLERANCE)
        merged.save_pretrained(tmp_path / "merged")
        alone = class_of(head).from_pretrained(tmp_path / "merged").eval()
        assert torch.equal(answers(alone, batch), answers(merged, batch))


def test_ia3_trains_and_merges(tiny_encoder_config):
    peft = pytest.importorskip("peft")
    model = class_of("ForSequenceClassification")(tiny_encoder_config())
    batch = labelled(model.config, "ForSequenceClassification")
    modules = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
    adapted = peft.get_peft_model(model, peft.IA3Config(task_type="SEQ_CLS", **modules))
    losses = fit(adapted, batch)
    assert losses[-1] < losses[0] - 0.05
    expected = adapted(**batch).logits
    torch.testing.assert_close(adapted.merge_and_unload()(**batch).logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


# ---- tokenizers, sentence-transformers, pipelines


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Trained as a recipe's is; framed as [CLS] text [SEP] with segments."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text.txt").write_text("\n".join([*TEXTS, "this example is good", "this example is bad"] * 8))
    corpus = open_corpora(DataSection(files=str(folder / "text.txt"), validation_fraction=0))["train"]
    section = TokenizerSection(type="wordpiece", vocab_size=90, framing="cls_sep")
    return train_or_load_tokenizer(section, corpus, folder, progress=False)


@pytest.fixture
def saved(tiny_encoder_config, tokenizer, tmp_path):
    """Factory: a model of a head with random weights, and the folder that it is saved in with its tokenizer."""

    def make(head: str, variant="bert", **fields):
        ids = {f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in ("pad", "cls", "sep", "mask")}
        config = tiny_encoder_config(**ENCODERS[variant] | {"vocab_size": len(tokenizer)} | ids | fields)
        model = class_of(head)(config).eval()
        with torch.no_grad():  # logits of a fresh model are all but equal
            for p in model.parameters():
                if p.dim() > 1:
                    p.normal_(std=0.3)
        model.save_pretrained(tmp_path / head)
        tokenizer.save_pretrained(tmp_path / head)
        return model, str(tmp_path / head)

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
        (InBatchNegatives("mean", 20.0, 0.0), MultipleNegativesRankingLoss(None)),
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


@torch.no_grad()
def test_text_classification_gives_labels_that_do_not_exclude_each_other_and_plain_numbers(saved, tokenizer):
    for problem_type, labels, activation in (
        ("multi_label_classification", 3, torch.sigmoid),
        ("regression", 1, lambda logits: logits),
    ):
        model, folder = saved("ForSequenceClassification", problem_type=problem_type, num_labels=labels)
        found = pipeline("text-classification", model=folder)(TEXTS[0], top_k=None)
        found = [answer["score"] for answer in found]
        expected = activation(model(**read(tokenizer, TEXTS[0])).logits[0]).sort(descending=True).values.tolist()
        assert found == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("strategy", ["none", "simple"])
def test_token_classification_joins_neighbours_of_one_kind(saved, tokenizer, strategy):
    names = {0: "O", 1: "PER", 2: "LOC"}
    model, folder = saved("ForTokenClassification", id2label=names, label2id={v: k for k, v in names.items()})
    tag = pipeline("token-classification", model=folder, aggregation_strategy=strategy)
    text = TEXTS[1]
    tokens = read(tokenizer, text, return_offsets_mapping=True)
    offsets = tokens.pop("offset_mapping")[0, 1:-1].tolist()  # without [CLS] and [SEP]
    probabilities = model(**tokens).logits.softmax(-1)[0, 1:-1]
    best, kinds = probabilities.max(-1)
    assert len(set(kinds.tolist())) > 1
    found = tag(text)
    if strategy == "none":
        expected = [
            (names[k], p, *span) for k, p, span in zip(kinds.tolist(), best.tolist(), offsets) if names[k] != "O"
        ]
        got = [(e["entity"], e["score"], e["start"], e["end"]) for e in found]
    else:
        expected = []
        for kind, members in groupby(range(len(offsets)), key=lambda i: kinds[i].item()):
            members = list(members)
            if names[kind] != "O":
                score = best[members].mean().item()
                expected.append((names[kind], score, offsets[members[0]][0], offsets[members[-1]][1]))
        got = [(e["entity_group"], e["score"], e["start"], e["end"]) for e in found]
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected):
        assert one[0] == other[0] and one[2:] == other[2:] and one[1] == pytest.approx(other[1], abs=1e-5)


@torch.no_grad()
def test_feature_extraction_gives_the_hidden_states(saved, tokenizer):
    model, folder = saved("ForMaskedLM")
    got = pipeline("feature-extraction", model=folder)(TEXTS[0], return_tensors=True)
    expected = model.model(**read(tokenizer, TEXTS[0])).last_hidden_state
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot_classification_asks_which_hypothesis_is_entailed(saved, tokenizer, multi_label):
    names = {0: "contradiction", 1: "neutral", 2: "entailment"}
    model, folder = saved("ForSequenceClassification", id2label=names, label2id={v: k for k, v in names.items()})
    ask = pipeline("zero-shot-classification", model=folder)
    candidates = ["good", "bad", "old"]
    found = ask(TEXTS[0], candidates, multi_label=multi_label)
    logits = [model(**read(tokenizer, TEXTS[0], f"This example is {label}.")).logits[0] for label in candidates]
    logits = torch.stack(logits)
    scores = logits[:, [0, 2]].softmax(-1)[:, 1] if multi_label else logits[:, 2].softmax(0)
    expected = dict(zip(candidates, scores.tolist()))
    assert dict(zip(found["labels"], found["scores"])) == pytest.approx(expected, abs=1e-5)


# ---- torch.compile and torch.export of task heads (base model and masked LM: tests/modeling/test_encoder.py)


@pytest.fixture
def fresh_compiler():
    logging.getLogger("torch.__trace").handlers.clear()  # pytest would collect a record of every traced tensor
    torch.compiler.reset()
    yield
    torch.compiler.reset()


COMPILED = ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"]
COMPILED = [(head, "bert") for head in COMPILED] + [(COMPILED[0], "modernbert"), (COMPILED[0], "longformer")]


@pytest.mark.slow
@pytest.mark.parametrize("head, name", COMPILED)
def test_a_compiled_head_has_the_loss_and_gradients_of_the_eager_one(tiny_encoder_config, fresh_compiler, head, name):
    model = class_of(head)(tiny_encoder_config(**ENCODERS[name])).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    batch = labelled(model.config, head)
    got = gradients_of(model, lambda: compiled(**batch).loss)
    expected = gradients_of(model, lambda: model(**batch).loss)
    torch.testing.assert_close(compiled(**batch).loss, model(**batch).loss, atol=TOLERANCE, rtol=TOLERANCE)
    assert got.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(got[parameter], gradient, atol=TOLERANCE, rtol=1e-4, msg=parameter)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_an_exported_classifier_serves_every_batch_and_length(tiny_encoder_config, tmp_path, name):
    model = class_of("ForSequenceClassification")(tiny_encoder_config(**ENCODERS[name])).eval()
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=64)}

    def inputs(batch, length):
        row = encoder_row(model.config, length, batch=batch)
        row["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
        row["attention_mask"][-1, length - 3 :] = 0
        return row

    example = inputs(2, 24)
    shapes = {name: sizes for name in example}
    program = torch.export.export(model, (), example, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for batch, length in ((2, 24), (3, 17), (1, 64)):
        row = inputs(batch, length)
        torch.testing.assert_close(program(**row).logits, model(**row).logits, atol=TOLERANCE, rtol=TOLERANCE)
