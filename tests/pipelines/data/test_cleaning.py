"""Laws of data.clean: planted documents are left out, each for its reason, whoever prepares the rest and from where."""

import json
import random
import re
import sys
from dataclasses import replace

import pytest
import yaml
from anyformer.pipelines.data import cleaning, tokenization
from anyformer.pipelines.data.account_words import unusual
from anyformer.pipelines.data.documents import Share
from anyformer.pipelines.data.opening import open_corpora
from anyformer.pipelines.data.splits import Split
from anyformer.pipelines.data.tokenization import Tokenization
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.data_section import CleanSettings, MixtureSource
from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
from anyformer.pipelines.tokenizers.load import train_or_load_tokenizer
from task_data import texts, write_lines

RANDOM = random.Random(0)
WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("ada", "emi", "ilo", "oru", "uve")]


def new_text(words=60):
    return " ".join(RANDOM.choice(WORDS) for _ in range(words))


TEXTS = [new_text() for _ in range(40)]
TESTS = [new_text(20) for _ in range(6)]
NEAR = TEXTS[9].replace(TEXTS[9].split()[30], "other", 1)
SHARED = f"{new_text(9)}, {' '.join(TESTS[2].split()[3:17]).upper()}! {new_text(9)}"  # 14 words in a row of a test
TOO_FEW = f"{new_text(9)} {' '.join(TESTS[3].split()[:12])} {new_text(9)}"  # 12 words
PLANTED = {12: TEXTS[3] + "\n", 20: NEAR, 25: "tiny", 30: new_text(900), 33: "verboten " + new_text(), 36: SHARED}
ALL = [text for place, text in enumerate(TEXTS) for text in ([PLANTED[place]] if place in PLANTED else []) + [text]]
ALL.insert(5, TOO_FEW)
REASONS = ["exact duplicates", "near duplicates", "shorter than 10 characters", "longer than 2,000 characters"]


def rows_of(some):
    return [{"text": text} for text in some]


@pytest.fixture
def files(tmp_path):
    """Three files of documents, two of tests, and a filter."""
    for number in range(3):
        write_lines(tmp_path / f"train-{number}.jsonl", rows_of(ALL[number * 16 : number * 16 + 16]))
    write_lines(tmp_path / "tests.jsonl", rows_of([*TESTS, "few words"]))
    (tmp_path / "keep.py").write_text("def keep(text):\n    return not text.startswith('verboten')\n")
    return tmp_path


def section(files, validation=0.0, **clean):
    clean = {"exact_duplicates": True, "near_duplicates": 0.8, "min_length": 10, "max_length": 2000} | clean
    clean = {"filter": f"{files}/keep.py:keep", "decontaminate": [f"{files}/tests.jsonl"]} | clean
    cache = str(files / "cache")
    return DataSection(
        files=f"{files}/train-*.jsonl", validation_fraction=validation, clean=CleanSettings(**clean), cache_dir=cache
    )


def test_planted_documents_are_left_out_and_each_reason_is_shown(files):
    corpus = open_corpora(section(files))["train"]
    assert texts(corpus) == [text for text in ALL if text not in PLANTED.values()]
    skipped, summary, shared = unusual(corpus.account())
    assert summary.startswith("cleaning left out 6 of 47 documents of train-0.jsonl and 2 more\n")
    for reason in [*REASONS, f"refused by {files}/keep.py:keep", "in common with test sets"]:
        assert f"1 {reason}, such as train-" in summary
    assert f"train-0.jsonl:14 “{' '.join(TEXTS[3].split()[:8])} …”" in summary
    in_common = " ".join(TESTS[2].split()[3:17])
    assert "(7 texts, 1 of fewer than 13 words): 2 sequences of 13 words in 1 document; all in the cache, " in shared
    assert shared.endswith(f"“{in_common}”")
    (line,) = (files / "cache" / re.search(r"clean/.*jsonl", shared)[0]).read_text().splitlines()
    assert json.loads(line)["words"] == in_common and skipped == "6 documents skipped: 6 by data.clean"


