"""The law of the account: change one value of a row, and the batch or the account changes, or a sentence refuses it.

One table of tasks, one of changes: every objective, every format, and the doors of training, evaluation and prediction.
"""

import copy
import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import openpyxl
import PIL.Image
import pyarrow.parquet
import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.plugins import OBJECTIVES
from anyformer.pipelines.prediction.predict import prepare_prediction
from anyformer.pipelines.recipes.compose import recipe_from_dict
from family_variants import a_share
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native_models import native_model
from task_data import random_decoder
from tiny_tokenizers import of_bytes

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
ROLES = {role: f"<|{role}|>" for role in ("bos", "eos", "pad", "cls", "sep", "mask", "unk")}
TOKENS = [*ROLES.values(), *(f"<|fim_{part}|>" for part in ("prefix", "middle", "suffix"))]
TOKENS += [f"<extra_id_{number}>" for number in range(20)]
CONTROL, CLASSES = ROLES["eos"], "sequence_classification"

# ---- the tasks: rows, and what a recipe says of them


class Task(NamedTuple):
    """text: columns of texts, of lists of them, or of messages. label: the column of an answer that is no text."""

    family: str
    rows: list[dict[str, Any]]
    text: tuple[str, ...]
    label: str | None = None
    settings: dict[str, Any] = {}


TEXTS = [{"text": f"The {noun} is good. A café. So is {noun}."} for noun in ("man", "dog", "sea")]
LABELLED = [row | {"label": label} for row, label in zip(TEXTS, ("good", "bad", "good"))]
LENGTH = {"sequence_length": 32}


def chat(question: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def with_(rows: list[dict], **columns: list) -> list[dict]:
    return [row | dict(zip(columns, values)) for row, values in zip(rows, zip(*columns.values()))]


CHATS = [{"messages": chat(f"What is {n} é?", f"{n}.")} for n in "abc"]
PARTS = [{"name": "causal"}, {"name": "prefix_lm"}]
CHOICES = with_(TEXTS, one=["a b", "c", "d"], two=["e", "f", "g"], label=[0, 1, 0])
ANSWERS = [{"text": [of], "answer_start": [4]} for of in ("man", "dog", "sea")]
TEXT_TO_TEXT = {"source": "mood: {text}", "target_field": "label", "answers": "classes"}
TWO = [TEXT_TO_TEXT | {"name": name} for name in "ab"]
TASKS = {
    "causal": Task("decoder", TEXTS, ("text",), settings=LENGTH),
    "fill_in_the_middle": Task("decoder", TEXTS, ("text",), settings=LENGTH),
    "prefix_lm": Task("decoder", TEXTS, ("text",), settings=LENGTH),
    "mixture": Task("decoder", TEXTS, ("text",), settings=LENGTH | {"parts": PARTS}),
    "masked": Task("encoder", TEXTS, ("text",), settings=LENGTH),
    "sentence_pairs": Task("encoder", TEXTS, ("text",), settings=LENGTH | {"pairs": "sentence_order"}),
    "denoising": Task("seq2seq", TEXTS, ("text",), settings=LENGTH),
    "span_corruption": Task("seq2seq", TEXTS, ("text",), settings=LENGTH),
    "mixture_of_denoisers": Task("seq2seq", TEXTS, ("text",), settings=LENGTH),
    "sequence_classification": Task("encoder", LABELLED, ("text",), "label", {"max_length": 60}),
    "sequence_regression": Task("encoder", with_(TEXTS, label=[1, 2.5, 3]), ("text",), "label", {"max_length": 60}),
    "multi_label_classification": Task(
        "encoder", with_(TEXTS, labels=[["a"], ["b", "a"], ["b"]]), ("text",), "labels", {"max_length": 60}
    ),
    "sentence_similarity": Task(
        *("encoder", with_(TEXTS, other=["x", "y", "z"], label=[1, 2, 3]), ("text", "other"), "label"),
        {"text_pair_field": "other", "label_range": [0, 5], "max_length": 60},
    ),
    "multiple_choice": Task(
        *("encoder", CHOICES, ("text", "two"), "label"),
        {"context_field": "text", "choices_field": ["one", "two"], "max_length": 60},
    ),
    "token_classification": Task(
        "encoder",
        [{"tokens": ["anna", "é", "rom"], "tags": ["B-PER", "O", tag]} for tag in ("B-LOC", "I-PER", "O")],
        *(("tokens",), "tags", {"max_length": 60}),
    ),
    "question_answering": Task(
        *("encoder", with_(TEXTS, question=["who", "what", "é"], answers=ANSWERS), ("text", "question"), "answers"),
        {"context_field": "text", "max_length": 48, "stride": 8},
    ),
    "translation": Task(
        *("seq2seq", [{"en": f"the {n} é", "de": f"der {n}"} for n in "abc"], ("en", "de"), None),
        {"source_field": "en", "target_field": "de", "max_length": 24},
    ),
    "text_to_text": Task("seq2seq", LABELLED, ("text",), "label", TEXT_TO_TEXT | {"max_length": 48}),
    "multi_task": Task("seq2seq", LABELLED, ("text",), "label", {"parts": TWO, "max_length": 48}),
    "instruction_tuning": Task("decoder", CHATS, ("messages",), None, {"messages_field": "messages", "max_length": 60}),
    "preference": Task(
        "decoder",
        [{"prompt": f"Say {n} é.", "chosen": f"{n} is good", "rejected": f"{n} is bad"} for n in "abc"],
        *(("prompt", "chosen", "rejected"), None, {"prompt_field": "prompt", "input_field": None, "max_length": 60}),
    ),
    "image_classification": Task("vit", [], ("image",), "label"),
    "masked_image": Task("vit", [], ("image",)),
    "pixels": Task("decoder", [], ("image",), settings={"image_size": 8, "clusters": 2}),
}

# Tasks whose texts are read as another's, which has all changes of texts.
PLAIN = [name for name, task in TASKS.items() if task.rows is TEXTS]
LIKE = {*PLAIN[1:], "sequence_regression", "sentence_similarity", "multi_label_classification", "multi_task"}


def test_every_objective_has_rows_here():
    assert set(TASKS) == set(OBJECTIVES)


# ---- changes of rows: of one row, or of one column in all


def of_texts(change: Callable[[str], Any]) -> Callable[[Any], Any]:
    """The change of the first text in a value: a text, a list of texts or parts, messages."""

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(value[0]), *value[1:]]
        if isinstance(value, dict):
            return value | {"content": changed(value["content"])}
        return change(value)

    return changed


