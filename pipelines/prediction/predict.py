"""`anyformer predict`: a saved model's answers to rows without labels, for every task and head.

The model's objective says what is read of a row and what an answer is: the objective of the recipe beside the model,
else that of its head. Rows are answered in parts, so that an interrupted prediction goes on after its last whole part.
"""

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState

from ..data.account import CUT, READ_AS, Account, ColumnsMet
from ..data.account_words import unusual
from ..data.bad_rows import tried
from ..data.cells import IfThere, cell, cell_names
from ..data.documents import in_batches
from ..data.image_files import hash_of_image
from ..data.reader import SENTENCES, SOME
from ..errors import UserError, did_you_mean, loading
from ..evaluation.request import evaluation_recipe
from ..evaluation.saved_model import load, open_config
from ..generation import locate_model
from ..images.processors import load_image_processor
from ..objectives.answers import Answers, FinishedModel
from ..objectives.base import Objective
from ..objectives.data import Data
from ..objectives.of_heads import objective_of_head
from ..objectives.reads import columns_of
from ..open_tokenizer import open_tokenizer
from ..plugins import objective_of
from ..recipes.recipe_files import recipe_beside
from ..recipes.schema import ModelSection, Recipe
from ..storage.cache import sha
from ..storage.contents import States, check_unchanged, hashed_files
from ..storage.record import Record, code_identity
from ..transformers_logging import errors_only
from ..words import counted, human_time, say, watched
from .answer_files import Answer, AnswerFile
from .unlabelled import Asked, Unlabelled, holds_empty, is_empty, named_as_read

BATCHES = 16  # in a part, within which rows of similar length are batched together
NEW_TOKENS = 256  # max_new_tokens if neither user nor model sets it, as in transformers' pipelines
EMPTY = UserError("empty in what the model reads")
REASONS = 5  # that are said at the end, the most frequent first
UNSURE = "unsure"  # the reason of a prediction below the threshold


@dataclass(frozen=True)
class Shown:
    """What is written of rows and answers.

    columns: those of the rows; None: all. top: so many of the best classes, with their scores, in place of the scores
    of all. threshold: a prediction with a lower score is left empty.
    """

    columns: Sequence[str] | None = None
    top: int | None = None
    threshold: float | None = None

    def check(self, objective: Objective) -> None:
        """Raise UserError where an option needs scores that the model does not give."""
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise UserError(f"--threshold {self.threshold:g} is no probability above 0 and at most 1, such as 0.7")
        has_all = "scores" in objective.gives and objective.compares in ("classes", "label_sets")
        options = ("threshold", "score" in objective.gives), ("top", has_all)
        for name in (name for name, is_given in options if not is_given and getattr(self, name) is not None):
            what = f"a score for each {'class' if name == 'top' else 'answer'}"
            raise UserError(f"--{name} needs {what}, and {objective.setting} gives none; leave it out")

    def of_row(self, row: dict[str, Any]) -> list[str]:
        """The columns of a row that are written."""
        return [*row] if self.columns is None else [name for name in self.columns if name in row]

    def answer(self, given: Answer) -> Answer:
        if self.top is not None:
            scores = given["scores"]
            pairs = scores.items() if isinstance(scores, dict) else enumerate(scores)
            best = sorted(pairs, key=lambda pair: -pair[1])[: self.top]
            top = [{"answer": name, "score": score} for name, score in best]
            given = {name: value for name, value in given.items() if name != "scores"} | {"top": top}
        if self.threshold is not None and not (given["score"] or 0) >= self.threshold:
            given = given | {"prediction": None, "reason": UNSURE}
        return given


