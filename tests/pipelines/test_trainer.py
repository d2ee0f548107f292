"""Laws of the trainer: exact evaluation and resume, no silent NaN, no half checkpoint, equal accumulation."""

import errno
import functools
import inspect
import json

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.manifest import find_change
from anyformer.pipelines.objectives.causal import CausalCollator
from anyformer.pipelines.patches import OVERRIDDEN
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.storage.checkpoints import STAGING, list_checkpoints
from anyformer.pipelines.storage.model_folder import OUR_CODE, remove_supplied_code
from anyformer.pipelines.training.log.progress import new_metrics
from anyformer.pipelines.training.trainer import AnyformerTrainer
from run_folders import assert_same
from torch.utils.data import Dataset
from training_steps import small_arguments
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback

from anyformer import AnyformerDecoderForCausalLM


class PatternRows(Dataset):
    """Rows that count upwards from a random start: easy to learn; of random lengths where `short`."""

    def __init__(self, rows=48, length=16, short=False, seed=0):
        g = torch.Generator().manual_seed(seed)
        starts = torch.randint(0, 90, (rows, 1), generator=g)
        self.ids = 3 + (starts + torch.arange(length)) % 90
        self.lengths = torch.randint(2, length, (rows,), generator=g) if short else torch.full((rows,), length)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        labels = self.ids[i].clone()
        labels[self.lengths[i] :] = -100
        return {"input_ids": self.ids[i], "labels": labels, "position_ids": torch.arange(len(labels))}


@pytest.fixture
def make_trainer(tiny_config, tmp_path):
    def make(rows=None, folder="run", model=None, optim="adamw", packed=False, **arguments):
        torch.manual_seed(0)
        return AnyformerTrainer(
            model=model or AnyformerDecoderForCausalLM(tiny_config(hidden_dropout=0.1)),
            args=small_arguments(tmp_path / folder, **{"save_steps": 4, "seed": 1, "data_seed": 1} | arguments),
            train_dataset=rows or PatternRows(),
            data_collator=CausalCollator(packed),
            section=TrainingSection(optim=optim, stall_minutes=None, router_warning=None),
            run_identity='{"run": 1}',
        )

    return make


def test_a_batch_far_larger_than_the_data_costs_what_the_data_cost(tiny_recipe, command, monkeypatch):
    """Of 100,000 rows asked for and 10 there are, those 10 are computed, in training and in an evaluation."""
    seen, forward = [], AnyformerDecoderForCausalLM.forward

    @functools.wraps(forward)
    def noted(*args, **inputs):
        seen.append(len(inputs["input_ids"]))
        return forward(*args, **inputs)

    monkeypatch.setattr(AnyformerDecoderForCausalLM, "forward", noted)
    assert command("train", tiny_recipe(), "--dry-run", "training.per_device_train_batch_size=100000") == 0
    assert 64 < max(seen) < 2000, seen


def test_private_methods_of_trainer_are_those_of_the_table_and_each_is_called(make_trainer, monkeypatch):
    """By this transformers: an override that Trainer no longer calls would do nothing, without an error."""
    there = {name for name in OVERRIDDEN if hasattr(Trainer, name)}  # models that transformers shares: since 5.23
    private = {name for name in vars(AnyformerTrainer) if name.startswith("_") and not name.startswith("__")}
    assert {name for name in private if hasattr(Trainer, name)} == there
    called = set()
    for name in there:
        own, theirs = getattr(AnyformerTrainer, name), inspect.signature(getattr(Trainer, name))
        takes = inspect.signature(own).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in takes.values()):
            assert list(takes) == list(theirs.parameters), name

        def counted(self, *args, name=name, own=own, **kwargs):
            called.add(name)
            return own(self, *args, **kwargs)

        monkeypatch.setattr(AnyformerTrainer, name, counted)
    make_trainer(max_steps=3, save_steps=1).train()
    again = make_trainer(max_steps=4, save_steps=1)
    again.is_distributed_loading_by_transformers = True  # as with a model on a mesh
    again.train(resume_from_checkpoint=True)
    assert called == there