CHANGES_OF_TEXTS = {
    "another text": lambda text: f"{text} more",
    "a capital letter": str.upper,
    "a space before": lambda text: f" {text}",
    "a long text": lambda text: f"{text} again" * 40,
    "a control token": lambda text: f"{text} {CONTROL}",
    "an empty text": lambda text: "",
    "spaces alone": lambda text: "  ",
    "a number": lambda text: 7,
    "null": lambda text: None,
}
BRIEF = ("another text", "a control token", "null", "a column", "a key in one row")
CHANGES_OF_ROWS = {
    "a null cell": lambda row, column: row | {column: None},
    "no cell": lambda row, column: {name: value for name, value in row.items() if name != column},
    "a key in one row": lambda row, column: row | {"autor": "ann"},
    "a nested key in one row": lambda row, column: row | {"meta": {"source": "web"}},
}
# Other labels of the second row.
OF_NAMES = {"a capital letter": "Bad", "a space": "bad ", "a number": 0, "null": None}
CHANGES_OF_LABELS = {
    CLASSES: OF_NAMES | {"another class": "good", "an unknown class": "new", "empty": ""},
    "text_to_text": OF_NAMES,
    "sequence_regression": {"text": "2.5", "null": None, "another": 2.75, "a decimal comma": "2,5", "both": "1.234,5"},
    "sentence_similarity": {"text": "2", "null": None, "beyond": 9},
    "multiple_choice": {"text": "1", "a letter": "B", "null": None},
    "multi_label_classification": {
        "twice": ["b", "a", "b"],
        "none": [],
        "null": None,
        "one text": "b",
        "a text of two": "b; a",
        "a list as text": '["b"]',
        "an empty text": "",
        "a capital letter": ["B", "a"],
        "null within": ["b", "a", None],
    },
    "token_classification": {
        "a tag of no scheme": ["B-PER", "O", "X"],
        "a small letter": ["b-per", "O", "I-PER"],
        "an end": ["S-PER", "O", "I-PER"],
        "begun by I": ["I-PER", "O", "I-PER"],
        "null within": [None, "O", "I-PER"],
        "too few": ["O", "I-PER"],
    },
    "question_answering": {
        "another start": {"text": ["dog"], "answer_start": [5]},
        "a second answer": {"text": ["dog", "dog"], "answer_start": [4, 4]},
        "no answer": {"text": [], "answer_start": []},
        "an answer that is not there": {"text": ["cat"], "answer_start": [4]},
        "a key": {"text": ["dog"], "answer_start": [4], "plausible": ["x"]},
    },
}
FIRST, LAST = 0, -1
CHANGES_OF_MESSAGES = {
    "a name": (FIRST, {"name": "ann"}),
    "calls at once": (LAST, {"parallel_tool_calls": True}),
    "a refusal": (LAST, {"refusal": "no"}),
    "null beside": (LAST, {"audio": None}),
    "a role that the template does not know": (FIRST, {"role": "critic"}),
    "another role": (FIRST, {"role": "system"}),
    "an empty answer": (LAST, {"content": ""}),
    "a null answer": (LAST, {"content": None}),
    "not to be learned": (LAST, {"weight": 0}),
    "a mark of what is asked": (FIRST, {"weight": 1}),
    "a part with more keys": (FIRST, {"content": [{"type": "text", "text": "What is b é?", "cache": 1}]}),
    "parts": (FIRST, {"content": [{"type": "text", "text": "What is b é?"}]}),
    "thoughts": (LAST, {"reasoning_content": "hm"}),
}
CHANGES_OF_CHATS = {
    "a tool": {"tools": [{"type": "function", "function": {"name": "rain"}}]},
    "no tool": {"tools": None},
    "variables": {"chat_template_kwargs": {"thinking": True}},
    "a variable that is null": {"chat_template_kwargs": {"thinking": None}},
}


