"""Laws of the cache: an entry is complete and unchanged, or it is made again; nothing piles up."""

import os
import time

import numpy as np
import pytest
from anyformer.pipelines.data.corpora import open_corpora
from anyformer.pipelines.data.tokenization import tokenize_corpus
from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
from anyformer.pipelines.storage import cache, checksums
from anyformer.pipelines.storage.cache import cached_folder
from anyformer.pipelines.tokenizers.load import train_or_load_tokenizer


def zeroed(content):
    return bytes(len(content))


def first_byte_changed(content):
    return bytes([content[0] ^ 1]) + content[1:]


def cut(content):
    return content[: len(content) // 2]


def malformed(content):
    return b"{" * len(content)


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "a.txt").write_text("one line\nanother line\n" * 20)
    return open_corpora(DataSection(files=str(tmp_path / "a.txt"), document="line", validation_fraction=0))["train"]


def prepare(corpus, folder):
    """(tokenizer's folder, store) of the corpus, made or from the cache."""
    tokenizer = train_or_load_tokenizer(TokenizerSection(type="char"), corpus, folder, progress=False)
    store = tokenize_corpus(corpus, tokenizer, folder, add_bos=False, add_eos=True, progress=False)
    (tokenizer_folder,) = (path for path in (folder / "tokenizers").iterdir() if path.name[0] != ".")
    return tokenizer_folder, store


@pytest.mark.parametrize(
    "name, damage",
    [
        ("tokens.bin", zeroed),
        ("tokens.bin", first_byte_changed),
        ("offsets.bin", zeroed),
        ("meta.json", malformed),
        ("tokenizer.json", cut),
        ("tokenizer_config.json", malformed),
        ("checksums.json", malformed),
    ],
)
def test_a_damaged_entry_is_set_aside_and_made_again_and_one_line_says_so(tmp_path, corpus, capfd, name, damage):
    tokenizer_folder, store = prepare(corpus, tmp_path / "cache")
    folder = store.folder if (store.folder / name).exists() else tokenizer_folder
    expected, tokens = (folder / name).read_bytes(), [store.document(0).tolist(), store.tokens.tolist()]
    capfd.readouterr()
    (folder / name).write_bytes(damage(expected))
    _, again = prepare(corpus, tmp_path / "cache")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"anyformer: {folder} is damaged (") and name in line
    assert (folder / name).read_bytes() == expected
    assert [again.document(0).tolist(), again.tokens.tolist()] == tokens
    prepare(corpus, tmp_path / "cache")
    assert not capfd.readouterr().err


def test_offsets_that_go_backwards_are_no_store(tmp_path, corpus):
    _, store = prepare(corpus, tmp_path / "cache")
    offsets = np.fromfile(store.folder / "offsets.bin", dtype=np.int64)
    offsets[3] = offsets[5]
    offsets.tofile(store.folder / "offsets.bin")
    assert type(store).find_fault(store.folder) == "offsets.bin goes backwards"
    offsets[:-1].tofile(store.folder / "offsets.bin")
    assert type(store).find_fault(store.folder) == "offsets.bin does not go with meta.json"


def test_of_a_large_entry_files_are_read_again_only_where_they_were_touched(tmp_path, monkeypatch):
    read = []
    checksum_of = checksums.crc32
    monkeypatch.setattr(checksums, "crc32", lambda path: read.append(path.name) or checksum_of(path))
    monkeypatch.setattr(checksums, "ALWAYS", 3)
    state = os.stat(tmp_path)

    def make():
        return cached_folder(tmp_path, "kind", "key", lambda folder: (folder / "large").write_bytes(b"content"))

    folder = make()
    make()
    read.clear()
    make()
    assert not read
    (folder / "large").write_bytes(b"CONTENT")
    os.utime(folder / "large", ns=(state.st_atime_ns, state.st_mtime_ns))  # as a copy that keeps times does
    assert (make() / "large").read_bytes() == b"content"
    monkeypatch.setattr(checksums, "ALWAYS", 100)
    read.clear()
    make()
    assert read == ["large"]


def test_what_killed_runs_left_is_removed_when_nobody_has_written_to_it_for_a_day(tmp_path, monkeypatch):
    def make(key):
        return cached_folder(tmp_path, "kind", key, lambda folder: (folder / "file").write_text(key))

    make("one")
    for name in (".key-old.tmp", ".key-busy.tmp"):
        (tmp_path / "kind" / name).mkdir()
        (tmp_path / "kind" / name / "tokens.bin").write_text("half")
    yesterday = time.time() - cache._ABANDONED - 10
    for path in ("kind/.key-old.tmp/tokens.bin", "kind/.key-old.tmp", "kind/.key-busy.tmp"):
        os.utime(tmp_path / path, (yesterday, yesterday))
    make("one")
    assert {path.name for path in (tmp_path / "kind").iterdir()} == {"one", ".key-busy.tmp"}