@dataclass
class Prediction:
    """A checked prediction: everything but the weights.

    answers: reads the rows and answers them. wanted: {column that it reads: its name in the rows}. model: its record,
    made before it is read. files: of the rows, each with its state before it was hashed. total: the number of rows.
    content: a hash of all that is read in them. account: of what came in.
    """

    recipe: Recipe
    answers: Answers
    rows: Unlabelled
    wanted: dict[str, str]
    batch_size: int
    max_new_tokens: int | None
    shown: Shown
    model: Record
    files: States = field(default_factory=dict)
    total: int = 0
    content: str = ""
    account: Account = field(default_factory=Account)

    @property
    def part_size(self) -> int:
        return BATCHES * self.batch_size

    @property
    def count(self) -> int:
        return -(-self.total // self.part_size)

    def record(self) -> Record:
        """What the answers are of."""
        settings = [self.wanted, self.batch_size, self.max_new_tokens, vars(self.shown), self.recipe.to_dict()]
        return replace(self.model, data={"rows": self.content}, recipe=sha(settings), code=code_identity())

    def read(self) -> None:
        """Read every row once, and check it.

        Raises UserError where nothing can be answered: of SOME rows, or of all of them, none but empty ones.
        """
        met, faults, is_answered = set(), [], False
        columns = ColumnsMet(self.wanted.values())
        with hashed_files() as files:
            seen = hashlib.sha256(sha(self.rows.identity()).encode())
            for place, row in self.rows:
                self.total += 1
                if isinstance(row, dict):
                    self._check_names(place, row)
                    met |= row.keys()
                    columns.add({name: value for name, value in row.items() if name != "file"})
                    if self.rows.image_column is not None:
                        seen.update(f"{hash_of_image(cell(row, IfThere(self.rows.image_column)))} ".encode())
                if self.answers.tokenizer is None and is_answered:
                    continue  # further images are decoded only when they are answered
                asked = self.asked(place, row)
                if not isinstance(asked, UserError):
                    is_answered = True
                elif asked is not EMPTY and not is_answered:
                    faults.append(asked)
                    if len(faults) == SOME:
                        raise faults[0]
        if faults and not is_answered:
            raise faults[0]
        for name in self.shown.columns or ():
            if name not in met:
                raise UserError(f"--columns {name}: no row has such a column{did_you_mean(name, sorted(met))}")
        columns.into(self.account)
        if self.answers.tokenizer is None:
            self.answers.account = Account()  # the images are decoded, and counted, when they are answered
        self.account.update(self.rows.account() + self.answers.account)
        self.content, self.files = seen.hexdigest(), files

    def _check_names(self, place: str, row: dict[str, Any]) -> None:
        """Raise UserError for a column of a row that is copied and has the name of one of the answer."""
        names = [*self.answers.objective.gives, "reason", *["top"] * (self.shown.top is not None)]
        for taken in (name for name in self.shown.of_row(row) if name in names):
            raise UserError(
                f"{place} has a column {taken!r}, where an answer belongs; rename it, or name the columns to copy by "
                f"--columns"
            )

    def asked(self, place: str, row: dict[str, Any] | UserError) -> Any:
        """What the model reads of a row; in its place a UserError that says why it has no answer."""
        if isinstance(row, UserError):
            return row
        needed: list[Any] = []
        try:
            values = named_as_read(row, self.wanted, place)
            needed = [values[name] for name in self.wanted if not isinstance(name, IfThere)]
            return EMPTY if all(map(is_empty, needed)) else self.answers.asked(values, place)
        except UserError as error:
            return EMPTY if any(map(holds_empty, needed)) else error

    def finished(self, device) -> FinishedModel:
        """The loaded model; it decodes greedily where it generates text."""
        auto_class = getattr(transformers, self.answers.head)
        model = load(auto_class, self.recipe, (*self.answers.objective.unused_weights, "pooler.")).to(device)
        config = getattr(model, "generation_config", None)
        if config is not None:
            max_new_tokens = self.max_new_tokens or config.max_new_tokens or NEW_TOKENS
            config.update(max_new_tokens=max_new_tokens, max_length=None, do_sample=False)
            config.update(temperature=None, top_p=None, top_k=None)  # greedy search would warn about them
        return FinishedModel(self.recipe.model.name_or_path, lambda: model, self.batch_size)

    def answered(self, finished: FinishedModel, part: list[Asked]) -> list[Answer]:
        """The rows of a part with their answers, or with the reason why they have none."""
        inputs, answers = [self.asked(place, row) for place, row in part], []
        asked = [one for one in inputs if not isinstance(one, UserError)]
        found = iter(tried(asked, lambda some: list(self.answers.predict(finished, some))))
        for (place, row), one in zip(part, inputs):
            given = one if isinstance(one, UserError) else next(found)
            none = {"prediction": None, "reason": str(given).replace(place, Path(place).name)}  # nobody's folders
            answer = none if isinstance(given, UserError) else self.shown.answer(given)
            copied = {} if isinstance(row, UserError) else self._copied(row)
            # What JSON cannot hold: numpy numbers become Python's, everything else, such as a date, a text.
            plain = json.dumps(copied | answer, default=lambda x: x.item() if hasattr(x, "item") else str(x))
            answers.append(json.loads(plain))
        return answers

    def _copied(self, row: dict[str, Any]) -> dict[str, Any]:
        """The columns of a row that are written beside its answer: all but images and other bytes."""
        image = self.rows.image_column
        columns = {name: row[name] for name in self.shown.of_row(row) if not _is_bytes(row[name])}
        if image in columns and columns[image] == row.get("file"):
            del columns[image]
        return columns


def _is_bytes(value: Any) -> bool:
    """Whether a cell holds an image or other bytes, also in the form of datasets' Image feature."""
    inner = value.get("bytes") if isinstance(value, dict) else value
    return isinstance(inner, bytes | bytearray) or hasattr(inner, "getbbox")


def prepare_prediction(
    model: str | Path,
    given: str | Path | Iterable[Any],
    *,
    read: dict[str, str] | None = None,
    columns: Sequence[str] | None = None,
    top: int | None = None,
    threshold: float | None = None,
    batch_size: int = 16,
    max_new_tokens: int | None = None,
    trust_remote_code: bool = False,
) -> Prediction:
    """Check the model and the rows, reading every row once. Arguments and errors are anyformer.predict's."""
    recipe = recipe_of_model(str(model), trust_remote_code)
    renamed = read or {}
    settings = columns_of(recipe.learned) if recipe.learned else {}
    known = [*settings.values(), recipe.data.text_field, *renamed.values()]
    rows = Unlabelled(given, recipe.data, known, settings.get(SENTENCES))
    record = Record.now(recipe.model.name_or_path)  # before anything of the model is loaded
    config = open_config(recipe)
    some = (row for _, row in islice(rows, SOME) if isinstance(row, dict))
    first = [row | {name: cell(row, IfThere(alias)) for name, alias in renamed.items()} for row in some]
    available = {*cell_names(first[0])}
    data = data_of_model(recipe, config, available, first)
    fields = data.reads.asked_columns(available)
    wanted = {name: renamed.get(name, name) for name in fields.values()}
    for name in renamed.keys() - wanted.keys():
        raise UserError(
            f"--read {name}={renamed[name]}: the model reads no column {name!r}{did_you_mean(name, wanted)}"
        )
    if data.tokenizer is None:
        rows.image_column = wanted[fields["image_field"]]
    shown = Shown(columns, top, threshold)
    shown.check(data.objective)
    how = wanted, batch_size, max_new_tokens, shown, record
    prediction = Prediction(data.reads.recipe, data.answers(), rows, *how)
    prediction.read()
    return prediction


def recipe_of_model(model: str, trust_remote_code: bool) -> Recipe:
    """The recipe beside a model, bound to that model; without one, a recipe that holds only the model."""
    from transformers.utils import cached_file

    place = locate_model(model)
    beside = recipe_beside(place)
    if beside is None and not Path(place).is_dir():
        quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        with loading(f"MODEL={model}"):
            beside = cached_file(place, "recipe.yaml", **quiet)
    if beside is None:
        return Recipe(model=ModelSection(name_or_path=place), trust_remote_code=trust_remote_code)
    return evaluation_recipe(place, str(beside), [], trust_remote_code=trust_remote_code)


def data_of_model(recipe: Recipe, config, there: set[str], first: Sequence[dict[str, Any]] = ()) -> Data:
    """The tokenizer or image processor of the objective that reads rows and answers them; no rows."""
    objective, place = objective_of(recipe), recipe.model.name_or_path
    head = next(iter(config.architectures or []), "")
    reads_images = hasattr(config, "num_channels") or "Image" in head
    if reads_images:
        processor = load_image_processor(place, recipe.trust_remote_code)
    else:
        with loading(f"MODEL={place}: its tokenizer"), errors_only():
            processor = open_tokenizer(place, recipe.trust_remote_code)
    if recipe.task is None or not objective.Answers.head:
        objective = objective_of_head(config, recipe, None if reads_images else processor, there)
    objective = objective.for_rows(first)
    longest = None if reads_images else objective.lengths().get("max_length")
    if longest is not None:
        processor.model_max_length = min(processor.model_max_length, longest)  # transformers' pipelines truncate there
    return Data(objective, objective.Reads(objective), processor)


def run_prediction(
    prediction: Prediction, out: AnswerFile | None, take: Callable[[list[Answer]], None] = lambda answers: None
) -> None:
    """Answer the rows, each process every n-th part; the first process then writes `out`.

    out: None: `take` gets the answers, part by part, in the order of the rows.
    """
    state, began = PartialState(cpu=not torch.accelerator.is_available()), time.time()
    if out is None and state.num_processes > 1:
        raise UserError("several processes share the rows; name the file that they write together: out, --out FILE")
    say(unusual(prediction.account))
    if out is not None and out.path.resolve() in [path.resolve() for path in prediction.rows.paths]:
        raise UserError(f"--out {out.path} is one of the files that are read; name another, or move it away")
    reasons: Counter[str] = Counter()  # without numbers, which differ from row to row

    def count(answers: list[Answer]) -> None:
        reasons.update(re.sub(r"(?<=\s)\d[\d.,]*", "…", answer["reason"]) for answer in answers if answer.get("reason"))

    with out.locked() if out is not None and state.is_main_process else nullcontext():
        _answer(prediction, out, lambda answers: (count(answers), take(answers)), state)
        if not state.is_main_process:
            return
        of_answers = prediction.answers.account.entries()  # what was not read at once has been said
        say(unusual(Account(item for item in of_answers if item[0].fate in (CUT, READ_AS))))
        if out is not None:
            for number in range(prediction.count):
                while (answers := out.answers(number)) is None:  # a part of another process
                    time.sleep(0.1)
                count(answers)
            out.join(prediction.count)
    if reasons:
        each = "; ".join(f"{number:,} {reason}" for reason, number in reasons.most_common(REASONS))
        more = f"; {len(reasons) - REASONS:,} further reasons" if len(reasons) > REASONS else ""
        rows = counted(reasons.total(), "row has", "rows have")
        say([f"{rows} no prediction, and the reason in the column 'reason': {each}{more}"])
    where = "" if out is None else f" -> {out.path}"
    say([f"{counted(prediction.total - reasons.total(), 'row')} answered in {human_time(time.time() - began)}{where}"])


def _answer(prediction: Prediction, out: AnswerFile | None, take: Callable, state: PartialState) -> None:
    """Answer this process's parts that are not there, and give them to `out` or `take`."""
    numbers = range(state.process_index, prediction.count, state.num_processes)
    if out is not None:
        out.begin(prediction.record().key)
        missing = [number for number in numbers if out.answers(number) is None]
        state.wait_for_everyone()  # all have looked for parts before the first process removes them
        if state.is_main_process:
            out.remove_others()
        done = len(numbers) - len(missing)
        if done and state.is_main_process:
            say([f"going on: {done:,} of {counted(len(numbers), 'part')} {'is' if done == 1 else 'are'} there"])
        numbers = missing
    if not numbers:
        return
    finished, to_answer = prediction.finished(state.device), set(numbers)
    pieces = in_batches(prediction.rows, prediction.part_size)
    for number in watched(range(prediction.count), "answering, part"):
        part = next(pieces, [])
        if number in to_answer:
            answers = prediction.answered(finished, part)
            check_unchanged(prediction.files)  # before they are kept as answers to what was hashed
            prediction.model.check_still(prediction.recipe.model.name_or_path, "MODEL")
            take(answers) if out is None else out.add(number, answers)
