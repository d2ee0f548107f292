"""The forms in which people keep conversations, recognised by the content of some rows: which column holds what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.cells import cell, cell_names
from .messages import SAYS, SPEAKS, of_json

# Name of a form -> the words for it.
FORMS = {
    "openai": "OpenAI's messages",
    "sharegpt": "ShareGPT's conversations",
    "alpaca": "Alpaca's instructions",
    "prompt_completion": "prompts and completions",
    "preference": "preferences",
}
WHOLE = ("messages", "conversations", "conversation")  # columns of conversations, the likeliest first
# Columns of what is asked, and of the answer to it.
PAIRS = (
    ("prompt", ("completion", "response", "answer")),
    ("question", ("answer", "response")),
    ("query", ("response", "answer")),
    ("instruction", ("response",)),
    ("input", ("output",)),
)
ALPACA = ("instruction", "output")
PREFERRED = ("chosen", "rejected")
SYSTEM, HISTORY = ("system", "system_prompt"), "history"
MESSAGES, TEXTS, PAIRS_OF_TEXTS, EMPTY = "messages", "texts", "pairs", "empty"  # kinds of what a column holds
SAID = (MESSAGES, TEXTS)


@dataclass(frozen=True)
class ChatForm:
    """One of FORMS in some rows.

    task: the one that learns it. settings: {setting of the task: column}, without those that stay at their defaults.
    """

    name: str
    task: str
    settings: dict[str, str | None] = field(default_factory=dict)

    def words(self) -> str:
        """What was recognised, in a line."""
        named = ", ".join(f"task.{name}={column}" for name, column in self.settings.items() if column is not None)
        return f"read as {FORMS[self.name]} (task.format={self.name}): {named}"


def recognise(
    rows: Sequence[dict[str, Any]], only: Sequence[str] = tuple(FORMS), is_asked: bool = False
) -> ChatForm | None:
    """The form of some rows; None: they are in none of the forms `only`. is_asked: the rows need no answer."""
    kinds, forms = kinds_of(rows), []
    if "preference" in only:
        forms.append(_preference(kinds, is_asked))
    if "sharegpt" in only or "openai" in only:
        forms.append(_whole(rows, [name for name in WHOLE if kinds.get(name) == MESSAGES]))
    if "alpaca" in only:
        forms.append(_pair("alpaca", kinds, (ALPACA[0], ALPACA[1:]), is_asked))
    if "prompt_completion" in only:
        forms += [_pair("prompt_completion", kinds, pair, is_asked) for pair in PAIRS]
    if "sharegpt" in only or "openai" in only:
        others = [name for name, kind in kinds.items() if kind == MESSAGES and name not in (*PREFERRED, HISTORY)]
        forms.append(_whole(rows, [name for name in others if is_asked or holds_answers(rows, name)]))
    found = next((form for form in forms if form is not None and form.name in only), None)
    if found is not None:
        found.settings.update(_beside(kinds))
    return found


def kinds_of(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """{column: what most of its values are}, of columns of texts, of messages, of pairs of texts, and of nothing."""
    kinds = {}
    for name in dict.fromkeys(name for row in rows for name in cell_names(row)):
        values = [value for value in values_of(rows, name) if value not in (None, "", [], "[]")]
        tests: dict[str, Callable] = {MESSAGES: holds_messages, PAIRS_OF_TEXTS: holds_pairs, TEXTS: is_text}
        fitting = {kind: sum(map(test, values)) for kind, test in tests.items()}
        kinds[name] = EMPTY if not values else next((k for k, count in fitting.items() if 2 * count > len(values)), "")
    return kinds


def values_of(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    values = []
    for row in rows:
        try:
            values.append(cell(row, name))
        except KeyError:
            values.append(None)
    return values


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def holds_messages(value: Any) -> bool:
    """Whether a cell holds messages: one, several, or their JSON."""
    items = of_json(value) if isinstance(value, str) else value
    items = [items] if isinstance(items, dict) else items
    return isinstance(items, list) and bool(items) and all(map(is_message, items))


def is_message(value: Any) -> bool:
    speaks = isinstance(value, dict) and any(isinstance(value.get(key), str) for key in SPEAKS)
    return speaks and any(key in value for key in (*SAYS, "tool_calls", "function_call"))


def messages_in(value: Any) -> list[dict[str, Any]]:
    """The messages of a cell that holds_messages."""
    items = of_json(value) if isinstance(value, str) else value
    return [items] if isinstance(items, dict) else items


def holds_answers(rows: Sequence[dict[str, Any]], name: str) -> bool:
    """Whether most of the conversations in a column have several messages, and not, say, a question alone."""
    found = [messages_in(value) for value in values_of(rows, name) if holds_messages(value)]
    return 2 * sum(len(messages) > 1 for messages in found) > len(found)


def holds_pairs(value: Any) -> bool:
    """Whether a cell holds a history: a list of [question, answer], or its JSON."""
    items = of_json(value) if isinstance(value, str) else value
    return isinstance(items, list) and bool(items) and all(isinstance(one, list) and len(one) == 2 for one in items)


def _preference(kinds: dict[str, str], is_asked: bool) -> ChatForm | None:
    prompt = next((name for name, _ in PAIRS if kinds.get(name) in SAID), None)
    if not all(kinds.get(name) in SAID for name in PREFERRED) and not (is_asked and prompt):
        return None
    settings = {"prompt_field": prompt} | _input(prompt, kinds)
    return ChatForm("preference", "preference", settings | {f"{name}_field": name for name in PREFERRED})


def _whole(rows: Sequence[dict[str, Any]], columns: list[str]) -> ChatForm | None:
    """The form of conversations in the first of some columns."""
    if not columns:
        return None
    first = next(messages_in(value)[0] for value in values_of(rows, columns[0]) if holds_messages(value))
    name = "openai" if SPEAKS[0] in first else "sharegpt"
    return ChatForm(name, "instruction_tuning", {"messages_field": columns[0]})


def _pair(name: str, kinds: dict[str, str], pair: tuple[str, Sequence[str]], is_asked: bool) -> ChatForm | None:
    prompt, answers = pair
    answer = next((column for column in answers if kinds.get(column) in SAID), None)
    if kinds.get(prompt) not in SAID or (answer is None and not is_asked):
        return None
    settings = {"prompt_field": prompt} | ({} if answer is None else {"answer_field": answer})
    return ChatForm(name, "instruction_tuning", settings | _input(prompt, kinds))


def _input(prompt: str | None, kinds: dict[str, str]) -> dict[str, str | None]:
    """The setting of what belongs to the prompt: by default `input`, which may itself be the prompt."""
    if prompt == "input":
        return {"input_field": None}
    is_dolly = prompt == "instruction" and "input" not in kinds and kinds.get("context") == TEXTS
    return {"input_field": "context"} if is_dolly else {}


def _beside(kinds: dict[str, str]) -> dict[str, str | None]:
    """The settings of the columns that stand beside a conversation."""
    system = next((name for name in SYSTEM if kinds.get(name) in (TEXTS, EMPTY)), None)
    settings: dict[str, str | None] = {} if system is None else {"system_field": system}
    return settings | ({"history_field": HISTORY} if kinds.get(HISTORY) in (PAIRS_OF_TEXTS, MESSAGES, EMPTY) else {})
