"""Golden orders: which row stands at which number, for every way in which rows are ordered.

Where an order is to change: `GOLDEN=write pytest -n 0 tests/pipelines/data/test_order.py`, and say in the commit why.
"""

import json
import os
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from anyformer.pipelines.data.account import Account
from anyformer.pipelines.data.batch_keys import EPOCH, PLACE, POSITION, ROW_IDS, row_ids
from anyformer.pipelines.data.length_batching import LengthGroupedSampler
from anyformer.pipelines.data.ordered_rows import MixedStream, mixed, passes, sources_once, weighed
from anyformer.pipelines.data.ordered_rows import joined as joined_rows
from anyformer.pipelines.data.ordered_rows import staged as staged_rows
from anyformer.pipelines.data.rows import Rows, Streamed
from anyformer.pipelines.data.sample_ids import NO_ROW, Cursor, decoded, evaluation_rows, training_rows
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.training.trainer import AnyformerTrainer
from family_variants import a_share
from torch.utils.data import Dataset, Subset
from training_steps import small_arguments

from anyformer import AnyformerDecoderForCausalLM

GOLDEN = Path(__file__).parents[2] / "golden" / "orders.json"
WEIGHTS = {"web": 2.0, "code": 1.0, "wiki": 0.5}


def row_of(number: int, name: str) -> dict:
    return {"labels": torch.tensor([number]), "input_ids": torch.arange(3) + number % 50, "of": name}


class Numbers(Rows, Dataset):
    """Rows that say the name of their store and their number in it."""

    def __init__(self, name: str, size: int, lengths=None):
        self.size, self.fingerprint, self.name, self.account = size, f"{size} of {name}", name, Account()
        self.account.note(f"a note on {name}")
        self.facts = dict.fromkeys(("rows", "documents", "words"), size) | {"tokens": 11 * size, "bytes": 40 * size}
        self.row_lengths = lengths

    def report(self):
        return {name: of for name, of in super().report().items() if name != "account"}

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        return row_of(self.inside(number), self.name)

    def documents(self, number, row=None):
        return [(self.inside(number), 0, 11)]


class Passes(Streamed):
    """A stream: each pass gives its numbers in order."""

    def __init__(self, name: str, size: int):
        self.size, self.fingerprint, self.name = size, name, name

    def pass_from(self, number, place=None, seed=0):
        for row in range(self.size):
            ids = {ROW_IDS: torch.tensor(row), EPOCH: torch.tensor(number)}
            yield row_of(row, self.name) | ids, None


def stores() -> dict[str, Rows]:
    return {"web": Numbers("web", 7), "code": Numbers("code", 5), "wiki": Numbers("wiki", 3)}


def by_shares(parts, weights=WEIGHTS, seed=3):
    return weighed(parts, weights, "tokens", seed)


def placed_rows(parts, weights):
    return mixed(parts, weights, 0, is_placed=True)


def passes_of(rows, epochs: int) -> dict:
    """What a loader reads in each epoch: [source, number in it, epoch, sample id, place], and what is said."""
    read = training_rows(rows)
    found = []
    for epoch in range(epochs):
        read.set_epoch(epoch)
        found.append([shown(read[index]) for index in range(len(read))])
    filler = read[NO_ROW]
    said = {"fingerprint": rows.fingerprint, "facts": rows.facts, "name": rows.name, "notes": list(rows.notes)}
    places = [[*rows.place(number), rows.documents(number)] for number in (0, 1, len(rows) - 1)]
    said |= {"filler": [int(filler[ROW_IDS]), filler["labels"].tolist()], "places": places, "parts": list(rows.parts)}
    return {"rows": found, "said": said}


def shown(row: dict) -> list:
    place = [list(map(str, row[PLACE]))] if PLACE in row else []
    return [row["of"], int(row["labels"][0]), int(row[EPOCH]), int(row[ROW_IDS]), *place]


def single():
    return {"rows": [[shown(row) for row in map(training_rows(stores()["web"]).__getitem__, range(7))]]}


def shares():
    rows = by_shares(stores())
    tokens = [rows.tokens_before(number) for number in (0, 1, 5, 12, 40)]
    return passes_of(rows, 4) | {"tokens": tokens, "shares": rows.shares()}


