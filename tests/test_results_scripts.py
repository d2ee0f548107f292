"""scripts/results: baselines of a transformer's size that the same recipes train, and the rows that scripts write."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
import yaml
from anyformer.pipelines.cli.commands import main
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoModelForImageClassification


@pytest.fixture
def recipe(tmp_path):
    """A small decoder that learns a sentence; a file."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat, and the dog sat on the log\n" * 200)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
    sections = {
        "model": {"family": "decoder", **sizes},
        "tokenizer": {"type": "byte_bpe", "vocab_size": 270},
        "data": {"files": str(tmp_path / "text.txt"), "validation_fraction": 0.1},
        "objective": {"name": "causal", "sequence_length": 32},
        "training": {"output_dir": str(tmp_path / "run"), "max_steps": 12, "bf16": False, "learning_rate": 1e-2},
        "evaluation": {"metrics": ["perplexity"]},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(sections))
    return str(tmp_path / "mine.yaml")


@pytest.mark.slow
def test_an_lstm_of_a_run_s_size_is_trained_and_measured_by_the_same_recipe(recipe, repo_root, tmp_path, monkeypatch):
    script, folder, run = str(repo_root / "scripts" / "results" / "lstm.py"), tmp_path / "lstm", tmp_path / "trained"
    assert main(["train", recipe]) == 0
    monkeypatch.setattr(sys, "argv", ["lstm.py", str(folder), "--like", str(tmp_path / "run")])
    runpy.run_path(script, run_name="__main__")
    like = json.loads((tmp_path / "run" / "run.json").read_text())
    where = [f"model.name_or_path={folder}", f"training.output_dir={run}"]
    assert main(["--plugin", script, "train", recipe, *where]) == 0
    trained = json.loads((run / "run.json").read_text())
    assert trained["parameters"] == pytest.approx(like["parameters"], rel=0.05)
    assert trained["data"]["train"] == like["data"]["train"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line["loss"] for line in lines if "loss" in line][-1]
    assert trained["metrics"]["validation_loss"] == pytest.approx(last, rel=0.3)  # of the same text, in the same unit
    assert main(["--plugin", script, "evaluate", str(run)]) == 0
    model = AutoModelForCausalLM.from_pretrained(run).eval()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    ids = torch.randint(200, (2, 9))
    labels = ids.masked_fill(torch.rand(2, 9) < 0.3, -100)
    out = model(input_ids=ids, labels=labels)
    assert torch.allclose(out.loss, cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))
    assert torch.allclose(
        model(input_ids=ids, labels=labels, num_items_in_batch=1).loss, out.loss * (labels[:, 1:] >= 0).sum()
    )
    other = ids.clone()
    other[:, 5:] = 3
    assert torch.equal(model(input_ids=other).logits[:, :5], out.logits[:, :5])
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]]).expand(2, -1)  # two documents in a row
    apart = torch.cat([model(input_ids=ids[:, :5]).logits, model(input_ids=ids[:, 5:]).logits], 1)
    torch.testing.assert_close(model(input_ids=ids, position_ids=positions).logits, apart)


def test_padding_leaves_the_class_of_a_text_alone(repo_root):
    found = runpy.run_path(str(repo_root / "scripts" / "results" / "lstm.py"))
    model = found["LstmForSequenceClassification"](found["LstmConfig"](97, 16, 2)).eval()
    ids, mask = torch.randint(97, (1, 9)), torch.ones(1, 9, dtype=torch.long)
    mask[:, 6:] = 0
    short = model(input_ids=ids[:, :6]).logits
    assert torch.allclose(model(input_ids=ids, attention_mask=mask).logits, short, atol=1e-6)
    assert abs(found["width_of"](3_426_560, 2048, 2) - 403) <= 1


