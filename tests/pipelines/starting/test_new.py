"""`anyformer new`: the right task for files as people have them, and a recipe that runs."""

import json
import os
import re
from pathlib import Path

import pytest
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.strict_yaml import parse_yaml
from anyformer.pipelines.starting import beginnings, written_recipe
from anyformer.pipelines.starting.guesses import guesses
from anyformer.pipelines.starting.named_data import NamedData
from anyformer.pipelines.starting.what_columns_hold import Table
from anyformer.pipelines.starting.written_recipe import start
from family_variants import a_share
from hypothesis import given
from hypothesis import strategies as st
from people_files import SHAPES, Words, as_csv, as_lines
from task_data import random_decoder

MOST_LINES = 30
NEEDS = {name: "openpyxl" for name in SHAPES if "workbook" in name}
NEEDS |= {name: "PIL" for name in SHAPES if "photos" in name or "images" in name}
# Learned only from a model that answers already, which a machine without the Hub and without a run has not.
NEEDS_A_MODEL = ("chosen_and_rejected", "preferred_conversations")
# What is right for the real data sets, by their folders.
REAL = {
    "sequence_classification": ("ag_news", "imdb", "imdb_5k", "sst2", "trec"),
    "token_classification": ("conll2003", "wnut17"),
    "question_answering": ("squad_v1_dev_split",),
    "translation": ("multi30k_en_de",),
    "sentence_similarity": ("stsb",),
    "instruction_tuning": ("gsm8k", "instructions_1k"),
    "preference": ("preferences_1k",),
    "image_classification": ("fashion_mnist", "cifar10_jpeg"),
    "causal": ("wikitext2", "tinyshakespeare", "blimp"),
}


def tasks_of(path) -> list[str]:
    """The tasks that are guessed, the likeliest first."""
    return [guess.task for guess in guesses(Table(NamedData(str(path)).rows(), str(path)))]


def given_file(name: str, folder: Path) -> Path:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return SHAPES[name][0](folder)


@pytest.fixture(autouse=True)
def no_packaged_decoder(monkeypatch):
    monkeypatch.delitem(beginnings.INSTALLED, "decoder")  # half a gigabyte to read


def test_chats_begin_from_the_packaged_model_where_it_is_installed(monkeypatch):
    monkeypatch.setitem(beginnings.INSTALLED, "decoder", "json")  # any package that is there
    beginning = beginnings.begin("instruction_tuning", ["en", "en"])
    assert beginning.fields == {"name_or_path": "smollm2"} and beginning.is_here
    assert "of English alone" in beginnings.begin("instruction_tuning", ["de", "de"]).words


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("name", SHAPES)
def test_a_recipe_has_the_right_task_and_few_lines_and_its_rows_are_shown(name, folder, capsys):
    path, task = given_file(name, folder), SHAPES[name][1]
    assert cli.main(["new", str(path)]) == 0
    said, text = capsys.readouterr().out, Path("recipe.yaml").read_text(encoding="utf-8")
    recipe = load_recipe("recipe.yaml")
    assert recipe.learned.name == task
    assert len(text.splitlines()) <= MOST_LINES and max(map(len, text.splitlines())) < 400
    assert "what came in" in said and "raise task.max_length" not in said
    assert ("first: anyformer train quickstart" in said) == (name in NEEDS_A_MODEL)
    assert "anyformer train recipe.yaml" in said
    has_validation = recipe.data.validation_files or recipe.data.share_held_back > 0
    assert has_validation and recipe.evaluation.every_steps == "epoch"


@pytest.mark.parametrize("name", NEEDS_A_MODEL)
def test_pairs_are_shown_as_texts_where_no_model_is_there_to_prefer_with(name, folder, capsys):
    path = given_file(name, folder)
    pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert cli.main(["new", str(path)]) == 0
    first = capsys.readouterr().out
    assert cli.main(["preview", "recipe.yaml", "--rows", "1"]) == 0
    for rows, said in ((2, first), (1, capsys.readouterr().out)):
        assert said.count("chosen: ") == said.count("rejected: ") == said.count("prompt: ") == rows
        assert "nats" not in said and "[[" + last_of(pairs[0]["chosen"]) + "]]" in said
        assert f"prompt: user: {pairs[0]['prompt']}\n" in said
        (missing,) = re.findall("training need the model; .+", said)
        assert "no such folder; anyformer train quickstart makes runs/quickstart" in missing


