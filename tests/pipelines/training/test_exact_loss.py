"""Losses are exact per label for every model, also where the model's own loss is a mean of means."""

import copy
import itertools
from itertools import product

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from anyformer.pipelines.data.length_batching import PaddingCollator
from anyformer.pipelines.data.sample_ids import NO_ROW, NumberedRows
from anyformer.pipelines.training.engines.even_batches import share_out_in_full_rounds
from anyformer.pipelines.training.losses.model_loss import ModelLoss
from anyformer.pipelines.training.trainer import AnyformerTrainer
from family_variants import a_share
from native_models import native_config
from torch.utils.data import DataLoader, Dataset
from training_steps import small_arguments
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    MarianMTModel,
    MixtralForCausalLM,
    T5ForConditionalGeneration,
)

import anyformer
from anyformer import AnyformerDecoderForCausalLM, AnyformerEncoderForSequenceClassification, AnyformerMoeForCausalLM

TOKENS = {"vocab_size": 50, "pad_token_id": 0, "eos_token_id": 1}


class Rows(Dataset):
    """Rows of 2 to 12 tokens. labels: a class, as many other tokens, or the tokens with some left out."""

    def __init__(self, labels: str, number=24):
        g = torch.Generator().manual_seed(3)
        self.rows = []
        for _ in range(number):
            ids = torch.randint(2, 50, (int(torch.randint(2, 13, (), generator=g)),), generator=g)
            if labels == "class":
                target = torch.randint(0, 3, (), generator=g)
            elif labels == "target":
                target = torch.cat([ids.flip(0)[: int(torch.randint(1, 12, (), generator=g))], torch.tensor([1])])
            else:
                target = torch.where(torch.rand(len(ids), generator=g) < 0.4, ids, -100)
            self.rows.append({"input_ids": ids, "labels": target})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def ours(family, head, **fields):
    shared = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
    config = getattr(anyformer, f"Anyformer{family}Config")(**TOKENS, **shared, **fields)
    return lambda: getattr(anyformer, f"Anyformer{family}{head}")(config)


def native(model_class, name, **fields):
    config = native_config(name, **fields)
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return lambda: model_class(config)


MODELS = {
    "bert-classes": (native(BertForSequenceClassification, "bert", num_labels=3), "class"),
    "bert-masked": (native(BertForMaskedLM, "bert"), "same"),
    "marian": (native(MarianMTModel, "marian"), "target"),
    "t5": (native(T5ForConditionalGeneration, "t5"), "target"),
    "our-classes": (ours("Encoder", "ForSequenceClassification", num_labels=3), "class"),
    "our-masked": (ours("Encoder", "ForMaskedLM"), "same"),
    "our-seq2seq": (ours("Seq2Seq", "ForConditionalGeneration", decoder_start_token_id=0), "target"),
    "our-causal": (ours("Decoder", "ForCausalLM"), "same"),
}


class AlignedLabels(AnyformerTrainer):
    shifts_labels = False


@pytest.fixture
def make_trainer(tmp_path):
    def make(name, rows=None, model=None, **arguments):
        build, labels = MODELS[name]
        torch.manual_seed(0)
        defaults = {"max_steps": 4, "per_device_train_batch_size": 8, "save_strategy": "no"}
        trainer_class = AnyformerTrainer if name == "our-causal" else AlignedLabels
        return trainer_class(
            model=build() if model is None else model,
            args=small_arguments(tmp_path / "run", **defaults | arguments),
            train_dataset=rows or Rows(labels),
            data_collator=PaddingCollator(0),
        )

    return make


def losses(trainer):
    trainer.train()
    return torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


@pytest.mark.parametrize("name, smoothing", a_share(product(MODELS, (0.0, 0.1)), 3))
def test_accumulation_follows_the_trajectory_of_the_big_batch(make_trainer, name, smoothing):
    whole = losses(make_trainer(name, label_smoothing_factor=smoothing))
    parts = losses(
        make_trainer(
            name, label_smoothing_factor=smoothing, per_device_train_batch_size=2, gradient_accumulation_steps=4
        )
    )
    torch.testing.assert_close(parts, whole, atol=2e-5, rtol=0)  # fp32: other sums, four steps of Adam


@pytest.mark.parametrize("name", MODELS)
def test_smoothing_is_part_of_the_training_loss_and_not_of_the_evaluation(make_trainer, name):
    def first(smoothing):
        trainer = make_trainer(name, label_smoothing_factor=smoothing, max_steps=1)
        before = trainer.evaluate(Rows(MODELS[name][1], 11))
        return losses(trainer)[0].item(), before

    plain, exact = first(0.0)
    smoothed, same = first(0.5)
    assert same["eval_loss"] == exact["eval_loss"] and abs(smoothed - plain) > 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_the_evaluation_counts_every_label_once(make_trainer, name):
    rows, trainer = Rows(MODELS[name][1], 11), make_trainer(name, per_device_eval_batch_size=4)
    found = trainer.evaluate(rows)
    model, total, count = trainer.model.eval(), 0.0, 0
    shift = name == "our-causal"
    for row in rows:
        inputs = {"input_ids": row["input_ids"][None]}
        labels = row["labels"][None]
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
        logits = model(**inputs).logits
        logits, labels = (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)
        total += torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum").item()
        count += int((labels != -100).sum())
    assert found["eval_predictions"] == count
    assert found["eval_loss"] == pytest.approx(total / count, abs=2e-6)


