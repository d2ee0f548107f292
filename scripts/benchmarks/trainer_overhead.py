"""Overhead of a trainer: ours and transformers' against a bare training loop.

All run the same steps of our decoder on the same rows in the same order: forward, backward, clipping, fused AdamW,
learning-rate schedule; the bare loop does nothing else. The timer runs from the end of the first steps to the end of
the last one, so start and saving are excluded. Each run has its own process. AnyformerTrainer runs as `anyformer train`
sets it up: loss guard, progress line and metrics on.
"""

import contextlib
import io
import shutil
import tempfile
import time

import method
import torch
from anyformer.pipelines.objectives.causal import CausalCollator
from anyformer.pipelines.training.trainer import AnyformerTrainer
from torch.utils.data import DataLoader, Dataset
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    get_linear_schedule_with_warmup,
)

from anyformer import AnyformerDecoderConfig, AnyformerDecoderForCausalLM

GOAL = method.Goal(1 / 1.08)  # at most 1.08 times the bare loop's time
UNTIMED = 11  # steps before the timer starts: the first log, which measures the processor's peak once, is among them
LEARNING_RATE = 1e-3


class Rows(Dataset):
    """Random tokens in the form of packed rows: input_ids and labels."""

    def __init__(self, rows, length, vocab):
        self.ids = torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Timer(TrainerCallback):
    """CPU seconds from the end of step UNTIMED to the end of the last one, and the losses' sum."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == UNTIMED:
            self.start = time.process_time()
        if state.global_step == state.max_steps:
            self.seconds = time.process_time() - self.start


def model_of(args):
    torch.manual_seed(0)
    config = AnyformerDecoderConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=2,
        max_position_embeddings=args.length,
    )
    return AnyformerDecoderForCausalLM(config).train()


def bare(args, rows):
    """Returns (seconds, weights)."""
    model = model_of(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True, weight_decay=0.0)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, args.steps)
    loader = DataLoader(rows, batch_size=args.batch, collate_fn=CausalCollator(packed=False))
    for number, batch in enumerate(loader, start=1):
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if number == UNTIMED:
            start = time.process_time()
    return time.process_time() - start, model


def trained(args, rows, trainer_class, collator, **arguments):
    """Returns (seconds, weights)."""
    folder, timer = tempfile.mkdtemp(), Timer()
    try:
        trainer = trainer_class(
            model=model_of(args),
            args=TrainingArguments(
                output_dir=folder,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch,
                learning_rate=LEARNING_RATE,
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
        return timer.seconds, trainer.model
    finally:
        shutil.rmtree(folder)


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--steps", type=int, default=105, help=f"of which the first {UNTIMED} are not timed")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--vocab", type=int, default=1024)
    p.add_argument("--logging-steps", type=int, default=10)
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.steps = min(args.rounds, method.QUICK_ROUNDS), min(args.steps, 55)
    rows = Rows(args.steps * args.batch, args.length, args.vocab)
    logging = {"logging_steps": args.logging_steps}
    quiet = {"logging_nan_inf_filter": False, "remove_unused_columns": False, "prediction_loss_only": True}
    arms = {
        "bare loop": lambda: bare(args, rows),
        "transformers' Trainer": lambda: trained(args, rows, Trainer, default_data_collator, **logging),
        "AnyformerTrainer": lambda: trained(args, rows, AnyformerTrainer, CausalCollator(False), **logging, **quiet),
    }
    method.require_equal({name: weight_norm(arm()[1]) for name, arm in arms.items()})
    timings = method.compare(
        {name: (lambda arm=arm: method.seconds_in_fork(lambda: arm()[0])) for name, arm in arms.items()},
        "bare loop",
        args.rounds,
        1,
    )
    what = f"L={args.layers} D={args.hidden} T={args.length} B={args.batch} V={args.vocab}, {args.steps} steps"
    print(method.HEADER)
    print(method.guard_row(what, "bare loop", timings))
    void = method.is_void(timings)
    for name in list(arms)[1:]:
        print(method.row(what, name, "bare loop", timings[name], GOAL if name.startswith("Any") else None, void))
    times = 1 / timings["AnyformerTrainer"].ratio
    per_step = [1e3 * timing.milliseconds / 1e3 / (args.steps - UNTIMED) for timing in timings.values()]
    print(
        f"AnyformerTrainer takes {times:.3f} x the bare loop's time; ms per step: "
        + ", ".join(f"{ms:.2f}" for ms in per_step)
    )


def weight_norm(model) -> float:
    """The norm of all weights: one number that depends on every step."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double().norm().item()


if __name__ == "__main__":
    main()
