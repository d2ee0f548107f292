"""Tables of texts and labels as people have them, by the command line: nobody edits the file first."""

import csv
import json
import random
import re
import shutil
from datetime import datetime

import openpyxl
import pytest
from people_files import as_csv
from task_data import CHARACTERS, task_recipe, write_lines

CLASSES = ("Billing", "Login", "Shipping", "Other")
SPELLINGS = (str, str.lower, str.upper, lambda name: f"{name} ")


def tickets(number=60, columns=("Id", "Subject", "Description", "Category"), spell=lambda name, row: name):
    """Rows of an export of support tickets, of which each third has no description."""
    draw = random.Random(0)
    rows = []
    for row in range(number):
        name = CLASSES[row % 4]
        cells = {"Id": f"{row}", "Subject": f'Größe "{draw.randint(1, 9)}" {name.lower()} {row}; bitte'}
        cells["Description"] = "" if row % 3 == 0 else f"Hallo,\nes geht um {name}, und zwar {row}."
        cells["Category"] = spell(name, row)
        rows.append({name: cells[name] for name in columns})
    return rows


def export(path, rows, delimiter=";", encoding="cp1252"):
    path.write_bytes(as_csv(rows, delimiter).encode(encoding))
    return path


def workbook(path, rows):
    book = openpyxl.Workbook()
    for cells in ([*rows[0]], *([*row.values()] for row in rows)):
        book.active.append(cells)
    book.save(path)
    return path


@pytest.fixture
def run(tmp_path, command, capsys):
    """Run a command on a recipe of a task over a table -> what it printed, on one line."""

    def ran(do, table, task, *more, of="sequence_classification", name=None, exit_code=0, **data):
        data = {"files": str(table), "validation_fraction": 0.25, "test_files": None} | data
        how = {"task": {"max_length": 64, "name": name or of} | task, "tokenizer": CHARACTERS, "data": data}
        how |= {"training": {"max_steps": 1}, "evaluation": {"every_steps": None}}
        recipe = task_recipe(tmp_path, of, **how)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        capsys.readouterr()
        assert command(do, recipe, *more) == exit_code
        said = capsys.readouterr()
        return " ".join((said.out + said.err).split())

    return ran


TICKETS = {"text_field": "Subject", "label_field": "Category"}


@pytest.mark.parametrize(
    "name, write, said",
    [
        ("a.csv", lambda path, rows: export(path, rows), "read as cp1252, not UTF-8, values separated by semicolons"),
        ("a.csv", lambda path, rows: export(path, rows, "\t", "utf-16"), "utf-16, not UTF-8, values separated by tabs"),
        ("a.tsv", lambda path, rows: export(path, rows, "|", "utf-8-sig"), "read as values separated by bars"),
        ("a.xlsx", workbook, "60 Subject"),
    ],
)
def test_an_export_is_previewed_trained_evaluated_and_answered_as_it_is(
    run, tmp_path, command, capsys, name, write, said
):
    path = write(tmp_path / name, tickets())
    shown = run("preview", path, TICKETS)
    assert said in shown or "Subject" in shown
    assert "billing" in shown and "class Billing" in shown
    trained = run("train", path, TICKETS)
    assert name == "a.xlsx" or said in trained
    assert command("evaluate", tmp_path / "run", f"data.validation_files={path}", "data.validation_fraction=null") == 0
    out = tmp_path / "out.jsonl"
    assert command("predict", tmp_path / "run", path, "--out", out) == 0
    assert name == "a.xlsx" or said in capsys.readouterr().err.replace("\n", " ")
    answered = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["Subject"] for row in answered] == [row["Subject"] for row in tickets()]
    assert {row["prediction"] for row in answered} <= set(CLASSES)


