"""Progress of a run: one updated line on the terminal, and a line of JSON on disk for each log."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from ...data.sample_ids import NumberedRows
from ...recipes.optimizer_rows import RATES
from ...reporting.run_log import METRICS_FILE, is_metric, read_metrics
from ...storage.atomic import write_atomically
from ...storage.json_text import json_text
from ...words import counted, human_time, short_metric

FURTHER = {"mfu": "MFU {mfu:.0%}", "data_share": "data {data_share:.0%}", "memory_gb": "{memory_gb:.1f} GB"}
FURTHER |= {"skipped_steps": "left out {skipped_steps}"}
# Of several processes.
FURTHER |= {"waiting_rank": "data up to {most_data_share:.0%} (rank {waiting_rank})"}
FURTHER |= {"slowest_rank": "slowest rank {slowest_rank} ({slowest_speed:.0%})"}

TIMES = ("_runtime", "_per_second")  # how the names of an evaluation's times end


def describe(logs: dict, eta: float | None = None, width: int | None = None) -> str:
    """A progress line, the most important numbers first; the last are left out where `width` columns do not suffice."""
    words = [f"epoch {logs['epoch']:.2f}"] if logs.get("epoch") is not None else []
    of = f" of {counted(logs['mean_of_steps'], 'step')}" if "mean_of_steps" in logs else ""
    words.append(f"loss {logs['loss']:.4f}{of}")
    if eta is not None:
        words.append(f"ETA {human_time(eta)}")
    if "tokens_per_second" in logs:
        words.append(f"{logs['tokens_per_second']:,.0f} tok/s")
    rates = {"learning_rate": "lr"} | RATES
    words.append(", ".join(f"{word} {logs[name]:.2e}" for name, word in rates.items() if name in logs))
    words += [form.format(**logs) for name, form in FURTHER.items() if name in logs]
    if "router_load_max" in logs:
        words.append(f"expert load {logs['router_load_min']:.2f}-{logs['router_load_max']:.2f}")
    while width is not None and len(words) > 1 and len("  ".join(words)) > width:
        words.pop()
    return "  ".join(words)


def with_split_names(logs: dict) -> dict:
    """Rename Trainer's `eval_loss` to `validation_loss`, its name at the end of a run, and the other metrics alike."""
    return {f"validation_{name[5:]}" if name.startswith("eval_") else name: value for name, value in logs.items()}


def new_metrics(metrics: dict[str, float], state) -> dict[str, float]:
    """Those of the metrics that no line of this step has yet. state: of transformers' Trainer."""
    logged = {}
    for line in state.log_history:
        logged |= line if line["step"] == state.global_step else {}
    return {name: value for name, value in metrics.items() if logged.get(name) != value}


def is_new(metrics: dict[str, float], state) -> bool:
    """Whether an evaluation found other numbers than this step's lines have, the time that it took aside."""
    return any(not name.endswith(TIMES) for name in new_metrics(metrics, state))


def describe_evaluation(logs: dict, rows: NumberedRows | None = None) -> str:
    """`validation loss 0.3512  accuracy 0.8620  on 32 of 1,821 rows`. rows: those that were evaluated, if known."""
    words = [f"validation loss {logs['validation_loss']:.4f}"]
    for key, value in logs.items():
        name = key.removeprefix("validation_")
        if name != "loss" and is_metric(key):
            words.append(f"{name.replace('_', ' ')} {short_metric(value)}")
    if rows is not None and len(rows) < len(rows.split):
        words.append(f"on {len(rows):,} of {len(rows.split):,} rows")
    return "  ".join(words)


# The first steps are not timed, because the loader's first batches and compilation take longer.
STEPS_BEFORE_ETA = 6
BAR_WIDTH = 10


