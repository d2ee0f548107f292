"""Laws of labelled examples: nothing is lost or mixed up on the way from a file to a batch, mistakes are a sentence."""

import json
import pickle
import re
from itertools import product
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from anyformer.pipelines.data.length_batching import LengthGroupedSampler, PaddingCollator
from anyformer.pipelines.data.opening import open_examples
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.labelled_texts import ReadsLabelledTexts
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import DataSection
from family_variants import a_share
from hypothesis import given
from hypothesis import strategies as st
from task_data import CHARACTERS, on_rows, reviews, task_recipe, write_lines

KIND = "sequence_classification"
COLUMNS = {"text_field": "text", "label_field": "label"}


# ---- which examples


@pytest.mark.parametrize(
    "there, most, held", a_share([(9000, 6000, 500), (4999, None, 239), (5000, None, 500), (20_000, None, 1018)], 3)
)
def test_by_default_at_least_500_of_5000_examples_are_held_back(tmp_path, there, most, held):
    path = tmp_path / "many.jsonl"
    path.write_text('{"text": "a", "label": 1}\n' * there)
    found = open_examples(DataSection(files=str(path), max_documents=most), COLUMNS)
    numbers = {split: {place for place, _ in examples} for split, examples in found.items()}
    known = min(there, most or there)
    assert len(numbers["validation"]) == held and len(numbers["train"] | numbers["validation"]) == known
    assert not numbers["train"] & numbers["validation"]
    said = open_examples(DataSection(files=str(path), max_documents=most, validation_fraction=0.05), COLUMNS)
    assert {place for place, _ in said["validation"]} <= numbers["validation"]  # a share that is said is that share
    assert abs(len(list(said["validation"])) - 0.05 * known) < 40


@pytest.mark.parametrize(
    "label, names", [(int, ["LABEL_0", "LABEL_1"]), (bool, ["LABEL_0", "LABEL_1"]), (lambda p: "ab"[p], ["a", "b"])]
)
def test_classes_come_from_the_data_where_the_recipe_names_none(tmp_path, prepare, label, names):
    path = reviews(tmp_path / "named.jsonl", 40, label=label)
    data = prepare("data.test_files=null", data={"files": str(path)})
    fields = data.learns().config_fields()
    assert list(fields["id2label"].values()) == names and fields["label2id"] == {n: i for i, n in enumerate(names)}
    assert {int(row["labels"]) for row in data.rows["train"]} == {0, 1}


def test_numbers_with_gaps_are_as_many_classes_as_there_are_and_keep_their_names(tmp_path, prepare):
    path = reviews(tmp_path / "numbers.jsonl", 40, label=lambda positive: 7 if positive else 3)
    data = {"files": str(path), "test_files": str(path)}
    trained = prepare(data=data, tokenizer=CHARACTERS)
    fields = trained.learns().config_fields()
    assert fields["num_labels"] == 2 and fields["id2label"] == {0: "3", 1: "7"}
    wanted = [json.loads(line)["label"] == 7 for line in path.read_text().splitlines()]
    assert [int(row["labels"]) for row in trained.rows["test"]] == wanted


READ = {  # names of a model's classes, what a file holds, and the class that each means, None: it is refused
    "zeros": (["01", "02", "03"], [1, "2", "03", 3.0, "1.0"], ["01", "02", "03", "03", "01"]),
    "from-1": (["1", "2", "3"], [1, "03", 0, 4], ["1", "3", None, None]),
    "turned": (["1", "0"], [0, 1, "1.0", True, False], ["0", "1", "1", "1", "0"]),
    "below-0": (["-1", "0", "1"], [-1, 0, "+1"], ["-1", "0", "1"]),
    "halves": (["0.5", "1.0", "1.5"], [0.5, 1, "1.50", 2], ["0.5", "1.0", "1.5", None]),
    "partly": (["1", "2", "3 or more"], [1, "2", 0, "3 or more"], ["1", "2", None, "3 or more"]),
    "booleans": (["true", "false"], [True, "False", "TRUE", False], ["true", "false", None, "false"]),
    "unnamed": (
        ["LABEL_0", "LABEL_1"],
        [0, "01", 1.0, "LABEL_1", 2, "b", 0.5],
        [*["LABEL_0"], *["LABEL_1"] * 3, None, None, None],
    ),
    "named": (["no", "yes"], [0, "1", True, "true", -1, "-1", 10**400], ["no", "yes", "yes", *[None] * 4]),
}


