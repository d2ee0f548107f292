"""`anyformer predict`: a saved model's answers to rows without labels, for every task and head.

The model's objective says what is read of a row and what an answer is: the objective of the recipe beside the model,
else that of its head. Rows are answered in parts, so that an interrupted prediction goes on after its last whole part.
"""

import hashlib
import json
import time
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
from ..data.cells import IfThere, cell
from ..data.documents import in_batches
from ..data.image_files import hash_of_image
from ..data.reader import SOME
from ..errors import UserError, loading
from ..evaluation.evaluate import load, open_config
from ..evaluation.request import evaluation_recipe
from ..generation import locate_model
from ..images.processors import load_image_processor
from ..objectives.answers import Answers, FinishedModel
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
from .unlabelled import Asked, Columns, Unlabelled, holds_empty, is_empty

BATCHES = 16  # in a part, within which rows of similar length are batched together
NEW_TOKENS = 256  # max_new_tokens if neither user nor model sets it, as in transformers' pipelines


@dataclass
class Prediction:
    """A checked prediction: everything but the weights.

    answers: reads the rows and answers them. wanted: the columns that it reads. model: its record, made before it is
    read. files: of the rows, each with its state before it was hashed. total: the number of rows. empty: of them those
    that hold nothing to answer. content: a hash of all that is read in them. account: of what came in.
    """

    recipe: Recipe
    answers: Answers
    rows: Unlabelled
    columns: Columns
    wanted: list[str]
    batch_size: int
    max_new_tokens: int | None
    model: Record
    files: States = field(default_factory=dict)
    total: int = 0
    empty: int = 0
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
        settings = [self.columns.renamed, self.batch_size, self.max_new_tokens, self.recipe.to_dict()]
        return replace(self.model, data={"rows": self.content}, recipe=sha(settings), code=code_identity())

    def read(self) -> None:
        """Read every row once, and check it. Raises UserError for the first that cannot be answered."""
        with hashed_files() as files:
            seen = hashlib.sha256(sha(self.rows.identity()).encode())
            columns = ColumnsMet({self.columns.renamed.get(name, name) for name in self.wanted})
            for place, row in self.rows:
                self.total += 1
                columns.add({name: value for name, value in row.items() if name != "file"})
                if self.answers.tokenizer is None:  # images are decoded only when they are answered
                    image = self.columns.read(self.wanted, place, row)[self.wanted[0]]
                    self.empty += is_empty(image)
                    seen.update(f"{hash_of_image(image)} ".encode())
                else:
                    self.empty += self.asked(place, row) is None
        columns.into(self.account)
        self.account.update(self.rows.account() + self.answers.account)
        self.content, self.files = seen.hexdigest(), files

    def asked(self, place: str, row: dict[str, Any]) -> Any:
        """What the model reads of a row; None where there is nothing to answer. Raises UserError."""
        values = self.columns.read(self.wanted, place, row)
        needed = [values[name] for name in self.wanted if not isinstance(name, IfThere)]
        try:
            return None if all(map(is_empty, needed)) else self.answers.asked(values, place)
        except UserError:
            if any(map(holds_empty, needed)):
                return None
            raise

    def finished(self, device) -> FinishedModel:
        """The model, loaded when it is first used; it decodes greedily where it generates text."""

        def made():
            auto_class = getattr(transformers, self.answers.head)
            model = load(auto_class, self.recipe, (*self.answers.objective.unused_weights, "pooler.")).to(device)
            config = getattr(model, "generation_config", None)
            if config is not None:
                max_new_tokens = self.max_new_tokens or config.max_new_tokens or NEW_TOKENS
                config.update(max_new_tokens=max_new_tokens, max_length=None, do_sample=False)
                config.update(temperature=None, top_p=None, top_k=None)  # greedy search would warn about them
            return model

        return FinishedModel(self.recipe.model.name_or_path, made, self.batch_size)

    def answered(self, finished: FinishedModel, part: list[Asked]) -> list[Answer]:
        """The rows of a part with their answers. Raises UserError for a row that the model cannot read."""
        inputs, answers = [self.asked(place, row) for place, row in part], []
        asked = [one for one in inputs if one is not None]
        found = iter(self.answers.predict(finished, asked) if asked else [])
        for (place, row), one in zip(part, inputs):
            answer = {"prediction": None} if one is None else next(found)
            taken = next((name for name in answer if name in row), None)
            if taken is not None:
                raise UserError(f"{place} has a column {taken!r}, where an answer belongs; rename it")
            # What JSON cannot hold: numpy numbers become Python's, everything else, such as a date, a text.
            plain = json.dumps(self._copied(row) | answer, default=lambda x: x.item() if hasattr(x, "item") else str(x))
            answers.append(json.loads(plain))
        return answers

    def _copied(self, row: dict[str, Any]) -> dict[str, Any]:
        """The columns of a row that are written beside its answer: all but images and other bytes."""
        image = self.rows.image_column
        columns = {name: value for name, value in row.items() if not _is_bytes(value)}
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
    columns: dict[str, str] | None = None,
    batch_size: int = 16,
    max_new_tokens: int | None = None,
    trust_remote_code: bool = False,
) -> Prediction:
    """Check the model and the rows, reading every row once. Arguments and errors are anyformer.predict's."""
    recipe = _recipe_of(str(model), trust_remote_code)
    named = Columns(columns or {})
    settings = [*columns_of(recipe.learned).values()] if recipe.learned else []
    rows = Unlabelled(given, recipe.data, [*settings, recipe.data.text_field, *named.renamed.values()])
    record = Record.now(recipe.model.name_or_path)  # before anything of the model is loaded
    config = open_config(recipe)
    available = named.there(rows.first[1])
    renamed = named.renamed.items()
    first = [row | {name: cell(row, IfThere(alias)) for name, alias in renamed} for _, row in islice(rows, SOME)]
    data = _data(recipe, config, available, first)
    fields = data.reads.asked_columns(available)
    wanted = list(dict.fromkeys(fields.values()))
    named.check(wanted)
    if data.tokenizer is None:
        column = fields["image_field"]
        rows.image_column = named.renamed.get(column, column)
    prediction = Prediction(data.reads.recipe, data.answers(), rows, named, wanted, batch_size, max_new_tokens, record)
    prediction.read()
    return prediction


