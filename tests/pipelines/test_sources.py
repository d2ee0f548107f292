"""Laws of data.mixture in whole runs: a cache, a share, a validation and a loss for each source."""

import json
import re
from collections import Counter
from functools import partial
from itertools import pairwise
from pydoc_data.topics import topics

import pytest
import yaml
from anyformer.pipelines.data import tokenization
from anyformer.pipelines.data.sample_ids import training_rows
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from processes import run_ranks
from run_folders import lines_of, read_audit
from task_data import write_lines
from test_distributed import rank_main

WEIGHTS = {"long": 3.0, "short": 1.0, "rare": 0.5}


@pytest.fixture
def sources(tiny_recipe, tmp_path):
    """Factory: the path of a recipe of three sources, one with a column of its own and one without validation."""
    texts = [topics[name] for name in sorted(topics)]
    long, short, rare = texts[:9], texts[9:17], [text[:400] for text in texts[17:20]]
    for name, column, chosen in (("long", "text", long), ("short", "body", short), ("rare", "text", rare)):
        write_lines(tmp_path / f"{name}.jsonl", [{column: text[:3000]} for text in chosen])

    def make(order=tuple(WEIGHTS), data=None, **sections):
        more = {"short": {"text_field": "body"}, "rare": {"validation_fraction": 0.0}}
        mixture = [
            {"name": name, "files": str(tmp_path / f"{name}.jsonl"), "weight": WEIGHTS[name]} | more.get(name, {})
            for name in order
        ]
        path = tiny_recipe(**sections)
        recipe = yaml.safe_load(path.read_text())
        recipe["data"] = {"mixture": mixture, "validation_fraction": 0.2, "cache_dir": str(tmp_path / "own")} | (
            data or {}
        )
        path.write_text(yaml.safe_dump(recipe))
        return path

    return make


def test_another_weight_another_order_and_another_length_tokenise_nothing_again(sources, tmp_path, monkeypatch):
    whole = prepare_data(load_recipe(str(sources())))
    stores = {path: path.stat().st_mtime_ns for path in (tmp_path / "own").glob("tokens/*/*.bin")}
    assert len(stores) == 2 * 5  # three training texts and two of validation
    monkeypatch.setattr(tokenization, "encoded_stream", pytest.fail)
    changes = ["data.mixture.0.weight=9"], ["data.weights_by=3"], ["data.weights_by=documents"]
    for changed in (*changes, ["objective.sequence_length=16"], ["training.seed=7"]):
        found = prepare_data(load_recipe(str(sources()), changed))
        assert [len(rows.stores) for rows in found.rows.values()] == [3, 2]
        same_rows = changed[0].startswith("training.seed")  # which order they come in is not part of what they are
        assert (found.facts["fingerprint"] == whole.facts["fingerprint"]) == same_rows
    assert len(prepare_data(load_recipe(str(sources(order=["rare", "long", "short"])))).rows["train"]) > 0
    assert stores == {path: path.stat().st_mtime_ns for path in (tmp_path / "own").glob("tokens/*/*.bin")}


def test_rows_keep_the_shares_and_an_epoch_goes_on_in_each_source_where_the_last_one_was(sources):
    train = prepare_data(load_recipe(str(sources()))).rows["train"]
    drawn, seen = Counter(), set()
    rows = training_rows(train)
    for epoch in range(3):
        rows.set_epoch(epoch)
        for index in range(len(rows)):
            row = rows[index]
            name, inside, turn = train.draw(row["row_ids"])
            assert row["input_ids"].equal(train.parts[name][inside]["input_ids"])
            drawn[name] += 1
            seen.add((name, inside, turn))
            for each, weight in WEIGHTS.items():
                assert abs(drawn[each] - sum(drawn.values()) * weight / 4.5) < 1
        if epoch == 0:  # which ends before a source is read again
            assert all(drawn[name] <= len(train.parts[name]) for name in WEIGHTS)
    assert len(seen) == 3 * len(rows)
    assert train.tokens_before(3 * len(rows)).keys() == WEIGHTS.keys() and rows[None]["labels"].max() == -100


def test_each_source_has_its_loss_and_its_tokens_in_the_log_and_the_report(sources, command, tmp_path, capsys):
    recipe = sources(
        training={"max_steps": 6}, evaluation={"every_steps": 3, "max_rows": None, "metrics": ["perplexity"]}
    )
    assert command("train", recipe) == 0
    printed = capsys.readouterr().out
    assert "rare (10.6% of the rows)" in printed  # 9 of 85: an epoch has whole rows of a ninth
    assert re.search(r"sources: long: \d+ tokens, its \S+ 0\.\d+ times\n", printed)
    lines = lines_of(tmp_path / "run")
    logged = [line for line in lines if "loss" in line]
    assert {name for line in logged for name in line if name.startswith("loss_")} == {f"loss_{n}" for n in WEIGHTS}
    assert logged[-1]["tokens_long"] > logged[0]["tokens_long"] > 0 and all("tokens_rare" in line for line in logged)
    rows, facts = 6 * 4, json.loads((tmp_path / "run" / "run.json").read_text())
    trained = sum(logged[-1][f"tokens_{name}"] for name in WEIGHTS)
    assert trained == pytest.approx(rows * 47, rel=0.02)  # each further row repeats the token before it
    metrics, sizes = facts["metrics"], facts["data"]["validation"]["sources"]
    assert {name for name in metrics if "loss_" in name} == {"validation_loss_long", "validation_loss_short"}
    together = sum(metrics[f"validation_loss_{name}"] * size["tokens"] for name, size in sizes.items())
    assert metrics["validation_loss"] == pytest.approx(together / sum(s["tokens"] for s in sizes.values()), rel=0.01)
    assert metrics["validation_perplexity_short"] == pytest.approx(2.718281828 ** metrics["validation_loss_short"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "train, rare" in page and "validation, short" in page and "loss_short" in page


def test_prepare_and_plan_say_how_much_of_each_source_a_run_trains(sources, without_activations, command, capsys):
    recipe, steps = sources(), "training.max_steps=1000"
    assert command("prepare", recipe, steps) == 0
    printed = capsys.readouterr().out
    assert re.search(r"rare: 2\d\.\dk tokens, its \S+ \d\d\.\d\d times; text that is read more than 4 times", printed)
    assert command("plan", recipe, steps) == 0
    assert "rare 11.1% (21.3k tokens); anyformer prepare says" in re.sub(r"\s+", " ", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_two_and_four_processes_train_the_same_rows_at_equal_global_batch(sources, command, tmp_path):
    found = []
    for processes in (1, 2, 4):
        folder = tmp_path / f"ranks-{processes}"
        folder.mkdir()
        more = (f"training.per_device_train_batch_size={8 // processes}", "training.audit_samples=true")
        arguments = (
            command,
            sources(training={"max_steps": 17, "save_steps": 17}),
            f"training.output_dir={folder / 'run'}",
            *more,
        )
        run_ranks(processes, partial(rank_main, *arguments), folder=folder)
        of_step: dict[int, list] = {}
        for line in read_audit(folder / "run"):
            of_step.setdefault(line["step"], []).extend(line["rows"])
        found.append({step: sorted(rows) for step, rows in of_step.items()})
        assert lines_of(folder / "run")[-1]["epoch"] > 1
    assert found[0] == found[1] == found[2]
    numbers = [number for step in sorted(found[0]) for number in found[0][step]]
    assert all(after == before + 1 for before, after in pairwise(numbers))
