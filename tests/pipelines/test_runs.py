"""Whole runs through the command line: what a user gets, and what survives being killed."""

import json
import re
import signal

import pytest
import torch
from anyformer.pipelines.generation import generate_text
from anyformer.pipelines.storage.checkpoints import list_checkpoints
from anyformer.pipelines.storage.folder_lock import LOCK
from anyformer.pipelines.training.trainer import AnyformerTrainer
from processes import end_in_micro_batch, logged_losses
from run_folders import assert_same_weights, saved_weights
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel


def test_a_run_ends_with_a_model_that_loads_generates_and_beats_the_unigram(tiny_recipe, command, tmp_path, capsys):
    recipe = tiny_recipe(
        training={"max_steps": 150, "learning_rate": 1e-2},
        model={"hidden_dropout": 0.0},
        evaluation={"sample_prompts": ["The "], "sample_tokens": 8},
    )
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    assert "validation unigram perplexity" in printed and "sample after 'The '" in printed
    assert "devices: 1 x cpu" in printed and "tok/s" in printed and "MFU" in printed
    assert "\nlook at: report.html · README.md · metrics.jsonl\n" in printed
    facts = json.loads((run / "run.json").read_text())
    metrics = facts["metrics"]
    assert facts["status"] == "finished" and facts["steps"] == 150 and facts["seed"] == 42
    assert 0 < facts["training_seconds"] < facts["wall_seconds"] and 0 <= facts["data_share"] < 1
    assert re.search(r"done: 150 steps in [\d:]+, [\d:]+ of them training, on 1 process; model", printed)
    assert metrics["validation_perplexity"] < 0.7 * metrics["validation_unigram_perplexity"]
    assert facts["versions"]["torch"] == torch.__version__.split("+")[0] or facts["versions"]["torch"]
    assert len(facts["data"]["fingerprint"]) >= 32 and facts["data"]["train"]["fill_rate"] > 0.9

    model, tokenizer = AutoModelForCausalLM.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    assert model.config.use_cache is True and model.config.vocab_size == len(tokenizer) == 512
    assert model.config.eos_token_id == tokenizer.eos_token_id is not None
    out = model.generate(**tokenizer("The ", return_tensors="pt"), max_new_tokens=5, do_sample=False)
    assert out.shape[1] > 1
    assert command("generate", run, "The ", "--max-new-tokens", "5") == 0

    before = (run / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    assert command("train", recipe) == 0  # again: nothing to do
    assert "finished already" in capsys.readouterr().out
    assert (run / "model.safetensors").stat().st_mtime_ns == before


def test_samples_are_drawn_as_the_recipe_says_of_a_model_loaded_once(tiny_recipe, command, tmp_path, monkeypatch):
    loaded, load = [], PreTrainedModel.from_pretrained.__func__
    monkeypatch.setattr(
        PreTrainedModel, "from_pretrained", classmethod(lambda cls, *a, **k: loaded.append(a) or load(cls, *a, **k))
    )
    # So small that only the likeliest token is ever drawn.
    evaluation = {"sample_prompts": ["The", "A", "of"], "sample_tokens": 8, "sample_top_p": 1e-6}
    assert command("train", tiny_recipe(training={"max_steps": 2}, evaluation=evaluation)) == 0
    assert len(loaded) == 1
    for sample in json.loads((tmp_path / "run" / "run.json").read_text())["samples"]:
        text = generate_text(str(tmp_path / "run"), sample["prompt"], max_new_tokens=8, do_sample=False)
        assert sample["text"] == text


def test_killed_in_mid_epoch_twice_and_terminated_once_the_run_ends_bit_identical(tiny_recipe, command, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    recipe = tiny_recipe(training={"max_steps": 27, "gradient_accumulation_steps": 2})
    assert command("train", recipe, f"training.output_dir={whole}") == 0
    broken_run = (command, "train", recipe, f"training.output_dir={broken}")
    # In the middle of steps 12 and 18, which is 8 steps after checkpoint-10: in the second of a step's micro-batches.
    for micro_batch, newest in ((24, "checkpoint-10"), (16, "checkpoint-15")):
        end_in_micro_batch(micro_batch, *broken_run, output=tmp_path / "log.txt")
        assert not (broken / "model.safetensors").exists()
        assert list_checkpoints(broken)[0].name == newest
    text = end_in_micro_batch(13, *broken_run, number=signal.SIGTERM, output=tmp_path / "log.txt")
    assert list_checkpoints(broken)[0].name == "checkpoint-22" and "checkpoint-22" in text  # the step is finished
    assert command("train", recipe, f"training.output_dir={broken}") == 0
    assert_same_weights(whole, broken)
    assert logged_losses(whole) == logged_losses(broken)


def test_another_recipe_or_other_data_is_refused_and_nothing_is_lost(tiny_recipe, command, text_file, tmp_path, capsys):
    recipe, run = tiny_recipe(), tmp_path / "run"
    end_in_micro_batch(7, command, "train", recipe, output=tmp_path / "log.txt")  # after the first checkpoint

    def files():  # the lock of the killed process is stale, and goes with whoever holds it next
        return {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file() and p.name != LOCK}

    before = files()

    def refused(*overrides):
        assert command("train", recipe, *overrides) == 2
        error = capsys.readouterr().err.strip()
        assert "\n" not in error
        assert before == files()
        return error

    assert "model.hidden_size is 32 there and 64 here" in refused("model.hidden_size=64")
    assert "training.resume is false" in refused("training.resume=false")
    with text_file.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"text": "one more document " * 20}) + "\n")
    assert "the data has changed" in refused()


