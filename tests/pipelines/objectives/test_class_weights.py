"""Laws of class weights: the loss is torch's, exact over accumulated batches, and the same in an evaluation."""

import json

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.losses import SeveralLabels, WeightedClasses
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from family_variants import a_share
from image_data import image_recipe
from processes import logged_losses
from run_folders import lines_of
from task_data import SUBJECTS, on_rows, reviews, task_recipe, write_lines

WEIGHTS = [0.2, 1.0, 3.5]


@pytest.mark.parametrize("shape", [(7,), (3, 5)], ids=["texts", "tokens"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_weighted_loss_is_torchs(shape, smoothing, in_float64):
    logits, labels = torch.randn(*shape, 3), torch.randint(0, 3, shape)
    labels.view(-1)[2] = -100
    loss, batch = WeightedClasses(WEIGHTS), {"labels": labels}
    theirs = torch.nn.CrossEntropyLoss(torch.tensor(WEIGHTS), label_smoothing=smoothing)
    got = loss.total({"logits": logits}, batch, smoothing) / loss.weight(batch)
    torch.testing.assert_close(got, theirs(logits.flatten(0, -2), labels.flatten()))


def test_shares_of_classes_weigh_as_the_classes_do(in_float64):
    logits, labels, loss = torch.randn(6, 3), torch.randint(0, 3, (6,)), WeightedClasses(WEIGHTS)
    whole = torch.nn.functional.one_hot(labels, 3).double()
    for of_batch in (loss.weight, lambda batch: loss.total({"logits": logits}, batch)):
        torch.testing.assert_close(of_batch({"labels": whole}), of_batch({"labels": labels}))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_of_several_labels_is_torchs_of_the_rows_that_have_some(weights, smoothing, in_float64):
    logits, labels = torch.randn(5, 3), torch.randint(0, 2, (5, 3))
    labels[4] = -100
    loss, batch = SeveralLabels(weights), {"labels": labels}
    theirs = torch.nn.BCEWithLogitsLoss(pos_weight=weights and torch.tensor(weights))
    got = loss.total({"logits": logits}, batch, smoothing) / loss.weight(batch)
    torch.testing.assert_close(got, theirs(logits[:4], labels[:4].double() * (1 - smoothing) + smoothing / 2))


def test_balanced_weights_of_several_labels_are_examples_without_a_class_per_one_with_it(prepare):
    data = prepare(kind="multi_label_classification", task={"class_weights": "balanced"})
    rows, own = data.rows["train"], data.learns().loss()
    labels = torch.stack([rows[i]["labels"] for i in range(len(rows))])
    having = labels.sum(0)
    assert own.positive_weights == pytest.approx(((len(rows) - having) / having).tolist())


def test_a_step_whose_labels_weigh_nothing_changes_nothing_and_a_validation_of_them_has_no_loss(tmp_path, command):
    rows = [{"text": f"a {number}", "label": "other" if number < 16 else "a"} for number in range(17)]
    sections = on_rows(tmp_path, rows, label_names=["other", "a"], class_weights=[0, 1])
    sections["data"]["validation_files"] = str(write_lines(tmp_path / "others.jsonl", rows[:5]))
    recipe = task_recipe(tmp_path, "sequence_classification", training={"max_steps": 3}, **sections)
    assert command("train", recipe) == 0
    losses, facts = logged_losses(tmp_path / "run"), json.loads((tmp_path / "run" / "run.json").read_text())
    assert 0.0 in losses and max(losses) > 0 and facts["metrics"] == {"validation_accuracy": 0.0}
    assert command("evaluate", tmp_path / "run", "--output", tmp_path / "result.json") == 0
    assert json.loads((tmp_path / "result.json").read_text())["metrics"]["loss"] is None


def test_balanced_weights_count_training_examples(tmp_path, prepare):
    rows = [json.loads(line) for line in reviews(tmp_path / "all.jsonl").read_text().splitlines()]
    unequal = write_lines(tmp_path / "unequal.jsonl", [row for i, row in enumerate(rows) if i % 6 in (0, 1, 2, 4)])
    data = prepare(kind="sequence_classification", data={"files": str(unequal)}, task={"class_weights": "balanced"})
    bad, good = data.rows["train"].facts["classes"].values()
    assert data.learns().loss().of_classes == [(bad + good) / (2 * bad), (bad + good) / (2 * good)] and bad > 2 * good


def test_balanced_weights_of_tags_count_the_words_of_training_sentences(tmp_path, command, capsys):
    recipe = task_recipe(tmp_path, "token_classification", task={"class_weights": "balanced"})
    data = prepare_data(load_recipe(str(recipe)))
    rows, own = data.rows["train"], data.learns().loss()
    labels = torch.cat([rows[i]["labels"] for i in range(len(rows))])
    counts = labels[labels >= 0].bincount(minlength=len(data.labels.names))
    assert own.of_classes == pytest.approx((counts.sum() / (len(counts) * counts)).tolist())
    assert own.weight({"labels": labels}).item() == pytest.approx(counts.sum().item())
    assert command("train", recipe, "--dry-run") == 0, capsys.readouterr().err
    assert "gradients finite" in capsys.readouterr().out


def test_images_mixed_or_not_have_weights_too(tmp_path, command, capsys):
    task = {"class_weights": [1, 2, 0.5], "mixup_alpha": 0.4}
    recipe = image_recipe(tmp_path, task=task, training={"max_steps": 2})
    classes = len(prepare_data(load_recipe(str(recipe), ["task.class_weights=null"])).labels.names)
    weights = f"task.class_weights={[1.0 + i for i in range(classes)]}"
    two_heads = ["model.use_distillation_token=true", "model.distillation_head=true"]
    assert command("train", recipe, weights, *two_heads) == 2
    assert "does not go with model.distillation_head=true, whose two classifiers" in capsys.readouterr().err
    assert command("train", recipe, weights) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    "kind, weights, names, says",
    [
        ("sequence", "balanced ones", None, "task.class_weights"),
        ("sequence", [1, -1], None, "must be numbers from 0 on"),
        ("sequence", [0, 0], None, "must be numbers from 0 on"),
        ("sequence", [1, 2, 3], ["a", "b"], "must be 2 numbers, for a, b"),
        ("sequence", "balanced", ["a", "b", "c"], "no training example is of the class 'c'"),
        ("multi_label", [1, 2], None, "must be 3 numbers, for animal, colour, person"),
        ("multi_label", "balanced", [*SUBJECTS, "plant"], "no training example is of the cl.*plant"),
    ],
)
def test_weights_that_do_not_fit_are_one_sentence(kind, weights, names, says, tmp_path):
    task = {"class_weights": weights} | ({"label_names": names} if names else {})
    recipe = task_recipe(tmp_path, f"{kind}_classification", task=task)
    with pytest.raises(UserError, match=says):
        prepare_data(load_recipe(str(recipe))).learns().loss()


def test_a_class_that_every_text_has_cannot_be_balanced(tmp_path, prepare):
    rows = [{"text": f"a {i}", "labels": ["a", "b"] if i % 2 else ["a"]} for i in range(8)]
    data = prepare(kind="multi_label_classification", **on_rows(tmp_path, rows, class_weights="balanced"))
    with pytest.raises(UserError, match="every training example is of the class 'a'; give the weights as a list"):
        data.learns().loss()


@pytest.mark.parametrize("family", a_share(["moe", "encoder"], 2))
def test_a_model_with_experts_keeps_its_routers_losses(tmp_path, command, family):
    """They are part of the model's own loss, which weights of 1 have to give."""
    experts = {"family": family, "num_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 1.0}
    recipe = task_recipe(
        tmp_path,
        "sequence_classification",
        model=experts | {"router_z_loss_coef": 0.1},
        training={"max_steps": 3},
        evaluation={"every_steps": None},
    )
    own, weighted, parts = (tmp_path / name for name in ("own", "weighted", "parts"))
    weights = "task.class_weights=[1, 1]"
    assert command("train", recipe, f"training.output_dir={own}") == 0
    assert command("train", recipe, f"training.output_dir={weighted}", weights) == 0
    in_parts = ["training.per_device_train_batch_size=2", "training.gradient_accumulation_steps=4"]
    assert command("train", recipe, f"training.output_dir={parts}", weights, *in_parts) == 0
    for name in ("loss", "router_aux_loss", "router_z_loss"):
        expected = logged(own, name)
        assert len(expected) == 3 and logged(weighted, name) == pytest.approx(expected, abs=1e-6)
        assert logged(parts, name) == pytest.approx(expected, abs=2e-5)  # fp32: other sums


def logged(run, name):
    return [line[name] for line in lines_of(run) if name in line]
