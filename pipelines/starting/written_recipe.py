"""A recipe as text: the settings of a guess, each with a comment that says what it is guessed from."""

import math
import re
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

from ..accounting.host_memory import memory_of_this_machine
from ..adapters import load_config
from ..chat_templates import ChatTemplate
from ..data.splits import VALIDATION, Split
from ..errors import UserError, did_you_mean, loading
from ..lazy import np, tokenizers, torch
from ..objectives.messages import TOOLS
from ..objectives.reads import columns_of
from ..open_tokenizer import open_tokenizer
from ..plugins import OBJECTIVES
from ..positions import empty_model, most_positions
from ..recipes.strict_yaml import StrictDumper
from ..recipes.usual_rates import PRETRAINED_EPOCHS, enough_epochs
from ..words import counted, short_number
from .beginnings import Beginning, begin
from .guesses import Guess, guesses, sentence_field_of
from .named_data import NamedData
from .what_columns_hold import Table, value_of

LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768)  # tokens
OF_LENGTH = ("max_length", "max_target_length", "sequence_length")
MANY = 5000  # rows of which the usual share is enough for validation
MOST_ENTRIES = 8192  # of a new vocabulary
FRESH_STEPS, FRESH_EPOCHS = 600, 30  # of weights from nothing: at least so many steps, and at most so many passes
BYTES = 16  # of a weight with its gradient and AdamW's two states, in fp32
CALLS = "'(tools|tool_calls|function_call)'"  # in the text of a row of chats
WITH_TOOLS = [{"role": "assistant", "tool_calls": []}, {"role": "tool"}]  # messages of which a template is asked
EQUAL = 0.03  # difference of scores
WIDTH = 120


def start(name: str, task: str | None = None, model: str | None = None) -> "Written":
    """Look at data and write a recipe for them.

    Raises:
        UserError: data that cannot be read, that have no rows, or that no task fits; a task that does not fit.
    """
    if task is not None and task not in OBJECTIVES:
        raise UserError(f"--task {task} is not known{did_you_mean(task, OBJECTIVES)}")
    data = NamedData(name)
    table = Table(data.rows(), name)
    if data.names_columns_by_a_line and (names := table.names_of_values()):
        data.section["column_names"] = names
        table = Table(data.rows(), name)
    data.sentence_field = sentence_field_of(table)
    if data.sentence_field is not None:
        table = Table(data.rows(), name, data.sentence_field)
    for column in table.columns.values() if table.number == 1 else ():
        if column.lists and len(column.lists[0]) > 20:  # as in exports of chats
            items = f"whose {column.name!r} is a list of {len(column.lists[0])}"
            raise UserError(f"{name} is one row, {items}; write its items as rows, one in each line of a .jsonl file")
    found = guesses(table)
    fitting = ", ".join(guess.task for guess in found)
    if not found:
        raise UserError(f"{name} holds no text and no image; its columns are {', '.join(table.columns)}")
    chosen = next((guess for guess in found if task in (None, guess.task)), None)
    if chosen is None:
        raise UserError(f"--task {task} does not fit {name}; what fits: {fitting}")
    if chosen.unfit:
        raise UserError(f"{name}: {chosen.unfit}")
    data.keep_splits_with([one for one in table.columns if chosen.needs(one)])
    read = (table.columns.get(one) for one in (*chosen.reads[:1], chosen.writes) if one is not None)
    languages = [None if column is None else column.language for column in read]
    beginning = begin(chosen.task, languages) if model is None else Beginning({"name_or_path": model}, "as asked")
    return Written(data, table, chosen, found, beginning)


