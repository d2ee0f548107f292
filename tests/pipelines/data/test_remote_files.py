"""Laws of files behind URLs: the same data as local files, copied once, and one sentence for what cannot be read."""

import functools
import http.server
import threading
from dataclasses import replace

import fsspec
import pytest
from anyformer.pipelines.data.opening import open_corpora, open_examples
from anyformer.pipelines.data.remote_files import with_local_copies
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.schema import DataSection
from task_data import texts


@pytest.fixture
def place():
    """A folder that only fsspec sees: URL, and the file system."""
    system = fsspec.filesystem("memory")
    for name in "abc":
        system.pipe(f"/texts/{name}.txt", f"text of {name}\n".encode() * 3)
    yield "memory://texts", system
    system.rm("/texts", recursive=True)


@pytest.fixture
def server(tmp_path):
    """A local HTTP server: (URL, folder, requested paths, a function that ends it)."""
    folder, asked = tmp_path / "served", []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def send_head(self):
            if self.path.startswith("/signed/") and "sig=good" not in self.path:
                return self.send_error(403)
            return super().send_head()

        def log_message(self, *words):
            asked.append((self.command, self.path))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def end():
        server.shutdown()
        server.server_close()

    yield f"http://127.0.0.1:{server.server_port}", folder, asked, end
    end()


def test_a_pattern_of_urls_gives_the_documents_and_the_identity_of_the_same_local_files(place, tmp_path):
    url, system = place
    for name in "abc":
        (tmp_path / f"{name}.txt").write_bytes(system.cat(f"/texts/{name}.txt"))
    remote = open_corpora(DataSection(files=f"{url}/*.txt", validation_files=f"{url}/b.txt"))
    local = open_corpora(DataSection(files=f"{tmp_path}/*.txt", validation_files=f"{tmp_path}/b.txt"))
    for split in ("train", "validation"):  # a pattern leaves out what is for validation, as it does on a disk
        assert texts(remote[split]) == texts(local[split])
        assert remote[split].fingerprint() == local[split].fingerprint()
    assert open_corpora(DataSection(files=f"file://{tmp_path}/a.txt", validation_fraction=0))["train"].name == "a.txt"


def test_a_file_is_copied_once_and_again_when_it_has_changed(server):
    url, folder, asked, _ = server
    (folder / "a.jsonl").write_text('{"text": "one", "label": 0}\n{"text": "two", "label": 1}\n')
    data = DataSection(files=f"{url}/a.jsonl", validation_fraction=0)
    columns = {"text_field": "text", "label_field": "label"}
    rows = [row for _, row in open_examples(data, columns)["train"]]
    assert rows == [{"text": "one", "label": 0}, {"text": "two", "label": 1}]
    fetched = asked.count(("GET", "/a.jsonl"))
    assert texts(open_corpora(data)["train"]) == ["one", "two"] and asked.count(("GET", "/a.jsonl")) == fetched
    (folder / "a.jsonl").write_text('{"text": "another", "label": 0}\n')
    assert texts(open_corpora(data)["train"]) == ["another"]


def test_without_a_network_the_copy_serves_and_without_a_copy_it_is_one_sentence(server, capsys, tmp_path):
    url, folder, _, end = server
    (folder / "a.txt").write_text("some text\n")
    data = DataSection(files=f"{url}/a.txt", validation_fraction=0)
    assert texts(open_corpora(data)["train"]) == ["some text\n"]
    end()
    assert texts(open_corpora(data)["train"]) == ["some text\n"]
    assert "cannot be reached" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"data\.files='http://127.*/a\.txt' cannot be reached: ") as caught:
        open_corpora(replace(data, cache_dir=str(tmp_path / "empty")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "pattern, sentence",
    [
        ("memory://texts/d.txt", "data.files='memory://texts/d.txt': no such file."),
        ("memory://texts/*.csv", "data.files='memory://texts/*.csv' matches no file."),
        ("memory://texts", "data.files='memory://texts' is a folder; 'memory://texts/*' means the files in it."),
        ("memry://texts/a.txt", "data.files='memry://texts/a.txt': Protocol not known: memry."),
        ("s3://bucket/a.txt", "data.files='s3://bucket/a.txt': Install s3fs to access S3."),
    ],
)
def test_what_cannot_be_read_is_one_sentence(place, pattern, sentence, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(UserError) as caught:
        open_corpora(DataSection(files=pattern, validation_fraction=0))
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)


def test_a_missing_page_is_no_such_file_and_a_question_mark_is_part_of_an_address(server):
    url, folder, _, _ = server
    (folder / "a.txt").write_text("some text\n")
    (path,) = with_local_copies([f"{url}/a.txt?version=2"], "data.files", None)
    assert path.endswith("a.txt")
    with pytest.raises(UserError, match="no such file"):
        with_local_copies(f"{url}/b.txt", "data.files", None)


def test_a_copy_is_found_again_without_the_signature_it_was_fetched_by_and_no_sentence_holds_one(
    server, capsys, tmp_path
):
    url, folder, asked, _ = server
    (folder / "signed").mkdir()
    (folder / "signed" / "a.txt").write_text("some text\n")
    signed, at = [f"{url}/signed/a.txt?sig=good{number}" for number in (1, 2)], f"{url}/signed/a.txt"
    first = with_local_copies(signed[0], "data.files", None)
    fetched = len(asked)
    assert with_local_copies(signed[1], "data.files", None) == first  # signed anew
    assert [command for command, _ in asked[fetched:]] == ["HEAD"]  # and not copied again
    for refused in (at, f"{at}?sig=old"):  # as a saved recipe has it; and by the same command, later
        assert with_local_copies(refused, "data.files", None) == first
        assert f"{at} cannot be reached (403" in capsys.readouterr().err
    with pytest.raises(UserError, match="cannot be reached: 403") as caught:
        with_local_copies(f"{at}?sig=old", "data.files", str(tmp_path / "empty"))
    assert "sig" not in str(caught.value).replace("/signed/", "")


def test_images_behind_urls_are_refused_because_their_folders_are_their_classes(place):
    url, system = place
    system.pipe("/texts/cat/1.png", b"png")
    with pytest.raises(UserError, match=r"data\.files: 1\.png is an image behind a URL; copy its folder"):
        open_examples(DataSection(files=f"{url}/cat/*.png", validation_fraction=0), {"image_field": "image"})