def test_cleaning_moves_no_document_to_the_other_split_and_duplicates_do_not_stand_in_both(files):
    plain = open_corpora(DataSection(files=f"{files}/train-*.jsonl", validation_fraction=0.3))
    clean = open_corpora(section(files, validation=0.3))
    for split in ("train", "validation"):
        assert texts(clean[split]) == [text for text in texts(plain[split]) if text not in PLANTED.values()]
    assert not any("cleaning" in note for note in unusual(clean["validation"].account()))


def test_a_validation_split_without_a_clean_document_is_said(tiny_recipe, tmp_path):
    held = [number for number in range(8) if Split({"validation": 0.12}).part(number) == "validation"]
    write_lines(tmp_path / "few.jsonl", rows_of(TEXTS[0 if number in held else number] for number in range(8)))
    data = {"files": str(tmp_path / "few.jsonl"), "validation_fraction": 0.12, "clean": {"exact_duplicates": True}}
    with pytest.raises(UserError, match=r"^data.clean leaves no document of few.jsonl for validation; set a larger"):
        prepare_data(load_recipe(str(tiny_recipe(data=data, tokenizer={"vocab_size": 300}))))


def test_any_place_shard_machine_and_process_gives_the_same(files, monkeypatch):
    monkeypatch.setattr(cleaning, "PART_BYTES", 1)  # each file is a part, which a machine reads alone
    corpus = open_corpora(section(files))["train"]
    pairs = list(corpus.documents_from())
    for number, (_, place) in list(enumerate(pairs))[::9]:
        place = json.loads(json.dumps(place))
        again = open_corpora(section(files))["train"].documents_from(place)
        assert [document for document, _ in again] == [document for document, _ in pairs[number + 1 :]]
    tokenizer = train_or_load_tokenizer(TokenizerSection(vocab_size=300), corpus, files / "cache")

    def stored(cache, shares=()):
        corpus = open_corpora(section(files))["train"]
        work = Tokenization(corpus, tokenizer, files / cache, add_bos=False, add_eos=True)
        made = [work.make_share(share) for share in shares]
        store = work.store()
        return {path.name: path.read_bytes() for path in store.folder.iterdir()}, made

    whole, _ = stored("whole")
    monkeypatch.setattr(tokenization, "SHARD_BYTES", 2000)
    found, made = stored("machines", shares=[Share(2, 2), Share(1, 2)])
    assert found == whole and min(made) >= 2


def test_what_is_left_out_is_part_of_the_identity_and_decided_once(files, monkeypatch):
    def fingerprint(**clean):
        return open_corpora(section(files, **clean))["train"].fingerprint()

    assert fingerprint() == fingerprint()
    others = [{"near_duplicates": 0.9}, {"min_length": None}, {"decontaminate_words": 12}, {"decontaminate": []}]
    found = [fingerprint(), *(fingerprint(**other) for other in others)]
    texts(open_corpora(section(files))["train"])
    monkeypatch.setattr(cleaning.Judge, "reason", None)  # judges nothing again
    texts(open_corpora(section(files))["train"])
    (files / "keep.py").write_text("def keep(text):\n    return True\n")
    found.append(fingerprint())
    (files / "tests.jsonl").write_text('{"text": "another test"}\n')
    assert len({*found, fingerprint()}) == len(found) + 1


def test_each_source_of_a_mixture_is_cleaned_and_says_so(files):
    sources = [MixtureSource(files=f"{files}/train-{number}.jsonl") for number in (0, 1)]
    corpus = open_corpora(replace(section(files), mixture=sources, files=None))["train"]
    assert set(PLANTED.values()) & set(texts(corpus)) == {NEAR}  # what it is like is in the other source
    assert sum(note.startswith("cleaning left out") for note in unusual(corpus.account())) == 2


