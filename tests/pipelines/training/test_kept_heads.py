"""Laws of training from a classifier: the same classes keep its head and its order, other classes get a new head."""

import json

import pytest
import torch
import transformers
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from family_variants import a_share
from image_data import image_recipe
from task_data import CHARACTERS, reviews, task_recipe
from test_distributed import needs_deepspeed

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
STEP = ("training.learning_rate=1e-9", "training.max_steps=1", "evaluation.every_steps=null")


def checkpoint(folder, data, names, **sizes):
    """A random native classifier of these names, with the tokenizer or image processor of prepared data."""
    kind = "vit" if data.tokenizer is None else "bert"
    sizes |= SIZES | ({} if data.tokenizer is None else {"vocab_size": len(data.tokenizer)})
    config = transformers.AutoConfig.for_model(kind, initializer_range=0.8, **sizes)
    config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    torch.manual_seed(1)
    model = getattr(transformers, data.objective.auto_class).from_config(config)
    model.save_pretrained(folder)
    data.processor.save_pretrained(folder)
    return model


def reviews_recipe(folder, labels=("bad", "good")):
    """A recipe that tells reviews with these two labels apart."""
    recipe = task_recipe(folder, "sequence_classification", tokenizer=CHARACTERS)
    for name in ("", "-test"):
        reviews(folder / f"sequence_classification{name}.jsonl", 40, label=labels.__getitem__)
    return recipe


def facts(file):
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    "kind",
    a_share(
        ["token_classification", "sequence_classification", "multi_label_classification", "image_classification"], 3
    ),
)
def test_the_same_classes_keep_the_checkpoints_head_and_its_order(kind, tmp_path, command, capsys):
    if kind == "image_classification":
        recipe, sizes = image_recipe(tmp_path), {"image_size": 8, "patch_size": 4, "num_channels": 1}
    else:
        is_of_reviews, sizes = kind == "sequence_classification", {}
        recipe = reviews_recipe(tmp_path) if is_of_reviews else task_recipe(tmp_path, kind, tokenizer=CHARACTERS)
    data = prepare_data(load_recipe(str(recipe)))
    names = [data.labels.names[-1], *data.labels.names[:-1]]
    model, start, run = checkpoint(tmp_path / "start", data, names, **sizes), tmp_path / "start", tmp_path / "run"
    assert command("evaluate", start, recipe, "--output", tmp_path / "before.json") == 0
    assert command("train", recipe, f"model.name_or_path={start}", *STEP) == 0
    assert "new " not in capsys.readouterr().out
    assert list(facts(run / "config.json")["id2label"].values()) == names
    trained = getattr(transformers, data.objective.auto_class).from_pretrained(run)
    torch.testing.assert_close(trained.classifier.weight, model.classifier.weight, rtol=0, atol=1e-6)
    before, after = facts(tmp_path / "before.json")["metrics"], facts(run / "run.json")["metrics"]
    for name, value in before.items():
        assert after[f"test_{name}"] == pytest.approx(value, abs=1e-4), name


@pytest.mark.parametrize(
    "names", a_share([["sad", "glad"], ["bad"], ["good", "bad", "fair"], ["LABEL_0", "LABEL_1"]], 3)
)
def test_other_classes_get_a_new_head_and_it_is_said(names, tmp_path, command, capsys):
    recipe = reviews_recipe(tmp_path)
    model = checkpoint(tmp_path / "start", prepare_data(load_recipe(str(recipe))), names)
    assert command("train", recipe, f"model.name_or_path={tmp_path / 'start'}", *STEP) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "new weights" in line or "new head" in line]
    assert said[0].endswith("classifier.bias, classifier.weight") and len(said) == 2
    assert said[1] == f"a new head: {tmp_path / 'start'} tells {', '.join(names)} apart, not bad, good"
    trained = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert list(trained.config.id2label.values()) == ["bad", "good"]
    head = trained.classifier.weight
    assert (head - model.classifier.weight[:2]).abs().min() > 1e-5 and head.std() > 0.4  # drawn as the model draws
    key = "bert.encoder.layer.0.output.dense.weight"
    torch.testing.assert_close(trained.state_dict()[key], model.state_dict()[key], rtol=0, atol=1e-6)


ORDERS = {  # names of a checkpoint's classes, labels in the data, their classes as the checkpoint numbers them
    "numbers": (["neg", "pos"], [0, 1], [0, 1]),
    "digits": (["LABEL_0", "LABEL_1"], ["1", "0"], [1, 0]),
    "turned": (["1", "0"], [0, 1], [1, 0]),
    "spelled": (["02", "01"], ["1", "2"], [1, 0]),
    "booleans": (["True", "False"], [False, True], [1, 0]),
    "gaps": (["7", "3"], [3, 7], [1, 0]),
}


@pytest.mark.parametrize("case", ORDERS)
def test_labels_in_another_spelling_are_the_checkpoints_classes(case, tmp_path):
    names, labels, numbers = ORDERS[case]
    recipe = reviews_recipe(tmp_path, labels)
    checkpoint(tmp_path / "start", prepare_data(load_recipe(str(recipe))), names)
    start = f"model.name_or_path={tmp_path / 'start'}"
    data = prepare_data(load_recipe(str(recipe), [start]), for_training=True)
    assert list(data.learns().config_fields()["id2label"].values()) == names and not data.labels.new_head
    assert [int(row["labels"]) for row in data.rows["test"]] == [numbers[i % 2] for i in range(40)]
    if case == "gaps":
        for words in ("task.label_names=['3', '7']", "task.class_weights=[1, 2]"):
            with pytest.raises(
                UserError, match=r"has the classes 7, 3, in this order; write task.label_names=\['7', '3'"
            ):
                prepare_data(load_recipe(str(recipe), [start, words]), for_training=True)


@pytest.mark.slow
@needs_deepspeed
def test_a_new_head_is_drawn_whole_under_zero_3(tmp_path, ranks):
    recipe = reviews_recipe(tmp_path)
    model = checkpoint(tmp_path / "start", prepare_data(load_recipe(str(recipe))), ["sad", "glad"])
    start = f"model.name_or_path={tmp_path / 'start'}"
    _, _, run = ranks(2, recipe, start, "training.deepspeed=zero3", *STEP)
    trained = transformers.AutoModelForSequenceClassification.from_pretrained(run)
    head = trained.classifier.weight
    assert (head - model.classifier.weight).abs().min() > 1e-5 and head.std() > 0.4
