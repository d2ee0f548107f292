"""Laws of fine-tuning: rates and epochs by what is trained, steps in epochs, frozen parts."""

import json

import pytest
import transformers
import yaml
from anyformer.pipelines.accounting.devices import devices_of
from anyformer.pipelines.accounting.layers import freeze, places_of
from anyformer.pipelines.accounting.plan import plan_run
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe, recipe_from_dict
from anyformer.pipelines.recipes.recipe_files import shipped
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.recipes.usual_rates import MOST_EPOCHS, settled
from anyformer.pipelines.words import epochs_of
from native_models import native_model
from processes import run_ranks
from run_folders import facts_of, lines_of, saved_weights
from task_data import task_recipe
from test_distributed import ENGINES, needs_deepspeed, rank_main

import anyformer

CLASSES = {"name": "sequence_classification", "max_length": 24}
CHAT = {"name": "instruction_tuning", "max_length": 64}


def recipe_of(name_or_path=None, task=CLASSES, training=None, **sections):
    model = {"family": "encoder"} if name_or_path is None else {"name_or_path": name_or_path}
    sections |= {"tokenizer": {"vocab_size": 300}} if name_or_path is None else {}
    training = {"output_dir": "runs/x"} | (training or {})
    return recipe_from_dict({"model": model, "data": {"files": "x"}, "task": task, "training": training, **sections})


# ------------------------------------------------------------------------------------- what nothing sets


@pytest.mark.parametrize(
    "name, task, training, rate, epochs",
    [
        (None, CLASSES, {}, 1e-3, 1),
        ("bert", CLASSES, {}, 5e-5, "auto"),
        ("bert", CLASSES, {"learning_rate": "auto", "num_train_epochs": "auto"}, 5e-5, "auto"),
        ("bert", CLASSES, {"learning_rate": 3e-4, "num_train_epochs": 2}, 3e-4, 2),
        ("bert", CLASSES, {"max_steps": 9}, 5e-5, 1),  # which then say nothing
        ("bert", CLASSES, {"lora": {}}, 2e-4, "auto"),
        ("llama", CHAT, {}, 2e-5, "auto"),
        ("llama", {"name": "preference", "max_length": 64}, {}, 1e-6, "auto"),
        ("vit", {"name": "image_classification"}, {}, 5e-5, "auto"),
    ],
)
def test_rate_and_epochs_are_those_of_what_is_trained_unless_they_are_set(name, task, training, rate, epochs):
    found = recipe_of(name, task, training)
    assert (found.training.learning_rate, found.training.num_train_epochs) == (pytest.approx(rate), epochs)
    said = {f"training.{key}" for key in ("learning_rate", "num_train_epochs") if training.get(key, "auto") == "auto"}
    assert found.chosen.keys() == said - ({"training.num_train_epochs"} if "max_steps" in training else set())
    assert recipe_from_dict(found.to_dict()) == found and "chosen" not in found.to_dict()


