"""The law of the account: change one value of a row, and the batch or the account changes, or a sentence refuses it.

One table of tasks, one of changes: every objective, every format, and the doors of training, evaluation and prediction.
What is still silent is in SILENT; a case that speaks must leave it.
"""

import copy
import csv
import json
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import pytest
import transformers
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.plugins import OBJECTIVES
from anyformer.pipelines.prediction.predict import prepare_prediction
from anyformer.pipelines.recipes.compose import recipe_from_dict
from task_data import random_decoder
from tiny_tokenizers import of_bytes

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
ROLES = {role: f"<|{role}|>" for role in ("bos", "eos", "pad", "cls", "sep", "mask", "unk")}
TOKENS = [*ROLES.values(), *(f"<|fim_{part}|>" for part in ("prefix", "middle", "suffix"))]
TOKENS += [f"<extra_id_{number}>" for number in range(20)]
CONTROL = ROLES["eos"]

# What nothing shows yet: why -> cases, as patterns of their names.
SILENT = {
    "columns and keys that nothing reads are not counted": ("*-a column", "*-a key in one row", "*-a nested key *"),
    "nor the columns of CoNLL between the first and the last": ("*-conll-a column",),
    "a class's number is read as its name": ("evaluation-a number",),
    "a number that is a text is read as one": ("*-text for label",),
    "a tag of another scheme is read as bio": ("token_classification-*-an end for tags",),
    "only the first of several answers is learned": ("question_answering-*-a second answer for answers",),
    "keys beside those of an answer are not counted": ("question_answering-*-a key for answers",),
    "the template drops white space around a message": ("*-a space before of messages", "*-a space before of prompt"),
    "keys of a message that are null are not counted": ("instruction_tuning-*-null beside",),
    "a message in parts is read as one text": ("instruction_tuning-*-parts",),
    "a column of nulls is not counted": ("instruction_tuning-*-no tool",),
    "AttributeError in place of a sentence": ("text_to_text-*-a number for label", "text_to_text-*-null for label"),
    "turns by EXIF are not counted": ("*-turned by EXIF",),
    "other sizes with the same ratio are not counted": ("image_classification-*-larger",),
    "grey images that are read as coloured are not counted": ("image_classification-*-grey",),
}


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
    "multi_task": Task(
        "seq2seq", LABELLED, ("text",), "label", {"parts": [TEXT_TO_TEXT | {"name": name} for name in "ab"]}
    ),
    "instruction_tuning": Task(
        "decoder", CHATS, ("messages",), settings={"messages_field": "messages", "max_length": 60}
    ),
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
LIKE = {name for name, task in TASKS.items() if task.rows is TEXTS and name != "causal"}
LIKE |= {"sequence_regression", "sentence_similarity", "multi_label_classification", "multi_task"}


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
CHANGES_OF_LABELS = {
    "sequence_classification": {
        "a capital letter": lambda label: "Bad",
        "a space": lambda label: "bad ",
        "a number": lambda label: 0,
        "another class": lambda label: "good",
        "an unknown class": lambda label: "new",
        "null": lambda label: None,
        "empty": lambda label: "",
    },
    "sequence_regression": {"text": str, "null": lambda label: None, "another": lambda label: 2.75},
    "sentence_similarity": {"text": str, "null": lambda label: None, "beyond": lambda label: 9},
    "multi_label_classification": {
        "twice": lambda labels: [*labels, labels[0]],
        "none": lambda labels: [],
        "null": lambda labels: None,
        "one text": lambda labels: labels[0],
        "a capital letter": lambda labels: [labels[0].upper(), *labels[1:]],
        "null within": lambda labels: [*labels, None],
    },
    "multiple_choice": {"text": str, "a letter": "AB".__getitem__, "null": lambda label: None},
    "token_classification": {
        "a tag of no scheme": lambda tags: [*tags[:-1], "X"],
        "a small letter": lambda tags: [tags[0].lower(), *tags[1:]],
        "an end": lambda tags: ["S-PER", *tags[1:]],
        "begun by I": lambda tags: ["I-PER", *tags[1:]],
        "null within": lambda tags: [None, *tags[1:]],
        "too few": lambda tags: tags[1:],
    },
    "question_answering": {
        "another start": lambda answers: answers | {"answer_start": [5]},
        "a second answer": lambda answers: {"text": [*answers["text"], "dog"], "answer_start": [4, 4]},
        "no answer": lambda answers: {"text": [], "answer_start": []},
        "an answer that is not there": lambda answers: answers | {"text": ["cat"]},
        "a key": lambda answers: answers | {"plausible": ["x"]},
    },
    "text_to_text": {
        "a capital letter": lambda label: "Bad",
        "a number": lambda label: 0,
        "a space": lambda label: "bad ",
        "null": lambda label: None,
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
    for what, change in CHANGES_OF_LABELS.get(name, {}).items():
        changes[f"{what} for {task.label}"] = of_cell(task.label, change)
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
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def as_conll(path: Path, rows: list[dict]) -> None:
    middle = [f"{row['author']} " if "author" in row else "" for row in rows]
    lines = [
        [f"{word} {more}{tag}" for word, tag in zip(row["tokens"], row["tags"])] for row, more in zip(rows, middle)
    ]
    path.write_text("\n\n".join("\n".join(sentence) for sentence in lines) + "\n", encoding="utf-8")


def as_text(path: Path, rows: list[dict]) -> None:
    path.write_text("\n".join(str(row["text"] or "") for row in rows) + "\n", encoding="utf-8")


CHANGES_OF_FILES = {
    "utf-16": lambda text: text.encode("utf-16"),
    "cp1252": lambda text: text.encode("cp1252"),
    "a broken byte": lambda text: text.encode().replace("é".encode(), b"\xc3", 1),
    "semicolons": lambda text: re.sub("[,\t ]", ";", text).encode(),
}
OTHER_FORMATS = {
    "causal": ("txt", "csv", "parquet"),
    "sequence_classification": ("csv", "tsv", "parquet"),
    "token_classification": ("conll",),
    "instruction_tuning": ("parquet",),
}
# What a format cannot write: of CoNLL a null; of Parquet, in one column, values of two types.
NOT_HELD = {("conll", what) for what in ("null of tokens", "null within for tags", "too few for tags")}
NOT_HELD |= {("parquet", "a number for label"), ("txt", "semicolons")}
FORMATS = {
    "jsonl": as_jsonl,
    "csv": as_table,
    "tsv": as_table,
    "parquet": as_parquet,
    "conll": as_conll,
    "txt": as_text,
}


# ---- what comes of it


def recipe_of(name: str, shared: Path, **data: Any):
    task = TASKS[name]
    model = {"family": task.family, **SMALL} if name != "preference" else {"name_or_path": str(shared / "decoder")}
    if task.family == "vit":
        model |= {"image_size": 8, "patch_size": 4, "num_channels": 3}
        del model["max_position_embeddings"]
    sections = {
        "model": model,
        "data": {"validation_fraction": 0.0, **data},
        OBJECTIVES[name].section: {"name": name, **copy.deepcopy(task.settings)},
        "evaluation": {"every_steps": None},
        "training": {"output_dir": str(shared / "run"), "bf16": False, "max_steps": 1},
    }
    if name == "multi_task":
        sections["data"], of_parts = {}, sections["data"]
        sections["task"]["max_length"] = 48
        for part in sections["task"]["parts"]:
            part["data"] = of_parts
    if task.family != "vit" and name not in ("pixels", "preference"):
        sections["tokenizer"] = {"name_or_path": str(shared / "tokenizer")}
    return recipe_from_dict(sections)


def outcome(recipe, **options: Any) -> Any:
    """(batches, account) of a recipe's rows, or the sentence that refuses them."""
    try:
        data = prepare_data(recipe, **options)
    except UserError as error:
        return f"refused: {error}"
    batches = [
        {
            name: np.asarray(value).tolist()
            for name, value in data.objective.collated(rows, number, rows[number]).items()
        }
        for rows in data.rows.values()
        for number in range(len(rows))
    ]
    return batches, [account_of(rows) for rows in data.rows.values()]


def account_of(rows) -> Any:
    """What is counted of rows, without what identifies them: a fingerprint differs with every byte."""
    facts = {name: value for name, value in rows.report().items() if name not in ("fingerprint", "sources", "parts")}
    return facts, [account_of(part) for part in rows.parts.values()]


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """A folder with a tokenizer, and with a decoder that preferences start from."""
    folder = tmp_path_factory.mktemp("shared")
    of_bytes(TOKENS, **ROLES).save_pretrained(folder / "tokenizer")
    random_decoder(folder / "decoder", **SMALL)
    tokenizer = of_bytes(TOKENS, **ROLES)
    tokenizer.chat_template = TEMPLATE
    bert = transformers.BertConfig(vocab_size=400, intermediate_size=8, num_labels=2, **SMALL)
    transformers.BertForSequenceClassification(bert).save_pretrained(folder / "BertForSequenceClassification")
    gpt = transformers.GPT2Config(vocab_size=400, n_embd=8, n_layer=1, n_head=2, n_positions=64)
    transformers.GPT2LMHeadModel(gpt).save_pretrained(folder / "GPT2LMHeadModel")
    for name in ASKED:
        tokenizer.save_pretrained(folder / name)
    return folder


OUTCOMES: dict[tuple, Any] = {}


def outcome_of(name: str, suffix: str, rows: list[dict] | None, folder: Path, shared: Path, **door: Any) -> str:
    """What comes of rows in a file of a format; None: they are in it already. door: options of prepare_data."""
    path = folder / f"rows.{suffix}"
    if rows is not None:
        folder.mkdir(parents=True)
        FORMATS[suffix](path, rows)
    data = {"files": str(path)} | ({"document": "line"} if suffix == "txt" else {})
    return repr(outcome(recipe_of(name, shared, **data), **door)).replace(str(folder), "")


def cases() -> list:
    """(task, format, change): in JSON lines all, of each reader once; in other formats what they can hold."""
    every = []
    for name, task in TASKS.items():
        for what in changes_of(name) if task.rows else ():
            if name not in LIKE or what.startswith(BRIEF) or what.endswith(f"for {task.label}"):
                every.append((name, "jsonl", what))
        for suffix in OTHER_FORMATS.get(name, ()):
            held = BRIEF[:2] if suffix == "txt" else (*BRIEF, "null beside")
            held = [what for what in changes_of(name) if what.startswith(held) or what.endswith(f"for {task.label}")]
            files = () if suffix == "parquet" else CHANGES_OF_FILES
            every += [(name, suffix, what) for what in (*held, *files) if (suffix, what) not in NOT_HELD]
    return every


def marked(*case: str, door: str = ""):
    """The case, expected to fail where it is silent still."""
    name = "-".join(filter(None, (door, *case)))
    whys = [why for why, patterns in SILENT.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]
    silent = pytest.mark.xfail(reason=", ".join(whys), strict=True, raises=(AssertionError, AttributeError))
    return pytest.param(*case, marks=[silent] if whys else [], id=name)


def before_of(name: str, suffix: str, folder: Path, shared: Path) -> str:
    """What comes of the unchanged rows."""
    if (name, suffix) not in OUTCOMES:
        OUTCOMES[name, suffix] = outcome_of(name, suffix, TASKS[name].rows, folder / "before", shared)
    return OUTCOMES[name, suffix]


def shows(before: str, after: str) -> bool:
    """Whether a change of what is not refused shows; a bool, because pytest would compare the texts at length."""
    if before.startswith("'refused"):
        raise ValueError(before)
    return before != after


@pytest.mark.parametrize("name, suffix, what", [marked(*case) for case in cases()])
def test_whatever_changes_in_a_row_shows(name, suffix, what, tmp_path, shared):
    before, rows, folder = before_of(name, suffix, tmp_path, shared), TASKS[name].rows, tmp_path / "after"
    if what in CHANGES_OF_FILES:
        folder.mkdir()
        path = folder / f"rows.{suffix}"
        FORMATS[suffix](path, rows)
        path.write_bytes(CHANGES_OF_FILES[what](path.read_text(encoding="utf-8")))
        after = outcome_of(name, suffix, None, folder, shared)
    else:
        after = outcome_of(name, suffix, changes_of(name)[what](rows), folder, shared)
    assert shows(before, after)


OF_CLASSES = CHANGES_OF_LABELS["sequence_classification"]


@pytest.mark.parametrize("what", [marked(what, door="evaluation") for what in OF_CLASSES])
def test_whatever_changes_in_a_label_shows_in_evaluation(what, tmp_path, shared):
    rows = LABELLED
    changed = [rows[0], rows[1] | {"label": OF_CLASSES[what](rows[1]["label"])}, rows[2]]
    door = {"splits": ["train"], "model_config": SimpleNamespace(id2label={0: "bad", 1: "good"})}
    found = [
        outcome_of("sequence_classification", "jsonl", some, tmp_path / str(number), shared, **door)
        for number, some in enumerate((rows, changed))
    ]
    assert shows(*found)


OF_A_DATA_SET = ("another text of text", "a column", "null of text")


@pytest.mark.parametrize(
    "name, what",
    [marked(name, what, door="Hub") for name in ("causal", "sequence_classification") for what in OF_A_DATA_SET],
)
def test_whatever_changes_in_a_data_set_shows(name, what, tmp_path, shared, monkeypatch):
    found = []
    for number, rows in enumerate((TASKS[name].rows, changes_of(name)[what](TASKS[name].rows))):
        folder = tmp_path / str(number) / "set"
        folder.mkdir(parents=True)
        as_jsonl(folder / "train.jsonl", rows)
        data = {"dataset": str(folder), "split": "train"}
        found.append(repr(outcome(recipe_of(name, shared, **data))).replace(str(folder), ""))
    assert shows(*found)


# ---- images: one of two, of one colour, so that only its kind tells it from another

PLAIN = PIL.Image.new("RGB", (8, 8), "white")
TURNED = PIL.Image.Exif()
TURNED[0x0112] = 6
CHANGES_OF_IMAGES = {
    "another colour": (PIL.Image.new("RGB", (8, 8), "red"), {}),
    "transparent": (PIL.Image.new("RGBA", (8, 8), (9, 9, 9, 0)), {}),
    "turned by EXIF": (PLAIN, {"exif": TURNED}),
    "wider": (PIL.Image.new("RGB", (16, 8), "white"), {}),
    "larger": (PIL.Image.new("RGB", (16, 16), "white"), {}),
    "grey": (PIL.Image.new("L", (8, 8), "white"), {}),
    "of 16 bits": (PIL.Image.new("I;16", (8, 8), 9), {}),
}


def images_in(folder: Path, kind: str, image: PIL.Image.Image, options: dict, name: str = "left") -> str:
    """Files that hold two images; returns data.files."""
    for label, one, how in ((name, image, options), ("right", PIL.Image.new("RGB", (8, 8), "black"), {})):
        (folder / label).mkdir(parents=True)
        one.save(folder / label / "a.png", **how)
    if kind == "folder":
        return str(folder / "*" / "*.png")
    paths = sorted(folder.glob("*/*.png"))
    if kind == "csv":
        as_table(
            folder / "rows.csv", [{"image": f"{path.parent.name}/a.png", "label": path.parent.name} for path in paths]
        )
    else:
        rows = [{"image": {"bytes": path.read_bytes(), "path": None}, "label": path.parent.name} for path in paths]
        as_parquet(folder / "rows.parquet", rows)
    return str(folder / f"rows.{kind}")


IMAGE_CASES = [("image_classification", "folder", what) for what in (*CHANGES_OF_IMAGES, "a class in capitals")]
IMAGE_CASES += [
    (name, "csv", what) for name in ("masked_image", "pixels") for what in ("transparent", "turned by EXIF")
]
IMAGE_CASES += [("image_classification", "parquet", what) for what in ("transparent", "grey")]


@pytest.mark.parametrize("name, kind, what", [marked(*case) for case in IMAGE_CASES])
def test_whatever_changes_in_an_image_shows(name, kind, what, tmp_path, shared):
    found = []
    for number, (image, how) in enumerate([(PLAIN, {}), CHANGES_OF_IMAGES.get(what, (PLAIN, {}))]):
        folder = tmp_path / str(number) / "images"
        label = "LEFT" if number and what == "a class in capitals" else "left"
        files = images_in(folder, kind, image, how, label)
        found.append(repr(outcome(recipe_of(name, shared, files=files))).replace(str(folder), ""))
    assert shows(*found)


# ---- prediction

CHANGES_OF_ASKED = {name: CHANGES_OF_TEXTS[name] for name in CHANGES_OF_TEXTS if "beyond" not in name}
ASKED = {
    "BertForSequenceClassification": ({"text": "the café"}, "text", CHANGES_OF_ASKED),
    "GPT2LMHeadModel": (
        {"messages": chat("What is é?", "an answer")[:1]},
        "messages",
        {what: more for what, (place, more) in CHANGES_OF_MESSAGES.items() if place == FIRST},
    ),
}
OF_FILES_ASKED = ("a column", "utf-16", "cp1252")
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    "architecture, what",
    [
        marked(name, what)
        for name, (*_, changes) in ASKED.items()
        for what in (*changes, "a column", "utf-16", "cp1252")
    ],
)
def test_whatever_changes_in_a_row_to_be_answered_shows(architecture, what, tmp_path, shared):
    row, column, changes = ASKED[architecture]
    if what in changes:
        change = changes[what]
        value = change(row[column]) if callable(change) else [row[column][0] | change]
        after = row | {column: value}
    else:
        after = row | ({"author": "ann"} if what == "a column" else {})
    found = []
    for number, one in enumerate((row, after)):
        path = tmp_path / str(number) / "asked.jsonl"
        path.parent.mkdir()
        as_jsonl(path, [row, one])
        if number and what in CHANGES_OF_FILES:
            path.write_bytes(CHANGES_OF_FILES[what](path.read_text(encoding="utf-8")))
        found.append(repr(to_be_answered(shared / architecture, path)).replace(str(path.parent), ""))
    assert shows(*found)


def to_be_answered(model: Path, path: Path) -> Any:
    """(what the model reads of each row, account), or the sentence that refuses a row."""
    try:
        prediction = prepare_prediction(str(model), str(path))
    except UserError as error:
        return f"refused: {error}"
    account = getattr(prediction, "account", None)
    asked = [prediction.asked(place, row) for place, row in prediction.rows]
    return asked, prediction.empty, account.to_json() if account else prediction.notes
