"""Preference tuning: what counts of two answers, the reference model, what a user may get wrong."""

import importlib.util
import json
import math
import shutil

import pytest
import torch
import transformers
import yaml
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives import preference
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from run_folders import lines_of
from task_data import on_rows, random_decoder, task_recipe, write_lines

SAME = 1e-4  # fp32: log-probabilities near -100, in batches of other lengths


def test_a_pair_is_two_conversations_and_the_reference_knows_each_alone(tmp_path):
    data = prepare_data(load_recipe(task_recipe(tmp_path, "preference")))
    rows, tokenizer = data.rows["test"], data.tokenizer
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    examples = [json.loads(line) for line in (tmp_path / "preference-test.jsonl").read_text().splitlines()]
    for number, example in enumerate(examples):
        row = rows[number]
        split = int(row["chosen_length"])
        prompt = f"<|user|>\n{example['instruction']}\n\n{example['input']}<|endoftext|>\n<|assistant|>\n"
        for side, (name, ids) in enumerate(
            {"chosen": row["input_ids"][:split], "rejected": row["input_ids"][split:]}.items()
        ):
            start = int(row[f"{name}_start"])
            assert tokenizer.decode(ids[:start]) == prompt
            assert tokenizer.decode(ids[start:]) == f"{example[name]}<|endoftext|>"
            with torch.no_grad():
                log_probs = model(input_ids=ids[None]).logits.log_softmax(-1)[0]
            total = log_probs[start - 1 : -1].gather(1, ids[start:, None]).sum()
            assert row["reference"][side].item() == pytest.approx(total.item(), abs=SAME)
    # The model that starts is its own reference: no reward, and the loss of a coin.
    batch = data.collator([rows[number] for number in range(len(rows))])
    own = data.learns().loss()
    with torch.no_grad():
        outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    assert own.logits(outputs, batch).abs().max() < SAME
    assert (own.total(outputs, batch) / own.weight(batch)).item() == pytest.approx(math.log(2), abs=SAME)
    assert data.objective.settings.reference == str(tmp_path / "base")


def test_a_run_prefers_what_is_chosen_and_is_measured_against_its_reference_again(tmp_path, command, capsys):
    recipe = task_recipe(
        tmp_path, "preference", training={"max_steps": 24, "learning_rate": 3e-3}, evaluation={"sample_tokens": 4}
    )
    assert command("preview", recipe, "--rows", "1") == 0
    printed = capsys.readouterr().out
    assert "chosen (reference -" in printed and "rejected (reference -" in printed
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    metrics = json.loads((run / "run.json").read_text())["metrics"]
    assert metrics["test_loss"] < math.log(2) - 0.1 and metrics["test_reward_margin"] > 0.1
    assert metrics["test_reward_accuracy"] > 0.8 and "validation loss" in printed and "reward accuracy" in printed
    assert "answer to" in printed and "nats per pair" in (run / "README.md").read_text()
    assert command("evaluate", run) == 0
    again = json.loads(next(run.glob("evaluation-*.json")).read_text())["metrics"]
    assert again["reward_margin"] == pytest.approx(metrics["test_reward_margin"], abs=1e-5)
    both = tmp_path / "both.json"  # by the recipe, whose task.reference is null: the model it starts from
    assert command("evaluate", tmp_path / "base", run, recipe, "--output", both) == 0
    of_base, of_run = (each["metrics"]["reward_margin"] for each in json.loads(both.read_text())["results"])
    assert of_base == pytest.approx(0, abs=SAME) and of_run == pytest.approx(again["reward_margin"], abs=1e-5)
    (alone := tmp_path / "alone").mkdir()
    written = yaml.safe_load(recipe.read_text())
    (alone / "data.yaml").write_text(yaml.safe_dump({name: written[name] for name in ("data", "task", "training")}))
    shutil.copytree(tmp_path / "base", alone / "models" / "base")
    assert command("evaluate", alone / "models" / "base", alone / "data.yaml") == 2
    assert "task.reference=null is the model from which a training starts, and neither" in capsys.readouterr().err
    lora = ["training.lora={r: 4, target_modules: all-linear}", f"training.output_dir={tmp_path / 'lora'}"]
    if importlib.util.find_spec("peft"):
        assert command("train", recipe, *lora, "training.max_steps=2", "evaluation.every_steps=2") == 0
        start, first, *_ = lines_of(tmp_path / "lora")  # the validation before the first step, and this
        assert start["validation_loss"] == pytest.approx(math.log(2), abs=SAME)  # the base is the reference
        assert first["loss"] == pytest.approx(math.log(2), abs=SAME)


