"""Conversations as people keep them, read into the messages that chat templates take: keys, marks, tools, JSON."""

import json
import re
from collections.abc import Collection
from typing import Any, Literal

from ..data.account import Account
from ..data.cells import kind_of, list_in, text_of
from ..errors import UserError

ASSISTANT = "assistant"
MARKS = ("weight", "train", "training", "loss")  # keys that say whether an answer is learned, of OpenAI and trainers
TOOLS, VARIABLES = "tools", "chat_template_kwargs"  # keys of what a template reads beside messages, as TRL names them
SPEAKS, SAYS = ("role", "from", "speaker"), ("content", "value", "text")  # keys of who says what, OpenAI's first
REASONING = ("reasoning", "thinking")  # other names of the key reasoning_content
# ShareGPT's roles, in messages {from, value}; the value of a function_call is a call.
SHARE_GPT = {"human": "user", "gpt": ASSISTANT, "model": ASSISTANT, "function_call": ASSISTANT, "observation": "tool"}
ROLES = ("system", "developer", "user", ASSISTANT, "tool")
TRANSCRIPT = re.compile(r"(?:\A|\n\n|###)\s*(Human|Assistant): ?")  # who speaks, in one text, as in HH-RLHF

Learned = Literal["answers", "last_answer", "marked"]
Messages = list[dict[str, Any]]


