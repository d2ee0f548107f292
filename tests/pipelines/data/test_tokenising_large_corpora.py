"""Laws of large corpora: shards change no token, nothing finished is made again, memory does not grow with the text."""

import errno
import json
import os
import signal
import tracemalloc
from contextlib import nullcontext

import pytest
from anyformer.pipelines import manifest
from anyformer.pipelines.data import encoding, token_store, tokenization
from anyformer.pipelines.data.account_words import unusual
from anyformer.pipelines.data.documents import Limits
from anyformer.pipelines.data.examples import SourceCorpus
from anyformer.pipelines.data.opening import open_corpora
from anyformer.pipelines.data.packing import PackedDataset
from anyformer.pipelines.data.tokenization import Share, Tokenization
from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
from anyformer.pipelines.storage import cache
from anyformer.pipelines.tokenizers.load import train_or_load_tokenizer
from processes import Process
from task_data import documents_in

LIMITS = Limits(document_bytes=10**6, line_bytes=400)


@pytest.fixture
def files(tmp_path):
    """Three files of lines, some of them to be skipped."""
    for number, name in enumerate("abc"):
        lines = [f"{name} {i} " + "wordy text " * (i % 7) + "\n" for i in range(150 + 40 * number)]
        lines[3], lines[70], lines[71] = "x" * 500 + "\n", " \n", "y" * 600 + "\n"
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def corpus(files):
    return open_corpora(DataSection(files=f"{files}/*.txt", document="line", max_line_bytes=400))["train"]


@pytest.fixture
def tokenizer(corpus, tmp_path):
    return train_or_load_tokenizer(TokenizerSection(vocab_size=300), corpus, tmp_path / "t")


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(tokenization, "SHARD_BYTES", 2000)
    monkeypatch.setattr(tokenization, "_GROUP", 700)


def store_of(corpus, tokenizer, cache, add_bos=False):
    return Tokenization(corpus, tokenizer, cache, add_bos=add_bos, add_eos=True).store()


def content(store):
    """Every byte of a store."""
    return {path.name: path.read_bytes() for path in store.folder.iterdir()}


def shard_folders(cache):
    return sorted(path for path in cache.glob("shards/*/*") if path.name[0] != ".")


def test_shards_change_no_byte_of_the_store(corpus, tokenizer, tmp_path, request):
    whole = content(store_of(corpus, tokenizer, tmp_path / "whole"))
    request.getfixturevalue("small_shards")
    store = store_of(corpus, tokenizer, tmp_path / "shards")
    assert content(store) == whole
    notes = unusual(store.account)
    assert notes[0] == "8 documents skipped: 5 with a gigantic line, 3 empty" and len(notes) == 2
    assert not (tmp_path / "shards" / "shards" / store.folder.name).exists()


@pytest.mark.parametrize("moment", ["before a folder is made", "before it is renamed", "between renaming and looking"])
def test_a_process_that_is_overtaken_takes_the_store_of_the_faster_one(
    corpus, tokenizer, tmp_path, small_shards, monkeypatch, moment
):
    """The faster one has joined the shards and removed them."""
    make_folder, rename, target = cache.make_sibling_folder, os.rename, tmp_path / "cache"
    calls = []

    def overtake():
        calls.append(moment)
        if len(calls) == 3:  # after two shards
            monkeypatch.setattr(cache, "make_sibling_folder", make_folder)
            monkeypatch.setattr(os, "rename", rename)
            store_of(corpus, tokenizer, target)
            return True

    def overtaken_make(folder):
        overtake()
        return make_folder(folder)

    def overtaken_rename(source, to):
        if overtake() and moment.startswith("between"):
            raise OSError(errno.ENOTEMPTY, "Directory not empty")  # it was there then
        rename(source, to)

    if moment == "before a folder is made":
        monkeypatch.setattr(cache, "make_sibling_folder", overtaken_make)
    else:
        monkeypatch.setattr(os, "rename", overtaken_rename)
    found = content(store_of(corpus, tokenizer, target))
    monkeypatch.undo()
    assert len(calls) >= 3 and found == content(store_of(corpus, tokenizer, tmp_path / "alone"))
    assert not list(target.glob("shards/*"))


def make_some_shards(corpus, tokenizer, cache, number):
    work = Tokenization(corpus, tokenizer, cache, add_bos=False, add_eos=True)
    shards = work.shards(tokenization.WHOLE, lambda size: None)
    return [next(shards) for _ in range(number)]


