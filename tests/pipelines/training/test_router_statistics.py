"""Router statistics are means over all tokens between two logs, for any batches; they have a file."""

import json
import math

import pytest
import torch
from anyformer.pipelines.objectives.causal import CausalCollator
from anyformer.pipelines.training.guards.router_statistics import RouterStatistics
from anyformer.pipelines.training.log.progress import describe
from anyformer.pipelines.training.trainer import AnyformerTrainer
from run_folders import lines_of
from test_distributed import DOUBLED
from test_trainer import PatternRows
from training_steps import small_arguments

from anyformer import AnyformerMoeForCausalLM

TOLERANCE = 1e-5  # fp32: batches of other sizes add up in another order
KEYS = ("load_max", "load_min", "load_cv", "entropy", "dropped", "aux_loss", "z_loss")


def reported(load, entropy=1.0, dropped=0.0, **losses) -> dict:
    """The output of a model with one sparse layer."""
    fields = {"router_load": [load], "router_entropy": [entropy], "router_dropped": [dropped], **losses}
    return {name: torch.tensor(value) for name, value in fields.items()}


def test_means_are_over_tokens_and_losses_over_steps(tmp_path):
    statistics = RouterStatistics(tmp_path)
    statistics.add(reported([0.5, 0.5], 0.6, 0.2, aux_loss=0.5), tokens=30)
    statistics.add(reported([0.9, 0.1], 0.2, 0.0, aux_loss=0.7), tokens=torch.tensor(10))
    found = statistics.collect(2, lambda sums: sums)
    expected = {"load_max": 1.2, "load_min": 0.8, "load_cv": 0.2, "entropy": 0.5, "dropped": 0.15}
    expected |= {"aux_loss": 0.6, "z_loss": 0.0}
    assert found == {f"router_{name}": pytest.approx(value) for name, value in expected.items()}
    assert statistics.collect(3, lambda sums: sums) == {}  # nothing since then
    statistics.add({"loss": torch.tensor(1.0)}, tokens=9)  # no experts
    statistics.add((torch.tensor(1.0),), tokens=9)
    assert statistics.collect(4, lambda sums: sums) == {}


@pytest.fixture
def train(tiny_moe_config, tmp_path):
    """Train a tiny model; returns (the trainer, what was logged)."""

    def run(folder, checkpoint=None, rows=None, **arguments):
        torch.manual_seed(0)
        defaults = {"max_steps": 6, "logging_steps": 2, "save_steps": 4}
        trainer = AnyformerTrainer(
            model=AnyformerMoeForCausalLM(tiny_moe_config()),
            args=small_arguments(tmp_path / folder, **defaults | arguments),
            train_dataset=rows or PatternRows(),
            data_collator=CausalCollator(False),
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer, [line for line in trainer.state.log_history if "loss" in line]

    return run


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "router.jsonl").read_text().splitlines()]


def test_a_run_logs_its_routers(train, tmp_path):
    _, logged = train("run")
    for line in logged:
        assert all(math.isfinite(line[f"router_{name}"]) for name in KEYS)
        assert 0 <= line["router_load_min"] <= 1 <= line["router_load_max"] <= 2  # 2 of 4 experts: at most all tokens
        assert 0 < line["router_entropy"] <= math.log(4) + 1e-6 and line["router_dropped"] == 0
        assert "expert load" in describe(line)
    written = lines(tmp_path / "run")
    assert [line["step"] for line in written] == [2, 4, 6]
    load = torch.tensor([line["load"] for line in written])
    assert load.shape == (3, 2, 4)
    torch.testing.assert_close(load.sum(dim=-1), torch.ones(3, 2))
    assert [row.max().item() * 4 for row in load] == pytest.approx([line["router_load_max"] for line in logged])


def test_gradient_accumulation_does_not_change_the_statistics(train):
    rows = PatternRows(short=True)
    _, expected = train("whole", rows=rows, max_steps=2, logging_steps=1)
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    _, found = train("parts", rows=rows, max_steps=2, logging_steps=1, **options)
    for one, other in zip(found, expected, strict=True):
        for name in KEYS:
            assert one[f"router_{name}"] == pytest.approx(other[f"router_{name}"], abs=TOLERANCE), name


@pytest.mark.slow
def test_two_processes_train_and_log_what_one_does_at_equal_global_batch(tiny_recipe, alone, ranks):
    """DDP: the balance loss, the biases that balance without one, and the statistics are of the whole batch."""
    mixture = {"family": "moe", "hidden_dropout": 0.0, "num_experts": 4, "intermediate_size": 32}
    mixture |= {"router_aux_loss_coef": 0.1, "router_z_loss_coef": 0.1, "router_bias_update_rate": 0.01}
    recipe = tiny_recipe(model=mixture, training={"max_steps": 6}, evaluation={"metrics": ["perplexity"]})
    facts, _, run = ranks(2, recipe)
    assert facts["engine"] == "DistributedDataParallel"
    runs = [lines_of(each) for each in (alone(recipe, DOUBLED)[2], run)]
    for one, other in zip(*([line for line in run if "loss" in line] for run in runs), strict=True):
        for name in ("loss", *(f"router_{name}" for name in KEYS)):
            assert one[name] == pytest.approx(other[name], abs=TOLERANCE), (one["step"], name)


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_file(train, tmp_path):
    _, whole = train("whole")
    train("parts", max_steps=6)
    (tmp_path / "parts" / "router.jsonl").open("a").write('{"step": 99, "load": [[')  # killed while writing
    _, resumed = train("parts", checkpoint=str(tmp_path / "parts" / "checkpoint-4"))
    assert [line["step"] for line in lines(tmp_path / "parts")] == [2, 4, 6]
    assert resumed[-1]["router_aux_loss"] == whole[-1]["router_aux_loss"]
    assert lines(tmp_path / "parts")[-1]["load"] == lines(tmp_path / "whole")[-1]["load"]
