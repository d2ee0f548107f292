"""Whole runs of tasks: they learn, are measured exactly, keep the best model, and go on bit-identically when killed."""

import json
import re

import pytest
import torch
import transformers
from anyformer.pipelines.storage.checkpoints import list_checkpoints
from run_folders import assert_same_weights, facts_of, lines_of, saved_weights
from task_data import task_recipe

import anyformer

KINDS = ("sequence_classification", "translation", "sentence_similarity", "multi_label_classification")
KINDS += ("instruction_tuning", "preference", "multiple_choice", "question_answering", "token_classification")


def test_a_classifier_learns_keeps_its_best_and_answers_with_names(tmp_path, command, capsys):
    recipe = task_recipe(
        tmp_path,
        "sequence_classification",
        task={"label_names": ["sad", "glad"], "max_length": 64},  # the word that decides may be the last one
        training={"max_steps": 80, "warmup_steps": 4},
        evaluation={"metrics": ["accuracy", "f1"], "best_metric": "accuracy"},
    )
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    facts = facts_of(run)
    assert facts["metrics"]["test_accuracy"] >= 10 / 11 and facts["metrics"]["validation_f1"] > 0.8
    assert "validation loss" in printed and "accuracy" in printed and "sad" in printed
    scores = {line["step"]: line["validation_accuracy"] for line in lines_of(run) if "validation_accuracy" in line}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert facts["best_step"] == best and facts["metrics"]["validation_accuracy"] == scores[best]
    assert_same_weights(run, run / f"checkpoint-{best}")  # though save_steps would not have kept it

    answer = transformers.pipeline("text-classification", str(run))("a lovely film with two actors")
    assert answer[0]["label"] == "glad"
    card = (run / "README.md").read_text()
    assert "text-classification" in card and "accuracy" in card and "sad, glad" in card


EXAMPLES = {  # name -> task, overrides of its recipe, a row to be answered
    "a text": ("sequence_classification", [], {"text": "your text"}),
    "a pair": (
        "sentence_similarity",
        ["task={name: sequence_regression, text_pair_field: other, max_length: 40}"],
        {"text": "your text", "other": "your second text"},
    ),
    "labels": ("multi_label_classification", [], {"text": "your text"}),
    "tags": ("token_classification", [], {"tokens": ["your", "text"]}),
    "a gap": (
        "sequence_classification",
        ["task=null", "objective={name: masked, sequence_length: 32}", "data.test_files=null"],
        {"text": "your [MASK] text"},
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("a text", "tags") else pytest.mark.slow) for name in EXAMPLES]
)
def test_what_is_printed_at_the_end_and_stands_in_the_card_works(tmp_path, command, capsys, name):
    kind, overrides, row = EXAMPLES[name]
    recipe = task_recipe(tmp_path, kind, training={"max_steps": 1}, evaluation={"every_steps": None})
    assert command("train", recipe, *overrides) == 0
    assert f"next: anyformer predict {tmp_path / 'run'} FILE" in capsys.readouterr().out
    (answer,) = anyformer.predict(tmp_path / "run", [row])
    assert answer.items() > row.items() and answer["prediction"] is not None
    card = (tmp_path / "run" / "README.md").read_text()
    block = re.findall(r"^```python\n(import anyformer\n.*?)^```", card, re.DOTALL | re.MULTILINE)[0]
    exec(block.replace("path/to/run", str(tmp_path / "run")), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_a_translator_learns_searches_with_beams_and_shows_samples(tmp_path, command, capsys):
    recipe = task_recipe(
        tmp_path,
        "translation",
        model={"norm_type": "layernorm"},
        task={"max_new_tokens": 30, "max_length": 60, "num_beams": 3},
        training={
            "max_steps": 160,
            "per_device_train_batch_size": 16,
            "lr_scheduler_type": "inverse_sqrt",
            "warmup_steps": 20,
            "label_smoothing_factor": 0.1,
        },
        evaluation={"every_steps": 80, "average_checkpoints": 2},
    )
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    metrics = facts_of(run)["metrics"]
    losses = [line["validation_loss"] for line in lines_of(run) if "validation_loss" in line]
    assert losses[-1] < 0.6 * 5.7  # ln(300) is what a model that knows nothing has
    assert {"validation_loss", "validation_bleu", "test_loss", "test_bleu"} <= metrics.keys()
    assert "translation of" in printed and "reference:" in printed and "mean of the newest 2" in printed
    config = json.loads((run / "generation_config.json").read_text())
    assert config["num_beams"] == 3 and config["max_new_tokens"] == 30
    assert json.loads((run / "config.json").read_text())["decoder_start_token_id"] == config["pad_token_id"]
    found = [saved_weights(checkpoint) for checkpoint in list_checkpoints(run)[:2]]
    mean = {name: (found[0][name] + found[1][name]) / 2 for name in found[0]}
    torch.testing.assert_close(saved_weights(run), mean, atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_ends_bit_identical_past_the_end_of_an_epoch(tmp_path, whole_and_killed, kind):
    steps = {"max_steps": 20, "gradient_accumulation_steps": 2, "learning_rate": 0.02}  # epochs of 8 steps
    sections = {"training": steps, "evaluation": {"best_metric": "loss"}, "model": {"hidden_dropout": 0.1}}
    whole, _ = whole_and_killed(28, task_recipe(tmp_path, kind, **sections))  # in the middle of step 14
    assert facts_of(whole)["best_step"] is not None


def test_a_masked_language_model_becomes_a_classifier_with_its_own_weights(tmp_path, command, capsys):
    pretraining = task_recipe(
        tmp_path, "sequence_classification", "pretraining", training={"output_dir": str(tmp_path / "mlm")}
    )
    masked = ["task=null", "objective={name: masked, sequence_length: 32}", "evaluation={metrics: [perplexity]}"]
    assert command("train", pretraining, *masked) == 0
    capsys.readouterr()
    recipe = task_recipe(tmp_path, "sequence_classification", training={"max_steps": 2})
    start = [f"model.name_or_path={tmp_path / 'mlm'}", "model.hidden_dropout=0.2", "model.pooler_type=mean"]
    assert command("train", recipe, *start) == 0
    printed = capsys.readouterr().out
    (fresh,) = [line for line in printed.splitlines() if line.startswith("new weights, not taken from")]
    assert "score.weight" in fresh and "layers" not in fresh and "embed_tokens" not in fresh
    configs = [json.loads((tmp_path / run / "config.json").read_text()) for run in ("mlm", "run")]
    assert [config["pooler_type"] for config in configs] == ["cls", "mean"]
    assert configs[1]["hidden_dropout"] == 0.2
    before, after = saved_weights(tmp_path / "mlm"), saved_weights(tmp_path / "run")
    name = "model.embed_tokens.weight"
    assert (before[name] - after[name]).abs().max() < 0.1 * before[name].abs().max() + 0.02
    assert command("train", recipe, start[0], "model.hiden_dropout=0.2", "training.output_dir=x") == 2
    assert "did you mean model.hidden_dropout?" in capsys.readouterr().err
