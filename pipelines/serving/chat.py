"""`anyformer chat`: a conversation with a model, line by line."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError, first_line
from ..generation import continue_text

COMMANDS = "/reset forgets what was said, /exit ends the chat"


def system_message(text: str | None) -> list[dict[str, Any]]:
    """The messages before the first question."""
    return [] if text is None else [{"role": "system", "content": text}]


def read_tools(file: str | None) -> list[dict[str, Any]]:
    """The tools in a JSON file, a list of {"type": "function", "function": {"name": ...}}; none without a file.

    Raises UserError for a file that holds anything else.
    """
    if file is None:
        return []
    try:
        tools = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--tools {file} is no JSON that can be read ({first_line(error)})") from None
    functions = [isinstance(one, dict) and one.get("function") for one in tools] if isinstance(tools, list) else []
    if not functions or not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in functions):
        form = '[{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}]'
        raise UserError(f"--tools {file} is no list of tools: {form}")
    return tools


def converse(
    model,
    tokenizer,
    lines: Iterable[str],
    show: Callable[[str], None],
    *,
    seed: int = 42,
    begin: Sequence[dict[str, Any]] = (),
    **how,
) -> None:
    """Answer each line, word by word, until the lines end or one is /exit; Ctrl-C stops an answer.

    With a chat template each line continues the conversation since /reset, without one each is continued by itself.
    show: called with each piece of the output. seed: of the answer to the first line; each next line's is one higher.
    begin: messages before the first line, such as a system message, which are not forgotten. how: as for continue_text,
    such as the tools that may be called.
    """
    chats, history = bool(tokenizer.chat_template), [*begin]
    show(f"{'' if chats else 'this model has no chat template: it continues each line by itself; '}{COMMANDS}\n")
    for turn, line in enumerate(lines):
        if line.strip() == "/exit":
            return
        if line.strip() == "/reset":
            history = [*begin]
            show("forgotten\n")
        elif re.fullmatch(r"/\w*\s*", line):
            show(f"{line.strip()}: no such command; {COMMANDS}\n")
        elif line.strip():
            pieces: list[str] = []
            on_text = lambda piece, pieces=pieces: pieces.append(piece) or show(piece)  # noqa: E731
            try:
                text = continue_text(
                    model, tokenizer, line, chat=chats, history=history, seed=seed + turn, on_text=on_text, **how
                )
            except KeyboardInterrupt:
                show("\nstopped; this answer is forgotten\n")
            except UserError as error:  # such as a conversation that is too long
                show(f"{error}; {COMMANDS}\n")
            else:
                show(text.removeprefix("".join(pieces)) + "\n")
                history += [{"role": "user", "content": line}, {"role": "assistant", "content": text}] if chats else []
