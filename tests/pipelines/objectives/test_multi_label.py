"""Laws of multi_label_classification: each class by itself, counted over all, answered by name."""

import json
import re

import pytest
import transformers
from anyformer.pipelines.errors import UserError
from task_data import SUBJECTS, on_rows, task_recipe

KIND = "multi_label_classification"


@pytest.mark.filterwarnings("error:Label smoothing")
def test_several_classes_are_learned_and_answered_by_name(tmp_path, command, capsys):
    recipe = task_recipe(
        tmp_path,
        "multi_label_classification",
        model={"pooler_type": "mean"},
        training={
            "max_steps": 60,
            "gradient_accumulation_steps": 2,
            "learning_rate": 0.01,
            "label_smoothing_factor": 0.01,
        },
        evaluation={"every_steps": 30, "best_metric": "f1_macro", "metrics": ["f1_micro", "f1_macro", "accuracy"]},
    )
    assert command("train", recipe) == 0
    run = tmp_path / "run"
    metrics = json.loads((run / "run.json").read_text())["metrics"]
    assert metrics["validation_loss"] < 0.55  # the classes' shares alone: 0.64
    assert metrics["test_f1_micro"] > 0.7 and metrics["test_f1_macro"] > 0.65
    assert metrics["test_accuracy"] <= metrics["test_f1_micro"] and " FILE" in capsys.readouterr().out

    classify = transformers.pipeline("text-classification", str(run))
    (found,) = classify(["the man was with the dog"], top_k=None)
    read = classify.tokenizer("the man was with the dog", return_tensors="pt")["input_ids"]
    scores = classify.model(read).logits.sigmoid()[0].tolist()
    expected = pytest.approx(dict(zip(sorted(SUBJECTS), scores)), abs=1e-6)
    assert {answer["label"]: answer["score"] for answer in found} == expected
    answers = tmp_path / "answers.jsonl"
    assert command("evaluate", run, "task.threshold=0.9999999", "--predictions", answers) == 0
    first = json.loads(answers.read_text().splitlines()[0])
    assert list(first["scores"]) == sorted(SUBJECTS) and not first["prediction"]
    assert json.loads((run / "evaluation-recipe.json").read_text())["metrics"]["f1_micro"] == 0


@pytest.fixture
def labels(prepare, tmp_path):
    """(names, labels of the training rows) of what a column holds."""

    def run(values, **task):
        rows = [{"text": f"a {i}", "labels": value} for i, value in enumerate(values)]
        prepared = prepare(**on_rows(tmp_path, rows, **task))
        return prepared.labels.names, [row["labels"].tolist() for row in prepared.rows["train"]]

    return run


def test_lists_of_0_and_1_are_read_as_such_where_the_recipe_says_so_and_refused_elsewhere(labels):
    names = ["yes", "no", "maybe"]
    hot = {"labels_are": "multi_hot", "label_names": names}
    for one, none in ((1, 0), (1.0, 0.0), (True, False)):
        assert labels([[none, one, none], [one, none, one]], **hot)[1] == [[0, 1, 0], [1, 0, 1]]
    assert labels([[0, 1], [1, 0]], **hot | {"label_names": ["3", "7"]})[1] == [[0, 1], [1, 0]]
    advice = "if lists hold a 0 or 1 for each class, set task.labels_are=multi_hot and task.label_names"
    for values, says in (
        ([[0], [0, 1, 0, 1]], f"line 2 holds [0, 1, 0, 1], which names the class 'LABEL_0' twice; .*{advice}"),
        ([["a"], ["b", "b"]], "line 2 holds ['b', 'b'], which names the class 'b' twice; name each once"),
        ([[0.0, 1.0]], f"line 1 holds 0.0, which is no class; {advice}"),
        ([[True, False]], f"line 1 holds true, which is no class; {advice}"),
    ):
        with pytest.raises(UserError, match=re.escape(says).replace(r"\.\*", ".*")):
            labels(values)
    for values in ([[0, 1]], [[0, 2, 0]], [[0, None, 1]], [["yes", "no", "no"]]):
        with pytest.raises(UserError, match="labels_are=multi_hot takes 3 numbers, a 0 or 1 for each class"):
            labels(values, **hot)
    with pytest.raises(UserError, match=r"labels_are=multi_hot needs task.label_names"):
        labels([[0, 1]], labels_are="multi_hot")


def test_numbers_and_names_are_labels_and_no_label_is_one_too(labels):
    assert labels([["b"], [], ["a", "b"]]) == (["a", "b"], [[0, 1], [0, 0], [1, 1]])
    assert labels([[1], [0, 2]]) == (["LABEL_0", "LABEL_1", "LABEL_2"], [[0, 1, 0], [1, 0, 1]])
    assert labels([["b"], "", "a; b", '["a"]']) == (["a", "b"], [[0, 1], [0, 0], [1, 1], [1, 0]])
    assert labels([[1], ["no"]], label_names=["yes", "no", "maybe"])[1] == [[0, 1, 0], [0, 1, 0]]
    for values, says in (
        ([["a"], 3], "line 2 holds 3, which is no list of classes"),
        ([["a"], None], r"line 2 holds null, which is no list of classes \(\[\] is none\)"),
        ([["a"], [None]], "line 2 holds null, which is no class"),
        ([[], []], "every training example has no class"),
    ):
        with pytest.raises(UserError, match=says):
            labels(values)
