"""Conversations as rows: each learned answer behind exactly the ids of the prompt that the model will be asked with.

A chat template is a program, and may write a message otherwise once another follows. So an answer is what the template
writes of the conversation up to it, behind what it writes as the prompt for it; the first of these rules that fits:
the prompt begins it; it does but for white space at its end; it does but for the thought that it opens; one of the
two holds without the thoughts of earlier answers. Where the answers' rows begin each other, they are one row.
"""

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal, NamedTuple

from ..chat_templates import ASK, CALL, RESULT, SAY, ChatTemplate
from ..data.account import Account
from ..errors import UserError
from ..lazy import tokenizers
from ..tokenizers.control_tokens import ControlTokens, text_tokenizer
from .collectives import ASSISTANT, TOOLS, Chat, Messages, is_learned, leave_out

# Without these a model would learn to answer unread questions, or never to call.
NEEDED = {("user", "content"): "what the user says", (ASSISTANT, "content"): "what the assistant says"}
NEEDED |= {(ASSISTANT, "function_call"): "function_call, the older form of tool_calls"}
LINKS = {("tool", "tool_call_id"), ("tool", "name")}  # of a result to its call, which most templates leave out
THOUGHT, OPENED, CLOSED = "reasoning_content", re.compile(r"<think>\s*$"), "</think>"
Turns = Literal["auto", "together", "apart"]
Encoded = tuple[list[int], list[bool]]  # token ids of a row, whether each belongs to an answer or to what ends it
Tokens = tuple[list[int], list[tuple[int, int]]]  # token ids of a text, the characters (begin, end) of each


class Turn(NamedTuple):
    """A learned answer as texts: its prompt, the answer and what ends it, what the template writes behind that."""

    prompt: str
    answer: str = ""
    rest: str = ""

    @property
    def text(self) -> str:
        return "".join(self)


