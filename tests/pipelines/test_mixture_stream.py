"""Mixtures of which a part is streamed: shares, places to go on from, whole runs that were killed."""

from collections import Counter

import pytest
import torch
import yaml
from anyformer.pipelines.data.batch_keys import EPOCH, PLACE, ROW_IDS
from anyformer.pipelines.data.ordered_rows import MixedStream
from anyformer.pipelines.data.rows import Rows, Streamed
from anyformer.pipelines.data.sample_ids import Cursor
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from processes import run_ranks
from run_folders import read_audit
from test_distributed import TOLERANCE, rank_main
from test_mixture import TEXTS
from test_streams import rows_from, steps_of, write


class Counted(Rows):
    """Rows of numbers."""

    def __init__(self, name, count):
        self.name, self.fingerprint, self.count = name, name, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return {"input_ids": torch.tensor(number)}


class Passes(Streamed, Counted):
    """A stream of numbers; its places are the number of rows that came."""

    def pass_from(self, number, place=None, seed=0):
        for done in range(place or 0, self.count):
            yield self[done] | {ROW_IDS: torch.tensor(done), EPOCH: torch.tensor(number)}, done + 1


WEIGHTS = {"a": 2.0, "b": 1.0, "c": 0.5}


def stream():
    parts = {"a": Passes("a", 9), "b": Counted("b", 5), "c": Passes("c", 7)}
    return Cursor(MixedStream(parts, WEIGHTS, seed=3))


def test_shares_hold_at_every_point_and_each_part_comes_whole_in_every_pass_of_its_own():
    seen, given = [], Counter()
    for _, row in zip(range(140), stream()):
        place = row[PLACE]
        given[place.part] += 1
        total = sum(given.values())
        for label, weight in WEIGHTS.items():
            assert abs(given[label] - total * weight / 3.5) <= 1
        assert stream().rows.place(int(row[ROW_IDS])) == (place.part, given[place.part] - 1)
        assert int(row["input_ids"]) == place.number and int(row[EPOCH]) == 0
        seen.append((place.part, place.turn, place.number))
    assert len(set(seen)) == len(seen)
    assert sorted(number for part, turn, number in seen if (part, turn) == ("b", 2)) == list(range(5))
    orders = [[number for part, turn, number in seen if (part, turn) == ("b", wanted)] for wanted in range(3)]
    assert orders[0] != orders[1] != orders[2]  # one that is not streamed is shuffled anew


def test_a_part_that_is_a_stream_of_several_sources_finds_the_documents_of_its_rows():
    outer = MixedStream({"in": stream().rows, "out": Counted("d", 4)}, {"in": 1.0, "out": 1.0}, seed=3)
    for _, row in zip(range(20), outer):
        assert (row[PLACE].inner is None) == (row[PLACE].part == "out")
        assert outer.documents(0, row) == []


def test_rows_that_differ_in_each_epoch_are_numbered_on():
    rows = Counted("d", 4)
    rows.number_in = lambda epoch, place: 4 * epoch + place
    assert sorted(int(row["input_ids"]) for row, _ in rows.pass_from(2)) == [8, 9, 10, 11]


def test_from_every_place_in_a_mixture_the_same_rows_follow():
    class Placed(Cursor):
        def __iter__(self):
            return (
                {name: torch.as_tensor(value) for name, value in row.items() if name != PLACE}
                for row in super().__iter__()
            )

    def fresh():
        return Placed(stream().rows)

    rows = rows_from(fresh(), 60)
    for place in (0, 1, 2, 13, 31, 52):
        assert rows_from(fresh(), 6, rows[place][1]) == rows[place + 1 : place + 7], place
    assert all("state" in place for _, place in rows)


# Whole runs: hidden words of streamed texts beside those of stored ones.


@pytest.fixture
def mixed_recipe(tiny_recipe, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf-cache"))
    folder, stored = tmp_path / "few", tmp_path / "stored.jsonl"
    write(folder, "train-0.jsonl", TEXTS[:3])
    write(folder, "train-1.jsonl", TEXTS[3:5])
    write(folder, "test.jsonl", TEXTS[5:7])
    write(tmp_path, "stored.jsonl", [text[:400] for text in TEXTS[7:17]])

    def make(family="encoder", parts=None, training=(), **model):
        streamed = {"dataset": str(folder), "streaming": True, "validation_split": "test"}
        parts = parts or [
            {"name": "masked", "label": "words", "data": streamed},
            {"name": "masked", "label": "stored", "weight": 0.5, "sequence_length": 24},
        ]
        for part in parts[1:]:
            part.setdefault("data", {"files": str(stored), "validation_fraction": 0.2})
        parts[0]["data"] = streamed
        sections = {"data": {"files": None, "validation_fraction": None}, "model": {"family": family} | model}
        sections["training"] = {"max_steps": 7, "gradient_accumulation_steps": 2, "save_steps": 1} | dict(training)
        sections |= {"tokenizer": {"vocab_size": 400}, "evaluation": {"metrics": ["perplexity"]}}
        recipe = yaml.safe_load(tiny_recipe(**sections).read_text())
        recipe["data"] = {}
        recipe["objective"] = {"name": "mixture", "sequence_length": 32, "parts": parts}
        path = tmp_path / "mixed.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    return make


SEQ2SEQ = [{"name": "span_corruption"}, {"name": "denoising", "sequence_length": 24}]
DECODER = [{"name": "causal"}, {"name": "fill_in_the_middle", "fim_rate": 0.9, "sequence_length": 24}]


@pytest.mark.parametrize("family, parts", [("seq2seq", SEQ2SEQ), ("decoder", DECODER), ("encoder", None)])
def test_all_batches_of_a_stream_have_one_width_and_the_same_keys(family, parts, mixed_recipe):
    data = prepare_data(load_recipe(str(mixed_recipe(family, parts and [dict(part) for part in parts]))))
    rows = [row for row, _ in zip(data.rows["train"], range(24))]
    batches = [data.collator(rows[first : first + size]) for first, size in ((0, 4), (4, 4), (8, 1), (9, 1), (10, 14))]
    assert all(batch.keys() == batches[0].keys() for batch in batches)
    for name, value in batches[0].items():
        assert all(batch[name].shape[1:] == value.shape[1:] for batch in batches), name


@pytest.mark.slow
def test_two_processes_train_a_streamed_mixture_as_one_does(mixed_recipe, command, tmp_path):
    recipe = mixed_recipe(hidden_dropout=0.0, training={"audit_samples": True})
    one, two = tmp_path / "one", tmp_path / "two"
    assert command("train", recipe, f"training.output_dir={one}") == 0
    arguments = (recipe, f"training.output_dir={two}", "training.gradient_accumulation_steps=1")
    run_ranks(2, rank_main, command, *arguments, folder=tmp_path)
    for ours, expected in zip(steps_of(two), steps_of(one), strict=True):
        for name in ("loss", "grad_norm"):
            assert abs(ours[name] - expected[name]) <= TOLERANCE, (ours, expected)
    seen = Counter(row for line in read_audit(two) for row in line["rows"])
    assert set(seen.values()) == {1} and len(seen) == 7 * 8
