"""The package in Python does what the command line does, silently, and returns what it made."""

import contextlib
import io

import pytest
import torch
import yaml
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.schema import Recipe
from golden_runs import recipe_of

import anyformer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(recipe file, run) of a tiny run made in Python, and what it printed."""
    folder = tmp_path_factory.mktemp("api")
    recipe = recipe_of("decoder", folder)
    recipe["data"] |= {"validation_fraction": 0.1, "cache_dir": str(folder / "cache")}
    recipe["evaluation"] = {"sample_prompts": ["The "], "sample_tokens": 4}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run = anyformer.train(path, training={"max_steps": 4}, evaluation={"sample_tokens": 3})
    return path, run, printed.getvalue()


def test_train_returns_the_run_with_its_model_tokenizer_metrics_and_history(trained):
    _, run, _ = trained
    assert run.finished and run.path.name == "run"
    assert run.metrics.keys() == {"validation_loss", "validation_perplexity"}
    assert [line["step"] for line in run.history if "loss" in line] == [1, 2, 3, 4]
    ids = run.tokenizer("The import", return_tensors="pt").input_ids
    assert type(run.model).__name__ == "AnyformerDecoderForCausalLM" and not run.model.training
    assert run.model(ids).logits.shape == (1, ids.shape[1], 400)
    assert [sample["prompt"] for sample in run.samples] == ["The "]


def test_nothing_is_printed_but_the_progress_line(trained):
    *_, printed = trained
    lines = [line for line in printed.splitlines() if line.strip()]
    assert lines and all(line.startswith("step ") for line in lines), printed


def test_the_same_call_again_returns_the_finished_run(trained):
    path, run, _ = trained
    again = anyformer.train(path, training={"max_steps": 4})
    assert again.path == run.path and again.metrics == run.metrics


def test_settings_as_mappings_are_those_of_the_command_line(trained):
    path, *_ = trained
    given = anyformer.load_recipe(path, training={"max_steps": 7}, objective={"tail": "pad"})
    assert given == anyformer.load_recipe(str(path), ["training.max_steps=7", "objective.tail=pad"])
    assert isinstance(given, Recipe) and given.training.max_steps == 7
    with pytest.raises(UserError, match=r"training.max_step: no such setting; did you mean training.max_steps\?"):
        anyformer.load_recipe(path, training={"max_step": 7})
    with pytest.raises(UserError, match=r"trainign: no such section; did you mean training\?"):
        anyformer.load_recipe(path, trainign={"max_steps": 7})
    with pytest.raises(UserError, match="give settings to load_recipe"):
        anyformer.train(given, training={"max_steps": 7})


def test_prepared_rows_go_with_a_plain_trainer_and_a_loop(trained, tmp_path):
    from transformers import Trainer, TrainingArguments

    path, run, _ = trained
    data = anyformer.prepare_data(path)
    assert set(data.rows) == {"train", "validation"} and len(data.tokenizer) == 400
    batch = data.collator([data.rows["train"][i] for i in range(3)])
    assert batch["input_ids"].shape == (3, 32)
    assert torch.isfinite(run.model(**batch).loss)
    arguments = TrainingArguments(str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to="none")
    trainer = Trainer(run.model, arguments, train_dataset=data.rows["train"], data_collator=data.collator)
    assert trainer.train().global_step == 2


def test_evaluate_measures_what_the_end_of_the_run_did(trained):
    path, run, _ = trained
    result = anyformer.evaluate(run.path, path)
    assert result.metrics["perplexity"] == pytest.approx(run.metrics["validation_perplexity"], rel=1e-6)
    assert anyformer.evaluate(run.path, path, max_examples=2).examples == 2
    with pytest.raises(UserError, match="has no test split"):
        anyformer.evaluate(run.path, path, split="test")


def test_a_folder_without_a_run_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        _ = anyformer.Run(tmp_path).metrics
