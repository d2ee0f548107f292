"""Tables as people have them: one set of rows, whatever the separator, encoding, quotes and order of columns."""

import csv
import io
import sys
from datetime import datetime, time

import openpyxl
import pytest
from anyformer.pipelines.data.account_words import lines, unusual
from anyformer.pipelines.data.opening import open_corpora, open_examples
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.prediction.unlabelled import Unlabelled
from anyformer.pipelines.recipes.compose import recipe_from_dict
from anyformer.pipelines.recipes.schema import DataSection
from hypothesis import given, settings
from hypothesis import strategies as st
from task_data import texts

SIGNS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"]
COLUMNS = ("Subject", "Description", "Category")
WORDS = ["café", "groß", "plain", "3,5", "a; b", "x | y", '"so"', "one\ntwo", "Müller,", ";;", "it's", "größer; länger"]
CELLS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)


def section(path, **settings):
    return DataSection(files=str(path), **({"validation_fraction": 0} | settings))


def rows_of(path, **settings):
    """The rows of a table as examples, and what is said of it."""
    examples = open_examples(section(path, **settings), {f"{name}_field": name for name in COLUMNS})["train"]
    return [row for _, row in examples], unusual(examples.account())


def write(path, rows, *, separator="comma", encoding="utf-8", quoting=csv.QUOTE_MINIMAL, columns=COLUMNS, before=""):
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, delimiter=SIGNS[separator], quoting=quoting)
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes((before + out.getvalue()).encode(encoding))
    return path


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.fixed_dictionaries(dict.fromkeys(COLUMNS, CELLS)), min_size=1, max_size=6),
    separator=st.sampled_from([*SIGNS]),
    encoding=st.sampled_from(ENCODINGS),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    columns=st.permutations(COLUMNS),
    suffix=st.sampled_from(["csv", "tsv"]),
)
def test_a_table_gives_the_rows_of_the_plain_one(rows, separator, encoding, quoting, columns, suffix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    plain, said = rows_of(write(folder / "plain.csv", rows))
    path = folder / f"other.{suffix}"
    write(path, rows, separator=separator, encoding=encoding, quoting=quoting, columns=columns)
    there, notes = rows_of(path)
    assert there == plain == rows and not said
    is_usual = separator == {"csv": "comma", "tsv": "tab"}[suffix]
    assert ("separated by" in " ".join(notes)) != is_usual and len(notes) < 2
    assert [{name: row[name] for name in COLUMNS} for _, row in Unlabelled(str(path))] == rows


def test_one_line_says_encoding_and_separator_and_both_can_be_set(tmp_path):
    rows = [dict(zip(COLUMNS, ("Größe; 3,5", "café", f"c{number % 2}"))) for number in range(9)]
    path = write(tmp_path / "tickets.csv", rows, separator="semicolon", encoding="cp1252")
    read, (said,) = rows_of(path)
    assert read == rows and said.startswith("read as cp1252, not UTF-8, values separated by semicolons: tickets.csv;")
    assert "data.encoding" in said and said.endswith("data.separator")
    assert rows_of(path, encoding="cp1252", separator="semicolon") == (rows, [])
    with pytest.raises(UserError, match=r"tickets\.csv, from line 2 on, is not a table"):
        rows_of(path, separator="comma")
    corpus = open_corpora(section(path, text_field="Subject"))["train"]
    assert texts(corpus) == [row["Subject"] for row in rows]


@pytest.mark.parametrize(
    "content, names",
    [
        ("text\none; two\nthree; four\n", ["text"]),
        ('text\n"a, b"\n"c, d"\n', ["text"]),
        ('"a; b",label\n"x; y",1\n"z; w",2\n', ["a; b", "label"]),
        ("id,text\n1,a;b\n2,c;d\n3,e|f\n", ["id", "text"]),
        ("text;label\ngood;1\nbad; very;2\nworse;3\n", ["text", "label"]),  # one row has one too many
        ("sep=;\r\ntext;label\r\ngood;1\r\n", ["text", "label"]),
        ('"sep=|"\ntext|label\ngood|1\n', ["text", "label"]),
        ("\n\ntext,label\ngood,1\n", ["text", "label"]),
        ("text\tlabel\n" + "one, two\t1\n" * 3, ["text", "label"]),
    ],
)
def test_no_separator_within_values_is_taken_for_that_of_the_table(tmp_path, content, names):
    (tmp_path / "a.csv").write_text(content)
    examples = open_examples(section(tmp_path / "a.csv"), {"text_field": names[0]})["train"]
    read = [row for _, (_, row) in examples.numbered() if isinstance(row, dict)]
    assert read and all(list(row) == names for row in read)


# ---- Excel


def workbook(path, **sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_a_sheet_of_a_workbook_is_a_table(tmp_path):
    rows = [["Größe, a", "one\ntwo", "x"], ["b; c", '"so"', "y"], ["d", "e", "x"]]
    tickets = [list(COLUMNS), rows[0], [None, None, None], *rows[1:], [None] * 5]
    path = workbook(tmp_path / "a.xlsx", Notes=[["a note"]], Tickets=tickets)
    expected = [dict(zip(COLUMNS, row)) for row in rows]
    said = "read as the sheet 'Tickets', its first with rows: a.xlsx; if that is wrong, set data.sheet"
    assert rows_of(path) == (expected, [said])
    assert rows_of(path, sheet="Tickets") == (expected, [])
    with pytest.raises(UserError, match=r"data\.sheet='Tikets': .* has no such sheet; did you mean Tickets\?"):
        rows_of(path, sheet="Tikets")
    with pytest.raises(UserError, match=r"no such .* in .*a\.xlsx, row 2; did you mean Subject\?"):
        open_corpora(section(path, text_field="Subjet"))
    assert [place.rpartition(", ")[2] for place, _ in Unlabelled(str(path))] == ["row 2", "row 4", "row 5"]


def test_a_cell_of_a_sheet_is_the_text_that_it_shows(tmp_path):
    cells = [(3, "3"), (3.0, "3"), (0.1 + 0.2, "0.3"), (-2.5, "-2.5"), (True, "TRUE"), ("007", "007")]
    cells += [(datetime(2024, 5, 17), "2024-05-17"), (datetime(2024, 5, 17, 9, 30), "2024-05-17 09:30:00")]
    cells += [(time(9, 30), "09:30:00"), (10**14, "100000000000000")]
    path = workbook(tmp_path / "a.xlsx", One=[[2024, "label"], *([value, "x"] for value, _ in cells)])
    examples = open_examples(section(path), {"text_field": "2024"})["train"]
    assert [row["2024"] for _, (_, row) in examples.numbered()] == [text for _, text in cells]
    said = lines(examples.tally())
    assert "9 cells of a sheet that are no texts, read as they are shown: '2024' 9" in said
    assert [row["2024"] for _, row in Unlabelled(str(path))] == [text for _, text in cells]


@pytest.mark.parametrize("has_names", [False, True])
def test_a_table_without_names_gets_them_from_the_recipe(tmp_path, has_names):
    rows = [["printer", "it is; \n broken", "x"], ["b", "c", "y"]]
    lines = [list(COLUMNS), *rows] if has_names else rows
    paths = [workbook(tmp_path / "a.xlsx", Tickets=lines)]
    for suffix, sign in (("csv", ","), ("tsv", "\t")):
        paths.append(tmp_path / f"a.{suffix}")
        with paths[-1].open("w", newline="") as file:
            csv.writer(file, delimiter=sign).writerows(lines)
    for path in paths:
        read, said = rows_of(path, column_names=list(COLUMNS))
        assert read == [dict(zip(COLUMNS, row)) for row in rows] and not said
        asked = Unlabelled(str(path), section(path, column_names=list(COLUMNS)))
        assert [{name: row[name] for name in COLUMNS} for _, row in asked] == read
        with pytest.raises(UserError, match=r"line 1 holds 3 instead of 2 values|no such column"):
            rows_of(path, column_names=["Subject", "Category"])


def test_settings_of_how_files_are_read_need_files():
    for name, value in {"separator": "semicolon", "sheet": "Tickets", "encoding": "latin-1"}.items():
        with pytest.raises(UserError, match=rf"data\.{name}=.* has no effect without data\.files"):
            open_corpora(DataSection(source="stdlib", **{name: value}))
    with pytest.raises(UserError, match=r"data\.separator=';' is not one of its choices"):
        recipe_from_dict({"data": {"files": "a.csv", "separator": ";"}, "model": {"family": "encoder"}})


def test_a_workbook_without_openpyxl_is_one_sentence(tmp_path, monkeypatch):
    path = workbook(tmp_path / "a.xlsx", Tickets=[list(COLUMNS)])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    for door in (rows_of, lambda path: Unlabelled(str(path))):
        with pytest.raises(UserError, match=r"a\.xlsx needs the package openpyxl; install anyformer\[excel\]"):
            door(path)