def changes_of(name: str) -> dict[str, Callable[[list[dict]], list[dict]]]:
    """{what is changed: the rows with it} for a task."""
    task, changes = TASKS[name], {}
    column = task.text[0]

    def in_second(change: Callable[[dict], dict]) -> Callable[[list[dict]], list[dict]]:
        return lambda rows: [rows[0], change(rows[1]), *rows[2:]]

    def of_cell(cell: str, change: Callable[[Any], Any]) -> Callable[[list[dict]], list[dict]]:
        return in_second(lambda row: row | {cell: change(row[cell])})

    for what, change in CHANGES_OF_TEXTS.items():
        for cell in task.text if what in BRIEF else [column]:
            changes[f"{what} of {cell}"] = of_cell(cell, of_texts(change))
    for what, change in CHANGES_OF_ROWS.items():
        changes[what] = in_second(lambda row, change=change: change(row, column))
    changes["a column"] = lambda rows: [row | {"author": "ann"} for row in rows]
    changes["a row twice"] = lambda rows: [*rows, rows[1]]
    for what, label in CHANGES_OF_LABELS.get(name, {}).items():
        changes[f"{what} for {task.label}"] = of_cell(task.label, lambda _, label=label: label)
    if column == "messages":
        for what, (place, more) in CHANGES_OF_MESSAGES.items():

            def change(messages: list, place=place, more=more) -> list:
                messages = copy.deepcopy(messages)
                messages[place] |= more
                return messages

            changes[what] = of_cell(column, change)
        for what, more in CHANGES_OF_CHATS.items():
            changes[what] = in_second(lambda row, more=more: row | more)
    return changes


# ---- formats


