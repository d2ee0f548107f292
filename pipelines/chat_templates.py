"""A tokenizer's chat template: what it writes of messages and tools, and what it is probed for."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from .errors import UserError, first_line

# What templates are probed with. Some need the id of a call, as long as Mistral's, others the tool's name.
ASK, SAY = {"role": "user", "content": "why is rain near"}, {"role": "assistant", "content": "old stones said so"}
CALLS = [{"id": "call00001", "type": "function", "function": {"name": "get_rain", "arguments": {"place": "Oslo"}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": CALLS}
RESULT = {"role": "tool", "name": "get_rain", "tool_call_id": "call00001", "content": "twelve drops"}
PLACE = {"type": "object", "properties": {"place": {"type": "string", "description": "a place"}}, "required": ["place"]}
ABOUT = {"name": "get_rain", "description": "Rain of a place.", "parameters": PLACE}
TOOL = {"type": "function", "function": ABOUT}
# What a conversation may hold beside questions: (messages, variables, what a template that writes it has written).
PROBES: dict[str, tuple[list[dict], dict[str, Any], str]] = {
    "system messages": ([{"role": "system", "content": "only in rhymes"}, ASK], {}, "only in rhymes"),
    "tools": ([ASK], {"tools": [TOOL]}, "get_rain"),
    "calls of tools": ([ASK, CALL], {}, "Oslo"),
    "results of tools": ([ASK, CALL, RESULT], {}, "twelve drops"),
}


class ChatTemplate:
    """The chat template of a tokenizer. variables: what it reads beside the messages, such as tools."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self._writes: dict[str, bool] = {}

    def render(self, messages: Sequence[dict[str, Any]], place: str, **options: Any) -> str:
        """As `write`, but raises UserError, which begins with `place`, where messages cannot be written."""
        try:
            return self.write(messages, tokenize=False, **options)
        except Exception as error:  # a template is a program, and can fail in any way
            raise UserError(f"{place} does not suit the tokenizer's chat template: {first_line(error)}") from error

    def write(self, messages: Sequence[dict[str, Any]], **options: Any) -> Any:
        """What the tokenizer's apply_chat_template returns, and raises, for messages and its own options."""
        return self._apply(messages, self.takes_parts, self.takes_text, **options)

    def dropped(self, messages: Sequence[dict[str, Any]], variables: dict[str, Any]) -> str | None:
        """What of PROBES a conversation holds and the template would leave out without a word; None: nothing."""
        held = {
            "system messages": any(message["role"] == "system" for message in messages),
            "tools": bool(variables.get("tools")),
            "calls of tools": any("tool_calls" in message for message in messages),
            "results of tools": any(message["role"] == "tool" for message in messages),
        }
        return next((what for what, is_held in held.items() if is_held and not self._is_written(what)), None)

    @cached_property
    def takes_text(self) -> bool:
        """Whether it writes the arguments of a call as they are, so that they must be JSON, as DeepSeek-V3's does."""
        try:
            return "{'place'" in self._apply([ASK, CALL], tokenize=False)
        except Exception as error:
            return isinstance(error, TypeError)

    @cached_property
    def takes_parts(self) -> bool:
        """Whether it writes a text only where it is in a list of parts, as templates of models of images do."""
        try:
            plain, in_parts = (ASK["content"] in self._apply([ASK], parts, tokenize=False) for parts in (False, True))
            return in_parts and not plain
        except Exception:  # it fails on lists: then it takes texts
            return False

    def _is_written(self, what: str) -> bool:
        messages, variables, sentinel = PROBES[what]
        if what not in self._writes:
            try:
                self._writes[what] = sentinel in self.write(messages, tokenize=False, **variables)
            except Exception:  # the conversation that holds it is refused, with the reason
                self._writes[what] = True
        return self._writes[what]

    def _apply(self, messages: Sequence[dict[str, Any]], parts: bool = False, texts: bool = False, **options: Any):
        given = [{key: value for key, value in message.items() if key != "weight"} for message in messages]
        for message in given:
            if texts and "tool_calls" in message:
                message["tool_calls"] = [with_text(call) for call in message["tool_calls"]]
            if parts:
                message["content"] = [{"type": "text", "text": message["content"]}]
        return self.tokenizer.apply_chat_template(given, **options)


def with_text(call: dict[str, Any]) -> dict[str, Any]:
    """A call with its arguments as JSON text."""
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return call | {"function": call["function"] | {"arguments": arguments}}
