"""Laws of finding files: each real file once, none of another split, nothing that cannot be read twice."""

import os

import pytest
from anyformer.pipelines.data.files import find_files
from anyformer.pipelines.data.opening import open_corpora, open_examples
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.schema import DataSection
from task_data import texts


def names(folder, pattern):
    return [path.relative_to(folder).as_posix() for path in find_files("data.files", str(folder / pattern))]


@pytest.fixture
def tree(tmp_path):
    """Eight texts in folders."""
    for name in ("a", "b", "sub/c", "sub/d", "sub/deep/e", "sub/deep/f", "x/g", "x/h"):
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {name}\n")
    return tmp_path


def test_links_that_lead_back_change_nothing(tree):
    expected = names(tree, "**/*.txt")
    assert len(expected) == 8
    data = DataSection(files=str(tree / "**" / "*.txt"), validation_fraction=0.3)
    before = {split: texts(corpus) for split, corpus in open_corpora(data).items()}
    for place, target in (("loop", "."), ("sub/up", ".."), ("x/across", "../sub"), ("sub/deep/back", "../../x")):
        (tree / place).symlink_to(target)
    (tree / "again.txt").symlink_to("sub/c.txt")
    (tree / "gone.txt").symlink_to("nowhere")
    assert names(tree, "**/*.txt") == expected
    assert names(tree, "**") == expected
    assert len(names(tree, "**/deep/**/*.txt")) == 8  # the links in it lead everywhere
    assert {split: texts(corpus) for split, corpus in open_corpora(data).items()} == before


def test_folders_that_only_links_lead_to_are_read(tree, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "inner").mkdir()
    (outside / "inner" / "far.txt").write_text("far")
    (tree / "linked").symlink_to(outside)
    (tree / "twice").symlink_to(outside)
    assert names(tree, "**/*.txt").count("linked/inner/far.txt") == 1
    assert len(names(tree, "**/*.txt")) == 9
    (tree / "named").mkdir()
    (tree / "named" / "train").symlink_to("../sub")  # a name that the pattern asks for
    assert names(tree, "**/train/*.txt") == ["named/train/c.txt", "named/train/d.txt"]


def test_patterns_find_what_glob_finds(tree, monkeypatch):
    import glob

    (tree / ".hidden").mkdir()
    (tree / ".hidden" / "no.txt").write_text("no")
    monkeypatch.chdir(tree)
    for pattern in ("*.txt", "**/*.txt", "**", "s*/**/[ce].txt", "**/deep/*", "**/e.txt", "./**/x/*.txt", "*/*/*.txt"):
        found = sorted(path.as_posix() for path in find_files("data.files", pattern))
        wanted = {os.path.normpath(name) for name in glob.glob(pattern, recursive=True) if os.path.isfile(name)}
        assert found == sorted(wanted), pattern


def test_a_glob_for_training_leaves_out_the_texts_of_the_other_splits(tree):
    (tree / "x" / "copy.txt").symlink_to("../a.txt")
    data = DataSection(
        files=str(tree / "**" / "*.txt"), validation_files=str(tree / "x" / "copy.txt"), test_files=str(tree / "b.txt")
    )
    corpora = open_corpora(data)
    assert texts(corpora["validation"]) == ["text a\n"] and texts(corpora["test"]) == ["text b\n"]
    others = ("sub/c", "sub/d", "sub/deep/e", "sub/deep/f", "x/g", "x/h")
    assert texts(corpora["train"]) == [f"text {name}\n" for name in others]
    (tree / "t.jsonl").write_text('{"label": 1}\n')
    (tree / "v.jsonl").write_text('{"label": 2}\n')
    rows = DataSection(files=str(tree / "*.jsonl"), validation_files=str(tree / "v.jsonl"))
    examples = open_examples(rows, {"label_field": "label"})
    labels = {split: [row["label"] for _, row in part] for split, part in examples.items()}
    assert labels == {"train": [1], "validation": [2]}
    for name in ("cat/1.png", "dog/1.png", "held/cat/2.png"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(b"")
    images = DataSection(files=str(tree / "**" / "*.png"), validation_files=str(tree / "held" / "*" / "*.png"))
    opened = open_examples(images, {"image_field": "image"})
    assert [len(list(opened[split])) for split in ("train", "validation")] == [2, 1]
    only = DataSection(files=str(tree / "a*.txt"), validation_files=str(tree / "a.txt"))
    with pytest.raises(UserError, match=r"data\.files=.* matches nothing but files that are for validation or test"):
        open_corpora(only)


def test_what_is_no_regular_file_is_refused_or_passed_over_and_never_waited_for(tree):
    os.mkfifo(tree / "pipe.txt")
    assert len(names(tree, "**/*.txt")) == 8
    for path in (str(tree / "pipe.txt"), "/dev/zero"):
        for data in (DataSection(files=path), DataSection(files=str(tree / "a.txt"), validation_files=[path])):
            with pytest.raises(UserError, match=f"files='{path}' is a pipe or a device; write its content into a file"):
                open_corpora(data)
        with pytest.raises(UserError, match=f"data.files='{path}' is a pipe or a device"):
            open_examples(DataSection(files=path), {"label_field": "label"})
