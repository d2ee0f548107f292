"""Conversations of examples: messages read from the columns that the settings name, with prompt, system and tools."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..recipes.schema import ObjectiveSettings, doc
from ..words import counted
from .base import TOKENS
from .messages import (
    ASSISTANT,
    TOOLS,
    Chat,
    Messages,
    is_learned,
    joined,
    not_learned,
    read_messages,
    read_variables,
)


@dataclass
class ChatSettings(ObjectiveSettings):
    """Settings of all tasks over conversations."""

    prompt_field: str | None = doc(
        "column of what is asked: a text, or a list of messages {role, content}", "instruction"
    )
    input_field: str | None = doc(
        "column of a text that belongs to it, put after an empty line where there is one; null: none", "input"
    )
    tools_field: str | None = doc("column of the tools that may be called, a list or its JSON; null: none", TOOLS)
    system: str | None = doc("text of a system message before each conversation that has none")
    max_length: int = doc("tokens per conversation; longer ones are cut at the end", 512, **TOKENS)


class Conversations:
    """One reading of examples. left_out: how often something of the data is in no conversation, by what it is."""

    def __init__(self, settings: ChatSettings):
        self.settings, self.left_out = settings, Counter()

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
        return messages

    def messages(self, field: str, place: str, row: dict, role: str | None) -> Messages:
        """The messages in the column that a setting names, as read_messages. Raises UserError where it holds none."""
        column = getattr(self.settings, field)
        return read_messages(row[column], f"task.{field}={column!r}: {place}", role, self.left_out)

    def learned(self, field: str, prompt: Messages, answer: Messages, place: str, row: dict) -> Chat:
        """System message, prompt and answer, up to the last learned one; of the prompt nothing is learned.

        field: the setting that names the column of the answer. Raises UserError if the last message is not the
        assistant's, or if no answer is learned.
        """
        if answer[-1]["role"] != ASSISTANT:
            raise UserError(
                f"task.{field}: {place} ends with a message of the {answer[-1]['role']}, not with an answer of the "
                f"{ASSISTANT}, which alone is learned"
            )
        messages, asked = joined(prompt, answer, f"task.{field}={getattr(self.settings, field)!r}: {place}")
        messages = not_learned(messages[:asked]) + messages[asked:]
        while messages and not is_learned(messages[-1]):
            messages.pop()
        if not messages:
            raise UserError(f"task.{field}: {place} marks each answer as one not to be learned; leave the example out")
        return self.with_system(Chat(messages, self._variables(place, row)))

    def asked(self, place: str, row: dict) -> Chat:
        """The conversation up to the answer to be written; an answer that already ends it is left out.

        Raises UserError where there is none.
        """
        if getattr(self.settings, "messages_field", None) is None:
            messages = self.prompt(place, {self.settings.input_field: None} | row)
        else:
            messages = self.messages("messages_field", place, row, None)
            messages = messages[:-1] if messages[-1]["role"] == ASSISTANT else messages
        return self.with_system(Chat(messages, self._variables(place, row)))

    def with_system(self, chat: Chat) -> Chat:
        """The conversation with the system message of the settings, where it has none."""
        system = self.settings.system
        if system is None or (chat and chat[0]["role"] == "system"):
            return chat
        return Chat([{"role": "system", "content": system}, *chat], chat.variables)

    def notes(self) -> list[str]:
        """A sentence about all that was left out so far."""
        left_out = [f"{what} ({counted(number, 'time')})" for what, number in self.left_out.items() if number]
        return [f"left out, or not written by the chat template: {', '.join(left_out)}"] if left_out else []

    def _variables(self, place: str, row: dict) -> dict[str, Any]:
        """What the template reads beside the messages of an example. Raises UserError."""
        return read_variables(row, self.settings.tools_field, place, self.left_out)
