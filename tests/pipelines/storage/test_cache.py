"""Laws of the cache: an entry is complete and unchanged, or it is made again; nothing piles up."""

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow
import pytest
from anyformer.pipelines.data import tokenization
from anyformer.pipelines.data.account import Account
from anyformer.pipelines.data.example_store import encode_examples
from anyformer.pipelines.data.examples import examples_fingerprint
from anyformer.pipelines.data.opening import open_corpora, open_examples
from anyformer.pipelines.data.tokenization import Tokenization
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.images.image_store import store_images
from anyformer.pipelines.manifest import sha256
from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
from anyformer.pipelines.storage import cache
from anyformer.pipelines.storage.cache import cached_folder
from anyformer.pipelines.storage.contents import Contents
from anyformer.pipelines.tokenizers.load import train_or_load_tokenizer
from processes import Process


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
    tokenizer = train_or_load_tokenizer(TokenizerSection(type="char"), corpus, folder)
    store = Tokenization(corpus, tokenizer, folder, add_bos=False, add_eos=True).store()
    (tokenizer_folder,) = (path for path in (folder / "tokenizers").iterdir() if path.name[0] != ".")
    return tokenizer_folder, store


@pytest.mark.parametrize(
    "name, damage",
    [
        ("tokens.bin", malformed),
        ("offsets.bin", malformed),
        ("meta.json", malformed),
        ("tokenizer.json", cut),
        ("tokenizer_config.json", malformed),
        ("manifest.json", malformed),
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


def test_of_a_large_entry_files_are_read_again_only_where_they_were_touched(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(cache, "sha256", lambda path: read.append(path.name) or sha256(path))
    monkeypatch.setattr(cache, "ALWAYS", 3)
    state = os.stat(tmp_path)

    def make():
        """As the next process does."""
        new = Contents()
        new.kept_in = tmp_path / "contents"
        monkeypatch.setattr(cache, "contents", new)
        time.sleep(0.03)  # a state is kept once no further change could leave it as it is
        return cached_folder(tmp_path, "kind", "key", lambda folder: (folder / "large").write_bytes(b"content"))

    folder = make()
    make()
    read.clear()
    make()
    assert not read
    (folder / "large").write_bytes(b"CONTENT")
    os.utime(folder / "large", ns=(state.st_atime_ns, state.st_mtime_ns))  # as a copy that keeps times does
    assert (make() / "large").read_bytes() == b"content"
    monkeypatch.setattr(cache, "ALWAYS", 100)
    read.clear()
    make()
    assert read == ["large"]


def test_contents_without_a_folder_are_kept_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text")
    time.sleep(0.03)
    contents = Contents()
    assert contents.value(tmp_path / "file", "size", lambda path: path.stat().st_size) == 4
    contents.kept_in = tmp_path / "contents"
    contents.write()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


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


def build_of(kind, corpus, folder, monkeypatch):
    """(file, function that makes an entry of the cache whose key is made of the file's content)"""
    text, cache = folder / "a.txt", folder / "cache"
    if kind == "tokenizer":
        return text, lambda: train_or_load_tokenizer(TokenizerSection(type="char"), corpus, cache)
    if kind in ("store", "shards"):
        if kind == "shards":
            monkeypatch.setattr(tokenization, "SHARD_BYTES", 100)
        tokenizer = train_or_load_tokenizer(TokenizerSection(type="char"), corpus, folder / "other")
        return text, lambda: Tokenization(corpus, tokenizer, cache, add_bos=False, add_eos=True).store()
    if kind == "images":
        image = folder / "cats" / "a.png"
        image.parent.mkdir()
        PIL.Image.new("L", (4, 4)).save(image)
        section, columns = DataSection(files=str(image), validation_fraction=0), {"image_field": "image"}
        source = open_examples(section, columns)["train"]
        pixels = np.zeros((1, 1, 4, 4), dtype=np.uint8)
        return image, lambda: store_images(
            cache, examples_fingerprint(source), source, lambda: [(pixels, None)], Account()
        )
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps({"text": "one"}))
    source = open_examples(DataSection(files=str(rows), validation_fraction=0), {"text_field": "text"})["train"]
    schema = pyarrow.schema([("input_ids", pyarrow.list_(pyarrow.int32()))])

    tokenizer = train_or_load_tokenizer(TokenizerSection(type="char"), corpus, folder / "other")

    def batches(examples, account):
        yield {"input_ids": [[len(row["text"])] for _, row in examples], "facts": {"examples": 1}}

    return rows, lambda: encode_examples(cache, examples_fingerprint(source), source, schema, batches, tokenizer)


@pytest.mark.parametrize("change", ["same size", "longer", "another file"])
@pytest.mark.parametrize("kind", ["tokenizer", "store", "shards", "examples", "images"])
def test_of_a_file_that_changes_between_its_hash_and_its_reading_nothing_enters_the_cache(
    tmp_path, corpus, monkeypatch, kind, change
):
    file, build = build_of(kind, corpus, tmp_path, monkeypatch)
    content, make_folder = file.read_bytes(), cache.make_sibling_folder

    def change_and_make_folder(target):  # after the key was made, before anything is read for the entry
        if change == "another file":
            (tmp_path / "new").write_bytes(content.replace(b"one", b"two"))
            os.replace(tmp_path / "new", file)
        else:
            file.write_bytes(content.replace(b"one", b"two") + b" " * (change == "longer"))
        return make_folder(target)

    with monkeypatch.context() as patch, pytest.raises(UserError, match=f"{file} was changed while it was read"):
        patch.setattr(cache, "make_sibling_folder", change_and_make_folder)
        build()
    assert not [path for path in (tmp_path / "cache").glob("*/*") if path.is_file()]
    assert not [path for path in (tmp_path / "cache").rglob("*.json")]
    build()  # as it is now


def test_one_user_reads_what_another_one_left_and_what_cannot_be_used_is_a_sentence():
    root = Path(tempfile.mkdtemp())  # pytest's own folders are for their owner alone
    root.chmod(0o755)

    def entry(key):
        return cached_folder(root, "kind", key, lambda folder: (folder / "file").write_text(key))

    def as_another_user():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setegid(65534)
            os.seteuid(65534)
        print(entry("open").name)
        for key in ("closed file", "closed folder", "new"):
            try:
                entry(key)
            except UserError as error:
                print(error)

    try:
        for key in ("open", "closed file", "closed folder"):
            entry(key)
        (root / "kind" / "closed file" / "file").chmod(0)
        (root / "kind" / "closed folder").chmod(0)
        (root / "kind").chmod(0o555)
        process = Process(as_another_user, output=root / "log")
        process.wait()
        first, *sentences = process.text().splitlines()
        assert first == "open" and len(sentences) == 3, process.text()
        assert all("of another user, who lets nobody else read it" in sentence for sentence in sentences[:2])
        assert "cannot be written (Permission denied)" in sentences[2]
    finally:
        for path in (root / "kind", *(root / "kind").iterdir()):
            path.chmod(0o755)
        shutil.rmtree(root)