def test_a_reference_is_computed_once_and_anew_where_its_weights_change(tmp_path, monkeypatch):
    asked = []
    compute = preference.log_probabilities
    monkeypatch.setattr(preference, "log_probabilities", lambda *a: asked.append(1) or compute(*a))
    recipe = task_recipe(tmp_path, "preference", data={"test_files": None, "validation_fraction": 0})
    one = prepare_data(load_recipe(recipe))
    again = prepare_data(load_recipe(recipe))
    assert len(asked) == 1 and again.facts == one.facts
    random_decoder(tmp_path / "base", hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    assert prepare_data(load_recipe(recipe)).facts["fingerprint"] != one.facts["fingerprint"] and len(asked) == 2


def test_without_a_prompt_an_answer_is_never_a_text(tmp_path):
    rows = on_rows(tmp_path, [{"chosen": "good", "rejected": "bad"}] * 2, prompt_field=None, input_field=None)
    with pytest.raises(UserError, match=r"task.chosen_field='chosen': .* holds str, which is no list of messages"):
        prepare_data(load_recipe(task_recipe(tmp_path, "preference", data=rows["data"], task=rows["task"])))


def test_the_reference_is_asked_once_all_splits_have_been_read(tmp_path, monkeypatch):
    monkeypatch.setattr(preference, "log_probabilities", lambda *_: pytest.fail("too early"))
    good = {"instruction": "a", "input": "", "chosen": "b", "rejected": "c"}
    files = write_lines(tmp_path / "test.jsonl", [good, good | {"rejected": "b"}])
    with pytest.raises(UserError, match=r"test.jsonl, line 2 holds the answer that is chosen"):
        prepare_data(load_recipe(task_recipe(tmp_path, "preference", data={"test_files": str(files)})))


def test_mistakes_of_pairs_are_one_sentence(tmp_path, command, capsys):
    recipe = task_recipe(tmp_path, "preference")
    fresh = ["model={family: decoder}", "tokenizer={vocab_size: 300}"]
    assert command("train", recipe, *fresh) == 2
    assert "tunes a model that answers already, and this one's weights are fresh" in capsys.readouterr().err
    assert command("train", recipe, f"task.reference={tmp_path / 'none'}") == 2
    assert "task.reference=" in capsys.readouterr().err


def test_a_checkpoint_with_experts_keeps_its_routers_losses(tmp_path, command):
    """Each conversation counts as its pair does, in whatever batches the pairs come."""
    recipe = task_recipe(tmp_path, "preference", training={"max_steps": 2}, evaluation={"every_steps": None})
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 128}
    random_decoder(tmp_path / "base", "moe", num_experts=4, router_aux_loss_coef=0.5, **sizes)
    parts = ["training.per_device_train_batch_size=2", "training.gradient_accumulation_steps=4"]
    logs = []
    for name, overrides in {"whole": [], "parts": parts}.items():
        assert command("train", recipe, f"training.output_dir={tmp_path / name}", *overrides) == 0
        logs.append(lines_of(tmp_path / name)[1:3])  # after the validation before the first step
    whole, in_parts = logs
    assert whole[0]["router_aux_loss"] >= 1  # 1: all experts are used alike
    assert whole[0]["loss"] == pytest.approx(math.log(2) + 0.5 * whole[0]["router_aux_loss"], abs=SAME)
    for name in ("loss", "router_aux_loss"):
        assert [line[name] for line in in_parts] == pytest.approx([line[name] for line in whole], abs=SAME)