@pytest.mark.parametrize("case", READ)
@pytest.mark.parametrize("by_hand", [False, True], ids=["of a model", "by hand"])
def test_a_number_means_the_class_of_equal_value_and_counts_only_classes_of_other_names(
    case, by_hand, tmp_path, prepare
):
    names, values, meant = READ[case]
    rows = [{"text": "text", "label": value} for value in values]
    sections = on_rows(tmp_path, rows, **({"label_names": names} if by_hand else {}))
    sections["data"] |= {"bad_rows": "skip"}
    recipe = load_recipe(str(task_recipe(tmp_path, KIND, **sections)))
    config = SimpleNamespace(num_labels=len(names), id2label=dict(enumerate(names)))
    read = prepare_data(recipe, splits=["train"], model_config=None if by_hand else config).rows["train"]
    assert [names[int(row["labels"])] for row in read] == [name for name in meant if name is not None]
    assert ("left out" in "".join(read.notes)) == (None in meant)


ORDERS = [
    ["red", "blue", "green"],
    ["green", "red", "blue"],
    ["blue", "green", "red", "grey"],
    ["blue", "red", "green"],
]
CELLS = {  # task -> (settings, function from a text and a class, or their types, to the columns of a row)
    "sequence_classification": ({}, lambda text, one: {"text": text, "label": one}),
    "multi_label_classification": ({}, lambda text, one: {"text": text, "labels": [one]}),
    "token_classification": (
        {"tokens_field": "of.words", "tags_field": "of.tags"},
        lambda text, one: {"of": {"words": [text], "tags": [one]}},
    ),
}


@pytest.mark.parametrize("kind, by", a_share(product(CELLS, ["files", "dataset"]), 3))
def test_each_file_that_names_its_classes_is_read_by_its_own_names(kind, by, tmp_path, prepare):
    task, row_of = CELLS[kind]
    files = [tmp_path / f"data/{name}.parquet" for name in ("train-0-of-2", "train-1-of-2", "validation", "test")]
    files[0].parent.mkdir()
    for path, names in zip(files, ORDERS):
        features = datasets.Features(row_of(datasets.Value("string"), datasets.ClassLabel(names=names)))
        rows = [row_of(name, names.index(name)) for name in ORDERS[0] * 2]
        datasets.Dataset.from_list(rows, features=features).to_parquet(path)
    sections = on_rows(tmp_path, [], **task)
    train, validation, test = list(map(str, files[:2])), str(files[2]), str(files[3])
    sections["data"] = {"files": train, "validation_files": validation, "test_files": test}
    if by == "dataset":
        whole = {"files": None, "test_files": None, "dataset": str(files[0].parent), "split": "train[2:11]"}
        sections["data"] = whole | {"validation_split": "validation", "test_split": "test"}

    def check(data, splits):
        names = data.labels.names
        for split in splits:
            read = [(row["input_ids"], row["labels"].flatten()) for row in data.rows[split]]
            for ids, labels in read:
                text = "".join(data.tokenizer.decode(ids, skip_special_tokens=True).split())
                several = kind == "multi_label_classification"
                number = int(labels.argmax()) if several else int(labels[labels >= 0][0])
                assert names[number] == text, (split, names)

    check(data := prepare(kind=kind, **sections), data.rows)
    assert data.labels.names == [*ORDERS[0], "grey"]
    for names in (ORDERS[1], ORDERS[3]):  # of a model that is measured on the last file
        recipe = load_recipe(str(task_recipe(tmp_path, kind, **sections)))
        config = SimpleNamespace(num_labels=3, id2label=dict(enumerate(names)))
        check(prepare_data(recipe, splits=["test"], model_config=config), ["test"])


def test_strata_and_letters_of_choices_are_the_names_that_each_file_gives(tmp_path, prepare):
    def write(path, names, column):
        rows = [{"context": "a", "choices": ["b", "c"], column: names.index(name)} for name in "AB" * 8]
        features = {"context": datasets.Value("string"), "choices": datasets.List(datasets.Value("string"))}
        features = datasets.Features(features | {column: datasets.ClassLabel(names=names)})
        datasets.Dataset.from_list(rows, features=features).to_parquet(path)
        return str(path)

    files = [write(tmp_path / f"{names}.parquet", list(names), "label") for names in ("AB", "BA")]
    data = {"files": files, "test_files": None, "test_fraction": 0.25, "validation_fraction": 0.25}
    split = prepare(data=data, tokenizer=CHARACTERS, task={"text_field": "context"})
    for rows in split.rows.values():
        assert rows.facts["classes"]["A"] == rows.facts["classes"]["B"]
    task = {"context_field": "context", "question_field": None, "choices_field": "choices"}
    data = {"files": files, "test_files": None, "validation_fraction": 0}
    read = prepare(kind="multiple_choice", data=data, task=task, tokenizer=CHARACTERS)
    assert [int(row["labels"]) for row in read.rows["train"]] == [0, 1] * 16


