"""Laws of the file formats: the same rows from each, nothing read as what it is not, one sentence for a broken file."""

import bz2
import contextlib
import gzip
import json
import lzma
import sys
import tracemalloc
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest
from anyformer.pipelines.data.account_words import unusual
from anyformer.pipelines.data.bad_rows import bad_rows_of
from anyformer.pipelines.data.documents import Limits
from anyformer.pipelines.data.file_formats import FILE_FORMATS
from anyformer.pipelines.data.opening import open_corpora, open_examples
from anyformer.pipelines.data.plain_text import CODE_AND_MARKUP
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.prediction.unlabelled import Unlabelled
from anyformer.pipelines.recipes.data_section import MixtureSource
from anyformer.pipelines.recipes.schema import DataSection
from anyformer.pipelines.storage import packed_files
from task_data import texts

ROWS = [
    {"text": 'één, "two"\nthree\t', "label": "good"},
    {"text": "a [bracket], a {brace}", "label": "bad"},
    {"text": "x" * 200_000, "label": "long"},
]


def section(path, **settings):
    return DataSection(files=str(path), **({"validation_fraction": 0} | settings))


def quoted(row, delimiter):
    return delimiter.join('"' + value.replace('"', '""') + '"' for value in row.values())


def table(delimiter):
    return delimiter.join(ROWS[0]) + "\r\n" + "\r\n\r\n".join(quoted(row, delimiter) for row in ROWS) + "\r\n"


CONTENTS = {
    "a.csv": table(","),
    "a.tsv": table("\t"),
    "a.json": json.dumps(ROWS),
    "pretty.json": json.dumps(ROWS, indent=4, ensure_ascii=False),
    "lines.json": "\n".join(map(json.dumps, ROWS)),
    "a.jsonl": "\ufeff" + "\n".join(map(json.dumps, ROWS)),  # with a byte-order mark
}


PACKERS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
with contextlib.suppress(ImportError):
    PACKERS[".zst"] = packed_files._zstd().compress


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("packed", PACKERS)
def test_every_format_gives_the_same_texts_and_examples_however_it_is_packed(tmp_path, name, packed):
    path, content = tmp_path / (name + packed), CONTENTS[name].encode()
    path.write_bytes(PACKERS[packed](content[:9]) + PACKERS[packed](content[9:]))  # parts, as `cat` puts them together
    assert texts(open_corpora(section(path))["train"]) == [row["text"] for row in ROWS]
    read = open_examples(section(path), {"text_field": "text", "label_field": "label"})["train"]
    assert [row for _, row in read] == ROWS


def test_a_text_is_found_under_keys_within_keys_in_every_format_that_has_them(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf-cache"))
    rows = [{"doc": {"id": 1, "body": {"text": text}}} for text in ("one", "two")]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text((tmp_path / "a.jsonl").read_text())
    sources = [section(tmp_path / f"a.{suffix}") for suffix in ("json", "jsonl", "parquet")]
    sources += [
        DataSection(dataset=str(tmp_path / "hub"), streaming=way, validation_fraction=0) for way in (False, True)
    ]
    for data in sources:
        data = replace(data, text_field="doc.body.text")
        assert texts(open_corpora(data)["train"]) == ["one", "two"]
        if data.files:
            examples = open_examples(data, {"text_field": "doc.body.text"})["train"]
            assert [row["doc.body.text"] for _, row in examples] == ["one", "two"]
        with pytest.raises(UserError, match=r"text_field='doc\.body\.txt'.*no such.*did you mean doc\.body\.text\?"):
            open_corpora(replace(data, text_field="doc.body.txt"))


def test_code_and_markup_are_text_where_a_pattern_asks_for_them(tmp_path):
    for name in ("a.txt", "b.md", "c.py.gz", "NOTES", "part.0001"):
        (tmp_path / name).write_bytes(gzip.compress(b"text\n") if name.endswith(".gz") else b"text\n")
    for pattern in ("*.md", "b.m*", "*.py*", "c.py.gz", "*.[mn]d", "N*", "part.*"):
        assert texts(open_corpora(section(tmp_path / pattern))["train"]) == ["text\n"], pattern
    for pattern in ("*", "*.*", "b*", "**", "b.*"):
        with pytest.raises(UserError, match=r"data\.files=.* matches .*(b\.md|c\.py\.gz), too; name the files"):
            open_corpora(section(tmp_path / pattern))


def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path):
    for name in ("a.xls", "a.pdf", "a.unknown"):
        (tmp_path / name).write_text("text\n")
        for pattern in (name, "*" + name[1:]):
            with pytest.raises(UserError) as caught:
                open_corpora(section(tmp_path / pattern))
            sentence = str(caught.value)
            assert f"{name} ends in .{name.split('.')[-1]}, which is no known format" in sentence
            assert all(
                suffix in sentence for suffix in (".csv", ".json", ".jsonl", ".parquet", ".txt", *CODE_AND_MARKUP)
            )
    with pytest.raises(UserError, match=r"a\.pdf is of no format that rows are read from; known: .*\.csv"):
        open_examples(section(tmp_path / "a.pdf"), {"label_field": "label"})


