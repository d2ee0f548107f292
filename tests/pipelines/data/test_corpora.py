"""Laws of the corpora: exact documents, stable splits, one sentence for bad input."""

import csv
import gzip
import io
import itertools
import os
import tracemalloc
from dataclasses import asdict, replace

import pytest
from anyformer.pipelines.data.account import LEFT_OUT
from anyformer.pipelines.data.account_words import unusual
from anyformer.pipelines.data.documents import Document, Limits, Source
from anyformer.pipelines.data.examples import SourceCorpus
from anyformer.pipelines.data.file_formats import FILE_FORMATS, FileFormat, register_file_format
from anyformer.pipelines.data.files import open_file
from anyformer.pipelines.data.opening import open_corpora, open_examples, source_names
from anyformer.pipelines.data.splits import Split
from anyformer.pipelines.data.stdlib import table_share
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.plugins import SOURCES, register_source
from anyformer.pipelines.recipes.data_section import MixtureSource
from anyformer.pipelines.recipes.schema import DataSection
from anyformer.pipelines.recipes.types import build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from task_data import documents_in, texts, write_lines

LIMITS = Limits(document_bytes=10**8, line_bytes=10**7)
LINES = [f"line {number} of the text\n" for number in range(200)]

no_fixture_reset = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def lines_file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(LINES))
    return path


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    """A data set that load_dataset reads from a folder, with a cache of its own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf-cache"))
    folder = tmp_path / "reviews"
    folder.mkdir()
    write_lines(folder / "train.jsonl", [{"text": line, "label": 1} for line in LINES])
    write_lines(folder / "test.jsonl", [{"text": "a test\n", "label": 0}])
    return folder


# Exact documents


@no_fixture_reset
@given(text=st.text(st.sampled_from("ab é\n\n \t\r")), document=st.sampled_from(["file", "line", "paragraph"]))
def test_documents_of_a_plain_file_put_together_are_the_file(tmp_path, text, document):
    path = tmp_path / "any.txt"
    path.write_bytes(text.encode())
    items = list(documents_in(path, document, LIMITS).items())
    kept = "".join(getattr(item, "text", "") for item in items)
    if not any(hasattr(item, "reason") for item in items):
        assert kept == text
    else:  # only blank text may be missing
        assert kept.split() == text.split()


def test_paragraphs_end_with_their_blank_lines(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("\n\none\nstill one\n\n\ntwo\n")
    items = list(documents_in(path, "paragraph", LIMITS).items())
    assert [item.text for item in items] == ["\n\none\nstill one\n\n\n", "two\n"]


def test_globs_are_sorted_and_a_file_matched_twice_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", "odd[1].txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    data = DataSection(files=["~/**/*.txt", "~/a.txt", "~/odd[1].txt"], validation_fraction=0)
    assert texts(open_corpora(data)["train"]) == ["a.txt", "b.txt", "odd[1].txt", "sub/c.txt"]


# Splits


@no_fixture_reset
@given(number=st.integers(2, 60), fraction=st.floats(0.01, 0.99))
def test_train_and_validation_share_out_all_documents_and_neither_is_empty(tmp_path, number, fraction):
    path = tmp_path / "some.txt"
    path.write_text("".join(LINES[:number]))
    corpora = open_corpora(DataSection(files=str(path), document="line", validation_fraction=fraction))
    train, validation = texts(corpora["train"]), texts(corpora["validation"])
    assert train and validation
    assert sorted(train + validation) == sorted(LINES[:number])


def test_more_documents_do_not_move_the_others(tmp_path, lines_file):
    longer = tmp_path / "longer.txt"
    longer.write_text("".join(LINES) + "".join(f"more {number}\n" for number in range(100)))
    short, long = (open_corpora(DataSection(files=str(path), document="line")) for path in (lines_file, longer))
    assert [text for text in texts(long["validation"]) if text in LINES] == texts(short["validation"])


def test_of_one_document_the_end_is_held_back_at_a_line_break(lines_file):
    corpora = open_corpora(DataSection(files=str(lines_file), validation_fraction=0.1))
    (train,), (validation,) = texts(corpora["train"]), texts(corpora["validation"])
    assert train + validation == "".join(LINES)
    assert train.endswith("\n")
    assert len(validation) == pytest.approx(0.1 * len(train + validation), abs=len(LINES[-1]))


def test_max_documents_counts_before_validation_is_split_off(lines_file):
    data = DataSection(files=str(lines_file), document="line", max_documents=40, validation_fraction=0.2)
    corpora = open_corpora(data)
    assert sorted(texts(corpora["train"]) + texts(corpora["validation"])) == sorted(LINES[:40])


# Standard library


def test_stdlib_is_source_and_documentation_without_tests_split_by_name():
    corpora = open_corpora(DataSection(source="stdlib"))
    train = [document.source for document in corpora["train"].documents()]
    validation = [document.source for document in corpora["validation"].documents()]
    names = train + validation
    assert {"json/decoder.py", "asyncio/tasks.py", "topics/lambda"} <= set(names)
    assert not any("test" in name.split("/")[:-1] or "site-packages" in name for name in names)
    assert not set(train) & set(validation) and len(names) == len(set(names)) > 300
    files = [name for name in train if not name.startswith("topics/")]
    assert files == sorted(files) == train[: len(files)]
    assert 0.01 < len(validation) / len(names) < 0.12


def test_stdlib_code_is_stdlib_without_tables_and_splits_it_alike():
    whole, code = open_corpora(DataSection(source="stdlib")), open_corpora(DataSection(source="stdlib_code"))
    for split in ("train", "validation"):
        kept = {document.source: document.text for document in code[split].documents()}
        left_out = {d.source: d.text for d in whole[split].documents() if kept.get(d.source) != d.text}
        assert not left_out.keys() & kept.keys()
        assert all(table_share(text) > 0.5 for name, text in left_out.items() if name != "pydoc_data/topics.py")
        assert all(table_share(text) <= 0.5 for name, text in kept.items() if not name.startswith("topics/"))
    names = {document.source for split in code.values() for document in split.documents()}
    assert {"json/decoder.py", "encodings/idna.py", "topics/lambda", "mimetypes.py", "_pydecimal.py"} <= names
    assert not names & {"encodings/cp437.py", "html/entities.py", "stringprep.py", "pydoc_data/topics.py", "locale.py"}


# What others register


@pytest.fixture
def psv_format():
    @register_file_format(".psv")
    class PipeSeparated(FileFormat):
        def rows(self, field, path, columns, limits):
            with open_file(path, limits.encoding) as stream:
                lines = io.TextIOWrapper(stream, "utf-8", newline="")
                yield from enumerate(csv.DictReader(lines, delimiter="|"), start=1)

    yield
    del FILE_FORMATS[".psv"]


def test_a_registered_file_format_is_read_as_documents_and_as_examples(tmp_path, psv_format):
    (tmp_path / "a.psv").write_text('text|label\n"one, two"|x\nthree|y\n')
    with gzip.open(tmp_path / "b.psv.gz", "wt") as file:
        file.write("text|label\nfour|x\n")
    data = DataSection(files=str(tmp_path / "*.psv*"), validation_fraction=0.0)
    assert texts(open_corpora(data)["train"]) == ["one, two", "three", "four"]
    rows = [row for _, row in open_examples(data, {"label_field": "label"})["train"]]
    assert [row["label"] for row in rows] == ["x", "y", "x"]
    with pytest.raises(UserError, match=r"data.text_field='txt': no such key in .*a\.psv, row 1; did you mean text\?"):
        open_corpora(replace(data, text_field="txt"))


def test_a_registered_source_is_split_mixed_and_identified(tmp_path):
    @register_source("poems")
    class Poems(Source):
        name = "poems"
        lines = [f"line {number}" for number in range(40)]

        def __init__(self, limits, where="data"):
            self.limits, self.where = limits, where

        def items(self):
            for number, line in enumerate(self.lines):
                yield self.limits.checked(line, f"poems:{number}")

        def identity(self):
            return {"source": self.name, "lines": self.lines}

    try:
        corpora = open_corpora(DataSection(source="poems", validation_fraction=0.25))
        parts = [texts(corpora[split]) for split in ("train", "validation")]
        assert sorted([*parts[0], *parts[1]]) == sorted(Poems.lines) and all(parts)
        before = corpora["train"].fingerprint()
        Poems.lines = [*Poems.lines, "one more"]
        assert open_corpora(DataSection(source="poems"))["train"].fingerprint() != before
        mixture = [MixtureSource(source="poems"), MixtureSource(source="stdlib", max_documents=2)]
        assert "line 1" in texts(open_corpora(DataSection(mixture=mixture))["train"])
    finally:
        SOURCES.remove("poems")


# Fingerprints


def test_fingerprint_follows_content_and_settings_not_the_folder(tmp_path):
    def fingerprint(folder, text="some text\nand more\n", **settings):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "a.txt").write_text(text)
        return open_corpora(DataSection(files=str(tmp_path / folder / "a.txt"), **settings))["train"].fingerprint()

    first = fingerprint("one")
    assert fingerprint("two") == first
    others = [
        fingerprint("three", "some text\nand mare\n"),
        fingerprint("one", document="line"),
        fingerprint("one", validation_fraction=0.3),
        fingerprint("one", max_documents=1),
        fingerprint("one", max_line_bytes=100),
    ]
    assert len({first, *others}) == 6


# Data sets of the Hub


def test_hub_rows_are_the_same_documents_and_splits_loaded_or_streamed(hub_folder):
    found = []
    for streaming in (False, True):
        corpora = open_corpora(DataSection(dataset=str(hub_folder), test_split="test", streaming=streaming))
        found.append({split: texts(corpus) for split, corpus in corpora.items()})
        assert texts(corpora["train"]) == found[-1]["train"]
        own = open_corpora(DataSection(dataset=str(hub_folder), validation_split="test", streaming=streaming))
        assert texts(own["train"]) == LINES and texts(own["validation"]) == ["a test\n"]
    assert found[0] == found[1] and found[0]["test"] == ["a test\n"] and found[0]["validation"]
    assert sorted(found[0]["train"] + found[0]["validation"]) == sorted(LINES)


def test_hub_fingerprint_is_stable_and_follows_the_files(hub_folder):
    def fingerprint():
        return open_corpora(DataSection(dataset=str(hub_folder)))["train"].fingerprint()

    first = fingerprint()
    assert fingerprint() == first
    write_lines(hub_folder / "train.jsonl", [{"text": "other", "label": 1}] * 3)
    os.utime(hub_folder / "train.jsonl", (1, 1))
    assert fingerprint() != first


# Mixtures


def mixture(tmp_path, sizes, weights):
    sections = []
    for number, (size, weight) in enumerate(zip(sizes, weights)):
        path = tmp_path / f"part{number}.txt"
        path.write_text("".join(f"{number} {'x' * (row % 37)} {row}\n" for row in range(size)))
        sections.append(MixtureSource(files=str(path), document="line", weight=weight))
    return sections


def test_a_tokenizer_reads_as_much_of_each_source_and_all_of_it_whatever_the_weights_and_the_order(tmp_path):
    sections = mixture(tmp_path, [3000, 3000, 300], [5, 3, 2])
    corpus = open_corpora(DataSection(mixture=sections, validation_fraction=0))["train"]
    read = [0, 0, 0]
    for count, text in enumerate(texts(corpus)):
        read[int(text[0])] += len(text)
        if 100 < count < 900:
            assert max(read) - min(read) < 60  # a document
    assert sum(read) == sum(len(text) for part in corpus.sources.values() for text in texts(part))
    other = [replace(section, weight=1.0) for section in reversed(sections)]
    again = open_corpora(DataSection(mixture=other, validation_fraction=0))["train"]
    assert texts(again) == texts(corpus) and again.fingerprint() == corpus.fingerprint()


def test_sources_of_a_mixture_have_different_names():
    assert source_names(["a.txt", "b.txt", "a.txt"]) == ["a_txt_0", "b_txt", "a_txt_2"]
    assert source_names(["a.txt", "a.txt", "a_txt_0"]) == ["a_txt_0_0", "a_txt_1", "a_txt_0_2"]


def test_a_source_of_a_mixture_is_called_what_the_recipe_names_it(tmp_path):
    first, second = mixture(tmp_path, [300, 300], [1, 1])
    corpus = open_corpora(DataSection(mixture=[replace(first, name="the news"), second]))["train"]
    assert list(corpus.sources) == ["the_news", "part1_txt"] and corpus.name == "the_news + part1_txt"
    with pytest.raises(UserError, match=r"data\.mixture\.1\.name='news' must be a name that no other source has"):
        open_corpora(DataSection(mixture=[replace(section, name="news") for section in (first, second)]))


def test_each_source_of_a_mixture_has_its_own_validation_where_it_has_one(tmp_path):
    sections = mixture(tmp_path, [300, 2000, 100, 100], [1, 1, 1, 1])
    (tmp_path / "held.txt").write_text("held back\n" * 3)
    own = {}, {"validation_fraction": 0.3}, {"validation_fraction": 0.0}, {"validation_files": f"{tmp_path}/held.txt"}
    sections = [replace(section, **settings) for section, settings in zip(sections, own)]
    corpora = open_corpora(DataSection(mixture=sections, validation_fraction=0.1))
    held = {name: texts(part) for name, part in corpora["validation"].sources.items()}
    assert list(held) == ["part0_txt", "part1_txt", "part3_txt"] and held["part3_txt"] == ["held back\n"] * 3
    for name, lines, share in (("part0_txt", 300, 0.1), ("part1_txt", 2000, 0.3)):
        train = texts(corpora["train"].sources[name])
        assert len(train) + len(held[name]) == lines and not set(train) & set(held[name])
        assert abs(len(held[name]) / lines - share) < 0.06
    assert [len(texts(corpora["train"].sources[name])) for name in ("part2_txt", "part3_txt")] == [100, 100]


# Bad input: skipped and counted


def test_unreadable_documents_are_skipped_and_counted(tmp_path):
    (tmp_path / "1.txt").write_bytes("кои-8".encode("koi8-r"))
    (tmp_path / "2.txt").write_text("x\n" * 400)
    (tmp_path / "3.txt").write_text("x" * 200)
    (tmp_path / "4.txt").write_text(" \n\n")
    (tmp_path / "5.txt").write_text("good\n")
    data = DataSection(files=str(tmp_path / "*.txt"), max_document_bytes=500, max_line_bytes=100, validation_fraction=0)
    corpus = open_corpora(data)["train"]
    for _ in range(2):  # the counts start again with each pass
        assert texts(corpus) == ["good\n"]
        assert corpus.account().number(LEFT_OUT, "document") == 4
    assert unusual(corpus.account()) == [
        "4 documents skipped: 1 empty, 1 not UTF-8, 1 too long, 1 with a gigantic line",
        "not UTF-8: 1.txt; data.encoding=latin-1, or what it is, reads another encoding",
        "too long: 2.txt; data.max_document_bytes allows more",
        "with a gigantic line: 3.txt; data.max_line_bytes allows more",
    ]


def test_held_back_documents_of_a_stream_are_among_its_first_and_nothing_more_is_read():
    class Endless(Source):
        name = "endless"

        def identity(self):
            return self.name

        def items(self):
            for number in itertools.count():
                assert number < 40, "read beyond the window"
                yield Document(f"text {number}", str(number))

    rule = Split({"validation": 0.3}, window=40)
    corpus = SourceCorpus("validation", Endless(), rule=rule)
    found = list(corpus.documents_from())
    assert [document.text for document, _ in found] == [f"text {i}" for i in range(40) if rule.part(i) == "validation"]
    last = found[-1][1]
    assert [d.text for d, _ in corpus.documents_from([40, 40, None])] == [] and last[0] <= 40


def test_rows_with_broken_text_are_skipped_and_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    rest = b'{"text": "\\ud800"}\n{"text": null}\n{"text": ""}\n{"text": "good"}\n'
    path.write_bytes(b'{"text": "caf\xe9", "by": "\xc3\xa9\xc3\xa9"}\n' + rest)
    corpus = open_corpora(DataSection(files=str(path), validation_fraction=0))["train"]
    assert texts(corpus) == ["good"]
    assert {key.why: entry.number for key, entry in corpus.tally().entries(LEFT_OUT)} == {"not UTF-8": 2, "empty": 2}


@pytest.mark.parametrize("document", ["file", "line", "paragraph"])
def test_a_gigantic_line_is_never_held_in_memory(tmp_path, document):
    path = tmp_path / "giant.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b"good\n\n")
        for _ in range(40):
            stream.write(b"x" * 10**6)
        stream.write(b"\n\nalso good\n")
    source = documents_in(path, document, Limits(10**8, 10**6))
    tracemalloc.start()
    items = list(source.items())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6
    reasons = [item.reason for item in items if hasattr(item, "reason")]
    assert [reason for reason in reasons if reason != "empty"] == ["gigantic_line"]
    if document != "file":
        assert [item.text.strip() for item in items if hasattr(item, "text")] == ["good", "also good"]


# Bad input: one sentence


def bad_input(tmp_path, hub_folder):
    """name -> (data section, what its sentence must contain)."""
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    (tmp_path / "good.txt").write_text("good\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("\n  \n")
    (tmp_path / "long.txt").write_text("word " * 100)
    (tmp_path / "fake.parquet").write_text("not parquet")
    write_lines(tmp_path / "keys.jsonl", [{"texts": "a", "label": 1}])
    write_lines(tmp_path / "number.jsonl", [{"text": 3}])

    def files(name, **settings):
        return DataSection(files=str(tmp_path / name), **settings)

    def hub(folder=hub_folder, **settings):
        return DataSection(dataset=str(folder), **settings)

    good = str(tmp_path / "good.txt")
    return {
        "builtin": (DataSection(source="stdlb"), ["data.source='stdlb'", "did you mean stdlib?"]),
        "missing": (files("god.txt"), ["data.files=", "no such file", "did you mean", "good.txt"]),
        "folder": (DataSection(files=str(tmp_path)), ["is a folder", "*"]),
        "glob": (files("*.csv"), ["*.csv", "matches no file"]),
        "empty": (files("empty.txt"), ["empty.txt holds no document with text", "1 empty"]),
        "too long": (
            files("long.txt", max_document_bytes=100),
            ["1 too long", "data.max_document_bytes", "data.document"],
        ),
        "not parquet": (files("fake.parquet"), ["fake.parquet is not a Parquet file"]),
        "key": (files("keys.jsonl"), ["data.text_field='text'", "did you mean texts?"]),
        "far key": (files("keys.jsonl", text_field="zzz"), ["data.text_field='zzz'", "known: label, texts"]),
        "type": (files("number.jsonl"), ["number.jsonl:1 holds int, not text"]),
        "mixture": (DataSection(mixture=[MixtureSource()]), ["data.mixture.0 names no data; set one of source"]),
        "mixture validations": (
            DataSection(mixture=[MixtureSource(files=good, validation_files=good, validation_fraction=0.1)]),
            ["data.mixture.0.validation_files and data.mixture.0.validation_fraction are both set"],
        ),
        "mixture and all": (
            DataSection(mixture=[MixtureSource(files=good, validation_fraction=0.1)], validation_files=good),
            ["data.mixture.0.validation_fraction and data.validation_files are both set"],
        ),
        "derived": (
            DataSection(mixture=[MixtureSource(files=good, weight=2.0)], derive="next_sentence"),
            ["data.mixture.0.weight=2.0 has no effect with data.derive=next_sentence"],
        ),
        "weights by": (DataSection(files=good, weights_by=3.0), ["data.weights_by=3.0 has no effect, as there is no"]),
        "mixture max": (
            DataSection(mixture=[MixtureSource(files=good)], max_documents=3),
            ["data.max_documents does not go with data.mixture"],
        ),
        "no data set": (hub(tmp_path / "nowhere"), ["data.dataset=", "cannot be loaded"]),
        "saved data set": (hub(tmp_path / "saved"), ["save_to_disk"]),
        "split of a data set": (hub(split="trein"), ["data.split='trein'", "['train', 'test']"]),
        "key of a data set": (hub(text_field="txt"), ["data.text_field='txt'", "did you mean text?"]),
        "type in a data set": (hub(text_field="label"), ["holds int, not text"]),
        "key of a stream": (hub(text_field="txt", streaming=True), ["data.text_field='txt'"]),
    }


def test_every_bad_input_is_one_sentence_that_names_the_field(tmp_path, hub_folder):
    for name, (data, expected) in bad_input(tmp_path, hub_folder).items():
        with pytest.raises(UserError) as caught:  # as a recipe is read: types and bounds first
            for corpus in open_corpora(build(DataSection, asdict(data), "data")).values():
                texts(corpus)
        sentence = str(caught.value)
        assert all(part in sentence for part in expected), (name, sentence)
        assert "\n" not in sentence and "data" in sentence, (name, sentence)