def weights(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_training_learns_and_resuming_from_any_checkpoint_is_bit_identical(make_trainer, optim):
    first = make_trainer(optim=optim)
    first.train()
    history = [h["loss"] for h in first.state.log_history if "loss" in h]
    assert history[-1] < 0.8 * history[0]
    again = make_trainer(optim=optim, folder="other")
    again.train(resume_from_checkpoint=str(list_checkpoints(first.guard.output_dir)[1]))
    assert again.state.global_step == 12
    assert_same(weights(first), weights(again))


def test_checkpoints_are_committed_carry_their_run_and_keep_the_cache_on(make_trainer):
    trainer = make_trainer(save_total_limit=2)
    trainer.train()
    found = list_checkpoints(trainer.guard.output_dir)
    assert [c.name for c in found] == ["checkpoint-12", "checkpoint-8"]
    for checkpoint in found:
        assert find_change(checkpoint) is None
        assert json.loads((checkpoint / "anyformer_run.json").read_text()) == {"run": 1}
        assert json.loads((checkpoint / "config.json").read_text())["use_cache"] is True
        assert not list(checkpoint.glob("*.py"))  # the installed package has the code
        loaded = AutoModelForCausalLM.from_pretrained(checkpoint, trust_remote_code=False)
        assert type(loaded) is AnyformerDecoderForCausalLM
    assert not (trainer.guard.output_dir / STAGING).exists()
    assert trainer.model.config.use_cache is True


def test_code_that_the_package_does_not_have_stays_in_a_checkpoint(tmp_path):
    own, theirs = tmp_path / "decoder.py", tmp_path / "theirs.py"
    own.write_bytes((OUR_CODE / "decoder.py").read_bytes())
    theirs.write_text("x = 1\n")
    (tmp_path / "block.py").write_text("# of another version\n")
    remove_supplied_code(tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*.py")) == ["block.py", "theirs.py"]


def test_metrics_are_on_disk_with_speed_and_mfu(make_trainer):
    trainer = make_trainer()
    trainer.train()
    lines = [json.loads(x) for x in (trainer.guard.output_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [x for x in lines if "loss" in x]
    assert [x["step"] for x in steps] == list(range(1, 13))
    assert all(x["tokens_per_second"] > 0 and 0 < x["mfu"] < 1 and x["memory_gb"] > 0 for x in steps)
    assert all(0 < x["data_share"] < 1 for x in steps)
    assert steps[-1]["tokens"] == 12 * 4 * 16


@pytest.mark.parametrize(
    "event, step, value, logging_steps, sentence",
    [
        ("on_step_begin", 6, float("nan"), 1, r"nan at step 7 \(training rows .*checkpoint-4"),
        ("on_step_end", 8, float("inf"), 100, r"norm\.weight are not finite after step 8"),
    ],
    ids=["loss", "weights"],
)
def test_what_is_no_number_stops_the_run_with_the_last_good_checkpoint_and_is_never_saved(
    event, step, value, logging_steps, sentence, make_trainer
):
    trainer = make_trainer(logging_steps=logging_steps)

    def poison(args, state, control, model=None, **kwargs):
        if state.global_step == step:
            model.model.norm.weight.data[0] = value

    trainer.add_callback(type("Poison", (TrainerCallback,), {event: staticmethod(poison)})())
    with pytest.raises(UserError, match=sentence):
        trainer.train()
    assert [c.name for c in list_checkpoints(trainer.guard.output_dir)] == ["checkpoint-4"]


def test_a_full_disk_leaves_the_last_complete_checkpoint_usable(make_trainer, monkeypatch):
    trainer = make_trainer()
    real, calls = torch.save, []

    def full(obj, path, *args, **kwargs):
        if "checkpoint-8" in str(path) and "optimizer" in str(path):
            calls.append(path)
            with open(path, "wb") as file:
                file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(obj, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match=r"disk is full.*checkpoint-8.*last complete checkpoint is .*checkpoint-4"):
        trainer.train()
    assert calls
    (found,) = list_checkpoints(trainer.guard.output_dir)
    assert found.name == "checkpoint-4" and find_change(found) is None
    assert not (trainer.guard.output_dir / STAGING).exists()
    monkeypatch.undo()
    again = make_trainer()
    again.train(resume_from_checkpoint=str(found))
    assert again.state.global_step == 12


def test_bf16_autocast_and_gradient_checkpointing_train(make_trainer):
    trainer = make_trainer(bf16=True, gradient_checkpointing=True, max_steps=4)
    trainer.train()
    losses = [h["loss"] for h in trainer.state.log_history if "loss" in h]
    assert losses[-1] < losses[0]
    assert all(p.dtype == torch.float32 for p in trainer.model.parameters())


@pytest.mark.parametrize("schedule", [("cosine", {"min_lr": 2e-4}), ("polynomial", {"lr_end": 2e-4, "power": 1.0})])
def test_muon_takes_schedules_that_end_at_a_least_rate(make_trainer, schedule):
    name, kwargs = schedule
    name = "cosine_with_min_lr" if name == "cosine" else name
    trainer = make_trainer(optim="muon", learning_rate=1e-3, lr_scheduler_type=name, lr_scheduler_kwargs=kwargs)
    trainer.create_optimizer_and_scheduler(num_training_steps=4)
    for _ in range(4):
        trainer.lr_scheduler.step()
    rates = {group["initial_lr"]: group["lr"] for group in trainer.optimizer.param_groups}
    assert rates[1e-3] == pytest.approx(2e-4) and all(rate == pytest.approx(0.2 * peak) for peak, rate in rates.items())


def test_a_metric_of_the_finished_model_is_logged_beside_another_value_of_that_step(make_trainer):
    trainer = make_trainer(max_steps=1, save_steps=1)
    trainer.log({"validation_bleu": 0.0, "validation_loss": 2.0})
    trainer.log(new_metrics({"validation_bleu": 0.2, "validation_loss": 2.0}, trainer.state))
    assert [line.get("validation_bleu") for line in trainer.state.log_history] == [0.0, 0.2]
    assert "validation_loss" not in trainer.state.log_history[-1]
