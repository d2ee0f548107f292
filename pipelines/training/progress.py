"""Progress of a run: one line on the terminal, kept up to date, and every metric as a line of JSON on disk."""

import json
import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from transformers import TrainerCallback

from ..storage.atomic import write_atomically


def human_time(seconds: float) -> str:
    """90 -> '1:30', 3725 -> '1:02:05'."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def describe(logs: dict, eta: float | None = None) -> str:
    """The numbers of one progress line, most important first."""
    words = [f"loss {logs['loss']:.4f}", f"lr {logs['learning_rate']:.2e}"]
    if "tokens_per_second" in logs:
        words += [f"{logs['tokens_per_second']:,.0f} tok/s", f"MFU {logs['mfu']:.0%}"]
    if "router_load_max" in logs:
        words.append(f"expert load {logs['router_load_min']:.2f}-{logs['router_load_max']:.2f}")
    if eta is not None:
        words.append(f"ETA {human_time(eta)}")
    if "memory_gb" in logs:
        words.append(f"{logs['memory_gb']:.1f} GB")
    return "  ".join(words)


# Keys of the evaluation log that are not metrics.
NOT_METRICS = {"loss", "nll", "predictions", "runtime", "samples_per_second", "steps_per_second"}


def describe_evaluation(logs: dict) -> str:
    """`validation loss 0.3512  accuracy 0.8620`."""
    words = [f"validation loss {logs['eval_loss']:.4f}"]
    for key, value in logs.items():
        name = key.removeprefix("eval_")
        if name != key and name not in NOT_METRICS:
            words.append(f"{name.replace('_', ' ')} {value:.4f}")
    return "  ".join(words)


class ProgressLine(TrainerCallback):
    """One rich line on a terminal; where output is piped, one plain line per logging step."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.bar = self.task = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.start_time, self.start_step = time.monotonic(), state.global_step
        if not state.is_world_process_zero:
            return
        if self.console.is_terminal:
            columns = (BarColumn(24), TextColumn("{task.completed}/{task.total}"), TextColumn("{task.description}"))
            self.bar = Progress(*columns, console=self.console)
            self.bar.start()
            self.task = self.bar.add_task("", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        if self.bar is not None:
            self.bar.update(self.task, completed=state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or not logs:
            return
        if "eval_loss" in logs:
            self.console.print(f"step {state.global_step}  {describe_evaluation(logs)}")
        if "loss" not in logs:
            return
        done = state.global_step - self.start_step
        eta = (time.monotonic() - self.start_time) / max(1, done) * (state.max_steps - state.global_step)
        text = describe(logs, eta)
        if self.bar is not None:
            self.bar.update(self.task, description=text)
        else:
            self.console.print(f"step {state.global_step}/{state.max_steps}  {text}")

    def on_train_end(self, args, state, control, **kwargs):
        self.close()

    def close(self):
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def read_metrics(path: Path) -> tuple[list[dict], int]:
    """(the entries of a metrics.jsonl, how many lines were damaged); the half of a last line is not counted as such."""
    entries, damaged = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                raise ValueError("no entry of ours")
        except (ValueError, RecursionError):
            damaged += line.endswith(b"\n")  # a killed run may leave half a line
            continue
        if line.endswith(b"\n"):
            entries.append(entry)
    return entries, damaged


class MetricsFile(TrainerCallback):
    """Appends every logged metric to metrics.jsonl: {"step": ..., "time": seconds since the epoch, ...}."""

    name = "metrics.jsonl"

    def __init__(self, output_dir: str | Path):
        self.path = Path(output_dir) / self.name

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero and self.path.exists():
            # A resumed run logs the steps after its checkpoint again.
            lines, damaged = read_metrics(self.path)
            if damaged:
                aside = self.path.with_name(f"corrupt-{self.path.name}")
                shutil.copyfile(self.path, aside)
                noun = "line" if damaged == 1 else "lines"
                print(f"anyformer: {self.path}: {damaged} damaged {noun} left out; the whole is in {aside.name}")
            kept = [line for line in lines if line["step"] <= state.global_step]
            write_atomically(self.path, "".join(f"{json.dumps(line)}\n" for line in kept))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs:
            entry = {"step": state.global_step, "time": round(time.time(), 3), **logs}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
