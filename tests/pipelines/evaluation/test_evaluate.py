"""Laws of `anyformer evaluate`: training's own numbers from a saved model, ours or native; one sentence otherwise."""

import json
import shutil
from pathlib import Path

import evaluate as library
import pytest
import scipy.stats
import torch
import yaml
from anyformer.pipelines.cli.evaluate_command import _against
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.evaluation.request import choose_split, evaluation_recipe, own_recipe
from anyformer.pipelines.metrics import load_metric
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.recipe_files import shipped
from anyformer.pipelines.recipes.suite_file import read_suite
from anyformer.pipelines.training.trainer import AnyformerTrainer
from huggingface_hub import ModelCard
from native_models import native_model
from safetensors.torch import load_file, save_file
from task_data import task_recipe, write_lines
from transformers import AutoTokenizer, pipeline

import anyformer
from anyformer_main import main

EXAMPLES = {"test": 11, "validation": 33}
TEST_FILE = "sequence_classification-test.jsonl"
# fp32 sums in another order, where rows come in batches of another size.
ORDER_OF_SUMS = 1e-5


CLASSES, TEXTS = "sequence_classification", "translation"
RECIPES = {  # kind -> (task whose data are taken, its metrics, what it has beside what task_data.py says)
    "text": (CLASSES, ["perplexity", "unigram_perplexity", "word_perplexity"], {"task": None}),
    "masked": (CLASSES, ["perplexity"], {"task": None, "objective": {"name": "masked"}}),
    "classes": (CLASSES, ["accuracy", "f1"], {"task": {"label_names": ["neg", "pos"], "max_length": 64}}),
    "texts": (TEXTS, ["bleu", "exact_match"], {"task": {"num_beams": 2, "max_new_tokens": 8}}),
}
MODELS = {"text": {"family": "decoder"}, "classes": {"position_encoding": "learned"}}