@pytest.mark.parametrize("packed", [packed for packed in PACKERS if packed])
def test_a_packed_file_that_is_cut_or_of_another_kind_is_one_sentence(tmp_path, packed):
    name, whole = packed_files.PACKED[packed][0], PACKERS[packed](b"text\n" * 1000)
    for content in (whole[:-9], b"none at all"):
        (tmp_path / f"a.txt{packed}").write_bytes(content)
        sentence = rf"^data\.files: \S+a\.txt{packed} is not a complete {name} file \(.+\)\.$"
        with pytest.raises(UserError, match=sentence):
            texts(open_corpora(section(tmp_path / f"a.txt{packed}"))["train"])
    (tmp_path / f"a.parquet{packed}").write_bytes(whole)
    with pytest.raises(UserError, match="is compressed inside; unpack the file first"):
        open_corpora(section(tmp_path / f"a.parquet{packed}"))


def test_zstd_without_its_package_is_one_sentence(tmp_path, monkeypatch):
    for module in ("compression", "backports"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.txt.zst").write_bytes(b"")
    sentence = r"a\.txt\.zst cannot be read \(zstd needs a package: pip install backports\.zstd"
    with pytest.raises(UserError, match=sentence):
        open_corpora(section(tmp_path / "a.txt.zst"))


BROKEN = {
    "bad.jsonl": ('{"text": "one"}\n{"text": \n', ["line 2", "not valid JSON"]),
    "list.jsonl": ("[1]\n", ["line 1", "not a JSON object"]),
    "digits.jsonl": ('{"text": "a"}\n{"n": ' + "1" * 5000 + "}\n", ["line 2", "not valid JSON (", "digits"]),
    "deep.jsonl": (
        '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
        ["line 1", "not valid JSON (maximum recursion depth"],
    ),
    "cut.json": ('[{"text": "a"}, {"text": "b', ["line 1", "not valid JSON"]),
    "end.json": ('[{"text": "a"}]\nmore', ["line 2", "not valid JSON"]),
    "number.json": ("[1, 2]", ["row 1", "not a JSON object but int"]),
    "other.json": ('{"rows": []}', ["data.text_field='text'", "known: rows"]),
    "no.xlsx": ("text,label\ngood,1\n", ["is not an Excel file"]),
    "cp1251.csv": (
        "text,оценка\nХорошо,1\n".encode("cp1251"),
        ["cp1252 as a whole (set data.encoding to what it is"],
    ),
    "twice.csv": ("text,label,text\na,1,b\n", ["data.files: ", "line 1 names 2 columns 'text'; rename all but one"]),
    "commas.csv": ("text,label\nwell, I liked it,1\n", ["line 2 holds 3 instead of 2 values", "needs quotes"]),
    "quote.csv": ('text,label\ngood,1\n"bad,1\nbad,1\n', ["from line 3 on, is not a table"]),
    "begins.tsv": (
        'text\tlabel\n"Anna saw Rome" she said\t1\n',
        ["from line 2 on, is not a table", "its own quotes doubled"],
    ),
    "two rows.tsv": (
        'text\tlabel\ngood\t1\n"Anna saw Rome.\tAnna sah Rom.\nBen said bye."\tBen sagt.\n',
        ["line 3 begins a row that its quotation marks end in line 4", "its own quotes doubled"],
    ),
    "spaces.csv": (" text,label\ngood,1\n", ["did you mean ' text'?"]),
    "empty.csv": ("", ["holds no document with text"]),
    "empty.json": ("[]", ["holds no document with text"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_sentence(tmp_path, name):
    content, says = BROKEN[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        texts(open_corpora(section(tmp_path / name))["train"])
    sentence = str(caught.value)
    assert name in sentence and "\n" not in sentence and all(words in sentence for words in says), sentence


def test_a_table_without_line_breaks_is_never_held_in_memory(tmp_path):
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b"text,label\r\ngood,1\r")
        for _ in range(40):
            stream.write(b"x" * 10**6)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"a\.csv\.gz, from line 3 on, is not a table \(field larger than"):
        texts(open_corpora(section(path, max_document_bytes=1000))["train"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6


def test_two_tables_that_are_read_in_turn_keep_their_own_limits(tmp_path):
    (tmp_path / "a.csv").write_text("text\n" + f"{'x' * 200_000}\n" * 2)
    rows = {size: FILE_FORMATS[".csv"].rows("", tmp_path / "a.csv", [], Limits(size, size)) for size in (10**6, 10)}
    next(rows[10**6])
    with pytest.raises(UserError, match="field larger than"):
        next(rows[10])
    assert len(next(rows[10**6])[1]["text"]) == 200_000


@pytest.mark.parametrize("split", ["files", "validation_files", "test_files"])
@pytest.mark.parametrize("name", ["b.jsonl", "b.json", "b.csv"])
def test_a_column_that_a_later_file_of_any_split_lacks_is_found_when_they_are_opened(tmp_path, split, name):
    (tmp_path / "a.csv").write_text("text,label\ngood,1\nbad,0\n")
    (tmp_path / name).write_text("txet,label\ngood,1\n" if "csv" in name else '{"txet": "good", "label": 1}\n')
    good, both = str(tmp_path / "a.csv"), [str(tmp_path / "a.csv"), str(tmp_path / name)]
    data = DataSection(**{"files": good, "validation_files": good, "test_files": good} | {split: both})
    for function in (open_corpora, lambda data: open_examples(data, {"text_field": "text"})):
        with pytest.raises(UserError, match=rf"text_field='text': no such .*{name}.*did you mean txet\?"):
            function(data)


# Encodings


def contents_of(words):
    """{name of a file: what it holds} of each format."""
    return {
        "a.txt": "".join(word if word.endswith("\n") else f"{word}\n" for word in words),
        "a.jsonl": "".join(json.dumps({"text": word}, ensure_ascii=False) + "\n" for word in words),
        "a.json": json.dumps([{"text": word} for word in words], ensure_ascii=False),
        "a.csv": "text\r\n" + "".join(f'"{word}"\r\n' for word in words),
        "a.tsv": "text\tn\n" + "".join(f'"{word}"\t1\n' for word in words),
    }


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8"])
def test_files_in_other_encodings_are_read_where_the_recipe_names_them(tmp_path, encoding):
    words = ["café\n", "naïve\n"]
    for name, content in contents_of(words).items():
        (tmp_path / name).write_bytes(content.encode(encoding))
        data = section(tmp_path / name, encoding=encoding, document="line")
        assert texts(open_corpora(data)["train"]) == words, name
        mixed = DataSection(mixture=[MixtureSource(files=data.files, encoding=encoding, document="line")])
        assert sorted(texts(open_corpora(mixed)["train"]) + texts(open_corpora(mixed)["validation"])) == words
        if name != "a.txt":
            examples = open_examples(data, {"text_field": "text"})["train"]
            assert [row["text"] for _, row in examples] == words, name


def test_an_encoding_is_checked_and_part_of_the_fingerprint(tmp_path):
    (tmp_path / "a.txt").write_text("text\n")
    for encoding in ("rot13", "lattin-1", "idna", "punycode", "utf-8\0"):
        with pytest.raises(UserError, match=r"data\.encoding=.* is none of Python"):
            open_corpora(section(tmp_path / "a.txt", encoding=encoding))
    (tmp_path / "odd.txt").write_bytes(b"abc")
    with pytest.raises(UserError, match=r"odd\.txt is not utf-16"):
        open_corpora(section(tmp_path / "odd.txt", encoding="utf-16-le"))
    (tmp_path / "bare.txt").write_bytes("text\n".encode("utf-16-be"))
    assert texts(open_corpora(section(tmp_path / "bare.txt", encoding="utf-16-be"))["train"]) == ["text\n"]
    prints = [
        open_corpora(section(tmp_path / "a.txt", encoding=name))["train"].fingerprint() for name in ("utf-8", "cp1252")
    ]
    assert prints[0] != prints[1]


# What a file is saved in, and what is found.
SAVED = {name: name for name in ("cp1252", "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32")}
SAVED |= {"utf-8-sig": "utf-8"}
WESTERN = ["le café d’été", "groß“", "naïve, ça va…", *(f"plain {number}" for number in range(27))]
OTHERS = {"utf-8-sig": ["добрый день", "好电影"], "utf-16-le": ["добрый день", "мир"], "utf-16-be": ["好电影", "日本"]}


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("encoding", SAVED)
def test_the_encoding_of_a_file_is_found_and_said_at_each_door(tmp_path, encoding, packed):
    for words in (WESTERN, OTHERS.get(encoding, WESTERN)):
        for name, content in contents_of(words).items():
            path = tmp_path / f"{name}{packed}"
            with (gzip.open if packed else open)(path, "wb") as stream:
                stream.write(content.encode(encoding))
            corpus = open_corpora(section(path, document="line"))["train"]
            assert [text.rstrip("\n") for text in texts(corpus)] == words, name
            said = [] if SAVED[encoding] == "utf-8" else [f"read as {SAVED[encoding]}, not UTF-8: {path.name}"]
            sources = [corpus]
            if name != "a.txt":
                sources += [open_examples(section(path), {"text_field": "text"})["train"], Unlabelled(str(path))]
                assert [row["text"] for source in sources[1:] for _, row in source] == [*words, *words], name
            for source in sources:
                notes = unusual(source.account())
                assert len(notes) == len(said) and all(map(str.__contains__, notes, said))
    plain = section(tmp_path / f"a.csv{packed}", encoding="cp1252" if encoding == "cp1252" else "utf-8")
    read = open_corpora(plain)["train"]
    assert ("encodings" in str(read.identity())) == (SAVED[encoding] != "utf-8" and encoding != "cp1252")


@pytest.mark.parametrize(
    "content",
    [
        "text,label\nОтлично,positive\nПлохо,negative\n".encode("cp1251"),
        "text,label\nκαλός,1\n".encode("cp1253"),
        "text,label\nPiątek, może,1\ncałość,2\n".replace(", ", " ").encode("cp1250"),
        "text,label\n好电影,1\n".encode("gbk"),
        "text,label\n良い映画,1\n".encode("shift_jis"),
        "text,label\ngrün,1\n".encode("cp437"),
        b"text,label\n" + "été,1\nnaïf,2\n".encode() * 9 + "café,1\ngroß,2\n".encode("latin-1") * 9,
    ],
)
def test_a_table_in_another_encoding_or_in_two_is_one_sentence_and_no_row_is_dropped(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    for opened in (open_corpora, lambda data: list(open_examples(data, {"text_field": "text"})["train"])):
        with pytest.raises(UserError, match=r"^data\.files: .*a\.csv is not UTF-8, .* as a whole .set data\.encoding"):
            opened(section(tmp_path / "a.csv", bad_rows="skip" if opened is not open_corpora else "refuse"))
    with pytest.raises(UserError, match=r"^FILE: .*, or write it in UTF-8.*$"):
        Unlabelled(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("content", [b"ab\0c", b"abc\0def\0" * 9, b"anna\0lives in rome\n" * 9, "z\0ähler".encode()])
def test_a_text_with_zeros_in_it_is_not_taken_for_utf16(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    corpus = open_corpora(section(tmp_path / "a.txt"))["train"]
    assert texts(corpus) == [content.decode()] and unusual(corpus.account()) == []


def test_a_row_that_is_not_in_the_encoding_that_the_recipe_names_is_no_bad_row(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text\ngood\nca\x81\n")
    examples = open_examples(section(tmp_path / "a.csv", encoding="cp1252"), {"text_field": "text"})["train"]
    with pytest.raises(UserError, match=r"line 3: not cp1252; set data\.encoding to what it is"):
        bad_rows_of(examples, lambda probe: None)


def test_broken_bytes_in_a_file_of_utf8_are_skipped_rows_and_refused_examples(tmp_path):
    for name, content in {
        "a.csv": "text,label\nnaïve,1\n".encode() + b"caf\xe9,2\n",
        "a.json": '[{"text": "naïve", "label": 1}, '.encode() + b'{"text": "caf\xe9", "label": 2}]',
    }.items():
        content = content.replace("naïve".encode(), "naïve ça".encode())
        (tmp_path / name).write_bytes(content)
        corpus = open_corpora(section(tmp_path / name))["train"]
        assert texts(corpus) == ["naïve ça"] and unusual(corpus.tally())[0] == "1 document skipped: 1 not UTF-8"
        with pytest.raises(UserError, match=r"(line 3|row 2): not UTF-8"):
            list(open_examples(section(tmp_path / name), {"text_field": "text"})["train"])