def test_a_run_killed_while_tokenising_goes_on_after_the_last_finished_shard(corpus, tokenizer, tmp_path, small_shards):
    cache = tmp_path / "cache"
    expected = content(store_of(corpus, tokenizer, tmp_path / "whole"))

    def tokenize_and_die():
        ends = 0

        def advance(size):
            nonlocal ends
            ends += size
            if ends > 7000:
                os.kill(os.getpid(), signal.SIGKILL)

        tokenization.progress_of = lambda corpus: nullcontext(advance)
        store_of(corpus, tokenizer, cache)

    process = Process(tokenize_and_die, output=tmp_path / "log")
    assert process.wait() == -signal.SIGKILL, process.text()
    finished = shard_folders(cache)
    times = {folder: (folder / "tokens.bin").stat().st_mtime_ns for folder in finished}
    assert len(finished) >= 2 and not list((cache / "tokens").glob("[!.]*"))
    remade = []
    documents = corpus.documents_from
    corpus.documents_from = lambda place: remade.append(place) or documents(place)
    made = make_some_shards(corpus, tokenizer, cache, len(finished) + 1)
    assert made[:-1] == finished and remade == [json.loads((finished[-1] / "meta.json").read_text())["next"]]
    assert {folder: (folder / "tokens.bin").stat().st_mtime_ns for folder in finished} == times
    assert content(store_of(corpus, tokenizer, cache)) == expected


def test_a_damaged_shard_is_named_and_alone_made_again(corpus, tokenizer, tmp_path, small_shards, capfd):
    expected = content(store_of(corpus, tokenizer, tmp_path / "whole"))
    folders = make_some_shards(corpus, tokenizer, tmp_path / "cache", 4)
    times = [(folder / "tokens.bin").stat().st_ino for folder in folders]
    (folders[1] / "tokens.bin").write_bytes(bytes((folders[1] / "tokens.bin").stat().st_size))
    capfd.readouterr()
    assert make_some_shards(corpus, tokenizer, tmp_path / "cache", 4) == folders
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"anyformer: {folders[1]} is damaged (tokens.bin has changed")
    again = [(folder / "tokens.bin").stat().st_ino for folder in folders]
    assert [old == new for old, new in zip(times, again)] == [True, False, True, True]
    assert content(store_of(corpus, tokenizer, tmp_path / "cache")) == expected


@pytest.mark.parametrize("own_files", [False, True])
def test_machines_make_each_shard_once_and_the_last_one_joins_them(
    files, corpus, tokenizer, tmp_path, small_shards, monkeypatch, own_files
):
    if own_files:  # without a validation split by numbers each machine reads its own files alone
        monkeypatch.setattr(tokenization, "PART_BYTES", 1000)
        corpus = SourceCorpus("train", documents_in(f"{files}/*.txt", "line", LIMITS))
    expected = content(store_of(corpus, tokenizer, tmp_path / "whole"))
    shares = [Tokenization(corpus, tokenizer, tmp_path / "cache", add_bos=False, add_eos=True) for _ in range(3)]
    made = [one.make_share(Share(number, 3)) for number, one in enumerate(shares, start=1)]
    assert sum(made) == len(shard_folders(tmp_path / "cache")) and min(made) > 0
    monkeypatch.setattr(tokenization, "encoded_stream", pytest.fail)  # nothing is left to encode
    assert content(store_of(corpus, tokenizer, tmp_path / "cache")) == expected
    assert shares[0].make_share(Share(1, 3)) == 0


# ------------------------------------------------------------------------------------------------------ memory


def test_memory_does_not_grow_with_the_text(tmp_path, monkeypatch):
    """Of Python and numpy, traced."""
    monkeypatch.setattr(tokenization, "SHARD_BYTES", 40_000)
    monkeypatch.setattr(encoding, "_BATCH", 4000)
    monkeypatch.setattr(tokenization, "_GROUP", 4000)
    monkeypatch.setattr(token_store, "_PIECE", 1000)
    monkeypatch.setattr(manifest, "sha256", lambda path: "")  # it reads a megabyte at a time, more than is written here
    tokenizer = train_or_load_tokenizer(TokenizerSection(type="char"), written(tmp_path, 1), tmp_path)
    store_of(written(tmp_path, 1), tokenizer, tmp_path / "first")  # with everything that is imported on the way
    peaks = []
    for times in (1, 5):
        corpus = written(tmp_path, times)
        tracemalloc.start()
        store = store_of(corpus, tokenizer, tmp_path / "cache")
        rows = PackedDataset(store, 64)
        assert store.num_tokens > times * 30_000 and rows.fill_rate and rows.is_packed
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks


def written(folder, times):
    """A corpus of `times` 30,000 characters in lines of thirty."""
    path = folder / f"{times}.txt"
    path.write_text("".join(f"{number:29}\n" for number in range(1000)) * times)
    return SourceCorpus("train", documents_in(path, "line", LIMITS))