def last_of(answer) -> str:
    """The text of an answer that is a text or ends a conversation."""
    return answer if isinstance(answer, str) else answer[-1]["content"]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "tweets_with_keyword_and_place",
            "messages_of_openai",
            "two_languages",
            "one_long_text",
            "conll_in_text_files",
        ),
        *("a_column_for_each_class", "folders_of_texts_by_class", "a_word_in_each_row"),
    ],
)
def test_a_recipe_from_nothing_trains(name, folder, capsys, monkeypatch):
    monkeypatch.setattr(beginnings, "INSTALLED", {})
    assert cli.main(["new", str(given_file(name, folder))]) == 0
    assert "from nothing" in Path("recipe.yaml").read_text()
    options = ["training.max_steps=2", "training.per_device_train_batch_size=2", "evaluation.max_rows=2"]
    assert cli.main(["train", "recipe.yaml", *options]) == 0


@pytest.mark.parametrize("task, folders", a_share(REAL.items(), 3))
def test_the_right_task_comes_first_for_real_data(task, folders, data_folder):
    for place in folders:
        files = [data_folder / place, *sorted((data_folder / place).iterdir())]
        for path in (path for path in files if path.name != "unsupervised_15k.parquet"):
            assert tasks_of(path)[0] == task, path


def test_nothing_is_overwritten(folder, capsys):
    path = given_file("texts_and_numbered_labels", folder)
    Path("recipe.yaml").write_text("mine")
    assert cli.main(["new", str(path)]) == 2
    assert "--out" in capsys.readouterr().err and Path("recipe.yaml").read_text() == "mine"
    assert cli.main(["new", str(path), "--out", "other.yaml"]) == 0 and Path("other.yaml").exists()


UNREADABLE = {
    "empty.csv": b"",
    "names_alone.csv": b"text,label\n",
    "numbers.csv": b"width,height\n" + b"".join(b"%d,%d\n" % (7 * n % 31, 5 * n % 17) for n in range(40)),
    "broken.jsonl": b'{"text": \n{"text"\n',
    "broken.parquet": b"PAR1 no",
    "unknown.docx": b"PK\x03\x04",
    "words.csv": b"sentence,word,tag\n" + b"1,London,B-LOC\n1,calls,O\n1,you,O\n" * 20,
    "remarks.csv": b"# exported in March\n# by the shop\ntext,label\n" + b"it is fine,a\nit is not,b\n" * 20,
    "title.csv": b"Feedback of March;;\n;;\nDate;Text;Label\n" + b"2026-03-01;it is so good;a\n" * 20,
    "fasttext.txt": b"__label__ham how are you today\n__label__spam you won a prize\n" * 20,
    "speech.wav": b"RIFF",
    "telegram.json": json.dumps(
        {"name": "us", "id": 7, "messages": [{"id": n, "from": "Ann", "text": "see you soon"} for n in range(30)]}
    ).encode(),
    "from_one.csv": b"question,option1,option2,answer\n"
    + b"what is it now?,this one,that one,1\nand who was it?,he there,she there,2\n" * 20,
    "batch.jsonl": b'{"request": {"n": 1}, "response": {"choices": [{"message": {"n": 1}}]}}\n' * 9,
    "spans.jsonl": b'{"text": "Anna saw it with her own eyes", "label": [[0, 4, "PER"]]}\n' * 3,
}