class Written:
    """sections: of the recipe. comments: {(section, setting): words}. guesses: all, the likeliest first."""

    def __init__(self, data: NamedData, table: Table, guess: Guess, found: list[Guess], beginning: Beginning):
        self.data, self.table, self.guess, self.guesses, self.beginning = data, table, guess, found, beginning
        self.objective, model = OBJECTIVES[guess.task], dict(beginning.fields)
        self.learned, self.is_known = self.objective.section, beginning.is_here and not beginning.is_fresh
        self.comments = {("model", next(iter(model))): beginning.words}
        self.sections: dict[str, Any] = {"description": f"{guess.task} of {data.name}", "model": model}
        with loading(f"model.name_or_path={model.get('name_or_path')}"):
            self.config = load_config(model["name_or_path"]) if self.is_known else None
            self.count, tokenizer = self._counter() if self.objective.tokens is not None else (None, None)
        if tokenizer is not None and (beginning.is_fresh or self.is_known):
            self.sections["tokenizer"] = tokenizer
        self.sections |= {"data": self._data(), self.learned: self._settings()}
        self.sections |= {"training": self._training(), "evaluation": self._evaluation()}
        if self.config is not None:
            self._fit_memory(self.config)
        elif beginning.is_fresh:
            model |= self._pixels() if self.count is None else {"max_position_embeddings": self._positions()}

    # ---- lengths

    def _texts(self, columns: tuple[str, ...], most: int = 500) -> list[str]:
        """The texts of some columns together, in each of some rows."""
        rows = self.table.rows[:: max(1, len(self.table.rows) // most)]
        return ["\n".join(str(value_of(row, name) or "") for name in columns)[:100_000] for row in rows]

    def _counter(self) -> tuple[Any, dict[str, Any] | None]:
        """(the function that counts a text's tokens, the tokenizer section: a new one as large as the texts allow)."""
        calls = self.objective.continues_prompts and any(re.search(CALLS, str(row)) for row in self.table.rows[:200])
        if self.is_known:
            tokenizer = open_tokenizer(self.beginning.fields["name_or_path"])
            section = None
            if calls and (not tokenizer.chat_template or ChatTemplate(tokenizer).dropped(WITH_TOOLS, {TOOLS: True})):
                section = {"chat_template": "chatml_tools"}
                self.comments["tokenizer", "chat_template"] = "the model's own writes no tools"
            return lambda text: len(tokenizer(text, verbose=False)["input_ids"]), section
        columns = (*self.guess.reads, *([self.guess.writes] if self.guess.writes else []))
        words = Counter(word for text in self._texts(columns, len(self.table.rows)) for word in text.split())
        known = sum(number > 3 for number in words.values())
        size, is_char = min(MOST_ENTRIES, 256 + 8 * (known // 8)), known <= 16
        section = {"type": "char"} if is_char else {"type": "byte_bpe", "vocab_size": size}
        if calls:
            section |= {"special_tokens": ["<|im_start|>", "<|im_end|>"], "chat_template": "chatml_tools"}
        alike = tokenizers.ByteLevelBPETokenizer()  # as large as the recipe's will be
        alike.train_from_iterator([text[:4000] for text in self._texts(columns)], vocab_size=size, show_progress=False)
        return len if is_char else lambda text: len(alike.encode(text).ids), section

    def _length_for(self, columns: tuple[str, ...]) -> tuple[int, str]:
        """(the most tokens that are read, quantiles in words)."""
        lengths = [self.count(text) for text in self._texts(columns)]
        half, most, longest = (int(np.quantile(lengths, share)) for share in (0.5, 0.95, 1.0))
        of_template = 24 + (TOOLS in columns) * (256 if self.is_known else 448)  # in a small vocabulary they are more
        needed = 1.05 * most + (of_template if self.objective.continues_prompts else 2)
        words = f"tokens: half of the texts {'' if self.is_known else 'about '}{half} or fewer, 95 % {most}"
        return next((size for size in LENGTHS if size >= needed), LENGTHS[-1]), f"{words}, the longest {longest}"

    def _positions(self) -> int:
        section = self.sections[self.learned]
        return max(64, *(section.get(name) or 0 for name in OF_LENGTH))

    # ---- sections

    def _data(self) -> dict[str, Any]:
        section, number = self.data.section | self.guess.data, self.table.number
        read = [*columns_of(self.objective.Settings(**self.guess.settings)).values()]
        read += [name for name in self.table.columns if self.guess.needs(name)]
        unread = [name for name in self.table.columns if not any(hold(one, name) for one in read)]
        words = f"; not read: {', '.join(unread[:4])}{', ...' * (len(unread) > 4)}" if unread else ""
        words += f"; of no split: {', '.join(self.data.unused[:3])}" if self.data.unused else ""
        self.comments["data", next(iter(section))] = counted(number, "row") + words
        self.comments |= {("data", name): "found" for name in ("separator", "encoding", "sheet")}
        self.comments["data", "column_names"] = "the first line reads as a row; delete this where it holds names"
        if self.learned != "task":
            return section
        if number < MANY and not any(name.startswith(VALIDATION) for name in section):
            held = max(1, number // (5 if number < 1000 else 10))
            share = Split({VALIDATION: 0.0}).holding_at_least(held, number).fraction
            section["validation_fraction"] = math.ceil(1000 * share) / 1000
            self.comments["data", "validation_fraction"] = f"about {counted(held, 'row')}, on which it is measured"
            section |= {} if self.objective.Settings().stratified_by is None else {"stratify": True}
        self.comments["data", "bad_rows"] = "rows without a text or a label are left out, and counted"
        return section | {"bad_rows": "skip"}

    def _settings(self) -> dict[str, Any]:
        section, known = {"name": self.guess.task} | self.guess.settings, vars(self.objective.Settings())
        label = next((name for name in ("label_field", "tags_field") if name in section), "")
        looked_at = len(self.table.rows)
        words = f"of {looked_at:,} rows: " * (looked_at < self.table.number) + self.guess.label
        self.comments |= {(self.learned, label): words} if self.guess.label else {}
        self.comments[self.learned, "merge_labels"] = "names that differ in case, spaces and the like are one class"
        wanted = {"max_length": self.guess.reads, "max_target_length": self.guess.writes and (self.guess.writes,)}
        for name, columns in wanted.items():
            if name in known and name not in section and columns:
                section[name], self.comments[self.learned, name] = self._length_for(columns)
        section |= {"sequence_length": self._row_length()} if "sequence_length" in known else {}
        most = self.config and most_positions(self.config)
        lengths = [name for name in section if most and name in OF_LENGTH]
        return section | {name: min(section[name], most) for name in lengths}

    def _row_length(self) -> int:
        """Tokens of a row of a corpus: 256, or fewer where the corpus has hardly any such rows."""
        texts = self._texts(self.guess.reads)
        total = sum(map(self.count, texts)) * self.table.number / len(texts)
        return next((size for size in (256, 128, 64) if total > 20 * size), 32)

    def _training(self) -> dict[str, Any]:
        name = re.sub(r"[^\w-]+", "_", Path(self.data.name).name.partition(".")[0]) or "data"
        is_long, is_task = self.sections[self.learned].get("max_length", 0) > 256, self.learned == "task"
        batch = (64 if self.count is None else 8 if is_long else 16) * (1 + torch.cuda.is_available())
        per_epoch = max(1, self.table.number // batch)
        epochs: Any = "auto"
        words = f"{enough_epochs(self.objective.Settings, PRETRAINED_EPOCHS, per_epoch)} here"
        if self.beginning.is_fresh:
            epochs = min(FRESH_EPOCHS, max(3, -(-FRESH_STEPS // per_epoch))) if is_task else 3
            words = f"about {counted(per_epoch, 'step')} each" if is_task else "passes over the text"
        self.comments["training", "num_train_epochs"] = words
        section = {"output_dir": f"runs/{name}", "num_train_epochs": epochs, "per_device_train_batch_size": batch}
        return section | {"save_steps": "epoch"}

    def _evaluation(self) -> dict[str, Any]:
        own = dict(self.guess.evaluation)
        if "minimal_pairs" in own:
            own["minimal_pairs"] = {"files": self.data.section.get("files"), "max_pairs": 2000}
        self.comments["evaluation", "every_steps"] = "the weights of the best validation are kept"
        return {"every_steps": "epoch", **own, "best_metric": "loss"}

    def _pixels(self) -> dict[str, int]:
        """The size of a model of images like the first one."""
        from PIL import Image

        image = next(value for row in self.table.rows for value in row.values() if value is not None)
        held = image if isinstance(image, dict) else {"bytes" if isinstance(image, bytes) else "path": image}
        path = Path(held.get("path") or "")
        beside = path if path.exists() else Path(self.data.section["files"]).parent / path
        with Image.open(BytesIO(held["bytes"]) if held.get("bytes") else beside) as opened:
            side, is_grey = min(opened.size), opened.mode in ("1", "L")
        patch = 4 if side <= 48 else 8
        return {"image_size": min(96, side // patch * patch), "patch_size": patch, "num_channels": 1 if is_grey else 3}

    def _fit_memory(self, config: Any) -> None:
        """Adapters, where the weights with AdamW's states do not fit."""
        is_gpu = torch.cuda.is_available()
        memory = torch.cuda.get_device_properties(0).total_memory if is_gpu else memory_of_this_machine()
        weights = sum(weight.numel() for weight in getattr(empty_model(config), "parameters", tuple)())
        self.comments["model", "name_or_path"] = f"{short_number(weights)} weights: {self.beginning.words}"
        if BYTES * weights > memory:
            self.sections["training"]["lora"] = {"r": 16}
            words = f"an adapter: all weights would take {BYTES * weights / 1e9:.1f} GB of {memory / 1e9:.1f}"
            self.comments["training", "lora"] = words

    # ---- text

    @property
    def text(self) -> str:
        chosen, name = self.guess, one_line(self.data.name)
        lines = [f"# A guess by `anyformer new {name}`: {chosen.task}, as {one_line(chosen.reason)}."]
        for other in [guess for guess in self.guesses if guess is not chosen][:1]:
            words = "Equally likely" if abs(chosen.score - other.score) < EQUAL else "Second best"
            lines.append(f"# {words}: {other.task} ({one_line(other.reason)}); choose it by --task {other.task}")
        for name, section in self.sections.items():
            is_flow = name in ("tokenizer", "evaluation") or (name == "model" and self.beginning.is_fresh)
            if is_flow or not isinstance(section, dict):
                lines += commented(f"{name}: {flow(section)}", self.comments.get((name, next(iter(section)))))
                continue
            lines.append(f"{name}:")
            for setting, value in section.items():
                lines += commented(f"  {setting}: {flow(value)}", self.comments.get((name, setting)))
        return "\n".join(lines) + "\n"


def hold(one: str, other: str) -> bool:
    """Whether one of two columns is the other, or a part of it."""
    shorter, longer = sorted((f"{one}.", f"{other}."), key=len)
    return longer.startswith(shorter)


def flow(value: Any) -> str:
    """A value in a line of YAML."""
    options = {"default_flow_style": True, "allow_unicode": True, "width": math.inf, "sort_keys": False}
    return yaml.dump(value, Dumper=StrictDumper, **options).removesuffix("\n").removesuffix("\n...")


def commented(line: str, comment: str | None) -> list[str]:
    """A line with a comment behind it, or above it where both are too long."""
    whole = line if comment is None else f"{line:<30}  # {one_line(comment)}"
    indent = " " * (len(line) - len(line.lstrip()))
    return [whole] if comment is None or len(whole) <= WIDTH else [f"{indent}# {one_line(comment)}", line]


def one_line(text: str) -> str:
    """Words of a comment, without characters that would end it."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