def test_several_columns_become_one_text_whose_empty_parts_are_counted(run, tmp_path, command, capsys):
    path = export(tmp_path / "a.csv", tickets())
    task = {"text_field": ["Subject", "Description"], "label_field": "Category"}
    shown = run("preview", path, task)
    assert "of texts left out, as 'Description' is empty" in shown and "bitte" in shown and "Hallo" in shown
    assert "Subject:" not in shown
    assert "Subject:" in run("preview", path, task | {"text_names": True})
    said = run("train", path, task | {"text_names": True})
    assert "of texts left out, as 'Description' is empty" in said
    rows = [{"Subject": "login"}, {"Subject": "login", "Description": None}, {"Subject": None, "Description": " "}]
    asked = write_lines(tmp_path / "asked.jsonl", [rows[0] | {"Description": "x"}, *rows[1:]])
    assert command("predict", tmp_path / "run", asked, "--out", tmp_path / "out.jsonl") == 0
    answers = [json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert answers[0] in CLASSES and answers[1] in CLASSES and answers[2] is None
    assert "1 part of texts left out, as 'Description' is empty" in capsys.readouterr().err
    nothing = export(
        tmp_path / "b.csv", [*tickets(), {"Id": "", "Subject": " ", "Description": "", "Category": "Login"}]
    )
    refused = run("preview", nothing, task, exit_code=2)
    assert "holds no text in any of them" in refused and "text_field=['Subject', 'Description']" in refused
    for wrong, words in (([], "must name a column"), (["Subject", "Subject"], "several different ones")):
        assert words in run("preview", path, task | {"text_field": wrong}, exit_code=2)
    assert "text_names=true is of several" in run("preview", path, TICKETS | {"text_names": True}, exit_code=2)


def test_classes_are_mapped_and_unknown_keys_named(run, tmp_path):
    rows = [row | {"Category": f"{at % 2}"} for at, row in enumerate(tickets())]
    path = export(tmp_path / "a.csv", rows)
    shown = run("preview", path, TICKETS | {"label_map": {"0": "fine", "1": "broken"}})
    assert "class fine" in shown and "class broken" in shown and "'0' as 'fine'" in shown
    path = export(tmp_path / "b.csv", tickets())
    mapped = run("preview", path, TICKETS | {"label_map": {"Login": "Account", "Billing": "Account"}})
    assert "Account 15" in mapped and "class Billing" not in mapped
    refused = run("preview", path, TICKETS | {"label_map": {"Biling": "Account"}}, exit_code=2)
    assert "no label is 'Biling'; did you mean Billing?" in refused
    names = {"label_map": {"Login": "Acount"}, "label_names": ["Account", "Billing", "Shipping", "Other"]}
    assert "'Acount'; did you mean Account?" in run("preview", path, TICKETS | names, exit_code=2)


def test_numbers_and_dates_of_a_sheet_are_texts_and_classes_as_in_csv(run, tmp_path, command, capsys):
    rows = [
        {"note": (at, at + 0.5, datetime(2024, 5, 1 + at % 28), "words")[at % 4], "grade": at % 3 + 1}
        for at in range(40)
    ]
    book = workbook(tmp_path / "a.xlsx", rows)
    task = {"text_field": "note", "label_field": "grade"}
    shown = run("train", book, task)
    assert re.search(r"; 1 \d+, 2 \d+, 3 \d+ ", shown)
    table = export(tmp_path / "new.csv", [{"note": f"x {at}", "grade": at % 3 + 1} for at in range(9)])
    for file, number in ((table, 9), (book, 40)):
        assert command("evaluate", tmp_path / "run", file) == 0
        assert f"{number} examples" in capsys.readouterr().out
    numbers = {"name": "sequence_regression"}
    marks = [row | {"grade": 1.234 if at % 2 else "3,5"} for at, row in enumerate(rows)]  # in one sheet
    shown = run("preview", workbook(tmp_path / "b.xlsx", marks), task, **numbers)
    assert "label 1.234" in shown and "label 3.5" in shown


def test_a_text_file_that_is_a_table_is_answered_as_it_was_learned(run, tmp_path, command):
    path = export(tmp_path / "a.txt", tickets(), "|", "utf-8")
    run("train", path, TICKETS, separator="bar")
    assert command("predict", tmp_path / "run", path, "--out", tmp_path / "out.jsonl") == 0
    answered = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["Subject"] for row in answered] == [row["Subject"] for row in tickets()]
    letter = tmp_path / "letter.txt"
    letter.write_text('"Hallo,\nmein Drucker')
    out, asked = tmp_path / "out.csv", ("--read", "Subject=text", "--columns", "text")
    assert command("predict", tmp_path / "run", letter, "--out", out, *asked) == 0
    assert next(csv.DictReader(out.open()))["text"] == letter.read_text()