@pytest.mark.parametrize("name", ["our-classes", "our-causal"])
def test_smoothed_labels_leave_routers_their_losses(make_trainer, tiny_encoder_config, tiny_moe_config, name):
    """Smoothing is not the model's own, whose forward pass adds them; of almost none the loss is the same."""
    fields = {**TOKENS, "num_experts": 4, "router_aux_loss_coef": 1.0, "router_z_loss_coef": 0.1}
    if name == "our-causal":
        model = AnyformerMoeForCausalLM(tiny_moe_config(**fields))
    else:
        model = AnyformerEncoderForSequenceClassification(tiny_encoder_config(**fields, mlp_bias=False, num_labels=3))

    def run(smoothing):
        return losses(make_trainer(name, model=copy.deepcopy(model), label_smoothing_factor=smoothing))

    torch.testing.assert_close(run(1e-9), run(0.0), atol=2e-5, rtol=0)  # fp32: other sums, four steps of Adam


def test_a_native_mixture_adds_its_balance_loss_where_its_config_asks_for_it(make_trainer):
    config = native_config("mixtral", num_hidden_layers=1, router_aux_loss_coef=1.0)
    found = {}
    for asks, smoothing in itertools.product((True, False), (0.0, 1e-9)):
        torch.manual_seed(0)
        config.output_router_logits = asks
        model = MixtralForCausalLM(config)
        found[asks, smoothing] = losses(make_trainer("our-causal", model=model, label_smoothing_factor=smoothing))
    for asks in (True, False):
        torch.testing.assert_close(found[asks, 1e-9], found[asks, 0.0], atol=2e-5, rtol=0)
    assert (found[True, 0.0] - found[False, 0.0])[0] > 0.5


def test_rows_are_told_the_epoch_also_after_resuming_and_in_lasting_workers(make_trainer, tmp_path):
    seen = []

    class Spy(PaddingCollator):
        def __call__(self, rows):
            batch = super().__call__(rows)
            return batch | {"epoch": torch.tensor([row["epoch"] for row in rows])}

    def run(folder, checkpoint=None, **arguments):
        trainer = make_trainer("our-causal", max_steps=9, output_dir=str(tmp_path / folder), **arguments)
        trainer.data_collator = Spy(0)
        step = trainer.training_step

        def training_step(model, inputs, *rest):
            seen.append(inputs["epoch"].tolist())
            return step(model, inputs, *rest)

        trainer.training_step = training_step
        trainer.train(resume_from_checkpoint=checkpoint)
        epochs = [epochs[0] for epochs in seen]
        assert all(len(set(epochs)) == 1 for epochs in seen)
        seen.clear()
        return epochs

    whole = run("a", save_strategy="steps", save_steps=4)
    assert whole == [0] * 3 + [1] * 3 + [2] * 3
    assert run("b", str(tmp_path / "a" / "checkpoint-4")) == whole[4:]
    assert run("c", dataloader_num_workers=1, dataloader_persistent_workers=True) == whole


@pytest.mark.parametrize("name", MODELS)
def test_a_process_without_rows_adds_nothing_to_the_gradient(make_trainer, name):
    trainer = make_trainer(name, label_smoothing_factor=0.1)
    trainer.create_optimizer()
    batch = trainer.data_collator([trainer.train_dataset[NO_ROW]])
    assert trainer._get_num_items_in_batch([batch], torch.device("cpu")) == 0
    loss = trainer.training_step(trainer.model, batch, torch.tensor(7))
    assert loss == 0
    gradients = [p.grad for p in trainer.model.parameters() if p.requires_grad]
    assert all(gradient is None or gradient.eq(0).all() for gradient in gradients)
    assert name == "our-classes" or sum(gradient is not None for gradient in gradients) > len(gradients) / 2


@pytest.mark.parametrize("processes", [2, 3])
def test_in_every_epoch_each_row_is_trained_once_in_the_step_of_one_process(processes):
    """Of any number of rows, batch size and number of accumulated batches."""
    for number, size, accumulated in itertools.product((1, 2, 3, 5, 7, 12, 24), (1, 3), (1, 2)):
        rows = NumberedRows([{"labels": torch.tensor(i)} for i in range(number)])
        steps = []  # rows of each step, of all processes
        for process in range(processes):
            loader = DataLoader(rows, batch_size=size, collate_fn=lambda found: [int(row["labels"]) for row in found])
            loader = prepare_data_loader(loader, num_processes=processes, process_index=process)
            share_out_in_full_rounds(loader)
            batches = list(loader)
            assert len(batches) == len(loader) and all(batches)
            for place, batch in enumerate(batches):
                if place // accumulated == len(steps):
                    assert process == 0
                    steps.append([])
                steps[place // accumulated] += [label for label in batch if label != -100]
        of_one = size * processes * accumulated
        assert [sorted(step) for step in steps] == [
            list(range(start, min(start + of_one, number))) for start in range(0, number, of_one)
        ]


def test_a_model_whose_loss_is_computed_here_gets_no_labels_by_any_name(tiny_config):
    """A model of pixels has them a second time: with them it would make its own loss, and no logits."""
    model = AnyformerDecoderForCausalLM(tiny_config())
    loss = ModelLoss(model, shifts_labels=False, accepts_loss_kwargs=True, label_smoothing=0.1)
    ids = torch.arange(8)[None]
    inputs = loss.inputs_for_logits({"input_ids": ids, "shift_labels": ids})
    assert loss.function(model.train()(**inputs), ids).isfinite() and list(inputs) == ["input_ids"]