@pytest.mark.parametrize("label", [str, int], ids=["strings", "numbers"])
def test_a_class_that_is_in_the_held_back_share_alone_is_a_class(tmp_path, prepare, label):
    rows = [{"text": f"text {i}", "label": label(i % 3)} for i in range(60)]
    path = write_lines(tmp_path / "rare.jsonl", rows)
    data = load_recipe(str(task_recipe(tmp_path, "sequence_classification", data={"files": str(path)}))).data
    held_back = next(row["text"] for _, row in open_examples(data, COLUMNS)["validation"])
    for row in rows:
        row["label"] = label(9) if row["text"] == held_back else row["label"]
    test = write_lines(tmp_path / "test.jsonl", [{"text": "a", "label": label(12)}])
    data = {"files": str(write_lines(path, rows)), "test_files": str(test)}
    prepared = prepare(data=data, tokenizer=CHARACTERS)
    assert prepared.labels.names == sorted(["0", "1", "2", "9", "12"], key=label)
    assert [prepared.labels.names[int(row["labels"])] for row in prepared.rows["test"]] == ["12"]


# ---- mistakes

GOOD_ROWS = [{"text": f"text {i}", "label": i % 2} for i in range(8)]
MISTAKES = {
    "no-such-column": ([{"text": "a", "lable": 1}], {}, "task.label_field='label': no such column in .*did you mean l"),
    "empty-text": ([*GOOD_ROWS, {"text": " \n", "label": 1}], {}, "task.text_field='text': .*line 9 holds an empty"),
    "half-a-character": ([*GOOD_ROWS, {"text": "fine \ud83d", "label": 1}], {}, r"data.files: .*line 9: not UTF-8"),
    "empty-label": ([{"text": "a", "label": "no"}, {"text": "b", "label": " "}], {}, "task.label_field='label'"),
    "no-label": ([*GOOD_ROWS, {"text": "a", "label": None}], {}, r"line 9 holds null, which is no class"),
    "label-forgotten": ([*GOOD_ROWS, {"text": "a"}], {}, r"task.label_field='label': no such column in .*line 9"),
    "no-text": ([{"text": None, "label": 1}], {}, r"task.text_field='text': .*line 1 holds null, not text"),
    "out-of-range": (
        [*GOOD_ROWS, {"text": "a", "label": 2}],
        {"label_names": ["no", "yes"]},
        r"line 9 holds 2, but the classes are numbered 0 to 1 \(no, yes\)",
    ),
    "unknown-name": (
        [{"text": "a", "label": "yes"}, {"text": "b", "label": "noo"}],
        {"label_names": ["no", "yes"]},
        r"line 2 is of the unknown class 'noo'; did you mean no",
    ),
    "mixed": ([{"text": "a", "label": "yes"}, {"text": "b", "label": 1}], {}, r"line 2 holds 1, but others before"),
    "one-class": ([{"text": "a", "label": 1}], {}, r"every training example has the class 1; it takes two"),
    "negative": ([{"text": "a", "label": -1}], {}, r"line 1 holds -1; classes are numbered from 0"),
    "empty": ([], {}, r"data: rows.jsonl holds no example for train"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_data_is_one_sentence_before_training(name, refused):
    refused(*MISTAKES[name])


REFUSED = {  # task -> {settings: what is said of them}
    "sequence_classification": {
        "objective={name: causal}": "objective and task are both set",
        "task.source_field=en": "task.source_field has no effect with task.name=sequence_classification",
        "task.label_names=[one]": "must be two or more different names",
        "data.text_field=body": "data.text_field has no effect with a task",
        "evaluation.best_metric=f1": "evaluation.best_metric='f1' is not measured during training",
        "evaluation.average_checkpoints=9": "needs so many checkpoints",
        "evaluation={best_metric: loss}": "needs evaluation.every_steps",
        "task.name=translation": "model.family=encoder does not go with task.name=translation; it takes seq2seq",
        "tokenizer.lowercase=true": "tokenizer.lowercase=true has no effect with tokenizer.type=byte_bpe",
        "training.metric_for_best_model=f1": "use evaluation.best_metric",
        "task.name=sequence_regression training.label_smoothing_factor=0.1": "has no effect on numbers; remove it",
    },
    "translation": {"task.source_field=null": "task.source_field is not set"},
    "multiple_choice": {
        "task.choices_field=[ending0]": "must name two or more different columns",
        "task.context_field=null task.question_field=null": "task.context_field and task.question_field are both null",
    },
    "question_answering": {"task.stride=28": "task.stride=28 leaves no new token in a window: ... at most 27 works"},
    "sentence_similarity": {
        "task.text_pair_field=null": "task.text_pair_field is not set",
        "task.label_range=[1, 1]": "task.label_range=[1, 1] must be two different numbers",
        "task.label_field=null": "task.label_field=null does not go with task.loss=cosine",
        "task.loss=in_batch_negatives": "task.label_field='label' does not go with task.loss=in_batch_negatives",
        "training.label_smoothing_factor=0.1": "training.label_smoothing_factor has no effect on numbers; remove it",
        "task.scale=10": "task.scale=10.0 has no effect with task.loss=cosine; it belongs to task.loss=in_batch_",
        "task.label_field=null task.loss=in_batch_negatives evaluation.metrics=[spearman]": (
            "evaluation.metrics=['spearman'] has no effect with task.label_field=null, as metrics compare with labels"
        ),
    },
}


@pytest.mark.parametrize("kind, override", [(kind, override) for kind in REFUSED for override in REFUSED[kind]])
def test_settings_that_contradict_each_other_are_refused(kind, override, tmp_path):
    recipe = task_recipe(tmp_path, kind)
    with pytest.raises(UserError) as error:
        load_recipe(str(recipe), re.split(r" (?=\w+\.)", override))
    assert all(part in str(error.value) for part in REFUSED[kind][override].split(" ... "))
    assert "\n" not in str(error.value)


def test_a_task_recipe_is_written_and_read_back_equal_and_a_checkpoint_replaces_its_architecture(tmp_path):
    recipe = load_recipe(str(task_recipe(tmp_path, "translation")))
    assert recipe.objective is None and recipe.evaluation.metrics == ["bleu"]
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert load_recipe(str(tmp_path / "again.yaml")) == recipe
    other = load_recipe(str(tmp_path / "again.yaml"), ["model.name_or_path=some/model", "model.hidden_dropout=0.3"])
    assert other.model.fields == {"hidden_dropout": 0.3} and other.tokenizer.name_or_path == "some/model"


# ---- encoding


def test_examples_are_encoded_once(prepare, monkeypatch):
    first = prepare()
    monkeypatch.setattr(ReadsLabelledTexts, "_batches", lambda *_, **how: pytest.fail("encoded again"))
    again = prepare()
    read, read_again = ([row["input_ids"].tolist() for row in data.rows["test"]] for data in (first, again))
    assert read == read_again
    assert first.facts == again.facts and first.facts["train"]["examples"] == len(first.rows["train"])
    with pytest.raises(pytest.fail.Exception):
        prepare("task.max_length=20")


def test_texts_are_framed_cut_and_their_pairs_marked(tmp_path, prepare):
    rows = [{"text": "one two three", "other": "the film " * 40, "label": i % 2} for i in range(20)]
    data = prepare(**on_rows(tmp_path, rows, text_pair_field="other"))
    row, tokenizer = data.rows["train"][0], data.tokenizer
    assert len(row["input_ids"]) == 24 and row["input_ids"][0] == tokenizer.cls_token_id
    assert row["input_ids"][-1] == tokenizer.sep_token_id
    assert row["token_type_ids"].tolist() == sorted(row["token_type_ids"].tolist()) and row["token_type_ids"][-1] == 1
    assert tokenizer.backend_tokenizer.truncation is None and tokenizer.model_max_length == 24


@pytest.mark.parametrize(
    "kind, fields",
    [
        ("sequence_classification", {}),
        ("translation", {"source_field": "text", "target_field": "other"}),
        ("token_classification", {"tokens_field": "words", "tags_field": "tags"}),
        ("sentence_similarity", {"text_field": "text", "text_pair_field": "other", "label_range": [0, 1]}),
    ],
)
def test_control_tokens_in_examples_are_text_and_told(tmp_path, prepare, kind, fields):
    def texts(end):
        return {"text": f"a{end} b", "other": f"b {end} c", "words": ["a", end, "b"], "tags": ["O", "B-X", "O"]}

    control = "<|endoftext|>" if kind == "translation" else "<|sep|>"
    rows = [{**texts(control if i == 3 else "x" * len(control)), "label": i % 2} for i in range(20)]
    data = prepare(kind=kind, **on_rows(tmp_path, rows, **fields))
    number = data.tokenizer.convert_tokens_to_ids(control)
    counts = [row["input_ids"].tolist().count(number) for row in data.rows["train"]]
    assert len(counts) == 20 and len(set(counts)) == 1  # those around the texts
    told = 1 if kind in ("sequence_classification", "token_classification") else 2
    (met,) = [entry for entry in data.facts["train"]["account"] if entry.get("what") == "control token"]
    assert (met["name"], met["number"]) == (control, told)
    assert f"ordinary text: {control} ({told} times)" in data.rows["train"].notes[-1]


def test_every_target_ends_also_one_that_is_cut(prepare):
    data = prepare("task.max_target_length=5", kind="translation")
    ends = [row["labels"][-1].item() for row in data.rows["train"]]
    assert set(ends) == {data.tokenizer.eos_token_id}
    assert max(len(row["labels"]) for row in data.rows["train"]) == 5
    assert data.rows["test"].texts("target")[0].split()  # the reference is the whole text, not what is left of it


def test_rows_travel_to_worker_processes(prepare):
    rows = prepare(kind="translation").rows["train"]
    copy = pickle.loads(pickle.dumps(rows))
    assert len(pickle.dumps(rows)) < 2000 and torch.equal(copy[3]["labels"], rows[3]["labels"])
    assert torch.equal(rows[-1]["labels"], rows[len(rows) - 1]["labels"])
    with pytest.raises(IndexError):
        rows[len(rows)]


# ---- batches


@given(st.lists(st.integers(1, 200), min_size=1, max_size=300), st.integers(1, 16), st.integers(0, 5))
def test_a_pass_holds_each_row_once_and_is_a_function_of_seed_and_epoch(lengths, batch_size, epoch):
    def order(seed, epoch):
        sampler = LengthGroupedSampler(np.array(lengths), batch_size, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert sorted(order(1, epoch)) == list(range(len(lengths)))
    assert order(1, epoch) == order(1, epoch)
    if len(lengths) > 60 and batch_size > 1:
        assert order(1, epoch) != order(1, epoch + 1) and order(1, epoch) != order(2, epoch)


def test_grouping_by_length_saves_padding():
    lengths = np.random.default_rng(0).integers(5, 100, 2000)
    order = np.array(list(LengthGroupedSampler(lengths, 16, seed=0))).reshape(-1, 16)
    wasted = 1 - lengths.sum() / (lengths[order].max(axis=1) * 16).sum()
    random = np.random.default_rng(1).permutation(2000).reshape(-1, 16)
    assert wasted < 0.05 < 0.3 < 1 - lengths.sum() / (lengths[random].max(axis=1) * 16).sum()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5), st.booleans())
def test_a_batch_holds_its_rows_and_a_mask_only_where_something_is_padded(sizes, left):
    rows = [{"input_ids": torch.arange(1, a + 1), "labels": torch.arange(1, b + 1), "row_ids": 7} for a, b in sizes]
    batch = PaddingCollator(0, left)(rows)
    assert ("attention_mask" in batch) == (len({a for a, _ in sizes}) > 1)
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    for i, (a, b) in enumerate(sizes):
        assert torch.equal(batch["input_ids"][i][mask[i]], rows[i]["input_ids"]) and mask[i].sum() == a
        assert torch.equal(batch["labels"][i, :b], rows[i]["labels"]) and (batch["labels"][i, b:] == -100).all()
    assert batch["row_ids"] == [7] * len(rows)


# ---- single classes


def test_mistakes_of_several_classes_say_the_class_that_was_missed_or_made_up(prepare):
    data = prepare(kind="multi_label_classification")
    scores, rows = data.scores(), data.rows["test"]
    true = torch.stack([rows[number]["labels"] for number in range(len(rows))])
    scored = scores.scored(scores.predictions(torch.tensor([[4.0, -5.0, -3.0]] * len(rows)), true).numpy())
    report = scores.class_report(scored, rows, range(len(rows)), data.sources["test"])
    assert "matrix" not in report and [one["name"] for one in report["classes"]] == ["animal", "colour", "person"]
    examples, sure = dict(data.sources["test"]), [one["confidence"] for one in report["mistakes"]]
    assert sure == sorted(sure, reverse=True) and len(sure) == 10
    for one in report["mistakes"]:
        labels, made_up = examples[one["place"]]["labels"], one["true"].startswith("not ")
        assert one["given"] == ("animal" if made_up else f"not {one['true']}")
        assert ("animal" not in labels) if made_up else (one["true"] in labels)