def test_names_that_are_alike_are_named_with_counts_and_merged_by_a_setting(run, tmp_path, command, capsys):
    path = export(tmp_path / "a.csv", tickets(96, spell=lambda name, row: SPELLINGS[(row // 4) % 4](name)))
    shown = run("preview", path, TICKETS)
    assert "one class or several?" in shown and "'Billing ' " in shown and "task.merge_labels=true" in shown
    merged = run("train", path, TICKETS | {"merge_labels": True})
    assert "one class or several?" not in merged and "'BILLING' as 'BILLING'" not in merged
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert len(config["id2label"]) == 4 and {name.casefold() for name in config["id2label"].values()} == {
        name.casefold() for name in CLASSES
    }
    mapped = run("train", path, TICKETS | {"merge_labels": True, "label_map": {"login": "Account"}})
    assert "Account 1" in mapped and "LOGIN" not in mapped.replace("'LOGIN' as 'Account'", "")
    strange = [row | {"Category": "Refund" if at < 26 else "Later"} for at, row in enumerate(tickets(30))]
    new = export(tmp_path / "c.csv", [*strange, *tickets(10, spell=lambda name, row: name.upper())])
    assert command("evaluate", tmp_path / "run", new) == 2
    said = capsys.readouterr().err
    assert "30 rows cannot be used" in said and said.count("c.csv, line 2 ") == 1
    assert "6 'Category' is of the unknown class 'Refund'; 4 'Category' is of the unknown class 'Later'" in said
    assert command("evaluate", tmp_path / "run", new, "data.bad_rows=skip") == 0
    assert "26 'Category' is of the unknown class 'Refund'" in capsys.readouterr().err
    other = export(tmp_path / "b.csv", tickets(12, spell=lambda name, row: f" {name.upper()}."))
    assert command("evaluate", tmp_path / "run", f"data.test_files={other}") == 0
    assert "12 examples" in capsys.readouterr().out


@pytest.mark.parametrize(
    "cell, said",
    [
        ("; ".join, "read as several, between semicolons"),
        ("|".join, "read as several, between bars"),
        (",".join, "read as several, between commas"),
        (json.dumps, ""),
        (repr, ""),
    ],
)
def test_several_labels_stand_in_a_cell(run, tmp_path, cell, said):
    sets = [["colour", "animal"], ["person"], [], ["animal", "person", "colour"]]
    rows = [{"text": f"text {row}", "labels": cell(sets[row % 4])} for row in range(40)]
    path = export(tmp_path / "a.csv", rows, ",", "utf-8")
    shown = run("preview", path, {}, of="multi_label_classification")
    assert said in shown and "classes animal, colour" in shown and "classes none" in shown


def test_decimal_commas_are_read_and_ambiguous_thousands_named(run, tmp_path):
    rows = [{"text": f"text {row}", "label": f"{row % 5},{row % 3}5"} for row in range(40)]
    path = export(tmp_path / "a.csv", rows, ";", "utf-8")
    shown = run("preview", path, {}, name="sequence_regression")
    assert "labels read with a decimal comma" in shown and "label 0.05" in shown
    pairs = [row | {"other": "x", "label": f"0,{at % 7}"} for at, row in enumerate(rows)]
    shown = run("preview", export(tmp_path / "b.csv", pairs), {"text_pair_field": "other"}, of="sentence_similarity")
    assert "labels read with a decimal comma" in shown
    thousands = [row | {"label": f"{1 + at},234"} for at, row in enumerate(rows)]
    path = export(tmp_path / "c.csv", thousands)
    refused = run("preview", path, {}, name="sequence_regression", exit_code=2)
    assert "holds '1,234', which may be 1.234 or 1234; set task.decimal_mark" in refused
    for mark, label in (("comma", "label 1.234"), ("point", "label 1234")):
        assert label in run("preview", path, {"decimal_mark": mark}, name="sequence_regression")


def test_texts_in_two_parts_and_texts_with_two_classes_are_named_with_counts(run, tmp_path):
    rows = tickets(40)
    again = [*rows, *rows[:8], *(row | {"Category": "Other"} for row in rows[:8] if row["Category"] != "Other")]
    path = export(tmp_path / "a.csv", again)
    shown = run("train", path, TICKETS)
    assert "of several classes, such as 'Größe" in shown
    assert "also in train, such as 'Größe" in shown and "data.group_field=Subject keeps equal ones in one part" in shown
    grouped = run("train", path, TICKETS, group_field="Subject")
    assert "also in train" not in grouped and "6 texts of several classes" in grouped
    assert "also in train" not in run("preview", export(tmp_path / "b.csv", rows), TICKETS)


def test_a_new_file_is_measured_with_the_count_of_its_texts_that_were_learned(run, tmp_path, command, capsys):
    unusable = [{"Id": "", "Subject": "", "Description": "", "Category": "Login"}]
    path = export(tmp_path / "a.csv", [*tickets(40), *unusable])
    valid = export(tmp_path / "v.csv", tickets(8))
    run("train", path, TICKETS, validation_fraction=None, validation_files=str(valid), bad_rows="skip")
    assert command("evaluate", tmp_path / "run") == 0
    assert "validation: 8 texts also in train" in " ".join(capsys.readouterr().err.split())
    renamed = [{"Betreff": row["Subject"], "Label": row["Category"]} for row in tickets(8)]
    strange = [{"Betreff": f"neu {at}", "Label": "Other"} for at in range(4)]
    new = export(tmp_path / "new.csv", [*renamed, *strange], ",", "utf-8")
    columns = ("task.text_field=Betreff", "task.label_field=Label")
    for task, file in ((columns, new), ((), export(tmp_path / "b.csv", tickets(8)))):
        assert command("evaluate", tmp_path / "run", file, *task) == 0
        said = capsys.readouterr().err
        assert "8 texts also in train, such as 'Größe" in said and "group_field" not in said
    assert command("evaluate", tmp_path / "run", export(tmp_path / "c.csv", tickets(60)[40:])) == 0
    assert "also in train" not in capsys.readouterr().err
    path.unlink()
    assert command("evaluate", tmp_path / "run", new, *columns) == 0


@pytest.mark.parametrize(
    "content, said",
    [
        ("text,label\n", "holds no example for train"),
        ("text,label\n" + "a,b,c\n" * 9, "holds 3 instead of 2 values"),
        ("text,label\n" + "a,\n" * 9, "holds an empty class"),
        ("Text,label\n" + "a,b\n" * 9, "no such column"),
    ],
)
def test_a_table_without_a_usable_row_says_which_settings_to_try(run, tmp_path, content, said):
    (tmp_path / "a.csv").write_text(content)
    refused = run("preview", tmp_path / "a.csv", {"text_field": "text"}, exit_code=2)
    assert said in refused
    assert "no row can be used: try data.separator, data.encoding or task.text_field" in refused
