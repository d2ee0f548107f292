"""Labelled tasks as text from text, and several of them in one run."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import yaml
from anyformer.pipelines.data.ordered_rows import mixed
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.answers import SAMPLES
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.objectives.text_to_text import read_number, source_columns, written_number
from anyformer.pipelines.objectives.writing import WritesTexts
from anyformer.pipelines.plugins import objective_of
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.losses.validation_metrics import ValidationMetrics
from hypothesis import given
from hypothesis import strategies as st
from run_folders import lines_of
from task_data import CHARACTERS, reviews, sentences, task_recipe, write_lines

import anyformer


@given(st.floats(-9, 9), st.sampled_from([0.2, 0.5, 1.0, 0.25, 0.1]))
def test_a_written_number_is_read_back_to_within_half_a_step(value, step):
    assert abs(read_number(written_number(value, step)) - value) <= step / 2 + 1e-6


def test_numbers_are_written_as_t5_does_and_what_is_none_counts_as_minus_one():
    assert [written_number(v, 0.2) for v in (3.71, 0.0, 5, 2.5499)] == ["3.8", "0.0", "5.0", "2.6"]
    assert [read_number(text) for text in ("3.8", "nan", "a lot", "")] == [3.8, -1.0, -1.0, -1.0]
    assert [read_number(text) for text in ("3 . 8", "3. 8", "- 2.0", "3 8")] == [3.8, 3.8, -2.0, -1.0]
    assert source_columns("a {b} c {d.e} {b}") == ["b", "d.e"]


def stars(path, number=40, seed=0):
    """Two texts and how alike they are: {"a", "b", "score"}."""
    rows = [
        {"a": "the dog", "b": "the dog" if i % 2 else "a man", "score": 4.9 if i % 2 else 0.1} for i in range(number)
    ]
    return write_lines(path, rows)


def mixed_recipe(folder, **training):
    """A recipe of three tasks: translation, sentiment and similarity, of 160, 80 and 40 examples."""
    files = {
        "de": sentences(folder / "de.jsonl"),
        "mood": reviews(folder / "mood.jsonl", 80),
        "like": stars(folder / "like.jsonl"),
    }
    data = {name: {"files": str(path), "validation_fraction": 0.2} for name, path in files.items()}
    data["mood"]["test_files"] = str(reviews(folder / "mood-test.jsonl", 10, seed=1))
    mood = {"target_field": "label", "answers": "classes", "label_names": ["bad", "good"]}
    mood["metrics"] = ["accuracy", "f1"]
    parts = [
        {"name": "de", "source": "to German: {en}", "target_field": "de", "weight": 2, "metrics": ["bleu"]},
        {"name": "mood", "source": "mood: {text}", **mood},
        {"name": "like", "source": "like: {a} {b}", "target_field": "score", "answers": "numbers", "weight": 0.5},
    ]
    recipe = yaml.safe_load(task_recipe(folder, "translation").read_text())
    recipe["task"] = {"name": "multi_task", "max_length": 40, "max_new_tokens": 4}
    recipe["task"]["parts"] = [part | {"data": data[part["name"]]} for part in parts]
    recipe["training"] |= training
    del recipe["data"]
    path = folder / "mixed.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def test_an_epoch_holds_every_row_and_the_parts_by_weight(tmp_path):
    data = prepare_data(load_recipe(str(mixed_recipe(tmp_path))))
    train = data.rows["train"]
    sizes = {name: len(rows) for name, rows in train.parts.items()}
    places = Counter(train.place(i) for i in range(len(train)))
    assert len(places) == sum(sizes.values())  # each row of each part
    for name, size in sizes.items():
        times = [count for (part, _), count in places.items() if part == name]
        assert len(times) == size and max(times) - min(times) <= 1
    counts = train.counts
    assert counts["de"] == pytest.approx(2 * counts["mood"], abs=2) and counts["mood"] == pytest.approx(
        2 * counts["like"], abs=2
    )
    validation = data.rows["validation"]
    assert validation.counts == {name: len(rows) for name, rows in validation.parts.items()}
    assert list(data.rows["test"].parts) == ["mood"]
    # What is read and written, in one tokenizer.
    tokenizer, (name, _) = data.tokenizer, train.place(len(train) - 1)
    row = train[len(train) - 1]
    assert name == "like" and tokenizer.decode(row["input_ids"], skip_special_tokens=True).startswith("like: the dog ")
    assert tokenizer.decode(row["labels"], skip_special_tokens=True) in ("5.0", "4.8", "0.0", "0.2")
    lengths = [len(train[i]["input_ids"]) + len(train[i]["labels"]) for i in range(len(train))]
    assert lengths == train.row_lengths.tolist()
    other = mixed(train.parts, {"de": 1, "mood": 1, "like": 1}, 0)
    with pytest.raises(UserError, match=r"task\.parts, like: weight=1e-300 makes an epoch of 8\.1e\+301 rows"):
        prepare_data(load_recipe(str(tmp_path / "mixed.yaml"), ["task.parts.2.weight=1e-300"]))
    assert other.fingerprint != train.fingerprint and other.counts == dict.fromkeys(sizes, max(sizes.values()))


def parts_of(line):
    """The losses of the parts in a line of the log."""
    return [value for name, value in line.items() if name.startswith("loss_")]


@pytest.mark.slow
def test_tasks_learned_together_are_measured_apart_and_a_killed_run_ends_bit_identical(
    tmp_path, command, capsys, whole_and_killed
):
    recipe = mixed_recipe(tmp_path)
    whole, _ = whole_and_killed(13, recipe)
    facts = json.loads((whole / "run.json").read_text())["metrics"]
    assert facts.keys() == {
        *("validation_loss", "validation_loss_de", "validation_bleu_de", "validation_loss_mood", "test_loss"),
        *("validation_accuracy_mood", "validation_f1_mood", "validation_loss_like", "validation_pearson_like"),
        *("validation_spearman_like", "test_loss_mood", "test_accuracy_mood", "test_f1_mood"),
    }
    assert facts["test_loss"] == pytest.approx(facts["test_loss_mood"], rel=1e-5)  # the one part that has a test
    trained = [line for line in lines_of(whole) if "loss" in line]
    assert all(line.keys() & {"loss_de", "loss_mood", "loss_like"} for line in trained) and len(trained) == 20
    assert all(min(parts_of(line)) - 1e-4 <= line["loss"] <= max(parts_of(line)) + 1e-4 for line in trained)
    capsys.readouterr()
    assert command("evaluate", whole, "--output", tmp_path / "result.json") == 0
    found = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert found["accuracy_mood"] == facts["test_accuracy_mood"]
    assert command("preview", recipe, "--rows", "2") == 0
    assert "de:" in capsys.readouterr().out
    (answer,) = anyformer.predict(whole, [{"text": "the whole text, with what stands before it"}])
    assert isinstance(answer["prediction"], str)


def test_answers_of_one_part_may_choose_the_best_model(tmp_path, command):
    recipe = mixed_recipe(tmp_path, max_steps=4)
    chosen = ["evaluation.best_metric=accuracy_mood", "evaluation.every_steps=2", "task.num_beams=2"]
    own = yaml.safe_load(recipe.read_text())["task"]["parts"]
    own[1]["num_beams"] = 1  # the finished model searches as the whole task says, not as its last part
    parts = f"task.parts={json.dumps(own)}"
    assert command("train", recipe, *chosen, parts) == 0
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    measured = [entry["accuracy_mood"] for entry in facts["validations"]]
    assert len(measured) == 2 and measured.index(max(measured)) == facts["best_step"] // 2 - 1
    assert json.loads((tmp_path / "run" / "generation_config.json").read_text())["num_beams"] == 2
    with pytest.raises(UserError, match=r"best_metric='accuracy_mod' .*did you mean accuracy_mood"):
        load_recipe(str(recipe), ["evaluation.best_metric=accuracy_mod"])


def test_a_best_metric_that_no_validated_row_is_measured_by_is_refused_before_training(tmp_path):
    settings = ["evaluation.best_metric=pearson_like", "evaluation.every_steps=2"]
    recipe = load_recipe(str(mixed_recipe(tmp_path)), settings)  # the part has no metrics of its own
    data = prepare_data(recipe)
    ValidationMetrics(data, data.scores(), data.rows["validation"], recipe.evaluation)
    first = replace(recipe.evaluation, max_rows=1)  # that row is of another part
    with pytest.raises(UserError, match=r"best_metric=pearson_like has no row .*none of the 1 rows .*max_rows"):
        ValidationMetrics(data, data.scores(), data.rows["validation"], first)


def test_a_sweep_is_ordered_by_what_the_parts_measure(tmp_path, command, capsys):
    assert command("sweep", mixed_recipe(tmp_path), "training.seed=[1,2]", "--metric", "accuracy") == 2
    measured = "loss, bleu_de, accuracy_mood, f1_mood, pearson_like, spearman_like"
    assert f"the recipe measures {measured}; name one" in capsys.readouterr().err
    none = load_recipe(str(mixed_recipe(tmp_path)), ["task.parts.2.metrics=[]", "task.parts.1.metrics=null"])
    assert objective_of(none).metrics_of_answers() == ["bleu_de", "accuracy_mood"]


def test_answers_of_a_part_are_no_longer_than_the_models_positions():
    with pytest.raises(UserError, match=r"task.parts.0.max_new_tokens=300 is longer .*max_position_embeddings=256"):
        load_recipe("multitask_text_to_text", ["task.parts.0.max_new_tokens=300"])


def test_each_part_has_intervals_answers_and_a_test_between_two_models(tmp_path, command, capsys):
    recipe, run, other = mixed_recipe(tmp_path, max_steps=1, save_steps=1), tmp_path / "run", tmp_path / "other"
    assert command("train", recipe, f"training.output_dir={run}") == 0
    shutil.copytree(run, other)
    answers, output = tmp_path / "answers.jsonl", tmp_path / "result.json"
    options = ["--split", "validation", "--output", output, "--predictions", answers, "evaluation.bootstrap=20"]
    assert command("evaluate", run, *options) == 0
    result, rows = json.loads(output.read_text()), [json.loads(line) for line in answers.read_text().splitlines()]
    metrics = ["bleu_de", "accuracy_mood", "f1_mood", "pearson_like", "spearman_like"]
    assert [name for name in result["metrics"] if "loss" not in name] == metrics
    assert {"bleu_de", "accuracy_mood", "f1_mood"} <= result["intervals"].keys() <= set(metrics)
    assert result["intervals"]["accuracy_mood"]["method"] == "wilson"
    assert [row["row"] for row in rows] == list(range(result["examples"]))
    assert list(dict.fromkeys(row["part"] for row in rows)) == ["de", "mood", "like"]
    mood = [row for row in rows if row["part"] == "mood"]
    assert {row["reference"] for row in mood} == {"bad", "good"}
    right = sum(row["prediction"] == row["reference"] for row in mood)
    assert right / len(mood) == result["metrics"]["accuracy_mood"]
    assert command("evaluate", run, "--max-examples", "20", *options) == 0
    some = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(some) == 20 and all(row in rows for row in some)

    capsys.readouterr()
    assert command("evaluate", run, other, recipe, *options) == 0
    found = json.loads(output.read_text())["differences"]
    assert list(found) == metrics and found["accuracy_mood"]["test"] == "McNemar, exact"
    assert found["bleu_de"]["difference"] == 0 and found["bleu_de"]["p"] == 1
    pairs = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [{name: row[name] for name in ("row", "part", "reference")} for row in pairs] == [
        {name: row[name] for name in ("row", "part", "reference")} for row in rows
    ]
    assert "accuracy mood: A alone is right in 0" in capsys.readouterr().out


def prepared_classes(folder, names, **tokenizer):
    """The data of a task whose answers are two classes of these names."""
    files = reviews(folder / "mood.jsonl", 40, label=lambda positive: names[positive])
    data = {"files": str(files), "test_files": None, "validation_fraction": 0.2}
    task = {"target_field": "label", "answers": "classes", "label_names": names}
    recipe = task_recipe(folder, "text_to_text", tokenizer=tokenizer, data=data, task=task)
    return prepare_data(load_recipe(str(recipe)))


def test_an_answer_that_is_no_class_is_a_wrong_one(tmp_path):
    scores = prepared_classes(tmp_path, ["bad", "good"], **CHARACTERS).scores()
    meant = scores.meant(["good", " bad", "goo", ""], ["good", "bad", "good", "bad"])
    assert scores._compare(*meant, names=["accuracy", "f1"]).values == {"accuracy": 0.5, "f1": 0.5}


LOWER = {"type": "wordpiece", "vocab_size": 90, "lowercase": True}


@pytest.mark.parametrize("tokenizer", [LOWER, CHARACTERS, {"type": "byte_bpe", "vocab_size": 300}])
def test_classes_are_read_as_the_tokenizer_writes_them(tokenizer, tmp_path):
    prepared = prepared_classes(tmp_path, ["not_bad", "Sci/Tech"], **tokenizer)
    rows = prepared.rows["validation"]
    written = prepared.tokenizer.batch_decode([row["labels"] for row in rows], skip_special_tokens=True)
    scores = prepared.scores()
    assert scores._compare(*scores.meant(written, rows.texts("target"))).values == {"accuracy": 1.0}


def test_classes_that_a_tokenizer_writes_alike_are_refused(tmp_path):
    with pytest.raises(UserError, match="the tokenizer writes 'Good' as 'good', as it writes 'good'; give other names"):
        prepared_classes(tmp_path, ["good", "Good"], **LOWER)


def test_answers_in_a_table_of_texts_are_numbers_and_classes_as_those_of_other_tasks_are(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("text,score,mood\ngood,3.71,1\nbad,0.4,0\n")

    def answers(**task):
        data = {"files": str(table), "test_files": None, "validation_fraction": 0.0}
        recipe = task_recipe(tmp_path, "text_to_text", tokenizer=CHARACTERS, data=data, task=task)
        data = prepare_data(load_recipe(str(recipe)))
        rows = data.rows["train"]
        return [data.tokenizer.decode(rows[i]["labels"], skip_special_tokens=True) for i in range(len(rows))]

    mood = {"target_field": "mood"}
    assert answers(target_field="score", answers="numbers") == ["3.8", "0.4"]
    assert answers(**mood) == ["1", "0"] and answers(**mood, label_names=["bad", "good"]) == ["good", "bad"]
    with pytest.raises(UserError, match=r"task.target_field='text': .*line 2 holds 'good', which is no finite number"):
        answers(target_field="text", answers="numbers")
    with pytest.raises(UserError, match="line 2 is of the unknown class 'good'"):
        answers(target_field="text", label_names=["fine", "poor"])


def test_one_of_several_columns_that_are_read_may_be_empty():
    recipe = load_recipe("text_to_text", ["task.source='{ask} {more}'", "data.files=x", "data.validation_files=null"])
    task = objective_of(recipe)
    reads = task.Reads(task)
    assert task.read(reads, {"ask": "name a colour", "more": ""}, "here") == "name a colour "
    with pytest.raises(UserError, match="here holds an empty text in 'ask' and 'more'"):
        task.read(reads, {"ask": " ", "more": ""}, "here")


PART = "task.parts=[{name: a, source: 'x {x}', target_field: y, data: {files: f}}, %s]"
REFUSED = {
    "task.source=no column": "names no column",
    "task.source=a {b": "has braces that do not match",
    "task.answers=numbers": r"label_names=\['negative', .* has no effect with task.answers=numbers; it belongs to task",
    "task.step=0.5": "task.step=0.5 has no effect with task.answers=classes; it belongs to task.answers=numbers",
    PART
    % "{name: b, source: 'x {x}', target_field: y, step: 1, data: {files: f}}": r"parts, b: task.step=1.0 has no eff",
    PART % "{name: b, source: 'x {x}', target_field: y}": r"task\.parts, b: data names no data",
    PART % "{name: b, source: 'x {x}', data: {files: f}}": r"task\.parts, b: task\.target_field is not set",
    PART % "{name: b, source: '{x}', target_field: y, metrics: [accuracy], data: {files: f}}": "compares classes",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_be_learned_as_text_is_refused_before_any_file_is_opened(override):
    name = "multitask_text_to_text" if override.startswith("task.parts") else "text_to_text"
    with pytest.raises(UserError, match=REFUSED[override]):
        load_recipe(name, [override])


def test_a_length_penalty_needs_beams_of_the_task_or_of_some_part():
    with pytest.raises(UserError, match=r"length_penalty=0.6 has no effect with task.num_beams=1"):
        load_recipe("multi30k_en_de", ["task.length_penalty=0.6", "task.num_beams=1"])
    load_recipe("multi30k_en_de", ["task.length_penalty=0.6"])
    recipe = load_recipe("multitask_text_to_text", ["task.length_penalty=0.6"])  # parts of one beam and of five
    parts = objective_of(recipe).parts
    assert parts["en_de"].settings.length_penalty == 0.6 and parts["trec"].settings.length_penalty == 1.0
    greedy = [f"task.parts.{number}.num_beams=1" for number in range(2)]
    with pytest.raises(UserError, match=r"length_penalty=0.6 has no effect with task.num_beams=1"):
        load_recipe("multitask_text_to_text", ["task.length_penalty=0.6", *greedy])


@pytest.mark.parametrize(("task", "metrics"), [("translation", []), ("text_to_text", None)])
def test_without_a_metric_the_end_of_a_run_writes_its_samples_alone(task, metrics, tmp_path, command, monkeypatch):
    read, write = [], WritesTexts.written
    monkeypatch.setattr(WritesTexts, "written", lambda self, *given: read.extend(given[1]) or write(self, *given))
    settings = {"training": {"max_steps": 2}, "evaluation": {"metrics": metrics}, "data": {"test_files": None}}
    assert command("train", task_recipe(tmp_path, task, **settings)) == 0
    samples_alone = metrics == []  # text_to_text has metrics by its kind of answers where none are named
    assert len(read) == SAMPLES if samples_alone else len(read) > SAMPLES