def sources_of_validation():
    return passes_of(sources_once(stores()), 1)


def parts_by_weight():
    rows = mixed(stores(), WEIGHTS, 0)
    return passes_of(rows, 2) | {"shares": rows.shares(), "counts": rows.counts}


def parts_once():
    rows = mixed({"a": Numbers("a", 2, np.array([3, 9])), "b": Numbers("b", 3, np.array([4, 2, 7]))}, None, 0)
    return passes_of(rows, 1) | {"lengths": rows.row_lengths.tolist()}


def part_that_goes_on():
    inner = by_shares({"web": Numbers("web", 7), "wiki": Numbers("wiki", 3)})
    return passes_of(placed_rows({"text": inner, "code": Numbers("code", 4)}, {"text": 1.0, "code": 3.0}), 4)


def placed():
    return passes_of(placed_rows({"a": Numbers("a", 3), "b": Numbers("b", 5)}, {"a": 2.0, "b": 1.0}), 2)


def joined():
    rows = joined_rows([Numbers("a", 3, np.array([4, 9, 1])), Numbers("b", 2, np.array([7, 7]))])
    said = {"fingerprint": rows.fingerprint, "facts": rows.facts, "name": rows.name, "notes": rows.notes}
    read = training_rows(rows)
    return {"rows": [shown(read[i]) for i in range(5)], "lengths": rows.row_lengths.tolist(), "said": said}


