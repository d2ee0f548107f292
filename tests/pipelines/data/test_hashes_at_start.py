"""The start of a run whose data is in the cache reads none of the data's files, and notices every file that changed."""

import gzip
import json
import os
import sys
from pathlib import Path

import pytest
from family_variants import a_share
from image_data import image_recipe, picture_folder, pictures
from processes import Process
from task_data import reviews

CLASSIFY = {"task": {"name": "sequence_classification", "max_length": 16}, "objective": None}


def texts(tiny_recipe, folder, text_file):
    for name, opened in (("packed.jsonl.gz", gzip.open), ("plain.txt", open)):
        with opened(folder / name, "wt", encoding="utf-8") as file:
            file.write(text_file.read_text(encoding="utf-8"))
    files = {"data": {"files": [str(folder / "packed.jsonl.gz"), str(folder / "plain.txt")]}}
    return tiny_recipe(**files), folder / "plain.txt"


def mixture(tiny_recipe, folder, text_file):
    one, other = ({"files": str(text_file), "weight": weight, "name": f"w{weight:g}"} for weight in (1.0, 2.0))
    return tiny_recipe(data={"files": None, "mixture": [one, other], "validation_files": str(text_file)}), text_file


def rows(tiny_recipe, folder, text_file):
    data = {"files": str(reviews(folder / "rows.jsonl")), "stratify": True, "validation_fraction": 0.2}
    data["test_files"] = str(reviews(folder / "test.jsonl", 20, seed=1))
    model = {"family": "encoder", "num_key_value_heads": None}
    sections = CLASSIFY | {"model": model, "data": data, "evaluation": {"metrics": ["accuracy"]}}
    return tiny_recipe(tokenizer={"type": "char", "vocab_size": None}, **sections), folder / "rows.jsonl"


def images(tiny_recipe, folder, text_file):
    files = str(picture_folder(folder / "pictures"))
    return image_recipe(folder, data={"files": files, "test_files": None}), next(folder.glob("pictures/*/*.png"))


def images_in_parquet(tiny_recipe, folder, text_file):
    files = pictures(folder / "pictures.parquet")  # with the classes' names
    return image_recipe(folder, data={"files": str(files), "test_files": None}), files


def image_table(tiny_recipe, folder, text_file):
    names = sorted(path for path in picture_folder(folder / "pictures").parents[1].glob("*/*.png"))
    table = [json.dumps({"image": str(path), "label": path.parent.name}) for path in names]
    (folder / "table.jsonl").write_text("\n".join(table) + "\n")
    return image_recipe(folder, data={"files": str(folder / "table.jsonl"), "test_files": None}), names[0]


def opened_in(folder, command, *words, log: Path) -> list[str]:
    """The files of a folder that a command opens in a process of its own."""

    def call():
        opened = []
        sys.addaudithook(lambda event, about: opened.append(str(about[0])) if event == "open" else None)
        command(*words)
        log.with_suffix(".json").write_text(json.dumps(opened))

    process = Process(call, output=log)
    assert process.wait() == 0, process.text()
    return [name for name in json.loads(log.with_suffix(".json").read_text()) if name.startswith(f"{folder}/")]


@pytest.mark.parametrize("make", a_share([mixture, texts, rows, images_in_parquet, images, image_table], 3))
def test_a_start_with_everything_in_the_cache_opens_no_file_of_the_data(
    make, tiny_recipe, command, tmp_path, text_file
):
    data, log = tmp_path / "data", tmp_path / "log"
    data.mkdir()
    (data / "topics.jsonl").write_bytes(text_file.read_bytes())
    recipe, file = make(tiny_recipe, data, data / "topics.jsonl")
    assert command("prepare", recipe, f"data.cache_dir={tmp_path / 'other'}") == 0  # imports, for the forks
    opened = [[p for p in opened_in(data, command, "prepare", recipe, log=log) if p != str(recipe)] for _ in range(2)]
    assert str(file) in opened[0] and opened[1] == []
    # Other content of the same size and with the same time of change in the same file.
    before, content = file.stat(), bytearray(file.read_bytes())
    content[-3] ^= 1
    with file.open("r+b") as changed:
        changed.write(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert str(file) in opened_in(data, command, "prepare", recipe, log=log)