def test_a_classifier_of_a_decoder_in_a_folder_learns_at_a_decoder_s_rate(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert recipe_of(str(tmp_path)).training.learning_rate == 2e-5


def test_recipes_that_set_rate_and_length_are_left_as_they_are():
    for name in shipped("recipes"):
        recipe = load_recipe(name)
        tuned = name.endswith("_tuned")
        assert tuned or not recipe.chosen, name
        assert tuned or settled(recipe, 100).to_dict() == recipe.to_dict()
    plain = TrainingSection(output_dir="x")
    assert (plain.learning_rate, plain.num_train_epochs) == (1e-3, 1.0)  # of fresh weights, as before


@pytest.mark.parametrize("per_epoch, epochs", [(1000, 3), (84, 3), (45, 6), (7, MOST_EPOCHS)])
def test_few_rows_are_passed_over_until_enough_steps_are_made(per_epoch, epochs):
    found = settled(recipe_of("bert"), per_epoch)
    assert found.training.num_train_epochs == epochs
    assert per_epoch * epochs >= found.learned.enough_steps or epochs == MOST_EPOCHS
    assert ("too few" in found.chosen["training.num_train_epochs"]) == (epochs > 3)
    continued = recipe_from_dict(
        {"model": {"name_or_path": "bert"}, "data": {"files": "x"}, "objective": {"name": "masked"}}
        | {"training": {"output_dir": "x"}}
    )
    assert settled(continued, 1000).training.num_train_epochs == 1  # texts without labels
    for task in ("instruction_tuning", "preference"):
        told = settled(recipe_of("llama", task={"name": task, "max_length": 64}), per_epoch)
        assert told.training.num_train_epochs == 3, "few conversations are not learned by heart"


# ------------------------------------------------------------------------------------------ steps in epochs


def test_epochs_are_read_in_words():
    assert [epochs_of(text) for text in ("epoch", "1 epoch", "0.5 epochs", "2 epochs")] == [1, 1, 0.5, 2]
    for value in ("epochz", "0 epochs", "-1 epochs", "2", "epoch 2"):
        with pytest.raises(UserError, match=rf"evaluation.every_steps='{value}' is not .*such as '0.5 epochs'"):
            recipe_of(evaluation={"every_steps": value})


def test_epochs_are_steps_of_the_data_and_patience_is_validations():
    words = {"every_steps": "0.5 epochs", "patience": "2 epochs", "best_metric": "loss"}
    recipe = recipe_of(evaluation=words, training={"save_steps": "epoch", "learning_rate": 1, "max_steps": 9})
    found = settled(recipe, 152)
    assert (found.evaluation.every_steps, found.evaluation.patience, found.training.save_steps) == (76, 4, 152)
    assert found.chosen["evaluation.patience"] == "2 epochs, each of 152 steps"
    assert settled(recipe, 1).evaluation.every_steps == 1  # never 0
    assert settled(found, 7) == found
    with pytest.raises(UserError, match=r"training.save_steps='epoch' is of passes over the data, and a stream has no"):
        settled(recipe, None)
    streamed = {"data.dataset": "x", "data.files": None, "data.streaming": True, "training.max_steps": 9}
    with pytest.raises(UserError, match=r"evaluation.every_steps='epoch' is of passes"):
        load_recipe(
            "wikitext2_mlm", [f"{k}={json.dumps(v)}" for k, v in streamed.items()] + ["evaluation.every_steps=epoch"]
        )


@pytest.mark.slow
def test_a_run_in_epochs_goes_on_after_a_kill_and_says_its_steps(tmp_path, capsys, whole_and_killed):
    evaluation = {"every_steps": "0.5 epochs", "best_metric": "loss", "patience": "9 epochs"}
    training = {"save_steps": "0.5 epochs", "max_steps": -1, "num_train_epochs": 2}
    per_epoch = 16
    recipe = task_recipe(tmp_path, "sequence_classification", training=training, evaluation=evaluation)
    whole, _ = whole_and_killed(per_epoch + 1, recipe)
    printed, saved = capsys.readouterr().out, facts_of(whole)["recipe"]
    assert facts_of(whole)["steps"] == 2 * per_epoch
    every = saved["evaluation"]["every_steps"]
    assert every == saved["training"]["save_steps"] == round(per_epoch / 2)
    assert f"evaluation.every_steps={every} (0.5 epochs, each of {per_epoch} steps)" in printed
    assert [line["step"] for line in lines_of(whole) if "validation_loss" in line][:2] == [every, 2 * every]


# --------------------------------------------------------------------------------- frozen parts, rates by layer


def encoder(**fields):
    fields = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64} | fields
    config = transformers.AutoConfig.for_model("anyformer_encoder", vocab_size=50, pad_token_id=0, **fields)
    return transformers.AutoModelForSequenceClassification.from_config(config)


def test_each_weight_stands_where_it_is_used():
    """Natively and in ours: embeddings 0, layers from below, what comes last above them; a tied head is embeddings."""
    for name, head, words, first, last in (
        ("bert", "AutoModelForSequenceClassification", "embeddings, 0-", "word_embeddings", "classifier"),
        ("gpt2", "AutoModelForCausalLM", "embeddings, 0-", "wte", "ln_f"),
        ("llama2", "AutoModelForSequenceClassification", "embeddings, 0-", "embed_tokens", "score"),
        ("bart", "AutoModelForSeq2SeqLM", "embeddings, encoder.0-", "shared", "decoder.layers"),
        ("t5", "AutoModelForSeq2SeqLM", "embeddings, encoder.0-", "shared", "decoder.final_layer_norm"),
    ):
        model = native_model(name, head)
        places = places_of(model)
        assert places.words.startswith(words) and any(first in n for n in places.embeddings), name
        assert any(last in n for n in places.after or places.numbers), name
        assert len(set(places.numbers.values())) == sum(places.layers.values())
    places = places_of(encoder())
    assert places.words == "embeddings, 0-3" and "score.weight" in places.after