class ChatRows(ChatTemplate):
    """Rows of conversations by the chat template of a tokenizer.

    ends: what ends an answer (False), and one with calls of tools (True) if the template writes them: a control token,
    with white space before it if any; {} where only questions are written. closing: what the template writes behind the
    end of the last answer alone. padding: the id that fills up rows.
    """

    def __init__(self, tokenizer, ends: dict[bool, str] | None = None, closing: str = ""):
        super().__init__(tokenizer)
        self.ends, self.closing = ends or {}, closing
        self.padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._read: set[Any] = set()

    @classmethod
    def with_ends(cls, tokenizer) -> "ChatRows":
        """The rows with `ends`.

        The end is the token that the template writes there, else the one with which it begins the next message, else
        the end-of-text token. If it is plain text to the tokenizer, it becomes a control token: no message can then
        spell it out, and it is no part of what is generated.

        Raises UserError for a template that the tokenizer cannot learn an answer with.
        """
        rows, added = cls(tokenizer), tokenizer.added_tokens_decoder.values()
        found, _ = rows._end(SAY, ASK, [token.content for token in added])
        plain = found.strip() or tokenizer.eos_token
        for token in [token for token in added if token.content == plain and not token.special]:
            sides = {name: getattr(token, name) for name in ("lstrip", "rstrip", "single_word")}
            token = tokenizers.AddedToken(plain, special=True, normalized=False, **sides)
            tokenizer.add_tokens([token], special_tokens=True)
            rows = cls(tokenizer)  # the other has read the control tokens without it
        plain, closing = rows._end(SAY, ASK, rows.control.names)
        called, _ = rows._end(CALL, RESULT, rows.control.names)
        rows = cls(tokenizer, {False: plain or tokenizer.eos_token} | ({True: called} if called else {}), closing)
        rows.encode([("a probe", Chat([ASK, SAY]))], Account())
        return rows

    @cached_property
    def control(self) -> ControlTokens:
        return ControlTokens(self.tokenizer)

    def hidden(self, chat: Messages) -> Chat:
        """The conversation with marks in place of the control tokens that are spelled out anywhere in its texts."""

        def hide(value: Any) -> Any:
            if isinstance(value, dict):
                return {hide(key): hide(item) for key, item in value.items()}
            if isinstance(value, list):
                return [hide(item) for item in value]
            return self.control.hide(value) if isinstance(value, str) else value

        return Chat(hide(list(chat)), hide(getattr(chat, "variables", {})), getattr(chat, "repeated", 0))

    # ---- texts

    def asked(self, chat: Chat, place: str) -> list[Turn]:
        """The prompt for the answer to be written after a conversation. Raises UserError."""
        return [Turn(self.render(chat, place, add_generation_prompt=True, **chat.variables))]

    def answered(self, chat: Chat, place: str) -> list[Turn]:
        """The learned answers of a conversation. Raises UserError."""
        return [self._turn(chat, number, place) for number, message in enumerate(chat) if is_learned(message)]

    def counted(self, chat: Chat, place: str, account: Account, write: Callable[[Chat, str], list[Turn]]) -> list[Turn]:
        """What `write` (`asked` or `answered`) makes of a conversation; what changes nothing in it is counted.

        What has once changed a text is read by the template. Raises UserError where what is NEEDED is not written.
        """
        others = [message for message in chat if message["role"] != "system"]  # a system message is counted alone
        unwritten, turns = self.dropped(others, chat.variables), write(chat, place)
        keys = {(message["role"], key) for message in chat for key in message if key not in ("role", "weight")}
        tries = {}
        for role, key in sorted(keys - self._read):
            has = [message["role"] == role and message.get(key, "") != "" for message in chat]
            others = [without(message, key) if is_it else message for message, is_it in zip(chat, has)]
            if any(has):
                tries[role, key] = Chat(others, chat.variables), f"{key} of the {role}", sum(has[chat.repeated :])
        for key in chat.variables.keys() - self._read:
            others = {name: value for name, value in chat.variables.items() if name != key}
            tries[key] = Chat(chat, others), key, not chat.repeated
        for what, (other, words, number) in tries.items():
            try:
                is_read = write(other, place) != turns
            except UserError:  # it asks for what is left out
                is_read = True
            if is_read:
                self._read.add(what)
            elif what in NEEDED:
                unwritten = NEEDED[what]
            else:
                leave_out(account, words, number, is_usual=what in LINKS)
        if unwritten:
            without_them = ", or task.tools_field=null" if unwritten == TOOLS else ""
            raise UserError(
                f"the tokenizer's chat template does not write {unwritten} ({place}); set tokenizer.chat_template to "
                f"one that does, such as chatml_tools{without_them}"
            )
        text = "".join(turn.text for turn in turns)
        for content in (message["content"] for message in chat[chat.repeated :]):
            if content not in text and content.strip() in text:
                account.read_as("message", "", "without the white space around it", is_usual=True)
        return turns

    def _turn(self, chat: Chat, number: int, place: str) -> Turn:
        """The answer that is message `number` of a conversation."""
        if number == 0:
            raise UserError(
                f"{place} begins with a message of the {ASSISTANT}, before which nothing is asked; put a message "
                f"of the user before it, or set task.system"
            )
        answer, histories = chat[number], [chat[:number]]
        if any(THOUGHT in message for message in chat[:number]):
            histories.append([without(message, THOUGHT) for message in chat[:number]])
        prompts, behind = [], None
        for history in histories:
            ((prompt, *_),) = self.asked(Chat(history, chat.variables), place)
            prompts.append(prompt)
            if behind is None:
                behind = written_behind(prompt, self.render([*history, answer], place, **chat.variables), answer)
        if behind is None:
            closes = prompts[0].rstrip().endswith(CLOSED)
            mend = "leave its thoughts out, or say enable_thinking: true in a column chat_template_kwargs"
            raise UserError(
                f"the tokenizer's chat template asks for an answer with {prompts[0][-24:]!r}, and writes the answer "
                f"behind something else ({place}); {mend if closes else 'set tokenizer.chat_template to another one'}"
            )
        said = behind.rstrip()
        if self.closing and said.endswith(self.closing):
            said = said.removesuffix(self.closing).rstrip()
        if said.endswith(tuple(self.control.names)):
            return Turn(prompts[0], said, behind[len(said) :])
        return Turn(prompts[0], said + self.ends.get("tool_calls" in answer, self.ends[False]))

    def _end(self, answer: dict[str, Any], follow: dict[str, Any], known: list[str]) -> tuple[str, str]:
        """(which of some tokens stands behind an answer, `closing`); "": none, or the template writes no such answer.

        Raises UserError for a template that begins an answer behind whole conversations, too.
        """
        try:
            text = self.render([ASK, answer], "a probe").rstrip()
            longer = self.render([ASK, answer, follow], "a probe")
        except UserError:
            return "", ""
        if answer is CALL and "Oslo" not in text:
            return "", ""
        through = self._without_last_marks(text, longer)
        ignores_flag = self.asked(Chat([ASK]), "a probe")[0].prompt == self.render([ASK], "a probe")
        if answer is SAY and ignores_flag and not longer.startswith(through):
            raise UserError(
                f"the tokenizer's chat template ends a whole conversation with {text[-24:]!r}, as if an answer "
                f"followed; write that in chat_template.jinja only where add_generation_prompt is true"
            )
        after = longer[len(through) :] if longer.startswith(through) else ""
        known = sorted(known, key=len, reverse=True)
        following = (name for name in known if name in self.control.names and after.lstrip().startswith(name))
        following = next((after[: after.index(name) + len(name)] for name in following), "")
        return next((name for name in known if through.endswith(name)), following), text[len(through) :].strip()

    def _without_last_marks(self, through: str, longer: str) -> str:
        """`through` without tokens that are only written at the very end, if an end remains before them, as Phi-3's."""
        names, shorter = tuple(self.control.names), through
        while shorter.endswith(names) and not longer.startswith(shorter):
            shorter = shorter.removesuffix(next(name for name in names if shorter.endswith(name))).rstrip()
        return shorter if shorter.endswith(names) else through

    # ---- tokens

    def encode(
        self, conversations: list[tuple[str, Chat]], account: Account, how: Turns = "auto", mend: str = "turns=auto"
    ) -> list[list[Encoded]]:
        """The rows of each (place, conversation): one for all its answers, or one for each.

        A row begins with the ids of its prompts, each as `prompt_ids` has it, and learns all behind a prompt up to what
        ends the answer. account: counts what the template does not write. how: task.turns; mend: what else to set,
        where answers cannot be together, for which UserError is raised.

        A control token spelled out in a message is read as ordinary text: marks replace it while the template writes
        the conversation. Control tokens that the template itself writes stay control tokens.
        """
        every = [self.counted(self.hidden(chat), place, account, self.answered) for place, chat in conversations]
        are_one = [how != "apart" and begin_each_other(turns) for turns in every]
        prompts = self._tokens([turn.prompt for turns in every for turn in turns])
        read = [turns[-1:] if is_one else turns for turns, is_one in zip(every, are_one)]
        texts = self._tokens([turn.text for turns in read for turn in turns])
        encoded = []
        for turns, is_one, (place, _) in zip(every, are_one, conversations):
            asked = [next(prompts)[0] for _ in turns]
            row = row_of(turns, asked, next(texts)) if is_one else None
            if row is None and len(turns) > 1 and how == "together":
                raise UserError(
                    f"the tokenizer's chat template writes an answer otherwise once another follows ({place}), so that "
                    f"its answers share no row; set task.{mend}"
                )
            if row is not None:
                encoded.append([row])
                continue
            alone = self._tokens([turn.text for turn in turns]) if is_one else texts
            encoded.append([self._alone(turn, ids, next(alone)) for turn, ids in zip(turns, asked)])
        return encoded

    def _alone(self, turn: Turn, prompt: list[int], tokens: Tokens) -> Encoded:
        """The row of one answer. Where a token would cross the prompt's end, both sides are read by themselves."""
        row = row_of([turn], [prompt], tokens)
        if row is None:
            ids, learned = row_of([turn._replace(prompt="")], [[]], next(self._tokens([turn.answer + turn.rest])))
            row = prompt + ids, [False] * len(prompt) + learned
        return row

    def prompt_ids(self, chat: Chat) -> list[int]:
        """Token ids of a conversation up to the answer to be written. Raises UserError."""
        (turn,) = self.asked(self.hidden(chat), "a question")
        return next(self._tokens([turn.prompt]))[0]

    def last_answer(self, chat: Chat, encoded: Encoded) -> str:
        """What a written answer is compared with: the text of the last message, with its calls and thoughts if any.

        encoded: the row that ends with it.
        """
        if chat[-1].keys() <= {"role", "content", "weight"}:
            return chat[-1]["content"]
        ids, learned = encoded
        end = len(learned) - learned[::-1].index(True)
        begin = end - next((number for number, own in enumerate(learned[:end][::-1]) if not own), end)
        return self.tokenizer.decode(ids[begin:end], skip_special_tokens=True)

    def _tokens(self, texts: list[str]) -> Iterator[Tokens]:
        """The tokens of each text, which may hold marks of control tokens."""
        options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}  # rows are cut later
        encoded, as_text = self.tokenizer(texts, **options), None
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"]):
            parts = self.control.split(text)
            if any(name for _, name in parts):
                ids, offsets, begin, as_text = [], [], 0, as_text or text_tokenizer(self.tokenizer)
                for part, name in parts:
                    read = self.tokenizer if name is None else as_text
                    coded = read(name or part, **options)
                    spans = coded["offset_mapping"] if name is None else [(0, len(part))] * len(coded["input_ids"])
                    ids += coded["input_ids"]
                    offsets += [(begin + start, begin + end) for start, end in spans]
                    begin += len(part)
            yield ids, offsets