class Chat(list):
    """Messages {role, content, ...}. A chat template reads all their keys but weight: 0: not learned; 1: marked so.

    variables: what the template reads beside the messages, such as tools. repeated: of the messages, how many the
    conversation before it begins with as well, which is of the same example.
    """

    def __init__(self, messages: Messages, variables: dict[str, Any] | None = None, repeated: int = 0):
        super().__init__(messages)
        self.variables, self.repeated = variables or {}, repeated

    def to_json(self) -> str:
        whole = {"messages": list(self), "variables": self.variables} if self.variables else self
        return json.dumps(whole, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Chat":
        whole = json.loads(text)
        return cls(whole) if isinstance(whole, list) else cls(**whole)


def is_learned(message: dict[str, Any]) -> bool:
    return message["role"] == ASSISTANT and message.get("weight") != 0


def not_learned(messages: Messages) -> Messages:
    """The same messages, marked so that none of their answers is learned."""
    return [message | {"weight": 0} if message["role"] == ASSISTANT else message for message in messages]


def chosen(messages: Messages, learns: Learned) -> Messages:
    """The messages, marked so that of their answers only those that a recipe learns are."""
    answers = [number for number, message in enumerate(messages) if is_learned(message)]
    if learns == "last_answer":
        answers = answers[-1:]
    if learns == "marked":
        answers = [number for number in answers if messages[number].get("weight")]
    return [message if n in answers else not_learned([message])[0] for n, message in enumerate(messages)]


def read_messages(value: Any, where: str, role: str | None, account: Account, roles: dict[str, str]) -> Messages:
    """The messages that a cell holds. Raises UserError, which begins with `where`, where it holds none.

    A text is one message of `role`, or the JSON of messages, as in CSV files. With role=None it must be JSON, or a
    transcript of Human and Assistant. account: counts what is left out. roles: {role in the data: one of ROLES}.
    """
    messages = of_json(value) if isinstance(value, str) else value
    if isinstance(value, str) and messages is None and role is None:
        messages = of_transcript(value)
        account.read_as("text", "", "read as turns of Human and Assistant", int(messages is not None), is_usual=True)
    if isinstance(messages, dict) and role is not None:
        messages = [messages]
    if isinstance(value, str) and role is not None and not are_messages(messages, roles):
        messages = [{"role": role, "content": value}]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        problem = "neither a text nor a list of messages {role, content}"
        if role is None:
            problem = "which is no list of messages {role, content}, nor its JSON"
        raise UserError(f"{where} holds {kind_of(value)}, {problem}")
    if not messages:
        raise UserError(f"{where} holds no message")
    return [_message(message, where, account, roles) for message in messages]


def are_messages(value: Any, roles: Collection[str] = ()) -> bool:
    """Whether what a text is the JSON of are messages, and not, say, an answer that is a list."""
    items = value if isinstance(value, list) else []
    found = [item.get("role", item.get("from")) if isinstance(item, dict) else None for item in items]
    return bool(found) and all(role in (*ROLES, *SHARE_GPT, *roles) for role in found)


def _message(given: dict[str, Any], where: str, account: Account, roles: dict[str, str]) -> dict[str, Any]:
    message = {key: value for key, value in given.items() if value is not None}  # tables fill in keys with nulls
    for key in given.keys() - message.keys():
        account.unused("null", f"{key} of a message")
    speaks, says = (next((key for key in keys if key in message), keys[0]) for keys in (SPEAKS, SAYS))
    role, content = message.pop(speaks, None), message.pop(says, None)
    if speaks != "role" and role == "function_call":
        message["tool_calls"], content = content, None
    if isinstance(role, str) and role in roles:
        account.read_as("role", role, f"read as {roles[role]}", is_usual=True)
        role = roles[role]
    elif isinstance(role, str) and speaks != "role":
        role = SHARE_GPT.get(role, role)
    if isinstance(role, str) and role not in (*ROLES, "function"):
        account.read_as("role", role, "of no name that is known, written as they are", hint="task.roles")
    for alias in REASONING:
        if isinstance(message.get(alias), str) and "reasoning_content" not in message:
            account.read_as("message", alias, "with reasoning_content under another name", is_usual=True)
            message["reasoning_content"] = message.pop(alias)
    marks = {key: message.pop(key) for key in MARKS if key in message}
    for key, mark in marks.items():
        if mark not in (0, 1):
            raise UserError(f"{where} holds a message with {key}={mark!r}; 1 or true learns an answer, 0 or false not")
    calls = read_calls(message.pop("tool_calls", None), where, account)
    content = read_parts(content, where, account)
    may_be_empty = calls or "function_call" in message or role == "tool"  # a call without a word, or its empty result
    if content is None and may_be_empty:
        content = ""
    for name, text in (("role", role), ("content", content)):
        if not isinstance(text, str):
            raise UserError(f"{where} holds a message without {name}, which must be a text")
    if not content.strip() and not may_be_empty:
        raise UserError(f"{where} holds an empty text of the {role}; leave the example out")
    if any(marks.values()) and role != ASSISTANT:
        leave_out(account, f"marks to learn messages of the {role}")
    weight = {"weight": int(all(marks.values()))} if marks and role == ASSISTANT else {}
    return {"role": role, "content": content} | message | ({"tool_calls": calls} if calls else {}) | weight


def read_parts(content: Any, where: str, account: Account) -> Any:
    """The content of a message; of a list of parts {type: text, text} their texts, each on its own line."""
    if not isinstance(content, list):
        return content
    parts = [without_nulls(part, account, "parts of a message") for part in content]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise UserError(f"{where} holds a message with a part that is no {{type: text, text}}; leave it out")
        for key in part.keys() - {"type", "text"}:
            leave_out(account, f"{key} of a part of a message")
    account.read_as("message", "", "in parts, read as one text", is_usual=True)
    return "\n".join(part["text"] for part in parts)


def read_calls(value: Any, where: str, account: Account) -> list[dict[str, Any]]:
    """Calls of tools as templates take them: [{type, function: {name, arguments: a dict}}], with an id if they have."""
    calls = []
    for call in _dicts(value, f"{where} holds tool_calls", "calls of tools", account):
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UserError(f"{where} holds a tool call without the name of its function")
        arguments = function.get("arguments") or {}
        arguments = of_json(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(arguments, dict):
            raise UserError(f"{where} holds a tool call whose arguments are no JSON object")
        for key in function.keys() - {"name", "arguments"} if function is not call else ():
            leave_out(account, f"{key} of the function of a call")
        others = {key: call[key] for key in call if key not in ("type", "function", "name", "arguments")}
        calls.append({"type": "function", "function": {"name": function["name"], "arguments": arguments}} | others)
    return calls


def read_variables(row: dict[str, Any], tools: str | None, place: str, account: Account) -> dict[str, Any]:
    """What a template reads beside the messages of a row. tools: the column of the tools. Raises UserError."""
    holds = f"task.tools_field={tools!r} (null reads no such column): {place} holds"
    found = _dicts(row.get(tools), holds, TOOLS, account) if tools is not None else []
    given = row.get(VARIABLES)
    variables = of_json(given) if isinstance(given, str) else without_nulls(given, account, VARIABLES)
    if not isinstance(variables, dict | None):
        raise UserError(f"{place} holds {VARIABLES} that are no JSON object")
    return ({TOOLS: found} if found else {}) | (variables or {})


def _dicts(value: Any, holds: str, noun: str, account: Account) -> list[dict[str, Any]]:
    """A list of dicts, or the JSON of one or of its items; [] for null and an empty text. Raises UserError."""
    if isinstance(value, str):
        items = of_json(value) if value.strip() else []
    else:
        items = without_nulls(value or [], account, noun)
    items = [items] if isinstance(items, dict) else items
    items = [of_json(item) if isinstance(item, str) else item for item in items] if isinstance(items, list) else None
    if items is None or not all(isinstance(item, dict) for item in items):
        raise UserError(f"{holds} {kind_of(value)}, which is no list of {noun}, nor its JSON")
    return items


def without_nulls(value: Any, account: Account, noun: str) -> Any:
    """Nested dicts without keys whose value is null: tables fill in every key that any row has. They are counted."""
    if isinstance(value, list):
        return [without_nulls(item, account, noun) for item in value]
    if not isinstance(value, dict):
        return value
    leave_out(account, f"null values in {noun}", sum(item is None for item in value.values()))
    return {key: without_nulls(item, account, noun) for key, item in value.items() if item is not None}


def leave_out(account: Account, what: str, number: int = 1, is_usual: bool = False) -> None:
    """Count what is in the data, and in no conversation."""
    account.unused("key", what, number, is_usual=is_usual)


def of_json(text: str) -> Any:
    """The value that `text` is the JSON of, or the list that it is as Python writes it; None where it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        found = list_in(text)
        return None if found is text else found


def of_transcript(text: str) -> Messages | None:
    """The messages {from, value} of a text of turns that begin with `Human:` and `Assistant:`; None: it has none."""
    before, *said = TRANSCRIPT.split(text)
    turns = [{"from": role.lower(), "value": words.strip()} for role, words in zip(said[::2], said[1::2])]
    return None if before.strip() or len(turns) < 2 else turns


def joined(prompt: Messages, answer: Messages, where: str) -> tuple[Messages, int]:
    """(a prompt and its answer as one conversation, how many of its messages are the prompt).

    An answer that repeats the prompt, as in UltraFeedback, is the conversation. Raises UserError, which begins with
    `where`, for an answer that begins with another question.
    """
    if not prompt or answer[0]["role"] not in ("system", "user"):
        return [*prompt, *answer], len(prompt)
    asked, said = ([(each["role"], each["content"].strip()) for each in messages] for messages in (prompt, answer))
    for end in range(len(asked), len(said)):
        if said[end - len(asked) : end] == asked:
            return answer, end
    if prompt[-1]["role"] == ASSISTANT:  # the conversation goes on
        return [*prompt, *answer], len(prompt)
    raise UserError(
        f"{where} begins with a question of its own beside that of task.prompt_field; set task.prompt_field=null where "
        f"it holds whole conversations"
    )


class Conversations:
    """One reading of examples. account: counts what of the data is in no conversation."""

    def __init__(self, settings: Any, account: Account):
        self.settings, self.account = settings, account

    def prompt(self, place: str, row: dict) -> Messages:
        """The prompt of an example, as messages. Raises UserError."""
        section = self.settings
        if section.prompt_field is None:
            return []
        messages = self.messages("prompt_field", place, row, "user")
        more = row[section.input_field] if section.input_field is not None else None
        if more is not None and not isinstance(more, str):
            raise UserError(f"task.input_field={section.input_field!r}: {place} holds {type(more).__name__}, not text")
        if more and more.strip():
            messages[-1] = messages[-1] | {"content": f"{messages[-1]['content']}\n\n{more}"}
        return self._history(place, row) + messages

    def messages(self, field: str, place: str, row: dict, role: str | None) -> Messages:
        """The messages in the column that a setting names, as read_messages. Raises UserError where it holds none."""
        column = getattr(self.settings, field)
        where = f"task.{field}={column!r}: {place}"
        return read_messages(row[column], where, role, self.account, self.settings.roles)

    def _history(self, place: str, row: dict) -> Messages:
        """The turns before a prompt: pairs [question, answer], messages, or the JSON of either. Raises UserError."""
        column = self.settings.history_field
        cell = row.get(column) if column is not None else None
        turns = of_json(cell.strip() or "[]") if isinstance(cell, str) else cell or []
        if isinstance(turns, list) and all(isinstance(turn, list) and len(turn) == 2 for turn in turns):
            said = [pair for turn in turns for pair in zip(("user", ASSISTANT), turn)]
            turns = [{"role": role, "content": text} for role, text in said]
        turns = cell if turns is None else turns  # no JSON
        return [] if turns == [] else self.messages("history_field", place, row | {column: turns}, None)

    def _system(self, place: str, row: dict) -> Messages:
        """The system message in a column of its own; []: there is none. Raises UserError."""
        column = self.settings.system_field
        there = column is not None and row.get(column) is not None
        text = text_of(row, column, "system_field", place) if there else ""
        return [{"role": "system", "content": text}] if text.strip() else []

    def learned(self, field: str, prompt: Messages, answer: Messages, place: str, row: dict) -> Chat:
        """System message, prompt and answer, up to the last learned one; of the prompt nothing is learned.

        field: the setting that names the column of the answer. Raises UserError if the last message is not the
        assistant's, or if no answer is learned.
        """
        role = answer[-1]["role"]
        if role != ASSISTANT:
            hint = "" if role in ROLES else f"; task.roles={{{role}: {ASSISTANT}, ...: user}} reads it as one"
            raise UserError(
                f"task.{field}: {place} ends with a message of the {role}, not with an answer of the {ASSISTANT}, "
                f"which alone is learned{hint}"
            )
        messages, asked = joined(prompt, answer, f"task.{field}={getattr(self.settings, field)!r}: {place}")
        messages = chosen(not_learned(messages[:asked]) + messages[asked:], self.settings.learns)
        while messages and not is_learned(messages[-1]):
            messages.pop()
            self.account.left_out("message", "behind the last answer that is learned", is_usual=True)
        if not messages:
            why = "marks no answer, and task.learns=marked" if self.settings.learns == "marked" else None
            why = why or "marks each answer as one not to be learned"
            raise UserError(f"task.{field}: {place} {why}; leave the example out")
        return self._chat(messages, place, row)

    def asked(self, place: str, row: dict) -> Chat:
        """The conversation up to the answer to be written; an answer that already ends it is left out.

        Raises UserError where there is none.
        """
        if getattr(self.settings, "messages_field", None) is None:
            messages = self.prompt(place, {self.settings.input_field: None} | row)
        else:
            messages = self.messages("messages_field", place, row, None)
            messages = messages[:-1] if messages[-1]["role"] == ASSISTANT else messages
        return self._chat(messages, place, row)

    def with_system(self, chat: Chat) -> Chat:
        """The conversation with the system message of the settings, where it has none."""
        system = self.settings.system
        if system is None or (chat and chat[0]["role"] == "system"):
            return chat
        return Chat([{"role": "system", "content": system}, *chat], chat.variables)

    def _chat(self, messages: Messages, place: str, row: dict) -> Chat:
        """The conversation with what the template reads beside the messages of an example. Raises UserError."""
        system, has_system = self._system(place, row), bool(messages) and messages[0]["role"] == "system"
        if has_system and system not in ([], messages[:1]):
            leave_out(self.account, f"{self.settings.system_field} of conversations with a system message")
        messages = messages if has_system else system + messages
        return self.with_system(Chat(messages, read_variables(row, self.settings.tools_field, place, self.account)))
