"""Overhead of a trainer: ours and transformers' against a bare training loop.

All run the same steps of our decoder on the same rows in the same order: forward, backward, clipping, fused AdamW,
learning-rate schedule; the bare loop does nothing else. The timer runs from the end of the first steps to the end of
the last one, so start and saving are excluded.
"""

import contextlib
import io
import tempfile
import time

import torch
from anyformer.pipelines.objectives.causal import CausalCollator
from anyformer.pipelines.training.trainer import AnyformerTrainer
from method import Timed
from models import model_of
from torch.utils.data import DataLoader
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    get_linear_schedule_with_warmup,
)

UNTIMED = 11  # steps before the timer starts: the first log, which measures the processor's peak once, is among them
LEARNING_RATE = 1e-3


class Timer(TrainerCallback):
    """CPU seconds from the end of step UNTIMED to the end of the last one."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == UNTIMED:
            self.start = time.process_time()
        if state.global_step == state.max_steps:
            self.seconds = time.process_time() - self.start


def outcome(seconds: float, model) -> Timed:
    """With the norm of all weights: one number that depends on every step."""
    norm = torch.cat([p.detach().flatten() for p in model.parameters()]).double().norm().item()
    return Timed(seconds, norm)


def trainers(setting, steps: int, batch: int, length: int, vocab: int, layers: int, hidden: int) -> dict:
    """AnyformerTrainer runs as `anyformer train` sets it up: loss guard, progress line and metrics on."""
    tokens = torch.randint(vocab, (steps * batch, length), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": ids, "labels": ids} for ids in tokens]

    sizes = {"vocab": vocab, "length": length, "layers": layers, "hidden": hidden, "heads": 2}

    def bare() -> Timed:
        model = model_of("decoder", "ours", sizes).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True, weight_decay=0.0)
        scheduler = get_linear_schedule_with_warmup(optimizer, 0, steps)
        loader = DataLoader(rows, batch_size=batch, collate_fn=CausalCollator(packed=False))
        for number, inputs in enumerate(loader, start=1):
            loss = model(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if number == UNTIMED:
                start = time.process_time()
        return outcome(time.process_time() - start, model)

    def trained(trainer_class, collator, **arguments) -> Timed:
        timer = Timer()
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_class(
                model=model_of("decoder", "ours", sizes),
                args=TrainingArguments(
                    output_dir=folder,
                    max_steps=steps,
                    per_device_train_batch_size=batch,
                    learning_rate=LEARNING_RATE,
                    logging_steps=10,
                    save_strategy="no",
                    report_to="none",
                    use_cpu=True,
                    disable_tqdm=True,
                    dataloader_pin_memory=False,
                    train_sampling_strategy="sequential",
                    **arguments,
                ),
                train_dataset=rows,
                data_collator=collator,
                callbacks=[timer],
            )
            trainer.remove_callback(PrinterCallback)
            with contextlib.redirect_stdout(io.StringIO()):
                trainer.train()
        return outcome(timer.seconds, trainer.model)

    quiet = {"logging_nan_inf_filter": False, "remove_unused_columns": False, "prediction_loss_only": True}
    return {
        "bare loop": bare,
        "transformers' Trainer": lambda: trained(Trainer, default_data_collator),
        "AnyformerTrainer": lambda: trained(AnyformerTrainer, CausalCollator(False), **quiet),
    }