def _recipe_of(model: str, trust_remote_code: bool) -> Recipe:
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


def _data(recipe: Recipe, config, there: set[str], first: Sequence[dict[str, Any]] = ()) -> Data:
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
    with out.locked() if out is not None and state.is_main_process else nullcontext():
        _answer(prediction, out, take, state)
        if not state.is_main_process:
            return
        of_answers = prediction.answers.account.entries()  # what was not read at once has been said
        say(unusual(Account(item for item in of_answers if item[0].fate in (CUT, READ_AS))))
        if prediction.empty:
            rows = counted(prediction.empty, "row is", "rows are")
            say([f"{rows} empty in what the model reads; so is the prediction"])
        if out is not None:
            for number in range(prediction.count):
                while out.answers(number) is None:  # a part of another process
                    time.sleep(0.1)
            out.join(prediction.count)
    where = "" if out is None else f" -> {out.path}"
    say([f"{counted(prediction.total, 'row')} answered in {human_time(time.time() - began)}{where}"])


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
    finished, to_answer = prediction.finished(state.device), set(numbers)
    pieces = in_batches(prediction.rows, prediction.part_size)
    for number in watched(range(prediction.count), "answering, part"):
        part = next(pieces, [])
        if number in to_answer:
            answers = prediction.answered(finished, part)
            check_unchanged(prediction.files)  # before they are kept as answers to what was hashed
            prediction.model.check_still(prediction.recipe.model.name_or_path, "MODEL")
            take(answers) if out is None else out.add(number, answers)