def recipes(folder: Path) -> list[Path]:
    """A recipe file of each kind: trained in seconds, evaluated in one."""
    paths = []
    for kind, (task, metrics, sections) in RECIPES.items():
        training = {"output_dir": str(folder / "runs" / kind), "max_steps": 6, "learning_rate": 1e-2, "warmup_steps": 0}
        sections = sections | {"training": training, "evaluation": {"metrics": metrics, "every_steps": None}}
        if sections["task"] is None:
            sections["objective"] = {"sequence_length": 32} | sections.get("objective", {})
        paths.append(task_recipe(folder, task, kind, model=MODELS.get(kind, {}), **sections))
    return paths


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A folder with recipes, and a finished run of each in runs/."""
    folder = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYFORMER_CACHE", str(folder / "cache"))
        for path in recipes(folder):
            assert main(["train", str(path)]) == 0
    return folder


@pytest.fixture(autouse=True)
def cache_of_the_stage(stage, monkeypatch):
    monkeypatch.setenv("ANYFORMER_CACHE", str(stage / "cache"))


@pytest.fixture
def evaluate(stage, tmp_path, capsys):
    """Function: run `anyformer evaluate` on a run and a recipe of the stage; return what it wrote."""

    def run(model, task, *arguments):
        model = stage / "runs" / model if (stage / "runs" / model).is_dir() else model
        output = tmp_path / "result.json"
        assert main(["evaluate", str(model), str(stage / f"{task}.yaml"), "--output", str(output), *arguments]) == 0
        printed = capsys.readouterr().out
        result = json.loads(output.read_text())
        assert all(name.replace("_", " ") in printed for name in result["metrics"])
        assert all(signature in printed for signature in result["signatures"].values())
        return result

    return run


@pytest.fixture
def refused(stage, monkeypatch, capsys):
    """Function: the sentence with which `anyformer evaluate` refuses, having written nothing."""
    monkeypatch.chdir(stage)

    def run(*arguments):
        before = sorted((stage / "runs").rglob("*"))
        assert main(["evaluate", *map(str, arguments)]) == 2
        _, err = capsys.readouterr()
        assert err.startswith("anyformer: ") and err.count("\n") == 1 and sorted((stage / "runs").rglob("*")) == before
        return err.removeprefix("anyformer: ").rstrip("\n")

    return run


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("split", ["test", pytest.param("validation", marks=pytest.mark.slow)])
def test_a_finished_run_is_evaluated_to_the_numbers_of_its_end(kind, split, stage, evaluate):
    result = evaluate(kind, kind, "--split", split, "training.per_device_eval_batch_size=3")  # other batches
    trained = json.loads((stage / "runs" / kind / "run.json").read_text())["metrics"]
    trained = {name.removeprefix(f"{split}_"): value for name, value in trained.items() if name.startswith(split)}
    assert result["metrics"] == pytest.approx(trained, rel=ORDER_OF_SUMS)
    assert (result["task"], result["split"]) == (kind, split)
    assert result["examples"] == EXAMPLES[split] or kind in ("text", "masked")


def test_a_run_is_measured_on_its_own_recipe_and_the_part_held_back_for_its_test(stage, tmp_path):
    run, output = tmp_path / "run", tmp_path / "result.json"
    parts = ["data.test_files=null", "data.validation_files=null", "data.test_fraction=0.2"]
    parts += ["training.max_steps=2", f"training.output_dir={run}"]
    assert main(["train", str(stage / "classes.yaml"), *parts]) == 0
    assert main(["evaluate", str(run), "--output", str(output), "training.per_device_eval_batch_size=4"]) == 0
    own, trained = json.loads(output.read_text()), json.loads((run / "run.json").read_text())["metrics"]
    assert own["split"] == "test" and own["examples"] == 32 and own["task"] == "classes"  # 32 of 160
    assert own["metrics"] == pytest.approx({n: trained[f"test_{n}"] for n in own["metrics"]}, rel=ORDER_OF_SUMS)


def test_a_checkpoint_has_the_recipe_of_its_run_and_a_model_without_one_is_refused(stage, tmp_path, refused):
    run, native = stage / "runs" / "classes", tmp_path / "native"
    assert own_recipe(str(next(run.glob("checkpoint-*")))) == str(run / "recipe.yaml")
    native.mkdir()
    (native / "config.json").write_text('{"model_type": "gpt2"}')
    sentence = refused(native, "task.max_length=8")
    assert "has no recipe.yaml beside it" in sentence and sentence.endswith("evaluate MODEL TASK task.max_length=8")


def test_the_result_is_kept_beside_the_model_and_nothing_else_is_touched(stage, capsys):
    folder = stage / "runs" / "classes"

    def contents():
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    before = contents()
    assert main(["evaluate", str(folder), str(stage / "classes.yaml")]) == 0
    assert main(["evaluate", str(folder), str(stage / "classes.yaml"), "--split", "validation"]) == 0
    assert main(["evaluate", str(folder), str(stage / "classes.yaml"), "--max-examples", "4"]) == 0
    after = contents()
    written = {"evaluation-classes.json": "test", "evaluation-classes-validation.json": "validation"}
    written |= {"evaluation-classes-4-examples.json": "test"}
    assert {name: json.loads(after.pop(name))["split"] for name in written} == written
    assert after == before
    assert f"written to {folder / 'evaluation-classes.json'}" in capsys.readouterr().out
    for name in written:
        (folder / name).unlink()


def test_a_result_is_written_before_a_reader_can_leave(stage, monkeypatch, tmp_path, capsys):
    def leave(result):
        raise UserError("the reader left")

    monkeypatch.setattr("anyformer.pipelines.evaluation.evaluate.Evaluation.show", leave)
    files = [tmp_path / "result.json", tmp_path / "answers.jsonl"]
    words = ["--output", str(files[0]), "--predictions", str(files[1])]
    assert main(["evaluate", str(stage / "runs" / "classes"), *words]) == 2
    assert "the reader left" in capsys.readouterr().err and all(file.is_file() for file in files)


def test_comparisons_with_models_of_one_name_have_files_of_their_own():
    names = [_against(Path("runs/x"), Path(model)) for model in ("runs/final", "a/final", "/b/final", "gpt2")]
    assert names == ["against-final", "against-a-final", "against-b-final", "against-gpt2"]


def test_a_part_of_the_examples_is_spread_over_all(evaluate):
    result = evaluate("classes", "classes", "--max-examples", "5", "--split", "validation")
    right = 5 * result["metrics"]["accuracy"]
    assert result["examples"] == 5 and right == pytest.approx(round(right))
    part = evaluate("text", "text", "--max-examples", "2")
    assert part["examples"] == 2 and set(part["metrics"]) == {"loss", "perplexity"}  # the others are of a whole text


def test_settings_of_the_task_are_overridden_as_in_training(evaluate):
    greedy = evaluate("texts", "texts", "task.num_beams=1", "evaluation.metrics=[chrf]")
    assert set(greedy["metrics"]) == {"loss", "chrf"} and greedy["recipe"]["task"]["num_beams"] == 1
    assert greedy["signatures"]["chrf"].startswith("nrefs:1|")


def test_a_native_classifier_is_evaluated_as_a_plain_loop_would(stage, evaluate, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(stage / "runs" / "classes")
    model = native_model("bert", "BertForSequenceClassification", vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "native")
    tokenizer.save_pretrained(tmp_path / "native")
    result = evaluate(tmp_path / "native", "classes")
    rows = [json.loads(line) for line in (stage / TEST_FILE).read_text().splitlines()]
    with torch.no_grad():
        logits = torch.cat([model(**tokenizer(row["text"], return_tensors="pt")).logits for row in rows])
    labels = torch.tensor([row["label"] for row in rows])
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    assert result["metrics"]["loss"] == pytest.approx(loss, rel=1e-4)
    expected = load_metric("accuracy").compute(predictions=logits.argmax(-1), references=labels)
    assert result["metrics"]["accuracy"] == expected["accuracy"]


# ------------------------------------------------------------------------------- intervals, answers, two models


def test_metrics_have_intervals_and_single_answers_are_written_on_request(stage, evaluate, tmp_path):
    answers = tmp_path / "answers.jsonl"
    result = evaluate("classes", "classes", "--predictions", str(answers))
    methods = {name: row["method"] for name, row in result["intervals"].items()}
    assert methods == {"accuracy": "wilson", "f1": "bootstrap of 20"}
    for name, row in result["intervals"].items():
        assert row["low"] <= result["metrics"][name] <= row["high"]
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(11))
    assert list(rows[0]) == ["row", "place", "text", "prediction", "reference", "scores"]
    assert all(row["prediction"] == max(row["scores"], key=row["scores"].get) for row in rows)
    assert rows[3]["place"] == f"{stage / TEST_FILE}, line 4"
    right = sum(row["prediction"] == row["reference"] for row in rows)
    assert right / 11 == result["metrics"]["accuracy"]
    given = [json.loads(line) for line in (stage / TEST_FILE).read_text().splitlines()]
    assert [row["reference"] for row in rows] == [["neg", "pos"][row["label"]] for row in given]  # longest not first
    assert [row["text"] for row in rows] == [row["text"] for row in given]
    evaluate("texts", "texts", "--predictions", str(answers), "--max-examples", "4")
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["row"] for row in rows] == [0, 2, 5, 8] and all(isinstance(row["reference"], str) for row in rows)


def test_rows_left_out_move_no_other_row_of_the_predictions(evaluate, stage, tmp_path):
    answers, given = tmp_path / "answers.jsonl", [json.loads(line) for line in (stage / TEST_FILE).open()]
    bad = {1: {"text": None, "label": 1}, 4: {"text": "a film", "label": None}, 6: {"text": "a film"}}
    file = write_lines(tmp_path / "some.jsonl", [bad.get(number, row) for number, row in enumerate(given)])
    settings = ("data.bad_rows=skip", f"data.test_files={file}")
    result = evaluate("classes", "classes", *settings, "--predictions", str(answers))
    rows, used = list(map(json.loads, answers.open())), [number for number in range(11) if number not in bad]
    assert result["examples"] == len(used) and [row["text"] for row in rows] == [given[n]["text"] for n in used]
    assert [row["place"] for row in rows] == [f"{file}, line {number + 1}" for number in used]


def test_two_models_are_compared_on_one_task(stage, capsys, tmp_path):
    other, answers, output = tmp_path / "other", tmp_path / "answers.jsonl", tmp_path / "result.json"
    shutil.copytree(stage / "runs" / "classes", other)
    weights = load_file(other / "model.safetensors")
    head = next(name for name in weights if tuple(weights[name].shape) == (2, 32))
    weights[head] = -weights[head]  # it answers the opposite, but for the bias
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    words = ["evaluate", str(stage / "runs" / "classes"), str(other), str(stage / "classes.yaml")]
    assert main([*words, "--predictions", str(answers), "--output", str(output)]) == 0
    result, printed = json.loads(output.read_text()), capsys.readouterr().out
    assert "McNemar, exact" in printed and "paired bootstrap of 20" in printed and str(other) in printed
    first, second = (each["metrics"] for each in result["results"])
    row = result["differences"]["accuracy"]
    assert row["difference"] == pytest.approx(second["accuracy"] - first["accuracy"])
    assert row["low"] <= row["difference"] <= row["high"]
    pairs = [json.loads(line) for line in answers.read_text().splitlines()]
    alone = [[p == each["reference"] for p in each["predictions"]] for each in pairs]
    assert (row["first_alone"], row["second_alone"]) == (alone.count([True, False]), alone.count([False, True]))
    expected = scipy.stats.binomtest(row["first_alone"], row["first_alone"] + row["second_alone"]).pvalue
    assert row["p"] == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------------ suites


def write_suite(path: Path, *entries) -> Path:
    path.write_text(yaml.safe_dump({"description": "two of them", "suite": list(entries)}), encoding="utf-8")
    return path


def test_a_suite_is_its_tasks_in_one_table_one_file_and_the_model_card(stage, capsys, tmp_path):
    model = shutil.copytree(stage / "runs" / "classes", tmp_path / "model")
    part = {"recipe": "classes.yaml", "name": "part", "split": "validation", "max_examples": 5}
    suite = write_suite(stage / "both.yaml", "classes.yaml", part | {"evaluation": {"metrics": ["accuracy"]}})
    assert main(["evaluate", str(model), str(suite)]) == 0
    result, printed = json.loads((model / "evaluation-both.json").read_text()), capsys.readouterr().out
    measured = [(name, task["split"], task["examples"]) for name, task in result["tasks"].items()]
    assert measured == [("classes", "test", 11), ("part", "validation", 5)]
    assert "f1" not in result["tasks"]["part"]["metrics"] and "part" in printed
    card = ModelCard.load(model / "README.md")
    rows = card.data.eval_results
    measured = {(row.dataset_name, row.dataset_split, row.metric_type): row.metric_value for row in rows}
    for name, task in result["tasks"].items():
        for metric, value in task["metrics"].items():
            assert measured[name, task["split"], metric] == pytest.approx(value, abs=1e-6)
    assert "Results on other tasks" in card.text

    in_python = anyformer.EvaluationSuite(suite)
    assert isinstance(in_python, library.EvaluationSuite) and "classes" in repr(in_python)
    found = anyformer.EvaluationSuite.load(suite).run(model)
    assert [row["task_name"] for row in found] == ["classes", "part"]
    assert found[0]["accuracy"] == result["tasks"]["classes"]["metrics"]["accuracy"]
    classifier = pipeline("text-classification", model=str(model))
    assert in_python.run(classifier) == found
    with pytest.raises(UserError, match="is neither a folder"):
        in_python.run(classifier.model)

    pattern = stage / "runs" / "{task}"
    suite = write_suite(stage / "own.yaml", "classes.yaml", "texts.yaml")
    assert main(["evaluate", str(pattern), str(suite), "--max-examples", "3"]) == 0
    output = stage / "runs" / "evaluation-own-3-examples.json"
    assert set(json.loads(output.read_text())["tasks"]) == {"classes", "texts"}
    output.unlink()


def test_models_that_number_the_classes_differently_are_refused_before_anything_is_measured(stage, refused, tmp_path):
    other = shutil.copytree(stage / "runs" / "classes", tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config |= {"id2label": {"0": "pos", "1": "neg"}, "label2id": {"pos": 0, "neg": 1}}
    (other / "config.json").write_text(json.dumps(config))
    (other / "manifest.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnyformerTrainer, "evaluate", None)
        sentence = refused("runs/classes", other, "classes.yaml", "task.label_names=null")
    assert f"numbers the classes neg, pos, and MODEL={other} pos, neg; measure each by itself" in sentence


@pytest.mark.parametrize(
    "entries, words",
    [
        ([], "suite=[] must be a list of recipes"),
        (["imdb_clasify"], "did you mean imdb_classify?"),
        ([{"recipe": "classes.yaml", "task": {"max_lenght": 8}}], "did you mean task.max_length?"),
        ([{"name": "x"}], "suite.0: recipe=null must name a recipe"),
        (["classes.yaml", "classes.yaml"], "two tasks are called 'classes'; give one of them a name"),
        (["classes.yaml", "texts.yaml"], "cannot be loaded by AutoModelForSeq2SeqLM"),
        (["classes.yaml", {"recipe": "classes.yaml", "name": "b", "task": {"label_names": ["a", "b"]}}], "apart"),
    ],
    ids=str,
)
def test_a_suite_that_cannot_be_done_is_one_sentence_before_anything_is_measured(entries, words, stage, refused):
    suite = write_suite(stage / "wrong.yaml", *entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnyformerTrainer, "evaluate", None)
        assert words in refused("runs/classes", suite)


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nowhere/at/all", "text.yaml"], "MODEL=nowhere/at/all: no such folder"),
        (["runs", "text.yaml"], "MODEL=runs: no model in this folder"),
        (["runs/text", "txt.yaml"], "recipe 'txt.yaml': no such file"),
        (
            ["runs/text", "text.yaml", "evaluation.metrics=[bleu]"],
            "compares texts and is not for objective.name=causal",
        ),
        (
            ["runs/classes", "classes.yaml", "--split", "test", "data.test_files=null"],
            "data.test_split, or data.test_fr",
        ),
        (["runs/classes", "classes.yaml", "--output", "no/such/folder.json"], "the folder no/such does not exist"),
        (["runs/classes", "classes.yaml", "--output", "runs"], "--output runs is a folder"),
        (["runs/classes", "task.max_length=128"], "max_position_embeddings=64"),  # of its own recipe
        (["runs/classes", "runs/masked"], "to compare two models name the task as well: A B TASK"),
        (["a", "b", "c", "d"], "'d' is one name too many; write anyformer evaluate A B TASK"),
        (["runs/text", "text.yaml", "--predictions", "x.jsonl"], "compares no predictions with references"),
        (["runs/classes", "classes.yaml", "--predictions", "runs"], "--predictions runs is a folder"),
        (["runs/classes", "runs/classes", "text.yaml", "--by-position"], "--by-position is of one model"),
        (["runs/classes", "runs/classes", "sentiment"], "a suite is of one model; compare two on each of its tasks"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence(arguments, words, refused):
    assert words in refused(*arguments)


def test_a_model_without_the_tasks_head_is_refused_instead_of_measured_at_random(refused):
    sentence = refused("runs/masked", "classes.yaml")
    assert sentence.startswith("MODEL=runs/masked was not trained for this: it has no ")
    assert sentence.endswith("train it first, with anyformer train TASK model.name_or_path=runs/masked")


def test_classes_of_another_name_or_order_are_refused(refused, evaluate):
    sentence = refused("runs/classes", "classes.yaml", "task.label_names=[pos, neg]")
    assert "tells neg, pos apart, but the classes of classes are pos, neg" in sentence
    assert 'add task.label_names=\'["neg", "pos"]\'' in sentence
    unnamed = evaluate("classes", "classes", "task.label_names=null")  # the model says them
    assert unnamed["recipe"]["task"]["label_names"] == ["neg", "pos"]


def test_several_processes_are_refused(refused, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main(["evaluate", "runs/text", "text.yaml"]) == 2


def test_the_split_is_the_test_data_where_there_is_some(stage):
    def split(*overrides, wanted=None):
        recipe = evaluation_recipe(str(stage / "runs" / "text"), str(stage / "text.yaml"), list(overrides))
        return choose_split(recipe, wanted)

    assert split() == "test" and split(wanted="validation") == "validation"
    assert split("data.test_files=null") == "validation"
    assert split("data.test_files=null", "data.validation_files=null") == "validation"  # a part held back
    with pytest.raises(anyformer.pipelines.errors.UserError, match="has no test split, it has training data alone"):
        split("data.test_files=null", "data.validation_files=null", "data.validation_fraction=0")


def test_shipped_suites_name_shipped_recipes():
    for name in set(shipped("suites")) - {"blimp"}:  # minimal pairs
        suite = read_suite(name)
        assert suite.description and suite.tasks
        for task in suite.tasks:
            assert task.recipe in shipped("recipes"), f"{name}: {task.recipe}"
            load_recipe(task.recipe, task.settings)