def test_a_convolutional_network_has_a_run_s_size_classes_and_processor(repo_root, tmp_path, monkeypatch):
    from anyformer.modeling import AnyformerViTConfig, AnyformerViTForImageClassification
    from anyformer.modeling.image_processing import AnyformerImageProcessor

    sizes = {"image_size": 12, "patch_size": 4, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AnyformerViTConfig(num_channels=1, id2label={0: "boot", 1: "coat"}, **sizes)
    like = AnyformerViTForImageClassification(config)
    like.save_pretrained(tmp_path / "run")
    AnyformerImageProcessor(size={"height": 12, "width": 12}, num_channels=1).save_pretrained(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["cnn.py", str(tmp_path / "cnn"), "--like", str(tmp_path / "run")])
    runpy.run_path(str(repo_root / "scripts" / "results" / "cnn.py"), run_name="__main__")
    found = AutoModelForImageClassification.from_pretrained(tmp_path / "cnn")
    assert found.num_parameters() == pytest.approx(like.num_parameters(), rel=0.2)
    assert found.config.id2label == {0: "boot", 1: "coat"}
    assert found.eval()(torch.zeros(3, 1, 12, 12)).logits.shape == (3, 2)


@pytest.fixture
def written(repo_root, monkeypatch):
    """Run a script with arguments; its last one is the file that it writes; return the rows there."""

    def run(script: str, *arguments) -> list[dict]:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        monkeypatch.syspath_prepend(repo_root / "scripts" / "results")  # as where python runs a script
        runpy.run_path(str(repo_root / "scripts" / "results" / script), run_name="__main__")
        return [json.loads(line) for line in Path(arguments[-1]).read_text().splitlines()]

    return run


def test_sentences_are_rows_of_the_columns_that_are_asked_for(written, tmp_path):
    wiki, reviews, out = tmp_path / "wiki.txt", tmp_path / "reviews.jsonl.gz", tmp_path / "out" / "rows.jsonl"
    wiki.write_text(" = Heading = \n The cat , it seems , sat . It was <unk> then . The dog did n't sit .\n")
    with gzip.open(reviews, "wt") as file:
        file.write(json.dumps({"review": "Too short. Isn't this (a long) one?<br />And here another one."}) + "\n")
    found = written("sentences.py", wiki, f"{reviews}:review", "--before", " ", "--out", out)
    whole = ["The cat, it seems, sat.", "The dog didn't sit.", "Isn't this (a long) one?", "And here another one."]
    assert found == [{"text": f" {sentence}"} for sentence in whole]
    pairs = ["--tokens", "--lowercase", "--columns", "one", "two", "--words", 13]
    found = written("sentences.py", wiki, f"{reviews}:review", *pairs, "--out", out)
    assert found == [{"one": "the cat , it seems , sat .", "two": "the dog did n't sit ."}]  # one row is whole
    words = ["--tokens", "--split", "--columns", "tokens", "--rows", 1]
    found = written("sentences.py", f"{reviews}:review", *words, "--out", out)
    assert found == [{"tokens": ["Is", "n't", "this", "(", "a", "long", ")", "one", "?"]}]


def test_each_question_has_a_sentence_that_answers_it_or_the_likest_other_one(written, tmp_path, capsys):
    text = "The tower is in Rome. It was built of stone. Nobody knows who built it."
    rows = [{"question": "Of what was it built?", "context": text, "answers": {"answer_start": [text.index("stone")]}}]
    rows += [{"question": "What is this?", "context": "One sentence.", "answers": {"answer_start": [0]}}]
    with gzip.open(tmp_path / "squad.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows * 20))
    pairs = written("answering_sentences.py", tmp_path / "squad.jsonl.gz", "--out", tmp_path / "pairs.jsonl")
    said = capsys.readouterr().out
    assert {(pair["sentence"], pair["label"]) for pair in pairs} == {
        ("It was built of stone.", 1),
        ("Nobody knows who built it.", 0),
    }
    assert len(pairs) == 20 and "20 pairs" in said and "words alone: 100.0%" in said
