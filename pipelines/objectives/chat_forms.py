"""The forms in which people keep conversations, recognised by the content of some rows: which column holds what."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..data.cells import IfThere, cell, cell_names
from ..errors import UserError, did_you_mean, nearest, refuse_unknown, shown
from ..recipes.introspection import default_of
from .collectives import SAYS, SPEAKS, TOOLS, VARIABLES, of_json, of_transcript

# Name of a form -> the words for it. Of the first two, the form of messages is the kind of a column, too.
FORMS = {
    "openai": "OpenAI's messages",
    "sharegpt": "ShareGPT's conversations",
    "alpaca": "Alpaca's instructions",
    "prompt_completion": "prompts and completions",
    "preference": "preferences",
}
TEXTS, LISTS, EMPTY = "texts", "lists", "empty"  # the other kinds of what columns hold; lists of lists are turns
SAID = ("openai", "sharegpt", TEXTS)
PREFERRED = {"chosen_field": ("chosen",), "rejected_field": ("rejected",)}
DOLLY = {"input_field": ("context",)}
WHOLE = ("messages", "conversations", "conversation")
# (form, {setting: the columns that may hold it, the likeliest first; None: none does}), the likeliest form first.
TABLE = (
    ("preference", {"prompt_field": ("prompt", "instruction", "question", "query")} | PREFERRED),
    ("preference", {"prompt_field": ("input",), "input_field": None} | PREFERRED),
    ("preference", {"prompt_field": WHOLE} | PREFERRED),  # where chosen and rejected are one message
    ("preference", {"prompt_field": None} | PREFERRED),
    ("openai", {"messages_field": WHOLE}),
    ("sharegpt", {"messages_field": WHOLE}),
    ("alpaca", {"prompt_field": ("instruction",), "answer_field": ("output",)}),
    ("prompt_completion", {"prompt_field": ("prompt",), "answer_field": ("completion", "response", "answer")}),
    ("prompt_completion", {"prompt_field": ("question", "query"), "answer_field": ("answer", "response")}),
    ("prompt_completion", {"prompt_field": ("instruction",), "answer_field": ("response",)} | DOLLY),
    ("prompt_completion", {"prompt_field": ("instruction",), "answer_field": ("response",)}),
    ("prompt_completion", {"prompt_field": ("input",), "answer_field": ("output",), "input_field": None}),
)
ANSWERS = ("answer_field", *PREFERRED)
UNFIT = {"messages_field": ("", TEXTS, LISTS, TOOLS)} | dict.fromkeys(("prompt_field", *ANSWERS), ("",))  # kinds
BESIDE = ("tools_field", "system_field", "history_field", VARIABLES)  # what stands beside a prompt
SYSTEM, HISTORY = ("system", "system_prompt"), "history"
COLUMNS = {name for _, parts in TABLE for names in parts.values() for name in names or ()}
COLUMNS |= {*SYSTEM, HISTORY, TOOLS, "input"}


@dataclass(frozen=True)
class ChatForm:
    """One of FORMS in some rows. settings: {setting of the task: column}, without those that stay at their defaults."""

    name: str
    settings: dict[str, str | None]

    @property
    def task(self) -> str:
        """The task that learns it."""
        return "preference" if self.name == "preference" else "instruction_tuning"

    def words(self) -> str:
        """What was recognised, in a line."""
        return f"read as {FORMS[self.name]} (task.format={self.name}): {_written(self.settings)}"


def recognise(
    rows: Sequence[dict[str, Any]], task: str | None = None, name: str | None = None, is_asked: bool = False
) -> ChatForm | None:
    """The form of some rows; None: they are in none.

    task: one that learns it. name: the only form that counts. is_asked: the rows need no answers.
    """
    kinds = kinds_of(rows)
    others = [one for one in kinds if one not in COLUMNS and (is_asked or _holds_answers(rows, one))]
    for form, parts in (*TABLE, *((whole, {"messages_field": others}) for whole in SAID[:2])):
        settings = _settings(form, parts, kinds, is_asked)
        if settings.get("prompt_field") in WHOLE and _holds_answers(rows, "chosen"):
            continue  # the prompt stands in those, too
        found = ChatForm(form, settings | _beside(kinds, settings.get("prompt_field")))
        if any(settings.values()) and task in (None, found.task) and name in (None, form):
            return found
    return None


def values_of(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [cell(row, IfThere(name)) for row in rows]


def kinds_of(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """{column: the kind of most of its values; EMPTY: all are}."""
    kinds = {}
    for name in dict.fromkeys(name for row in rows for name in cell_names(row)):
        counts = Counter(map(_kind_of, values_of(rows, name)))
        counts.pop(EMPTY, None)
        kinds[name] = counts.most_common(1)[0][0] if counts else EMPTY
    return kinds


def _kind_of(value: Any) -> str:
    items = _items_of(value)
    if value in (None, "", [], "[]"):
        return EMPTY
    if items and all(map(_is_message, items)):
        return "openai" if SPEAKS[0] in items[0] else "sharegpt"
    if items and all(isinstance(item, dict) and "parameters" in (item.get("function") or item) for item in items):
        return TOOLS
    if items and all(isinstance(item, list) for item in items):
        return LISTS
    return TEXTS if isinstance(value, str) else ""


def _items_of(value: Any) -> list[Any]:
    """The items of a list, of its JSON, or of a transcript; of a message alone, itself; [] of anything else."""
    items = of_json(value) or of_transcript(value) if isinstance(value, str) else value
    items = [items] if isinstance(items, dict) else items
    return items if isinstance(items, list) else []


def _is_message(value: Any) -> bool:
    speaks = isinstance(value, dict) and any(isinstance(value.get(key), str) for key in SPEAKS)
    return speaks and any(key in value for key in (*SAYS, "tool_calls", "function_call"))


def _holds_answers(rows: Sequence[dict[str, Any]], name: str) -> bool:
    """Whether most lists in a column have several items, and not, say, a question alone."""
    lengths = [len(items) for items in map(_items_of, values_of(rows, name)) if items]
    return 2 * sum(length > 1 for length in lengths) > len(lengths)


def _settings(form: str, parts: dict, kinds: dict[str, str], is_asked: bool) -> dict[str, str | None]:
    """The settings of a row of TABLE; {} where a column is missing."""
    found = {}
    for setting, names in parts.items():
        fitting = (form,) if setting == "messages_field" else SAID
        column = next((name for name in names or () if kinds.get(name) in fitting), None)
        if column is not None or names is None:
            found[setting] = column
        elif not (is_asked and setting in ANSWERS):
            return {}
    return found


def _beside(kinds: dict[str, str], prompt: str | None) -> dict[str, str | None]:
    """The settings of a system message, and of the turns before a prompt, in columns of their own."""
    system = next((name for name in SYSTEM if kinds.get(name) in (TEXTS, EMPTY)), None)
    has_turns = prompt is not None and kinds.get(HISTORY) in (LISTS, *SAID[:2], EMPTY)
    return ({} if system is None else {"system_field": system}) | ({"history_field": HISTORY} if has_turns else {})


def _written(settings: dict[str, str | None]) -> str:
    return ", ".join(f"task.{name}={column}" for name, column in settings.items() if column is not None)


# ---- what a recipe leaves open


def completed(
    settings: Any, wanted: dict[str, str], rows: Sequence[dict[str, Any]], place: str, is_asked: bool = False
) -> ChatForm | None:
    """The form of some rows, with what it completes in the settings; None: they say already which columns are read.

    wanted: {setting: column} that is read as the settings are. What they set beside their defaults stays. place: of the
    rows, for errors. is_asked: the rows need no answers, and whoever asks refuses those that lack a column.

    Raises UserError for a column that is not there, with the likeliest in its place, and for rows in no form.
    """
    refuse_unknown(settings.columns, COLUMNS, "task.columns")
    kinds, named, name = kinds_of(rows), settings.columns, settings.format if settings.format != "auto" else None
    defaults = {row.name: default_of(row) for row in fields(settings) if row.name.endswith("_field")}
    written = [setting for setting, default in defaults.items() if getattr(settings, setting) != default]
    needed = {setting: column for setting, column in wanted.items() if not isinstance(column, IfThere)}
    lacking = {setting: column for setting, column in needed.items() if column not in kinds}
    unfit = {setting: column for setting, column in needed.items() if kinds.get(column) in UNFIT.get(setting, ())}
    if unfit and not is_asked and _likely(settings.name, needed, rows):
        lacking |= unfit
    absent = {f"columns.{ours}": theirs for ours, theirs in named.items() if theirs not in kinds}
    absent |= {setting: column for setting, column in lacking.items() if setting in written}
    if name is None and not named and not lacking:
        beside = _beside(kinds, needed.get("prompt_field"))
        default = "preference" if settings.name == "preference" else "alpaca"
        return None if written else ChatForm(default, needed | beside)
    aliased = [row | {ours: cell(row, IfThere(theirs)) for ours, theirs in named.items()} for row in rows]
    form = recognise(aliased, settings.name, name, is_asked) if is_asked or not absent else None
    if form is None:
        if is_asked:
            return None
        absent = absent or (lacking if name is None else {}) or {"format": settings.format}
        raise _no_column(absent, settings.name, needed, rows, place)
    found = {setting: default for setting, default in defaults.items() if default in named} | form.settings
    found = {setting: named.get(column, column) for setting, column in found.items() if setting not in written}
    return ChatForm(form.name, found)


def check_same_form(task: str, read: dict[str, str], first: str, rows: Sequence[dict[str, Any]], place: str) -> None:
    """Raise UserError for rows of another split in another form than the first. read: {setting: column}."""
    needed = {setting: column for setting, column in read.items() if not isinstance(column, IfThere)}
    form = None if {*needed.values()} <= kinds_of(rows).keys() else recognise(rows, task)
    if form is not None:
        how = f"{first} by {_written(needed)}; bring both into one form, by the same columns"
        raise UserError(f"{place} would be {form.words()}, and {how}")


def form_of(row: dict[str, Any]) -> str:
    """What an error says of a row that lacks a column: in which other form it is; "": in none."""
    form = recognise([row])
    return "" if form is None else f", which is of another form, {FORMS[form.name]} (bring both into one)"


def _no_column(absent: dict[str, str], task: str, needed: dict[str, str], rows: Sequence, place: str) -> UserError:
    """The error for the first of some settings whose column is not there, or that are not what the rows are."""
    setting, column = next(iter(absent.items()))
    kinds, likely = kinds_of(rows), _likely(task, needed, rows)
    if setting in BESIDE:
        tools = [name for name, kind in kinds.items() if kind == TOOLS and setting == "tools_field"]
        likely = _written({setting: next(iter(tools), None)})
    elif setting == "format" and column != "auto" and likely:
        likely = f"task.format=auto, {likely}"
    there = kinds.keys() - {column}
    hint = did_you_mean(column, there)
    hint = f"; likely is {likely}" if likely and (column in kinds or nearest(column, there) is None) else hint
    known = "" if "known:" in hint else f" (there are {', '.join(map(shown, kinds))})"
    fault = f"no such {'rows' if setting == 'format' else 'column'}"
    if column in kinds:
        fault = "no messages" if setting == "messages_field" else "neither texts nor messages"
    return UserError(f"task.{setting}={column!r}: {fault} in {place}{known}{hint}")


def _likely(task: str, needed: dict[str, str], rows: Sequence[dict[str, Any]]) -> str:
    """The settings that would read the rows, by what their columns hold; "": none are likely."""
    form = recognise(rows, task) or recognise(rows)
    if form is not None:
        return _written(form.settings) if form.task == task else f"task.name={form.task}"
    kinds = kinds_of(rows)
    parts = ["prompt_field", *(PREFERRED if task == "preference" else ("answer_field",))]
    parts = [part for part in parts if not kinds.get(needed.get(part))]
    texts = [name for name, kind in kinds.items() if kind == TEXTS and name not in needed.values()]
    words = {name: sum(len(str(value).split()) for value in values_of(rows, name)) for name in texts}
    wordiest = sorted(texts, key=lambda name: -words[name])[: len(parts)]
    in_order = [name for name in texts if name in wordiest]
    return _written(dict(zip(parts, in_order))) if len(in_order) == len(parts) else ""