@pytest.mark.parametrize("name", [*UNREADABLE, "missing.csv", "no_such_owner/no_such_data", ""])
def test_what_cannot_be_learned_from_is_one_sentence(name, folder, capsys):
    if name in UNREADABLE:
        (folder / name).write_bytes(UNREADABLE[name])
    assert cli.main(["new", name if "/" in name else str(folder / name)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("anyformer: ") and err.count("\n") == 1
    assert not Path("recipe.yaml").exists()


def test_a_task_is_forced_where_it_fits(folder, capsys):
    path = given_file("stars_among_many_columns", folder)
    assert start(str(path)).guesses[0].task == "sequence_classification"
    assert cli.main(["new", str(path), "--task", "sequence_regression"]) == 0
    assert load_recipe("recipe.yaml").learned.label_field == "Score"
    for task, words in (("translation", "what fits: sequence_classification"), ("clasification", "did you mean")):
        assert cli.main(["new", str(path), "--task", task, "--out", "other.yaml"]) == 2
        assert words in capsys.readouterr().err


def test_the_second_best_guess_says_how_it_is_chosen(folder):
    head = start(str(given_file("questions_and_worked_answers", folder))).text.splitlines()[1]
    assert head.startswith("# Equally likely: text_to_text") and "--task text_to_text" in head


def test_a_model_is_set_and_adapted_where_it_does_not_fit(folder, monkeypatch, tmp_path, tiny_encoder_config):
    import transformers
    from tiny_tokenizers import of_bytes

    model, special = tmp_path / "model", ("<|pad|>", "<|cls|>", "<|sep|>")
    of_bytes(special, pad="<|pad|>", cls="<|cls|>", sep="<|sep|>").save_pretrained(model)
    transformers.AutoModelForMaskedLM.from_config(tiny_encoder_config(vocab_size=300)).save_pretrained(model)
    path = str(given_file("texts_and_numbered_labels", folder))
    whole = parse_yaml(start(path, model=str(model)).text, "")
    assert whole["model"] == {"name_or_path": str(model)} and "lora" not in whole["training"]
    questions = start(str(given_file("squad_as_lines", folder)), model=str(model)).text
    assert parse_yaml(questions, "")["task"]["max_length"] == tiny_encoder_config().max_position_embeddings
    monkeypatch.setattr(written_recipe, "memory_of_this_machine", lambda: 10_000)
    assert parse_yaml(start(path, model=str(model)).text, "")["training"]["lora"] == {"r": 16}


def test_calls_of_tools_get_a_template_that_writes_them(tmp_path):
    model = random_decoder(tmp_path / "model", hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    asked = [{"role": "user", "content": "Rain?"}]
    for answer, section in (
        ({"role": "assistant", "tool_calls": [call]}, {"chat_template": "chatml_tools"}),
        ({"role": "assistant", "content": "No."}, None),
    ):
        file = tmp_path / "chats.jsonl"
        file.write_text(as_lines([{"messages": [*asked, answer]}] * 20))
        assert start(str(file), model=str(model)).sections.get("tokenizer") == section


def test_what_is_found_of_a_file_is_written_where_it_can_be_changed(folder):
    text = start(str(given_file("tickets_of_a_german_spreadsheet", folder))).text
    data = parse_yaml(text, "")["data"]
    assert data["separator"] == "semicolon" and data["encoding"] == "cp1252"
    assert parse_yaml(text, "")["task"]["merge_labels"] is True  # Abrechnung, abrechnung
    assert re.search(r"# tokens: half of the texts .* 95 % \d+", text)
    assert re.search(r"# .*Abrechnung \d+.*\n  label_field: Abteilung\n", text)


def test_what_is_asked_is_read_and_what_is_answered_is_written(folder):
    task = parse_yaml(start(str(given_file("german_questions_and_answers", folder))).text, "")["task"]
    assert (task["source"], task["target_field"]) == ("{Frage}", "Antwort")


def test_files_of_a_folder_become_splits_and_the_others_are_named(folder):
    text = start(str(given_file("folder_of_train_and_test", folder))).text
    data = parse_yaml(text, "")["data"]
    assert (Path(data["files"]).name, Path(data["test_files"]).name) == ("train.csv", "test.csv")
    assert "sample_submission.csv" in text and 0 < data["validation_fraction"] < 0.4


def test_a_test_file_without_labels_is_no_split(folder):
    words = Words()
    rows = [{"text": words(), "target": index % 2} for index in range(50)]
    (folder / "train.csv").write_text(as_csv(rows))
    (folder / "test.csv").write_text(as_csv([{"text": row["text"]} for row in rows]))
    text = start(str(folder)).text
    assert "test_files" not in parse_yaml(text, "")["data"] and "test.csv" in text


@given(st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=2, unique=True), st.text(min_size=1, max_size=9))
def test_any_names_are_read_back_as_they_are(tmp_path_factory, names, class_name):
    words, path = Words(), tmp_path_factory.mktemp("names") / "rows.jsonl"
    rows = [dict(zip(names, (words(2), class_name if index % 2 else "other class"))) for index in range(24)]
    try:
        path.write_text(as_lines(rows), encoding="utf-8")
    except UnicodeEncodeError:
        return
    task = parse_yaml(start(str(path), task="causal").text, "")
    assert task["data"]["text_field"] in names


def test_a_data_set_without_answers_is_a_corpus(data_folder):
    assert tasks_of(data_folder / "imdb" / "unsupervised_15k.parquet")[0] == "causal"


def test_nothing_of_this_machine_is_asked_at_the_terminal(folder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question"))
    assert cli.main(["new", os.path.relpath(given_file("two_languages", folder))]) == 0