def test_checkpoints_of_another_tool_are_refused(tiny_recipe, command, tmp_path, capsys):
    (tmp_path / "run" / "checkpoint-7").mkdir(parents=True)
    assert command("train", tiny_recipe()) == 2
    assert "checkpoint-7, which anyformer did not write" in capsys.readouterr().err


def test_a_dry_run_makes_one_full_step_and_measures_one_batch_and_writes_nothing(
    tiny_recipe, command, tmp_path, capsys, monkeypatch
):
    shapes, step, predict = [], AnyformerTrainer.training_step, AnyformerTrainer.prediction_step

    def training_step(self, model, inputs, *args, **kwargs):
        shapes.append(("train", *inputs["input_ids"].shape))
        assert self.args.max_steps == 24 and self.lr_scheduler is not None and self.optimizer is not None
        return step(self, model, inputs, *args, **kwargs)

    def prediction_step(self, model, inputs, *args, **kwargs):
        shapes.append(("validation", *inputs["input_ids"].shape))
        return predict(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(AnyformerTrainer, "training_step", training_step)
    monkeypatch.setattr(AnyformerTrainer, "prediction_step", prediction_step)
    recipe = tiny_recipe(training={"gradient_accumulation_steps": 3}, evaluation={"every_steps": 2})
    assert command("train", recipe, "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "one step of 4 rows: loss 6." in printed and "gradients finite, peak memory" in printed
    assert "attention by anyformer" in printed
    assert "one batch of validation: loss 6." in printed and "FLOPs per token" in printed
    assert shapes == [("train", 4, 48), ("validation", 4, 48)]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["training.lr_scheduler_kwargs={steepness: 3}"], "transformers refuses these settings"),
        (["training.max_steps=-1", "training.warmup_steps=100000"], "training.warmup_steps=100000.0 is more than all"),
        (["model.bos_token_id=600"], "model.bos_token_id=600 is no entry of the vocabulary"),
        (["training.gradient_checkpointing=true", "training.gradient_checkpointing_kwargs={x: 1}"], "the first step"),
        (
            ["model.position_encoding=learned", f"evaluation.sample_prompts=[{'word ' * 200}]"],
            "evaluation.sample_prompts.0 has",
        ),
    ],
)
def test_a_dry_run_finds_what_would_end_the_run_later(overrides, words, tiny_recipe, command, capsys):
    assert command("train", tiny_recipe(), *overrides, "--dry-run") == 2
    sentence = capsys.readouterr().err.strip()
    assert words in sentence and "\n" not in sentence


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_compiled_model_trains_the_same_curve_and_is_saved_plain(tiny_recipe, command, tmp_path):
    recipe = tiny_recipe(model={"hidden_dropout": 0.0}, training={"max_steps": 6})
    assert command("train", recipe, f"training.output_dir={tmp_path / 'eager'}") == 0
    assert command("train", recipe, f"training.output_dir={tmp_path / 'compiled'}", "training.torch_compile=true") == 0
    eager, compiled = logged_losses(tmp_path / "eager"), logged_losses(tmp_path / "compiled")
    torch.testing.assert_close(torch.tensor(compiled), torch.tensor(eager), atol=1e-4, rtol=0)  # fused sums, 6 steps
    assert saved_weights(tmp_path / "compiled").keys() == saved_weights(tmp_path / "eager").keys()