def test_recipes_and_suites_are_test_sets(files, tiny_recipe):
    recipe = tiny_recipe(data={"files": f"{files}/train-0.jsonl", "test_files": f"{files}/tests.jsonl"})
    suite = files / "suite.yaml"
    own = {"recipe": str(recipe), "name": "own", "data": {"test_files": f"{files}/train-1.jsonl"}}
    suite.write_text(yaml.safe_dump({"suite": [str(recipe), own]}))
    only = {"exact_duplicates": False, "near_duplicates": None, "min_length": None, "max_length": None, "filter": None}
    corpus = open_corpora(section(files, **only, decontaminate=[str(recipe)]))["train"]
    assert SHARED not in texts(corpus) and len(texts(corpus)) == len(ALL) - 1
    corpus = open_corpora(section(files, **only, decontaminate=[str(suite)]))["train"]
    assert {SHARED, *ALL[16:32]} & {*texts(corpus)} == {"tiny"}
    assert any(f"test set {suite}: own" in note for note in unusual(corpus.account()))


def test_a_filter_may_lie_in_the_home_folder(files, monkeypatch):
    monkeypatch.setenv("HOME", str(files))
    there, home = (open_corpora(section(files, **how))["train"] for how in ({}, {"filter": "~/keep.py:keep"}))
    assert texts(home) == texts(there)


def test_a_stream_is_judged_while_it_is_read(files):
    folder = files / "streamed"
    folder.mkdir()
    for path in files.glob("train-*"):
        (folder / path.name).write_text(path.read_text())
    data = section(files, exact_duplicates=False, near_duplicates=None)
    corpus = open_corpora(replace(data, files=None, dataset=str(folder), streaming=True))["train"]
    pairs = list(corpus.documents_from())
    assert [one.text for one, _ in pairs] == [t for t in ALL if t not in list(PLANTED.values())[2:]]
    assert [one for one, _ in corpus.documents_from(json.loads(json.dumps(pairs[7][1])))] == [d for d, _ in pairs[8:]]


@pytest.mark.parametrize(
    "clean, words",
    [
        ({"decontaminate": ["nowhere.txt"]}, "data.clean.decontaminate='nowhere.txt': no such file"),
        ({"decontaminate": ["trec_classify"]}, "data.clean.decontaminate: trec_classify: data.test_files="),
        ({"filter": "nowhere.py:keep"}, "data.clean.filter='nowhere.py:keep' cannot be loaded: FileNotFoundError"),
        ({"filter": "json:lods"}, "data.clean.filter='json:lods': json has no function lods"),
        ({"filter": "json:loads"}, "data.clean.filter=json:loads failed at train-0.jsonl:1: JSONDecodeError"),
        ({"filter": "json:dumps"}, "data.clean.filter=json:dumps returned"),
        ({"min_length": 5000, "max_length": None}, "data.clean leaves nothing of train-0.jsonl and 2 more (47 shorter"),
    ],
)
def test_what_cannot_be_cleaned_so_is_one_sentence(files, clean, words):
    with pytest.raises(UserError) as raised:
        texts(open_corpora(section(files, **clean))["train"])
    assert words in str(raised.value)


def test_without_datasketch_near_duplicates_name_the_extra(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(UserError, match=r"data\.clean\.near_duplicates needs .* install anyformer\[near_duplicates\]"):
        open_corpora(section(files))


@pytest.mark.parametrize(
    "recipe, settings, words",
    [
        ("quickstart", "{decontaminate_words: 8}", "data.clean leaves nothing out"),
        ("quickstart", "{min_length: 9, max_length: 8}", "data.clean.min_length=9 is above data.clean.max_length=8"),
        ("quickstart", "{filter: my_filter}", "data.clean.filter='my_filter' names no function"),
        ("quickstart", "{near_duplicate: 0.8}", "did you mean data.clean.near_duplicates?"),
        ("imdb_classify", "{min_length: 9}", "data.clean is of plain text, and task.name=sequence_classification"),
        ("gpt2_small", "{exact_duplicates: true}", "data.clean.exact_duplicates=true compares all documents before"),
    ],
)
def test_settings_of_cleaning_that_mean_nothing_are_one_sentence(recipe, settings, words):
    with pytest.raises(UserError) as raised:
        load_recipe(recipe, [f"data.clean={settings}"])
    assert words in str(raised.value)
