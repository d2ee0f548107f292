"""From a name of data to a recipe's text: what `anyformer new` does before it prints."""

from typing import NamedTuple

from ..errors import UserError, did_you_mean
from ..plugins import OBJECTIVES
from .beginnings import Beginning, begin
from .guesses import Guess, guesses
from .named_data import NamedData
from .what_columns_hold import Table, language_of
from .written_recipe import Written

EQUAL = 0.03  # difference of scores


class Start(NamedTuple):
    """text: of the recipe. words: what was guessed, in a sentence."""

    text: str
    words: str
    guesses: list[Guess]
    beginning: Beginning


def start(name: str, task: str | None = None, model: str | None = None) -> Start:
    """Look at data and write a recipe for them.

    Raises:
        UserError: data that cannot be read, that have no rows, or that no task fits; a task that does not fit.
    """
    data = NamedData(name)
    table = Table(data.rows(), name)
    found = guesses(table)
    if task is not None and task not in OBJECTIVES:
        raise UserError(f"--task {task} is not known{did_you_mean(task, OBJECTIVES)}")
    if not found:
        raise UserError(f"{name} holds no text and no image; its columns are {', '.join(table.columns)}")
    chosen = found[0] if task is None else next((guess for guess in found if guess.task == task), None)
    if chosen is None:
        raise UserError(f"--task {task} does not fit {name}; what fits: {', '.join(guess.task for guess in found)}")
    if chosen.unfit:
        raise UserError(f"{name}: {chosen.unfit}")
    data.keep_splits_with([one for one in table.columns if chosen.needs(one)])
    others = [guess for guess in found if guess is not chosen]
    columns = [one for one in (*chosen.reads[:1], chosen.writes) if one is not None]
    languages = [language_of(table.columns[one].texts) for one in columns if one in table.columns]
    beginning = begin(chosen.task, languages) if model is None else Beginning({"name_or_path": model}, "as asked")
    written = Written(data, table, chosen, beginning)
    head = [f"A guess by `anyformer new {name}`: {chosen.task}, as {chosen.reason}."]
    if others:
        is_equal = task is None and abs(others[0].score - chosen.score) < EQUAL
        words = "Equally likely" if is_equal else "Second best"
        head.append(f"{words}: {others[0].task} ({others[0].reason}); choose it by --task {others[0].task}")
    return Start(written.text(head), head[0], found, beginning)