def without(message: dict[str, Any], key: str) -> dict[str, Any]:
    """The message without a key, or with another content, which templates need."""
    if key == "content":
        return message | {"content": message["content"] + "x"}
    return {name: value for name, value in message.items() if name != key}


def written_behind(prompt: str, full: str, answer: dict[str, Any]) -> str | None:
    """What of a conversation `full` stands behind the prompt for its last answer; None: it begins otherwise.

    Where the prompt opens a thought that the template leaves out of answers, the thought comes back, if only empty.
    """
    bald, opened = prompt.rstrip(), OPENED.sub("", prompt)
    if full.startswith(bald):
        return next(full[end:] for end in range(len(prompt), -1, -1) if full.startswith(prompt[:end]))
    if opened == prompt or not full.startswith(opened):
        return None
    thought = answer.get(THOUGHT) or answer["content"].rpartition(CLOSED)[0].replace("<think>", "", 1).strip()
    return f"{thought}\n{CLOSED}\n\n{full[len(opened) :].lstrip()}"


def begin_each_other(turns: list[Turn]) -> bool:
    """Whether the text of each turn, up to what ends its answer, begins that of the last."""
    return all(turns[-1].text.startswith(turn.prompt + turn.answer) for turn in turns)


def row_of(turns: list[Turn], asked: list[list[int]], tokens: Tokens) -> Encoded | None:
    """The row of answers in one text. asked: the ids of their prompts; None where the row does not begin with these."""
    ids, characters = tokens
    learned = [False] * len(ids)
    for turn, prompt in zip(turns, asked):
        if ids[: len(prompt)] != prompt:
            return None
        end = len(turn.prompt) + len(turn.answer)
        inside = sum(begin < end for begin, _ in characters[len(prompt) :])
        learned[len(prompt) : len(prompt) + inside] = [True] * inside
    return ids, learned