def as_jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def as_table(path: Path, rows: list[dict]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        table.writerow(names)
        table.writerows([row.get(name) for name in names] for row in rows)


def as_parquet(path: Path, rows: list[dict]) -> None:
    names = dict.fromkeys(name for row in rows for name in row)
    rows = [{name: row.get(name) for name in names} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def as_conll(path: Path, rows: list[dict]) -> None:
    middle = [f"{row['author']} " if "author" in row else "" for row in rows]
    lines = [
        [f"{word} {more}{tag}" for word, tag in zip(row["tokens"], row["tags"])] for row, more in zip(rows, middle)
    ]
    path.write_text("\n\n".join("\n".join(sentence) for sentence in lines) + "\n", encoding="utf-8")


def as_text(path: Path, rows: list[dict]) -> None:
    path.write_text("\n".join(str(row["text"] or "") for row in rows) + "\n", encoding="utf-8")


def as_workbook(path: Path, rows: list[dict]) -> None:
    book, names = openpyxl.Workbook(), list(dict.fromkeys(name for row in rows for name in row))
    for cells in (names, *([row.get(name) for name in names] for row in rows)):
        book.active.append([str(cell) if isinstance(cell, list | dict) else cell for cell in cells])
    book.save(path)


CHANGES_OF_FILES = {
    "utf-16": lambda text: text.encode("utf-16"),
    "cp1252": lambda text: text.encode("cp1252"),
    "a broken byte": lambda text: text.encode().replace("é".encode(), b"\xc3", 1),
    "semicolons": lambda text: re.sub("[,\t ]", ";", text).encode(),
}
OTHER_FORMATS = {
    "causal": ("txt", "csv", "parquet"),
    "sequence_classification": ("csv", "tsv", "parquet", "xlsx"),
    "sequence_regression": ("csv",),
    "multi_label_classification": ("csv",),
    "token_classification": ("conll",),
    "instruction_tuning": ("parquet",),
}
# What a format cannot write: of CoNLL a null, a column of one row; of Parquet, in one column, values of two types; in
# .csv files all values are texts.
NOT_HELD = {
    ("conll", what) for what in ("null of tokens", "null within for tags", "too few for tags", "a key in one row")
}
NOT_HELD |= {("parquet", "a number for label"), ("txt", "semicolons"), ("csv", "text for label")}
FORMATS = {"jsonl": as_jsonl, "csv": as_table, "tsv": as_table}
FORMATS |= {"parquet": as_parquet, "conll": as_conll, "txt": as_text, "xlsx": as_workbook}


# ---- what comes of it


def recipe_of(name: str, shared: Path, **data: Any):
    task, section = TASKS[name], OBJECTIVES[name].section
    settings = {"name": name, **copy.deepcopy(task.settings)}
    data = {"validation_fraction": 0.0, **data}
    if name == "multi_task":
        settings["parts"] = [part | {"data": data} for part in settings["parts"]]
        data = {}
    model = {"family": task.family, **SMALL}
    if task.family == "vit":
        model = {"family": "vit", "image_size": 8, "patch_size": 4, "num_channels": 3}
    sections = {"model": model if name != "preference" else {"name_or_path": str(shared / "decoder")}, "data": data}
    if task.family != "vit" and name not in ("pixels", "preference"):
        sections["tokenizer"] = {"name_or_path": str(shared / "tokenizer")}
    run = {"output_dir": str(shared / "run"), "bf16": False, "max_steps": 1}
    return recipe_from_dict(sections | {section: settings, "evaluation": {"every_steps": None}, "training": run})


def outcome(recipe, **door: Any) -> Any:
    """(batches, account) of a recipe's rows. door: options of prepare_data."""
    data, batches = prepare_data(recipe, **door), []
    for rows in data.rows.values():
        batches += [data.reads.collated(data, rows, number, rows[number]) for number in range(len(rows))]
    batches = [{name: np.asarray(value).tolist() for name, value in batch.items()} for batch in batches]
    return batches, [account_of(rows) for rows in data.rows.values()]


def account_of(rows) -> Any:
    """What is counted of rows, without what identifies them: a fingerprint differs with every byte."""
    facts = {name: value for name, value in rows.report().items() if name not in ("fingerprint", "sources", "parts")}
    return facts, [account_of(part) for part in rows.parts.values()]


OUTCOMES: dict[Any, str] = {}


def shows(tmp_path: Path, make: Callable[[Path, bool], Any], key: Any) -> bool:
    """Whether a change shows, or is refused. make: (a folder, whether with the change) -> what comes of it. key: of
    what comes of it without, which other changes are compared with as well."""

    def found(is_changed: bool) -> str:
        folder = tmp_path / str(is_changed)
        folder.mkdir()
        return repr(make(folder, is_changed)).replace(str(folder), "")

    OUTCOMES[key] = before = OUTCOMES.get(key) or found(False)
    try:
        return found(True) != before
    except UserError:
        return True


def cases() -> list:
    """(task, format, change): in JSON lines all, of each reader once; in other formats what they can hold."""
    every = []
    for name, task in TASKS.items():
        changes = changes_of(name) if task.rows else ()
        of_label = tuple(what for what in changes if what.endswith(f"for {task.label}"))
        all_or_brief = changes if name not in LIKE else (*BRIEF, *of_label)
        every += [(name, "jsonl", what) for what in changes if what.startswith(tuple(all_or_brief))]
        for suffix in OTHER_FORMATS.get(name, ()):
            held = BRIEF[:2] if suffix == "txt" else (*BRIEF, "null beside", *of_label)
            held = [what for what in changes if what.startswith(held)]
            files = () if suffix in ("parquet", "xlsx") else CHANGES_OF_FILES
            every += [(name, suffix, what) for what in (*held, *files) if (suffix, what) not in NOT_HELD]
    return every


@pytest.mark.parametrize("name, suffix, what", a_share(cases(), 6))
def test_whatever_changes_in_a_row_shows(name, suffix, what, tmp_path, shared):
    def make(folder: Path, is_changed: bool) -> Any:
        change = changes_of(name).get(what, list) if is_changed else list
        path = folder / f"rows.{suffix}"
        FORMATS[suffix](path, change(TASKS[name].rows))
        if is_changed and what in CHANGES_OF_FILES:
            path.write_bytes(CHANGES_OF_FILES[what](path.read_text(encoding="utf-8")))
        data = {"files": str(path)} | ({"document": "line"} if suffix == "txt" else {})
        return outcome(recipe_of(name, shared, **data))

    assert shows(tmp_path, make, (name, suffix))


@pytest.mark.parametrize("what", CHANGES_OF_LABELS[CLASSES])
def test_whatever_changes_in_a_label_shows_in_evaluation(what, tmp_path, shared):
    def make(folder: Path, is_changed: bool) -> Any:
        changed = changes_of(CLASSES)[f"{what} for label"](LABELLED)
        as_jsonl(folder / "rows.jsonl", changed if is_changed else LABELLED)
        config = SimpleNamespace(id2label={0: "bad", 1: "good"})
        recipe = recipe_of(CLASSES, shared, files=str(folder / "rows.jsonl"))
        return outcome(recipe, splits=["train"], model_config=config)

    assert shows(tmp_path, make, "evaluation")


@pytest.mark.parametrize("what", ["another text of text", "a column"])
@pytest.mark.parametrize("name", ["causal", CLASSES])
def test_whatever_changes_in_a_data_set_shows(name, what, tmp_path, shared):
    def make(folder: Path, is_changed: bool) -> Any:
        rows = TASKS[name].rows
        as_jsonl(folder / "train.jsonl", changes_of(name)[what](rows) if is_changed else rows)
        return outcome(recipe_of(name, shared, dataset=str(folder), split="train"))

    assert shows(tmp_path, make, ("Hub", name))


# ---- tables of several columns, in all forms

PARTS_OF_TEXT = ("Subject", "Description")
HANDED_IN = [
    {"Subject": f"Der {noun}, é;", "Description": f'ist "gut" | {noun}\n', "Category": of}
    for noun, of in (("Mann", "a"), ("Hund", "b"), ("See", "a"))
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    separator=st.sampled_from([",", ";", "\t", "|"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    columns=st.permutations([*PARTS_OF_TEXT, "Category"]),
    place=st.tuples(st.integers(0, 2), st.sampled_from([*PARTS_OF_TEXT, "Category"])),
    cell=st.sampled_from(["", " ", "b", "A", "a ", "3,5", "x; y", 'so "gut"', "ß", "Der Mann, é;"]),
)
def test_whatever_changes_in_a_cell_of_a_table_shows(
    separator, encoding, quoting, columns, place, cell, tmp_path_factory, shared
):
    def made(rows: list[dict]) -> str:
        path = tmp_path_factory.mktemp("table") / "rows.csv"
        with path.open("w", encoding=encoding, newline="") as stream:
            writer = csv.DictWriter(stream, columns, delimiter=separator, quoting=quoting)
            writer.writeheader()
            writer.writerows(rows)
        task = {"name": CLASSES, "text_field": [*PARTS_OF_TEXT], "label_field": "Category", "max_length": 60}
        recipe = recipe_of(CLASSES, shared, files=str(path)).with_(task=task)
        try:
            return repr(outcome(recipe)).replace(str(path.parent), "")
        except UserError as error:
            return str(error)

    number, column = place
    changed = [row | {column: cell} if at == number else row for at, row in enumerate(HANDED_IN)]
    assume(changed != HANDED_IN)
    assert made(changed) != made(HANDED_IN)


# ---- images: one of two, of one colour, so that only its kind tells it from another

WHITE, TURNED = PIL.Image.new("RGB", (8, 8), "white"), PIL.Image.Exif()
TURNED[0x0112] = 6
CHANGES_OF_IMAGES = {
    "another colour": PIL.Image.new("RGB", (8, 8), "red"),
    "transparent": PIL.Image.new("RGBA", (8, 8), (9, 9, 9, 0)),
    "turned by EXIF": WHITE,
    "wider": PIL.Image.new("RGB", (16, 8), "white"),
    "larger": PIL.Image.new("RGB", (16, 16), "white"),
    "grey": PIL.Image.new("L", (8, 8), "white"),
    "of 16 bits": PIL.Image.new("I;16", (8, 8), 9),
    "a class in capitals": WHITE,
}
OF_IMAGES = [("image_classification", "folder", what) for what in CHANGES_OF_IMAGES]
TABLES = [("masked_image", "csv"), ("pixels", "csv"), ("image_classification", "parquet")]
OF_IMAGES += [(*table, what) for table in TABLES for what in ("transparent", "turned by EXIF")]


@pytest.mark.parametrize("name, kind, what", OF_IMAGES)
def test_whatever_changes_in_an_image_shows(name, kind, what, tmp_path, shared):
    def make(folder: Path, is_changed: bool) -> Any:
        path, other = folder / ("LEFT" if is_changed and "capitals" in what else "left"), folder / "right"
        path.mkdir()
        other.mkdir()
        exif = {"exif": TURNED} if is_changed and "EXIF" in what else {}
        (CHANGES_OF_IMAGES[what] if is_changed else WHITE).save(path / "a.png", **exif)
        PIL.Image.new("RGB", (8, 8), "black").save(other / "a.png")
        if kind == "folder":
            return outcome(recipe_of(name, shared, files=str(folder / "*" / "*.png")))
        images = [file / "a.png" for file in (path, other)]
        as_paths = [f"{image.parent.name}/a.png" for image in images]
        as_bytes = [{"bytes": image.read_bytes(), "path": None} for image in images]
        cells = as_paths if kind == "csv" else as_bytes
        FORMATS[kind](folder / f"rows.{kind}", with_([{}, {}], image=cells, label=["left", "right"]))
        return outcome(recipe_of(name, shared, files=str(folder / f"rows.{kind}")))

    assert shows(tmp_path, make, (name, kind))


# ---- prediction

OF_ASKED = {"a column": lambda row: row | {"author": "ann"}, "utf-16": dict, "cp1252": dict}
OF_ASKED_TEXTS = {
    what: lambda row, change=change: {"text": change(row["text"])} for what, change in CHANGES_OF_TEXTS.items()
}
OF_ASKED_CHATS = {
    what: lambda row, more=more: {"messages": [row["messages"][0] | more]}
    for what, (place, more) in CHANGES_OF_MESSAGES.items()
    if place == FIRST
}
ASKED = {
    "BertForSequenceClassification": ({"text": "the café"}, OF_ASKED | OF_ASKED_TEXTS),
    "GPT2LMHeadModel": ({"messages": chat("What is é?", "")[:1]}, OF_ASKED | OF_ASKED_CHATS),
}


@pytest.mark.parametrize("model, what", [(name, what) for name, (_, changes) in ASKED.items() for what in changes])
def test_whatever_changes_in_a_row_to_be_answered_shows(model, what, tmp_path, shared):
    def make(folder: Path, is_changed: bool) -> Any:
        (row, changes), path = ASKED[model], folder / "asked.jsonl"
        as_jsonl(path, [row, changes[what](row) if is_changed else row])
        if is_changed and what in CHANGES_OF_FILES:
            path.write_bytes(CHANGES_OF_FILES[what](path.read_text(encoding="utf-8")))
        prediction = prepare_prediction(str(shared / model), str(path))
        asked = [prediction.asked(place, row) for place, row in prediction.rows]
        reasons = [str(one) if isinstance(one, UserError) else one for one in asked]
        return reasons, prediction.account.to_json()

    assert shows(tmp_path, make, model)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """A folder with a tokenizer, a decoder that preferences start from, and the models that answer."""
    folder, tokenizer = tmp_path_factory.mktemp("shared"), of_bytes(TOKENS, **ROLES)
    tokenizer.save_pretrained(folder / "tokenizer")
    random_decoder(folder / "decoder", **SMALL)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
    for kind, name in zip(("bert", "gpt2"), ASKED):
        native_model(kind, name, vocab_size=400).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder
