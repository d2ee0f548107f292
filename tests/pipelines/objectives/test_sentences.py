"""Laws of sentence_similarity: both texts by one encoder, losses as defined, a folder that other libraries open."""

import json

import pytest
import torch
from anyformer.pipelines.objectives.losses import Cosine, InBatchNegatives
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.publishing.publish import files_to_publish
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.storage.model_folder import open_model_folder
from rich.console import Console
from task_data import CHARACTERS, on_rows, task_recipe
from torch.nn import functional
from transformers import AutoModel, BertConfig, BertModel

KIND = "sentence_similarity"


def batch_of(labels, dtype=torch.float64, tokens=4):
    """(outputs of an encoder for len(labels) pairs, batch), with padding after the first texts."""
    states = torch.randn(2 * len(labels), tokens, 8, dtype=dtype)
    mask = torch.ones(2 * len(labels), tokens, dtype=torch.long)
    mask[0::2, -1] = 0
    return {"last_hidden_state": states}, {"labels": torch.tensor(labels, dtype=dtype), "attention_mask": mask}


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_losses_of_pairs_are_those_defined(pooling, in_float64):
    outputs, batch = batch_of([0.2, 1.0, 0.9, -100])
    states = outputs["last_hidden_state"]
    first, second = states[0::2], states[1::2]
    if pooling == "mean":
        first, second = first[:, :-1].mean(1), second.mean(1)
    else:
        first, second = first[:, 0], second[:, 0]
    cosine = Cosine(pooling)
    expected = functional.mse_loss(functional.cosine_similarity(first, second)[:3], batch["labels"][:3])
    torch.testing.assert_close(cosine.total(outputs, batch) / cosine.weight(batch), expected)
    ranking = InBatchNegatives(pooling, scale=20.0)
    scores = functional.cosine_similarity(first[:3, None], second[None, :3], dim=-1) * 20
    expected = functional.cross_entropy(scores, torch.arange(3))
    torch.testing.assert_close(ranking.total(outputs, batch) / ranking.weight(batch), expected)


@pytest.mark.parametrize(
    "pairs, meanings",
    [
        ("ab ac ad ae", ["abcde"]),  # one question with several answers
        ("az bz cz dz", ["abcdz"]),  # one answer to several questions
        ("ab ab cd cd", ["ab", "cd"]),
        ("ab bc dc de xy", ["abcde", "xy"]),  # a chain of paraphrases, and another pair
        ("aa bb ac", ["ac", "b"]),  # SimCSE's: a text is its own pair
    ],
)
def test_equal_texts_of_a_batch_are_no_negatives_of_each_other(pairs, meanings, tmp_path, prepare):
    """A model that gives one vector to all that means the same has no loss."""
    written = {letter: f"{letter} is" + " so" * (letter in "bd") for letter in pairs}  # of several lengths
    rows = [{"text": written[first], "other": written[second]} for first, second in pairs.split()]
    data = prepare(**on_rows(tmp_path, rows, label_field=None, loss="in_batch_negatives", scale=50))
    batch = data.collator([data.rows["train"][number] for number in range(len(rows))])
    of_texts = [[letter in meaning for meaning in meanings].index(True) for letter in pairs.replace(" ", "")]
    states = torch.eye(len(meanings))[of_texts][:, None].expand(-1, batch["input_ids"].shape[1], -1)
    loss = data.learns().loss()
    assert loss.total({"last_hidden_state": states}, batch) / loss.weight(batch) < 1e-6
    assert all(row["labels"] == 1 for row in data.rows["train"]) and not data.scores().predicts  # without labels


def test_a_batch_without_equal_texts_keeps_its_loss_to_the_last_bit(in_float64):
    outputs, batch = batch_of([1.0] * 6)
    states = outputs["last_hidden_state"].requires_grad_()
    loss, found = InBatchNegatives("mean", 20.0), []
    for ids in ({}, {"input_ids": torch.arange(48).view(12, 4)}):
        total = loss.total(outputs, batch | ids)
        found.append((total, torch.autograd.grad(total, states)[0]))
    assert all(map(torch.equal, *found))


def test_a_batch_without_a_label_adds_nothing():
    for loss in (Cosine("mean"), InBatchNegatives("mean", 20.0)):
        outputs, batch = batch_of([-100.0])
        states = outputs["last_hidden_state"].requires_grad_()
        total = loss.total(outputs, batch)
        total.backward()
        assert total == 0 == loss.weight(batch) and states.grad.eq(0).all()


def test_every_text_is_read_by_itself_and_labels_become_cosines(tmp_path, prepare, capsys):
    data = prepare(tokenizer=CHARACTERS, data={"validation_fraction": 0.0})
    rows = [json.loads(line) for line in (tmp_path / "sentence_similarity.jsonl").read_text().splitlines()]
    train, read = data.rows["train"], data.tokenizer
    batch = data.collator([train[i] for i in range(6)])
    assert batch["input_ids"].shape[0] == 12
    for i, row in enumerate(rows[:6]):
        assert batch["labels"][i] == pytest.approx(row["label"] / 5)
        for place, text in ((2 * i, row["text"]), (2 * i + 1, row["other"])):
            ids = batch["input_ids"][place][batch["attention_mask"][place].bool()].tolist()
            assert ids == read(text, truncation=True, max_length=40)["input_ids"]
    data.reads.show(Console(width=500), data, train, 5, train[5])
    shown = capsys.readouterr().out.replace("·", " ")
    assert rows[5]["text"][:30] in shown and rows[5]["other"][:30] in shown and "cosine 1" in shown


@pytest.mark.parametrize(
    "row, says",
    [
        ({"text": "a", "other": "b", "label": 7}, r"line 2 holds 7, which is outside of task.label_range=\[0, 5\]"),
        ({"text": "a", "other": "b", "label": None}, "line 2 holds null, which is no finite number"),
        ({"text": "a", "other": " ", "label": 1}, "task.text_pair_field='other': .*line 2 holds an empty text"),
    ],
)
def test_a_mistake_in_a_pair_is_one_sentence_with_its_row(row, says, refused):
    refused([{"text": "a", "other": "b", "label": 3}, row], {}, says)


@pytest.mark.slow
def test_pairs_are_learned_measured_again_alike_and_the_pooler_stays_out(tmp_path, command):
    recipe = task_recipe(
        tmp_path,
        "sentence_similarity",
        training={"max_steps": 40, "gradient_accumulation_steps": 2},
        evaluation={"every_steps": 20, "best_metric": "spearman"},
        tokenizer={"type": "wordpiece", "vocab_size": 90},
    )
    assert command("train", recipe) == 0
    run = tmp_path / "run"
    metrics = json.loads((run / "run.json").read_text())["metrics"]
    assert metrics["test_spearman"] > 0.6 and metrics["test_loss"] < 0.1
    assert json.loads((run / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"]
    assert "sentence-transformers" in (run / "README.md").read_text().split("---")[1]
    assert command("evaluate", run, "training.per_device_eval_batch_size=5") == 0
    again = json.loads((run / "evaluation-recipe.json").read_text())["metrics"]
    assert again["pearson"] == pytest.approx(metrics["test_pearson"], abs=1e-4)  # fp32: other padding, other sums

    assert {"modules.json", "1_Pooling/config.json"} <= files_to_publish(open_model_folder(run)).keys()


def test_a_native_encoder_is_measured_untuned_and_tuned(tmp_path, command):
    """With a pooler, which is neither missed nor trained."""
    recipe = task_recipe(tmp_path, "sentence_similarity", tokenizer=CHARACTERS, training={"max_steps": 2})
    data = prepare_data(load_recipe(str(recipe)))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    native = BertModel(BertConfig(vocab_size=len(data.tokenizer), **sizes), add_pooling_layer=False)
    native.save_pretrained(tmp_path / "bert")
    data.tokenizer.save_pretrained(tmp_path / "bert")
    assert command("evaluate", tmp_path / "bert", recipe) == 0
    assert command("train", recipe, f"model.name_or_path={tmp_path / 'bert'}") == 0
    tuned = AutoModel.from_pretrained(tmp_path / "run")
    assert type(tuned) is BertModel
    assert not torch.equal(tuned.embeddings.word_embeddings.weight, native.embeddings.word_embeddings.weight)
