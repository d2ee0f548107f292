"""Further columns of a sweep's table: measurements of each finished run, kept in its folder."""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..accounting.caches import cache_size
from ..adapters import load_config, load_model
from ..errors import UserError, did_you_mean
from ..generation import free_positions
from ..lazy import torch, transformers
from ..plugins import objective_of
from ..recipes.schema import Recipe
from ..reporting.charts import OF_ROUTERS, OF_TRAINING
from ..reporting.run_log import COLUMNS_FILE, is_number, read_run
from ..storage.atomic import write_atomically
from ..storage.record import Record, code_identity
from ..words import watched

WRITERS = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")  # heads of models that write text, with a cache
PROMPT, WRITTEN, ROUNDS = 16, 64, 3  # tokens of the prompt, tokens generated, repetitions
LAST = 10  # a logged number is the median of this many last lines of the log


@dataclass(frozen=True)
class Column:
    """measure: folder of a finished run -> the number, None where it has none. rounds: repetitions of a timing; their
    median counts, and runs take turns, so that all meet the same machine. writes: what a model that writes text does
    with the installed versions, so that it is of the code, too."""

    measure: Callable[[Path], float | None]
    rounds: int = 1
    writes: bool = False


def cache_bytes_per_token(folder: Path) -> float | None:
    """Bytes that a token adds to the cache of one row, at the precision in which the model is saved."""
    config = load_config(folder)
    if not hasattr(config, "num_key_value_heads"):
        return None
    size = cache_size(config, 1, config.dtype.itemsize if config.dtype is not None else 4)
    return None if size is None else float(size.bytes_per_token)


def decoding_tokens_per_second(folder: Path) -> float:
    """Tokens per second of greedy decoding on this machine, in one row, after a prompt of 16 tokens."""
    config = load_config(folder)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model = load_model(kind, folder, dtype="auto").to(device).eval()
    ids = (torch.arange(PROMPT, device=device) % config.vocab_size)[None]
    options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False, "num_beams": 1}
    new_tokens = min(WRITTEN, free_positions(config, PROMPT))
    with torch.inference_mode():
        model.generate(**options, min_new_tokens=4, max_new_tokens=4)  # warm-up
        started = time.perf_counter()
        model.generate(**options, min_new_tokens=new_tokens, max_new_tokens=new_tokens).cpu()
    return new_tokens / (time.perf_counter() - started)


def logged(key: str) -> Callable[[Path], float | None]:
    """A measure: the median of the key's last values in a run's log."""

    def median(folder: Path) -> float | None:
        values = [line[key] for line in read_run(folder).train if is_number(line.get(key))]
        return statistics.median(values[-LAST:]) if values else None

    return median


COLUMNS = {
    "cache_bytes_per_token": Column(cache_bytes_per_token, writes=True),
    "decoding_tokens_per_second": Column(decoding_tokens_per_second, ROUNDS, writes=True),
} | {
    key: Column(logged(key))
    for key in (*(one.key for one in (*OF_TRAINING, *OF_ROUTERS)), "router_load_max", "router_load_min")
}


def check_columns(names: list[str], recipe: Recipe) -> None:
    """Raise UserError for a column that is unknown, named twice, or of models that write, unlike the recipe's."""
    objective = objective_of(recipe)
    for number, name in enumerate(names):
        if name not in COLUMNS:
            raise UserError(f"columns: {name!r} is not known{did_you_mean(name, COLUMNS)}; {', '.join(COLUMNS)} are")
        if name in names[:number]:
            raise UserError(f"columns: {name} is named twice; name it once")
        if COLUMNS[name].writes and objective.auto_class not in WRITERS:
            raise UserError(f"columns: {name} is of models that write, and {objective.setting} trains none; drop it")


def measure_columns(names: list[str], folders: list[Path]) -> dict[Path, dict[str, float | None]]:
    """The columns of finished runs; those not measured by this code are, and written into a run's columns.json."""
    if not names:
        return {}
    transformers.utils.logging.disable_progress_bar()  # "Loading weights" would stand between the lines of the table
    runs = {folder: read_run(folder, shown=False) for folder in folders}
    for name in names:
        column = COLUMNS[name]
        now = Record(code=code_identity() if column.writes else None)
        values: dict[Path, list[float | None]] = {
            folder: []
            for folder, run in runs.items()
            if name not in run.columns or Record.of(run.columns[name]).differs_from(now) is not None
        }
        turns = list(values) * column.rounds
        for folder in watched(turns, f"measuring {name.replace('_', ' ')}, run"):
            values[folder].append(column.measure(folder))
        for folder, measured in values.items():
            numbers, run = [value for value in measured if value is not None], runs[folder]
            run.columns[name] = {"value": statistics.median(numbers) if numbers else None} | now.facts()
            write_atomically(folder / COLUMNS_FILE, json.dumps(run.columns | run.model.facts(), indent=1))
    return {folder: {name: run.columns[name]["value"] for name in names} for folder, run in runs.items()}
