"""Streams past their first pass: the same on two processes and in parts of a batch, resumed where they were."""

import json
import shutil
from collections import Counter
from itertools import islice

import pytest
import torch
from anyformer.pipelines.data.documents import Limits
from anyformer.pipelines.data.opening import open_corpora
from anyformer.pipelines.data.packed_stream import StreamingPackedDataset, shuffled_documents
from anyformer.pipelines.data.rows import Streamed
from anyformer.pipelines.data.sample_ids import Cursor, decoded, encoded
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.schema import DataSection, TokenizerSection
from anyformer.pipelines.recipes.strict_yaml import format_yaml, parse_yaml
from anyformer.pipelines.storage.checkpoints import list_checkpoints
from anyformer.pipelines.tokenizers.load import train_or_load_tokenizer
from family_variants import a_share
from processes import end_in_micro_batch, run_ranks
from run_folders import assert_same, assert_same_weights, lines_of, read_audit, saved_weights
from test_distributed import TOLERANCE, rank_main
from test_elastic import killed, run_on
from torch.utils.data import DataLoader

import anyformer

LINES = [f"document {number}: " + "abc def ghi " * (number % 7) for number in range(40)]


def write(folder, name, texts):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def stream_folder(tmp_path, monkeypatch):
    """A data set of three files, as load_dataset reads it from a folder; 53 rows of 48 tokens."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf-cache"))
    folder = tmp_path / "streamed"
    for shard in range(3):
        write(folder, f"train-{shard}.jsonl", LINES[shard::3])
    write(folder, "test.jsonl", ["a test of abc def\n" * 10])
    return folder


def corpus_of(folder, kind):
    """A corpus of the folder: its data set streamed, or a list of documents without places."""
    if kind == "list":
        return open_corpora(DataSection(files=str(folder / "train-*.jsonl"), validation_fraction=0.0))["train"]
    if kind == "shuffled":
        streamed = {"streaming": True, "validation_fraction": 0.3, "shuffle_buffer": 7}
    else:
        streamed = {"streaming": True, "validation_fraction": 0.1, "max_documents": 38}
    return open_corpora(DataSection(dataset=str(folder), text_field="text", **streamed))["train"]


@pytest.fixture
def tokenizer(stream_folder, tmp_path):
    corpus = corpus_of(stream_folder, "list")
    return train_or_load_tokenizer(TokenizerSection(type="char"), corpus, tmp_path / "cache")


def rows_from(stream, number, position=None):
    """[(row of plain numbers, the position after it)] of the next rows."""
    if position is not None:
        stream.position = json.loads(json.dumps(position))
    found = []
    for row, _ in zip(stream, range(number)):
        plain = {name: value.tolist() for name, value in row.items() if name != "position"}
        found.append((plain, decoded(row["position"])))
    return found


@pytest.mark.parametrize("kind", ["stream", "list"])
@pytest.mark.parametrize("tail, shifts_labels", [("drop", True), ("pad", False)])
def test_from_every_position_the_same_rows_follow(stream_folder, tokenizer, kind, tail, shifts_labels):
    def stream():
        corpus = corpus_of(stream_folder, kind)
        settings = {"add_bos": False, "add_eos": True, "shifts_labels": shifts_labels}
        return Cursor(StreamingPackedDataset(corpus, tokenizer, 48, tail, **settings))

    one_pass = len(list(stream().rows))
    rows = rows_from(stream(), 2 * one_pass + 5)
    assert [row["epoch"] for row, _ in rows] == [0] * one_pass + [1] * one_pass + [2] * 5
    assert [row["row_ids"] for row, _ in rows[:one_pass]] == list(range(one_pass))
    assert rows[0][0]["input_ids"] == rows[one_pass][0]["input_ids"]
    again = stream()
    for place in {0, 1, 7, one_pass - 2, one_pass - 1, one_pass, one_pass + 3, 2 * one_pass - 1}:
        assert rows_from(again, 5, rows[place][1]) == rows[place + 1 : place + 6], place
    assert [row for row, _ in rows_from(again, 2, {"pass": 0})] == [row for row, _ in rows[:2]]


def test_shuffled_documents_come_in_another_order_in_each_pass_and_go_on_from_every_place(stream_folder):
    def of_pass(number, place=None):
        documents = shuffled_documents(corpus_of(stream_folder, "shuffled"), 7, [1, number], place)
        return [(document.text, json.loads(json.dumps(after))) for document, after in documents]

    section = DataSection(dataset=str(stream_folder), streaming=True, validation_fraction=0.3, shuffle_buffer=7)
    held = [document.text for document in open_corpora(section)["validation"].documents()]
    first = of_pass(0)
    texts = [text for text, _ in first]
    assert sorted([*texts, *held]) == sorted(LINES) and held and {LINES.index(text) % 3 for text in held} == {0}
    blocks = [[LINES.index(text) % 3 for text in texts[at : at + 7]] for at in range(0, 21, 7)]
    assert all(Counter(block)[file] >= 2 for block in blocks for file in range(3))  # of all files in turn
    assert texts != sorted(texts, key=LINES.index) and texts != [text for text, _ in of_pass(1)]
    for number, (_, place) in enumerate(first):
        assert of_pass(0, place) == first[number + 1 :], number


def texts_read(monkeypatch) -> list[str]:
    """A list to which every text that is read from now on is added."""
    read, checked = [], Limits.checked
    monkeypatch.setattr(Limits, "checked", lambda self, text, *rest: read.append(text) or checked(self, text, *rest))
    return read


def test_a_shuffled_stream_goes_on_from_its_block_and_reads_nothing_before_it(stream_folder, tokenizer, monkeypatch):
    settings = {"add_bos": False, "add_eos": True, "shuffle_buffer": 7, "seed": 3}
    stream = Cursor(StreamingPackedDataset(corpus_of(stream_folder, "shuffled"), tokenizer, 48, **settings))
    rows = rows_from(stream, 100)  # two passes
    assert {row["epoch"] for row, _ in rows} >= {0, 1} and all("state" in position for _, position in rows)
    read = texts_read(monkeypatch)
    for number in (12, 30, len(rows) - 9):
        position = rows[number][1]
        key, block = [3, position["pass"]], position["state"]["document"]["block"]
        order = [one.text for one, _ in shuffled_documents(corpus_of(stream_folder, "shuffled"), 7, key)]
        read.clear()
        assert rows_from(stream, 2, position) == rows[number + 1 : number + 3]
        assert block > 0 and read and not {*read} & {*order[: 7 * block]}


def test_going_on_reads_nothing_that_was_trained(stream_folder, tokenizer, monkeypatch):
    """A place is found in its file: of a long stream all would be fetched again otherwise."""
    settings = {"add_bos": False, "add_eos": True}
    stream = Cursor(StreamingPackedDataset(corpus_of(stream_folder, "stream"), tokenizer, 48, **settings))
    one_pass = len(list(stream.rows))
    *_, (_, position) = rows_from(stream, one_pass - 3)
    read = texts_read(monkeypatch)
    assert len(rows_from(stream, 2, position)) == 2
    assert 0 < len(read) <= 5


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_neither_lose_rows_nor_move_the_position(stream_folder, tokenizer, workers):
    """A data set of several files gives each worker some of them, and one worker alone is asked."""
    settings = {"add_bos": False, "add_eos": True}
    stream = Cursor(StreamingPackedDataset(corpus_of(stream_folder, "stream"), tokenizer, 48, **settings))
    expected = rows_from(stream, 12)
    loader = DataLoader(stream, batch_size=None, num_workers=workers)
    for (row, position), got in zip(expected, loader):
        assert got["input_ids"].tolist() == row["input_ids"] and decoded(got["position"]) == position


# Whole runs. A pass has 20 rows and a step 8: every second pass ends with a step (40 rows), the others within one.


@pytest.fixture
def stream_recipe(tiny_recipe, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf-cache"))
    folder = tmp_path / "few"
    texts = [
        f"{number} " + "".join(chr(97 + (7 * number + place**2) % 26) for place in range(92)) for number in range(10)
    ]
    write(folder, "train-0.jsonl", texts[:4])
    write(folder, "train-1.jsonl", texts[4:])
    write(folder, "test.jsonl", texts[:1])

    def make(training=(), shuffle_buffer=None, **model):
        data = {"dataset": str(folder), "files": None, "streaming": True, "validation_split": "test"}
        data["shuffle_buffer"] = shuffle_buffer
        training = {"max_steps": 7, "gradient_accumulation_steps": 2, "save_steps": 1} | dict(training)
        return tiny_recipe(data=data, tokenizer={"type": "char", "vocab_size": None}, training=training, model=model)

    return make


def test_sources_that_are_streamed_are_mixed_by_weight_and_have_a_loss_each(stream_recipe, command, tmp_path):
    path = stream_recipe({"max_steps": 3})
    recipe = parse_yaml(path.read_text(), "recipe")
    dataset = recipe["data"]["dataset"]
    mixture = [{"name": "a", "dataset": dataset, "weight": 3.0}, {"name": "b", "dataset": dataset}]
    recipe |= {
        "data": {"mixture": mixture, "streaming": True, "validation_fraction": 0.0},
        "evaluation": {"metrics": []},
    }
    path.write_text(format_yaml(recipe))
    rows = anyformer.prepare_data(anyformer.load_recipe(str(path))).rows["train"]
    assert Counter(rows.place(int(row["row_ids"]))[0] for row in islice(rows, 40)) == {"a": 30, "b": 10}
    assert command("train", path) == 0
    assert all({"loss_a", "loss_b"} <= line.keys() for line in lines_of(tmp_path / "run") if "loss" in line)


@pytest.mark.parametrize("shuffle_buffer", a_share([4, None], 2))
def test_a_run_killed_at_and_after_the_ends_of_passes_ends_bit_identical(
    shuffle_buffer, stream_recipe, command, tmp_path
):
    whole, broken, recipe = tmp_path / "whole", tmp_path / "broken", stream_recipe(shuffle_buffer=shuffle_buffer)
    assert len(list(anyformer.prepare_data(anyformer.load_recipe(str(recipe))).rows["train"])) == 20
    assert command("train", recipe, f"training.output_dir={whole}") == 0
    broken_run = (command, "train", recipe, f"training.output_dir={broken}")
    # In the second pass, by a worker; at the end of the second pass.
    for step, micro_batch, overrides in ((3, 8, ("training.dataloader_num_workers=2",)), (5, 5, ())):
        end_in_micro_batch(micro_batch, *broken_run, *overrides, output=tmp_path / "log.txt")
        assert list_checkpoints(broken)[0].name == f"checkpoint-{step}"
        position = json.loads((broken / f"checkpoint-{step}" / "stream.json").read_text())
        assert 20 * position["pass"] + position["rows"] == 8 * step
    assert command(*broken_run[1:]) == 0
    assert_same_weights(broken, whole)
    assert steps_of(broken) == steps_of(whole)


def steps_of(run):
    """What a run logs at each step, without times."""
    kept = ("step", "loss", "grad_norm", "epoch")
    return [{name: line[name] for name in kept} for line in lines_of(run) if "loss" in line]


@pytest.mark.slow
def test_passes_that_end_within_a_step_train_as_one_big_batch_and_as_two_processes_do(stream_recipe, command, tmp_path):
    recipe = stream_recipe(hidden_dropout=0.0)
    big, parts, ranks = (tmp_path / name for name in ("big", "parts", "ranks"))
    of_eight = ("training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1")
    assert command("train", recipe, f"training.output_dir={big}", *of_eight) == 0
    assert command("train", recipe, f"training.output_dir={parts}") == 0
    assert [line["epoch"] for line in steps_of(parts)] == [(8 * step - 1) // 20 for step in range(1, 8)]
    arguments = (recipe, f"training.output_dir={ranks}", "training.gradient_accumulation_steps=1")
    run_ranks(2, rank_main, command, *arguments, folder=tmp_path)
    for run in (parts, ranks):
        for ours, expected in zip(steps_of(run), steps_of(big), strict=True):
            for name in ("loss", "grad_norm"):
                assert abs(ours[name] - expected[name]) <= TOLERANCE, (run, ours, expected)

    first = saved_weights(ranks)  # and again, from where both processes were in the third pass
    for file in (*ranks.glob("*.*"), ranks / "checkpoint-7"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    run_ranks(2, rank_main, command, *arguments, folder=tmp_path)
    assert_same(saved_weights(ranks), first)


@pytest.mark.slow
@pytest.mark.parametrize("workers, shuffle_buffer", [(0, None), (2, 4)])
def test_a_stream_goes_on_with_other_numbers_of_processes(workers, shuffle_buffer, stream_recipe, command, tmp_path):
    """One process, two and four, each from where the one before was killed; every row comes once in a pass."""
    training = {"max_steps": 12, "audit_samples": True}
    recipe = stream_recipe(training, shuffle_buffer=shuffle_buffer, hidden_dropout=0.0)
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert command("train", recipe, f"training.output_dir={whole}") == 0
    option = f"training.dataloader_num_workers={workers}"
    killed(command, 1, 7, recipe, run, tmp_path / "one", option)
    killed(command, 2, 3, recipe, run, tmp_path / "two", option)
    run_on(4, rank_main, command, recipe, run, tmp_path / "four", option)
    for ours, expected in zip(steps_of(run), steps_of(whole), strict=True):
        assert abs(ours["loss"] - expected["loss"]) <= TOLERANCE
    seen = Counter((line["epoch"], row) for line in read_audit(run) for row in line["rows"])
    assert set(seen.values()) == {1} and len(seen) == 12 * 8


class Listed(Streamed):
    """The rows of a list in each pass, without places."""

    name = "nothing"

    def __init__(self, *rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def test_a_stream_without_rows_ends_in_a_sentence_and_one_without_states_is_counted():
    with pytest.raises(UserError, match="data: nothing gives no row"):
        next(iter(Cursor(Listed())))
    stream = Cursor(Listed(*({"input_ids": torch.tensor(number)} for number in range(3))))
    found = rows_from(stream, 7)
    assert [row["input_ids"] for row, _ in found] == [0, 1, 2, 0, 1, 2, 0]
    for place in range(5):
        assert rows_from(stream, 2, found[place][1]) == found[place + 1 : place + 3]


def test_a_position_that_does_not_fit_is_left_with_the_number_of_its_row():
    position = {"pass": 3, "rows": 17, "state": {"text": "x" * 5000}}
    assert decoded(encoded(position, 6000)) == position
    assert decoded(encoded(position, 1024)) == {"pass": 3, "rows": 17}
