"""`anyformer chat`: a conversation with a model, line by line."""

import re
from collections.abc import Callable, Iterable

from ..errors import UserError
from ..generation import continue_text

COMMANDS = "/reset forgets what was said, /exit ends the chat"


def converse(model, tokenizer, lines: Iterable[str], show: Callable[[str], None], *, seed: int = 42, **how) -> None:
    """Answer each line, as soon as words of the answer are known, until the lines end or one is /exit.

    A tokenizer with a chat template puts each line after all that was said since /reset. Without one each line is
    continued by itself, as a base model has learned it.

    Args:
        lines: what a person writes; a line is asked for once the one before is answered.
        show: called with each piece of what is to be read.
        seed: of the first answer; the next one's is one higher.
        how: as for continue_text.
    """
    chats = bool(tokenizer.chat_template)
    history: list[dict[str, str]] = []
    if not chats:
        show("this model has no chat template: it continues each line, and remembers none\n")
    show(f"{COMMANDS}\n")
    for turn, line in enumerate(lines):
        if line.strip() == "/exit":
            return
        if line.strip() == "/reset":
            history.clear()
            show("forgotten\n")
        elif re.fullmatch(r"/\w*\s*", line):
            show(f"{line.strip()}: no such command; {COMMANDS}\n")
        elif line.strip():
            answer = answered(model, tokenizer, line, show, chat=chats, history=history, seed=seed + turn, **how)
            if chats and answer is not None:
                history += [{"role": "user", "content": line}, {"role": "assistant", "content": answer}]


def answered(model, tokenizer, line: str, show: Callable[[str], None], **how) -> str | None:
    """Show the answer to a line and return it; None, with the reason shown, where there is none or Ctrl-C ended it."""
    pieces: list[str] = []
    try:
        text = continue_text(model, tokenizer, line, on_text=lambda piece: pieces.append(piece) or show(piece), **how)
    except KeyboardInterrupt:
        show("\nstopped; this answer is forgotten\n")
    except UserError as error:  # such as a conversation that is too long
        show(f"{error}; {COMMANDS}\n")
    else:
        show(text.removeprefix("".join(pieces)) + "\n")
        return text
    return None
