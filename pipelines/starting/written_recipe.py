"""A recipe as text: the settings of a guess, each with a comment that says what it is guessed from."""

import math
import re
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

from ..accounting.host_memory import memory_of_this_machine
from ..accounting.plan import Devices, plan_run
from ..data.splits import VALIDATION, Split
from ..lazy import np, torch
from ..open_tokenizer import open_tokenizer
from ..plugins import METRICS, OBJECTIVES
from ..recipes.compose import recipe_from_dict
from ..recipes.strict_yaml import StrictDumper
from ..recipes.usual_rates import ENOUGH_STEPS, MOST_EPOCHS, PRETRAINED_EPOCHS
from ..words import counted, short_number
from .beginnings import Beginning
from .guesses import Guess
from .named_data import NamedData
from .what_columns_hold import Table, value_of

LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512)  # tokens
MANY = 5000  # rows of which the usual share is enough for validation
MOST_ENTRIES = 8192  # of a new vocabulary
FRESH_STEPS, FRESH_EPOCHS = 600, 30  # of weights from nothing: at least so many steps, and at most so many passes
BYTES = 16  # of a weight with its gradient and AdamW's two states, in fp32


class Written:
    """sections: of the recipe. comments: {(section, setting): words}."""

    def __init__(self, data: NamedData, table: Table, guess: Guess, beginning: Beginning):
        self.data, self.table, self.guess, self.beginning = data, table, guess, beginning
        self.objective, self.comments = OBJECTIVES[guess.task], {}
        self.learned = self.objective.section
        self.count, tokenizer = self._counter()
        model = dict(beginning.fields)
        self.comments["model", next(iter(model))] = beginning.words
        self.sections: dict[str, Any] = {"description": f"{guess.task} of {data.name}", "model": model}
        self.sections |= {"tokenizer": tokenizer} if beginning.is_fresh and tokenizer else {}
        self.sections |= {"data": self._data(), self.learned: self._learned()}
        self.sections |= {"training": self._training(), "evaluation": self._evaluation()}
        if beginning.is_fresh:
            model |= self._pixels() if self.objective.tokens is None else {"max_position_embeddings": self._positions()}
        elif beginning.is_here:
            self._fit_memory()

    # ---- lengths

    def _counter(self) -> tuple[Any, dict[str, Any] | None]:
        """(the function that counts a text's tokens, the section of a new tokenizer, as large as the texts allow)."""
        if self.objective.tokens is None:
            return None, None
        if self.beginning.is_here and not self.beginning.is_fresh:
            tokenizer = open_tokenizer(self.beginning.fields["name_or_path"])
            return lambda text: len(tokenizer(text, verbose=False)["input_ids"]), None
        columns = [name for name in (*self.guess.reads, self.guess.writes) if name is not None]
        words = Counter(word for name in columns for row in self.table.rows for word in self._text(row, name).split())
        known = {word for word, number in words.items() if number > 3}
        size = min(MOST_ENTRIES, 256 + 8 * (len(known) // 8))
        section = {"type": "byte_bpe", "vocab_size": size} if len(known) > 16 else {"type": "char"}
        return lambda text: sum(1 if word in known else len(word) + 1 for word in text.split()), section

    def _text(self, row: dict[str, Any], name: str) -> str:
        value = value_of(row, name)
        return "" if value is None else str(value)

    def _lengths(self, columns: tuple[str, ...]) -> list[int]:
        """Tokens of the texts of some columns together, in each of some rows."""
        rows = self.table.rows[:: max(1, len(self.table.rows) // 500)]
        return [self.count("\n".join(self._text(row, name) for name in columns)[:100_000]) for row in rows]

    def _length_for(self, columns: tuple[str, ...]) -> tuple[int, str]:
        """(the most tokens that are read, quantiles in words)."""
        lengths = self._lengths(columns)
        half, most, longest = (int(np.quantile(lengths, share)) for share in (0.5, 0.95, 1.0))
        about = "about " * (self.beginning.is_fresh or not self.beginning.is_here)
        around = 24 if self.guess.task in ("instruction_tuning", "preference") else 2  # what stands around a text
        needed = next((size for size in LENGTHS if size >= 1.05 * most + around), LENGTHS[-1])
        return needed, f"tokens: half of the texts {about}{half} or fewer, 95 % {most}, the longest {longest}"

    def _positions(self) -> int:
        section = self.sections[self.learned]
        lengths = [section.get(name) or 0 for name in ("max_length", "max_target_length", "sequence_length")]
        return max(*lengths, 384 if self.guess.task == "question_answering" else 64)

    # ---- sections

    def _data(self) -> dict[str, Any]:
        section, number = self.data.section | self.guess.data, self.table.number
        self.comments["data", next(iter(section))] = counted(number, "row") + self._unread()
        self.comments |= {("data", name): "found" for name in ("separator", "encoding", "sheet")}
        if self.learned != "task":
            return section
        if number < MANY and not any(name.startswith(VALIDATION) for name in section):
            held = max(1, number // 5 if number < 1000 else number // 10)
            share = Split({VALIDATION: 0.0}).holding_at_least(held, number).fraction
            section["validation_fraction"] = math.ceil(1000 * share) / 1000
            self.comments["data", "validation_fraction"] = f"about {counted(held, 'row')}, on which it is measured"
            if self.objective.Settings().stratified_by is not None:
                section["stratify"] = True
        self.comments["data", "bad_rows"] = "rows without a text or a label are left out, and counted"
        return section | {"bad_rows": "skip"}

    def _unread(self) -> str:
        unread = [name for name in self.table.columns if not self.guess.needs(name)]
        words = f"; not read: {', '.join(unread[:4])}" + ", ..." * (len(unread) > 4) if unread else ""
        return words + (f"; no split: {', '.join(self.data.unused[:3])}" if self.data.unused else "")

    def _learned(self) -> dict[str, Any]:
        section, known = {"name": self.guess.task} | self.guess.settings, vars(self.objective.Settings())
        label = next((name for name in ("label_field", "tags_field") if name in section), None)
        if label is not None and self.guess.label:
            self.comments[self.learned, label] = self.guess.label
        if "sequence_length" in known:
            section["sequence_length"] = 256
        elif "max_length" in known and self.guess.task != "question_answering":
            section["max_length"], self.comments[self.learned, "max_length"] = self._length_for(self.guess.reads)
        if self.guess.writes is not None and "max_target_length" in known:
            written = self._length_for((self.guess.writes,))
            section["max_target_length"], self.comments[self.learned, "max_target_length"] = written
        return section

    def _training(self) -> dict[str, Any]:
        name = re.sub(r"[^\w-]+", "_", Path(self.data.name).name.split(".")[0]) or "data"
        is_long = self.sections[self.learned].get("max_length", 384) > 256
        batch = (64 if self.objective.tokens is None else 8 if is_long else 16) * (1 + torch.cuda.is_available())
        per_epoch = max(1, self.table.number // batch)
        epochs: Any = "auto"
        if self.beginning.is_fresh:
            epochs = min(FRESH_EPOCHS, max(3, -(-FRESH_STEPS // per_epoch))) if self.learned == "task" else 3
            words = f"{counted(per_epoch, 'step')} each" if self.learned == "task" else "passes over the text"
        else:
            words = f"about {max(PRETRAINED_EPOCHS, min(MOST_EPOCHS, -(-ENOUGH_STEPS // per_epoch))):g} here"
        self.comments["training", "num_train_epochs"] = words
        section = {"output_dir": f"runs/{name}", "num_train_epochs": epochs, "per_device_train_batch_size": batch}
        return section | {"save_steps": "epoch"}

    def _evaluation(self) -> dict[str, Any]:
        section = {"every_steps": "epoch"} | self.guess.evaluation
        if self.guess.task in ("sequence_classification", "image_classification"):
            section["metrics"] = ["accuracy", "f1_macro"]
        if self.guess.task == "text_to_text" and self.table.columns[str(self.guess.writes)].words > 5:
            section["metrics"] = ["rougeL" if METRICS["rougeL"].missing() is None else "chrf"]
        return section | {"best_metric": "loss"}

    def _pixels(self) -> dict[str, int]:
        """The size of a model of images like the first one."""
        from PIL import Image

        image = next(value for row in self.table.rows for value in row.values() if value is not None)
        path = image if isinstance(image, str) else image.get("path")
        of_table = Path(self.data.name).parent / path if path and not Path(path).exists() else path
        source = BytesIO(image["bytes"]) if isinstance(image, dict) and image.get("bytes") else of_table
        with Image.open(source) as opened:
            side, is_grey = min(opened.size), opened.mode in ("1", "L")
        patch = 4 if side <= 48 else 8
        return {"image_size": min(96, side // patch * patch), "patch_size": patch, "num_channels": 1 if is_grey else 3}

    def _fit_memory(self) -> None:
        """Adapters, where the weights with AdamW's states do not fit."""
        is_gpu = torch.cuda.is_available()
        memory = torch.cuda.get_device_properties(0).total_memory if is_gpu else memory_of_this_machine()
        weights = plan_run(recipe_from_dict(self.sections), Devices("cpu", 1, memory, None, None)).sizes.parameters
        self.comments["model", "name_or_path"] = f"{short_number(weights)} weights: {self.beginning.words}"
        if BYTES * weights > memory:
            self.sections["training"]["lora"] = {"r": 16}
            words = f"all weights would take {BYTES * weights / 1e9:.0f} GB of {memory / 1e9:.0f}"
            self.comments["training", "lora"] = words

    # ---- text

    def text(self, head: list[str]) -> str:
        lines = [f"# {one_line(sentence)}" for sentence in head]
        for name, section in self.sections.items():
            is_flow = name in ("tokenizer", "evaluation") or (name == "model" and self.beginning.is_fresh)
            if is_flow or not isinstance(section, dict):
                comment = self.comments.get((name, next(iter(section))))
                lines += commented(f"{name}: {flow(section)}", comment)
                continue
            lines.append(f"{name}:")
            for setting, value in section.items():
                lines += commented(f"  {setting}: {flow(value)}", self.comments.get((name, setting)))
        return "\n".join(lines) + "\n"


def flow(value: Any) -> str:
    """A value in a line of YAML."""
    options = {"default_flow_style": True, "allow_unicode": True, "width": math.inf, "sort_keys": False}
    return yaml.dump(value, Dumper=StrictDumper, **options).removesuffix("\n").removesuffix("\n...")


def commented(line: str, comment: str | None) -> list[str]:
    """A line with a comment behind it, or above it where both are too long."""
    if comment is None:
        return [line]
    whole = f"{line:<30}  # {one_line(comment)}"
    indent = " " * (len(line) - len(line.lstrip()))
    return [whole] if len(whole) <= 120 else [f"{indent}# {one_line(comment)}", line]


def one_line(text: str) -> str:
    """Words of a comment, without characters that would end it."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