def staged(rows, shares, counts):
    found = staged_rows(rows, shares, counts, 5)
    read = training_rows(found)
    begins = zip(rows, accumulate(counts, initial=0), counts)
    done = [passes(found, one, first + trained) for one, first, n in begins for trained in (0, n // 2, n)]
    tokens = [found.tokens_before(number) for number in (0, 3, 10, len(found))]
    places = [[*found.place(number), found.documents(number)] for number in range(len(found))]
    said = {"passes": done, "tokens": tokens, "places": places, "said": [found.fingerprint, found.name]}
    return {"rows": [shown(read[index]) for index in range(len(found))]} | said


def stages_of_lengths():
    short, long = Numbers("short", 5), Numbers("long", 4)
    return staged([short, long, short], [None] * 3, [7, 6, 5])


def stages_of_a_mixture():
    short = by_shares(stores())
    long = by_shares({"web": Numbers("web", 4), "code": Numbers("code", 2), "wiki": Numbers("wiki", 2)})
    return staged([short, short, long, short], [None, {"web": 1, "code": 3}, None, {"wiki": 1.0}], [6, 9, 8, 5])


def stages_of_parts():
    inner = by_shares({"web": Numbers("web", 7), "wiki": Numbers("wiki", 3)})
    rows = placed_rows({"text": inner, "code": Numbers("code", 4)}, {"text": 1.0, "code": 1.0})
    return staged([rows, rows], [None, None], [9, 30])


def evaluation():
    lengths = [4, 9, 1, 9, 5]
    found = {}
    for name, rows in {
        "longest first": Numbers("a", 5, np.array(lengths)),
        "as they are": Numbers("a", 5),
        "some": Subset(Numbers("a", 9, np.arange(9)), [1, 4, 8]),
        "sources": sources_once({"a": Numbers("a", 3), "b": Numbers("b", 2)}),
    }.items():
        padded = evaluation_rows(rows, 4)
        found[name] = [shown(padded[index]) for index in range(len(padded))]
    return found


def by_length():
    lengths = np.random.default_rng(0).integers(1, 30, 61)
    sampler, found = LengthGroupedSampler(lengths, 4, 7), []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def stream_of(rows, position=None):
    stream = Cursor(rows)
    stream.position = stream.position if position is None else position
    return stream


def streamed(make, number: int, resumed: list[int]) -> dict:
    """The first rows, the position after each, and the rows after some of these positions."""

    def rows_after(position=None, most=number):
        rows = islice(stream_of(make(), position), most)
        return [[shown(row), decoded(row[POSITION]), len(row[POSITION])] for row in rows]

    whole = rows_after()
    for place in resumed:
        assert rows_after(whole[place][1], 9) == whole[place + 1 : place + 10]
    return {"rows": whole}


def stream():
    return streamed(lambda: Passes("a", 4), 22, [0, 2, 3, 4, 9])


def mixture():
    return MixedStream({"a": Passes("a", 9), "b": Numbers("b", 5), "c": Passes("c", 7)}, {"a": 2, "b": 1, "c": 0.5}, 3)


def stream_of_a_mixture():
    rows = mixture()
    said = [rows.fingerprint, rows.name, rows.shares(), list(rows.notes), rows.report()]
    return streamed(mixture, 60, [0, 1, 2, 13, 31, 50]) | {"said": said}


def stream_of_mixtures():
    def make():
        goes_on = by_shares({"web": Numbers("web", 5), "wiki": Numbers("wiki", 3)})
        return MixedStream({"in": mixture(), "out": goes_on}, {"in": 1.0, "out": 2.0}, 4)

    return streamed(make, 45, [0, 7, 30])


def trained(rows, tiny_config, folder: Path, resumed: int = 0, **arguments) -> list:
    """[step, epoch, sample ids] of each forward pass. resumed: the step at which the run ends and begins again."""

    def collator(found):
        batch = {name: torch.stack([row[name] for row in found]) for name in ("input_ids", "labels")}
        return {**batch, "labels": batch["labels"] - batch["labels"] + batch["input_ids"]} | row_ids(found)

    def trainer(**more):
        torch.manual_seed(0)
        return AnyformerTrainer(
            model=AnyformerDecoderForCausalLM(tiny_config()),
            args=small_arguments(folder, **{"save_steps": 1, "per_device_train_batch_size": 2} | arguments | more),
            train_dataset=rows,
            data_collator=collator,
            section=TrainingSection(stall_minutes=None, router_warning=None, audit_samples=True),
        )

    if resumed:
        trainer(max_steps=resumed).train()
    trainer().train(resume_from_checkpoint=bool(resumed) or None)
    lines = [json.loads(line) for line in (folder / "samples" / "0.jsonl").read_text().splitlines()]
    return [[line["step"], line["epoch"], line["rows"], line.get("documents")] for line in lines]


TRAINED = {
    "plain": lambda: Numbers("a", 9),
    "by length": lambda: Numbers("a", 23, np.arange(23) % 7),
    "shares": lambda: by_shares(stores()),
    "goes on": lambda: placed_rows({"in": by_shares(stores()), "out": Numbers("a", 4)}, None),
    "stream": lambda: mixture(),
}


@pytest.mark.parametrize("name", a_share(["stream", "plain", "by length", "goes on", "shares"], 5))
def test_a_run_trains_the_rows_that_it_always_trained_also_if_it_is_resumed(name, tiny_config, tmp_path):
    options = {"max_steps": 11, "gradient_accumulation_steps": 2, "seed": 3, "data_seed": 3}
    found = trained(TRAINED[name](), tiny_config, tmp_path / "whole", **options)
    assert trained(TRAINED[name](), tiny_config, tmp_path / "resumed", resumed=7, **options) == found
    workers = {"dataloader_num_workers": 2, "dataloader_persistent_workers": name != "stream"}
    assert trained(TRAINED[name](), tiny_config, tmp_path / "workers", **options | workers) == found
    assert_golden(f"trained, {name}", found)


ORDERS = [
    *(single, shares, sources_of_validation, parts_by_weight, parts_once, part_that_goes_on, placed, joined),
    *(stages_of_lengths, stages_of_a_mixture, stages_of_parts, evaluation, by_length),
    *(stream, stream_of_a_mixture, stream_of_mixtures),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_rows_stand_where_they_always_stood(order):
    assert_golden(order.__name__, order())


def assert_golden(name: str, found) -> None:
    found, known = json.loads(json.dumps(found)), {}
    if GOLDEN.exists():
        known = json.loads(GOLDEN.read_text(encoding="ascii"))
    if os.environ.get("GOLDEN") == "write":
        known[name] = found
        lines = (f'"{key}": {json.dumps(known[key], separators=(",", ":"))}' for key in sorted(known))
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii")
    assert found == known[name]
