"""Bad steps are left out without a trace or end the run, alike in all processes; what is unusual is reported."""

import json
import math
import os

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.causal import CausalCollator
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.reporting.run_log import read_metrics
from anyformer.pipelines.storage.checkpoints import list_checkpoints
from anyformer.pipelines.training.guards.router_statistics import RouterStatistics, at_work
from anyformer.pipelines.training.guards.step_guard import ENOUGH, SAID, StepGuard
from anyformer.pipelines.training.trainer import AnyformerTrainer
from family_variants import a_share
from processes import run_ranks
from test_distributed import forget_the_parents_state
from test_trainer import PatternRows
from training_steps import small_arguments
from transformers import AutoModelForCausalLM, TrainerControl, TrainerState

STEPS = 24


def trainer_of(config, folder, factors: dict[int, float], section=None, **arguments) -> AnyformerTrainer:
    """A trainer whose loss is multiplied by a factor at some steps, counted from 1; two micro-batches make a step."""
    torch.manual_seed(0)
    defaults = {"max_steps": STEPS, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    trainer = AnyformerTrainer(
        model=AutoModelForCausalLM.from_config(config),
        args=small_arguments(folder, **defaults | {"save_steps": 20} | arguments),
        train_dataset=PatternRows(64, 12),
        data_collator=CausalCollator(False),
        section=TrainingSection(stall_minutes=None, router_warning=None, **(section or {})),
    )
    compute = trainer.compute_loss

    def compute_loss(model, *args, **kwargs):
        return compute(model, *args, **kwargs) * (
            factors.get(trainer.state.global_step + 1, 1) if model.training else 1
        )

    trainer.compute_loss = compute_loss
    return trainer


def weights(trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def states(trainer) -> list[torch.Tensor]:
    return [x.clone() for state in trainer.optimizer.state_dict()["state"].values() for x in state.values()]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(a.equal(b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize("factor", a_share([math.nan, 50.0], 2))
def test_a_step_left_out_changes_neither_weights_nor_optimizer_and_is_no_part_of_the_logged_loss(
    factor, tiny_config, tmp_path, capsys
):
    trainer = trainer_of(
        tiny_config(), tmp_path, {20: factor}, {"bad_step": "skip", "loss_spike": 5.0}, logging_steps=4
    )
    before = {}

    class Look(type(trainer.stop_signal).__mro__[1]):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 19:
                before["is"] = weights(trainer), states(trainer)

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 20:
                assert same(weights(trainer), before["is"][0]) and same(states(trainer), before["is"][1])

    trainer.add_callback(Look())
    trainer.train()
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl")[0] if "loss" in line]
    assert [line.get("skipped_steps") for line in lines][-3:] == [None, 1, 1]
    assert [line.get("mean_of_steps") for line in lines][-3:] == [None, 3, None]
    assert all(0 < line["loss"] < 6 for line in lines)
    (report,) = trainer.steps.facts()["skipped_steps"]["steps"]
    assert report["step"] == 20 and len(report["rows"]) == 4
    word = "times the median of the last 19 steps" if factor == 50 else f"the loss is {factor}"
    said = capsys.readouterr().err
    assert word in report["why"] and f"anyformer: step 20 is left out: {report['why']} (training rows " in said


def test_a_step_left_out_moves_no_router_and_is_no_part_of_what_is_logged_of_routers(tiny_moe_config, tmp_path):
    config = tiny_moe_config(num_hidden_layers=1, router_bias_update_rate=0.01, router_aux_loss_coef=0.0)
    trainer = trainer_of(config, tmp_path, {3: math.nan}, {"bad_step": "skip"}, logging_steps=5, max_steps=5)
    found = {}

    class Look(type(trainer.stop_signal).__mro__[1]):
        def on_step_end(self, args, state, control, **kwargs):
            (bias,) = (x.clone() for name, x in trainer.model.state_dict().items() if "e_score" in name)
            found[state.global_step] = bias, trainer.routers.sums

    trainer.add_callback(Look())
    trainer.train()
    assert torch.equal(found[2][0], found[3][0]) and found[2][1] is found[3][1]
    assert not torch.equal(found[3][0], found[4][0]) and found[4][1] is not found[3][1]


def test_a_resumed_run_leaves_out_the_same_steps(tiny_config, tmp_path):
    """What is usual is in the checkpoint: four steps after it would not say."""
    factors, section = {9: math.nan, 23: 8.0}, {"bad_step": "skip", "loss_spike": 4.0}
    whole = trainer_of(tiny_config(hidden_dropout=0.1), tmp_path / "run", factors, section, logging_steps=1)
    whole.train()
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")[0]
    assert not any("mean_of_steps" in line for line in lines)  # a step left out has no loss, so none of 0 steps
    resumed = trainer_of(tiny_config(hidden_dropout=0.1), tmp_path / "other", factors, section)
    resumed.train(resume_from_checkpoint=str(list_checkpoints(tmp_path / "run")[1]))
    assert same(weights(whole), weights(resumed)) and resumed.steps.facts() == whole.steps.facts()
    assert whole.steps.skipped == 2


def test_too_many_bad_steps_in_a_row_end_the_run_and_so_does_a_spike_where_none_is_skipped(tiny_config, tmp_path):
    bad = dict.fromkeys(range(5, 10), math.nan)
    trainer = trainer_of(tiny_config(), tmp_path / "a", bad, {"bad_step": "skip", "max_bad_steps": 3})
    with pytest.raises(
        UserError, match=r"the loss is nan at step 8 \(training rows .*\), bad step number 4 in a row; "
    ):
        trainer.train()
    trainer = trainer_of(tiny_config(), tmp_path / "b", {22: 90.0}, {"grad_norm_spike": 6.0})
    with pytest.raises(UserError, match=r"the gradient norm \S+ is \S+ times the median of .* at step 22 .*=skip$"):
        trainer.train()
    assert [found.name for found in list_checkpoints(tmp_path / "b")] == ["checkpoint-20"]


def rank_with_a_bad_step_in_one(config, folder) -> list:
    forget_the_parents_state()
    factors = {3: math.nan} if os.environ["RANK"] == "1" else {}
    trainer = trainer_of(config, folder, factors, {"bad_step": "skip"}, max_steps=5, save_strategy="no")
    trainer.train()
    return [trainer.steps.skipped, trainer.steps.reports, [x.tolist() for x in weights(trainer)]]


def test_all_processes_leave_out_the_step_that_is_bad_in_one(tiny_config, tmp_path):
    one, two = run_ranks(2, rank_with_a_bad_step_in_one, tiny_config(), tmp_path, folder=tmp_path)
    assert one == two and one[0] == 1 and len(one[1][0]["rows"]) == 4  # those of the bad process, 2 x 2
    assert all(torch.tensor(x).isfinite().all() for x in one[2])


def test_gradient_norms_far_above_the_usual_are_counted_and_some_of_them_said(capsys):
    """When they are read, with the log; the usual one is the median of those before, whatever their mean."""
    steps = StepGuard(TrainingSection(grad_norm_warning=8.0))
    for number, norm in enumerate([1.0] * 2 * ENOUGH + ([1.0] * 3 + [9.0]) * 2 * SAID, start=1):
        assert steps.judge(number, torch.tensor(norm), None) is None
    assert steps.facts() == {}
    logs = {"loss": 1.0}
    steps.collect(logs, speaks=True)
    assert logs == {"loss": 1.0} and steps.facts() == {"grad_norm_warnings": 2 * SAID}
    said = capsys.readouterr().err.splitlines()
    first = 2 * ENOUGH + 4
    assert said[0] == (
        f"anyformer: step {first}: the gradient norm 9 is 9 times the median of the last {first - 1} steps"
    )
    assert len(said) == SAID and said[-1].endswith("only counted, in run.json") and "counted" not in said[-2]


def test_a_router_that_uses_few_experts_is_reported_once_until_it_recovers(tmp_path, capsys):
    assert at_work([0.25] * 4) == pytest.approx(4) and at_work([0.5, 0.5, 0, 0]) == pytest.approx(2)
    routers, state = RouterStatistics(tmp_path, 0.5), TrainerState(is_world_process_zero=True)
    even, few = [0.25] * 4, [0.97, 0.01, 0.01, 0.01]
    for number, load in enumerate([few, even, *[few] * 4, even, *[few] * 3], start=1):
        state.global_step, routers._layers = number, {"load": [even, load]}
        routers.on_log(None, state, TrainerControl())
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in said] == [" step 5", " step 10"] and routers.collapsed == [1]
    assert "sparse layer 1 uses 1.2 of 4 experts (expert 0 gets 97% and expert 1 gets 1% of the load)" in said[0]


def test_a_run_says_at_its_end_what_was_left_out(tiny_recipe, command, tmp_path, monkeypatch, capsys):
    compute = AnyformerTrainer.compute_loss

    def compute_loss(self, model, *args, **kwargs):
        return compute(self, model, *args, **kwargs) * (
            math.nan if self.state.global_step == 1 and model.training else 1
        )

    monkeypatch.setattr(AnyformerTrainer, "compute_loss", compute_loss)
    path = tiny_recipe(training={"max_steps": 3, "save_steps": 3})
    assert command("train", path) == 2
    assert "or leave such steps out with training.bad_step=skip" in capsys.readouterr().err
    assert command("train", path, "training.bad_step=skip") == 0
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["skipped_steps"]["number"] == 1 and facts["skipped_steps"]["steps"][0]["why"] == "the loss is nan"
    assert "1 step of 3 was left out, for a bad loss or gradient norm (2)" in capsys.readouterr().out