class ProgressLine(TrainerCallback):
    """One progress line of `rich` on a terminal; in a pipe, one plain line per logging step.

    work: n -> the work of the run's first n steps, in a unit that always takes the same time; the ETA uses it.
    """

    def __init__(self, console: Console | None = None, work: Callable[[int], float] = float):
        self.work = work
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.bar = self.task = self.measuring = self.measured = None
        self.training = False

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step, self.timed_from = state.global_step, None
        self.training = True
        if not state.is_world_process_zero:
            return
        if self.console.is_terminal:
            self.bar = self._progress()
            self.bar.start()
            self.task = self.bar.add_task("", total=state.max_steps, completed=state.global_step)

    def _progress(self, **kwargs) -> Progress:
        columns = (BarColumn(BAR_WIDTH), TextColumn("{task.completed}/{task.total}"), TextColumn("{task.description}"))
        return Progress(*columns, console=self.console, **kwargs)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.first_step + STEPS_BEFORE_ETA:
            self.timed_from = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            control.should_log = True  # the last step is logged, whatever logging_steps says
        if self.bar is not None:
            self.bar.update(self.task, completed=state.global_step)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if not self.console.is_terminal or not state.is_world_process_zero:
            return
        if self.measuring is None:
            self.measuring = self.bar or self._progress(transient=True)
            self.measuring.start()
            total = len(eval_dataloader) if has_length(eval_dataloader) else None
            self.measured = self.measuring.add_task("batches measured", total=total)
        self.measuring.advance(self.measured)

    def on_evaluate(self, args, state, control, **kwargs):
        if self.measuring is None:
            return
        if self.measuring is self.bar:
            self.bar.remove_task(self.measured)
        else:
            self.measuring.stop()
        self.measuring = None

    def on_log(self, args, state, control, logs=None, eval_dataloader=None, **kwargs):
        if not state.is_world_process_zero or not logs:
            return
        if "validation_loss" in logs and self.training:
            rows = getattr(getattr(eval_dataloader, "dataset", None), "dataset", None)  # of evaluation_rows
            self.console.print(f"step {state.global_step}  {describe_evaluation(logs, rows)}")
        if "loss" not in logs:
            return
        eta, now = None, self.work(state.global_step)
        if self.timed_from is not None:
            done = now - self.work(self.first_step + STEPS_BEFORE_ETA)
            eta = (time.monotonic() - self.timed_from) / done * (self.work(state.max_steps) - now)
        if self.bar is not None:
            room = self.console.width - BAR_WIDTH - len(f" {state.max_steps}/{state.max_steps} ")
            self.bar.update(self.task, description=describe(logs, eta, room))
        else:
            self.console.print(f"step {state.global_step}/{state.max_steps}  {describe(logs, eta)}")

    def say(self, sentence: str) -> None:
        """Print a line above the bar."""
        self.console.print(sentence, markup=False)

    def on_train_end(self, args, state, control, **kwargs):
        self.training = False
        self.close()

    def close(self):
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class MetricsFile(TrainerCallback):
    """Appends each log to metrics.jsonl: {"step": ..., "time": Unix time in seconds, metric: value, ...}."""

    name = METRICS_FILE

    def __init__(self, output_dir: str | Path):
        self.path = Path(output_dir) / self.name

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero and self.path.exists():
            # A resumed run logs the steps after its checkpoint again, so their lines are removed.
            lines, damaged = read_metrics(self.path)
            if damaged:
                aside = self.path.with_name(f"corrupt-{self.path.name}")
                shutil.copyfile(self.path, aside)
                noun = "line" if damaged == 1 else "lines"
                print(f"anyformer: {self.path}: {damaged} damaged {noun} left out; the whole is in {aside.name}")
            # Lines from the end of a training at this step on are measured again, or belong to a shorter run's model.
            is_end = [state.global_step == line["step"] and "train_runtime" in line for line in lines]
            lines = lines[: is_end.index(True)] if True in is_end else lines
            # Of a run that begins anew not even the validation of step 0 is kept, which is measured again.
            kept = [line for line in lines if 0 < state.global_step >= line["step"]]
            write_atomically(self.path, "".join(f"{json_text(line, None)}\n" for line in kept))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs:
            entry = {"step": state.global_step, "time": round(time.time(), 3), **logs}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json_text(entry, None) + "\n")