@pytest.mark.parametrize("part", ["embedings", "0-4", "7", "3-1", "encoder.0", "layers.0"])
def test_a_part_that_the_model_does_not_have_is_answered_with_those_it_has(part):
    with pytest.raises(UserError, match=rf"training.freeze='{part}' is no part of Any.*, which has embeddings, 0-3"):
        freeze(encoder(), [part])


def test_freezing_is_of_pretrained_weights_without_lora():
    with pytest.raises(UserError, match=r"training.freeze .* this model's are fresh; set model.name_or_path"):
        recipe_of(training={"freeze": ["embeddings"]})
    with pytest.raises(UserError, match=r"training.freeze has no effect with training.lora"):
        recipe_of("bert", training={"freeze": ["embeddings"], "lora": {}})
    assert recipe_of("bert", training={"freeze": ["embeddings", 0, "1-2"]}).training.freeze == ["embeddings", 0, "1-2"]


@pytest.mark.slow
def test_plan_counts_neither_gradients_nor_states_of_frozen_weights(tmp_path):
    encoder().save_pretrained(tmp_path)
    whole, frozen = (
        plan_run(recipe_of(str(tmp_path), training={"freeze": parts}), devices_of("cpu"))
        for parts in ([], ["embeddings", "0-1"])
    )
    model = encoder()
    freeze(model, ["embeddings", "0-1"])
    trained = model.num_parameters(only_trainable=True)
    states = {row.states.stage: row.states for row in frozen.stages}
    assert frozen.trained_parameters == trained < frozen.parameters == whole.parameters == whole.trained_parameters
    assert (states["none"].gradients, states["none"].optimizer) == (4 * trained, 8 * trained)
    assert states["none"].weights == 4 * frozen.parameters


def tuned(tmp_path):
    """A recipe that tunes a saved encoder with frozen parts; the folder of its base."""
    base = tmp_path / "base"
    short = {"model": {"num_hidden_layers": 3}, "training": {"max_steps": 1, "output_dir": str(base)}}
    first = task_recipe(tmp_path, "sequence_classification", name="first", **short)
    sections = yaml.safe_load(first.read_text())
    own = sections | {"model": {"name_or_path": str(base)}}
    del own["tokenizer"]
    own["training"] = sections["training"] | {"max_steps": 4, "save_steps": 2, "learning_rate": 1e-2}
    own["training"] |= {"freeze": ["embeddings", 0], "output_dir": str(tmp_path / "run")}
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(own))
    return first, tmp_path / "tuned.yaml", base


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["alone", "ddp", "fsdp2", pytest.param("zero2", marks=needs_deepspeed)])
def test_frozen_parts_stay_and_the_rest_learns_under_each_engine(engine, tmp_path, command, capsys):
    anyformer.register()
    first, recipe, base = tuned(tmp_path)
    assert command("train", first) == 0
    run = tmp_path / "run"
    if engine == "alone":
        assert command("train", recipe) == 0
        words = capsys.readouterr().out
        assert "of them trained" in words and command("train", recipe, "training.freeze=[9]") == 2
    else:
        env = {"DS_ACCELERATOR": "cpu"} if engine == "zero2" else None
        run_ranks(2, rank_main, command, recipe, *ENGINES[engine], folder=tmp_path, env=env)
    before, after = saved_weights(base), saved_weights(run)
    frozen = {name for name in before if name.startswith(("model.embed", "model.layers.0."))}
    assert {name for name in before if before[name].equal(after[name])} >= frozen
    assert all(
        not before[name].equal(after[name]) for name in before if name.startswith("model.layers.2.") and "proj" in name
    )
