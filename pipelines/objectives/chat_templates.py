"""A tokenizer's chat template: what it writes of a conversation, as text and tokens, and where answers end."""

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from ..data.account import Account
from ..errors import UserError, first_line
from ..lazy import tokenizers
from ..tokenizers.control_tokens import ControlTokens, text_tokenizer
from .messages import ASSISTANT, Chat, Messages, is_learned, leave_out

# What templates are tried with. Some need the id of a call, as long as Mistral's, others the tool's name.
ASK, SAY = {"role": "user", "content": "a"}, {"role": ASSISTANT, "content": "b"}
CALLS = [{"id": "call00001", "type": "function", "function": {"name": "rain", "arguments": {"place": "Oslo"}}}]
CALL = {"role": ASSISTANT, "content": "", "tool_calls": CALLS}
RESULT = {"role": "tool", "name": "rain", "tool_call_id": "call00001", "content": "c"}
# Without these a model would learn to answer unread questions, or never to call.
NEEDED = {("user", "content"): "what the user says", (ASSISTANT, "tool_calls"): "calls of tools"}
NEEDED |= {(ASSISTANT, "function_call"): "function_call, the older form of tool_calls"}
Encoded = tuple[list[int], list[bool]]  # token ids, whether each belongs to an answer or to the mark that ends it


class ChatTemplate:
    """The chat template of a tokenizer.

    ends: the token that ends an answer (False), and one with calls of tools (True) if the template writes them; {}
    where only questions are written. padding: the id that fills up rows.
    """

    def __init__(self, tokenizer, ends: dict[bool, str] | None = None):
        self.tokenizer, self.ends, self._read = tokenizer, ends or {}, set()
        self.padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    @classmethod
    def with_ends(cls, tokenizer) -> "ChatTemplate":
        """The chat template with `ends`.

        The end is the token that the template writes there, else the one with which it begins the next message, else
        the end-of-text token. If it is plain text to the tokenizer, it becomes a control token: no message can then
        spell it out, and it is no part of what is generated.
        """
        template, added = cls(tokenizer), tokenizer.added_tokens_decoder.values()
        plain = template._end(SAY, ASK, [token.content for token in added]) or tokenizer.eos_token
        for token in [token for token in added if token.content == plain and not token.special]:
            sides = {name: getattr(token, name) for name in ("lstrip", "rstrip", "single_word")}
            token = tokenizers.AddedToken(plain, special=True, normalized=False, **sides)
            tokenizer.add_tokens([token], special_tokens=True)
            template = cls(tokenizer)  # the other has read the control tokens without it
        called = template._end(CALL, RESULT, template.control.names)
        return cls(tokenizer, {False: plain} | ({True: called} if called else {}))

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

    def render(self, messages: Messages, place: str, **options: Any) -> str:
        """The text of messages; options: of apply_chat_template. Raises UserError where it cannot be written."""
        given = [{key: value for key, value in message.items() if key != "weight"} for message in messages]
        for message in given:
            if "tool_calls" in message and self.takes_text:
                message["tool_calls"] = [with_text(call) for call in message["tool_calls"]]
        try:
            return self.tokenizer.apply_chat_template(given, tokenize=False, **options)
        except Exception as error:  # a template is a program, and can fail in any way
            raise UserError(f"{place} does not suit the tokenizer's chat template: {first_line(error)}") from error

    @cached_property
    def takes_text(self) -> bool:
        """Whether it writes the arguments of a call as they are, so that they must be JSON, as DeepSeek-V3's does."""
        try:
            return "{'place'" in self.tokenizer.apply_chat_template([ASK, CALL], tokenize=False)
        except Exception as error:
            return isinstance(error, TypeError)

    def prompt(self, chat: Chat, place: str) -> str:
        """The text of a conversation up to the answer to be written. Raises UserError."""
        return self.render(chat, place, add_generation_prompt=True, **chat.variables)

    def written(self, chat: Chat, place: str, account: Account, **options: Any) -> str:
        """The text of a conversation, as `render`; what changes nothing in it is counted, or refused if it is NEEDED.

        What has once changed a text is read by the template.
        """
        text = self.render(chat, place, **chat.variables, **options)
        keys = {(message["role"], key) for message in chat for key in message if key not in ("role", "weight")}
        tries = {}
        for role, key in sorted(keys - self._read):
            has = [message["role"] == role and key in message for message in chat]
            others = [without(message, key) if is_it else message for message, is_it in zip(chat, has)]
            tries[role, key] = others, chat.variables, f"{key} of the {role}", sum(has[chat.repeated :])
        for key in chat.variables.keys() - self._read:
            others = {name: value for name, value in chat.variables.items() if name != key}
            tries[key] = chat, others, key, not chat.repeated
        for what, (messages, variables, words, number) in tries.items():
            try:
                is_read = self.render(messages, place, **variables, **options) != text
            except UserError:  # it asks for what is left out
                is_read = True
            if is_read:
                self._read.add(what)
            elif what in NEEDED:
                raise UserError(
                    f"the tokenizer's chat template does not write {NEEDED[what]} ({place}); set "
                    f"tokenizer.name_or_path to one with a template that does"
                )
            else:
                leave_out(account, words, number)
        for content in (message["content"] for message in chat[chat.repeated :]):
            if content not in text and content.strip() in text:
                account.read_as("message", "", "without the white space around it", is_usual=True)
        return text

    # ---- the ends of answers

    def _end(self, answer: dict[str, Any], follow: dict[str, Any], known: list[str]) -> str | None:
        """Which of some tokens stands behind an answer; None: none, or the template does not write the answer.

        Raises UserError for a template that begins an answer behind whole conversations, too.
        """
        try:
            text = self.render([ASK, answer], "a probe").rstrip()
            longer = self.render([ASK, answer, follow], "a probe")
        except UserError:
            return None
        if answer is CALL and "Oslo" not in text:
            return None
        text = self.without_last_marks(text, longer)
        ignores_flag = self.prompt(Chat([ASK]), "a probe") == self.render([ASK], "a probe")
        if answer is SAY and ignores_flag and not longer.startswith(text):
            raise UserError(
                f"the tokenizer's chat template ends a whole conversation with {text[-24:]!r}, as if an answer "
                f"followed; write that in chat_template.jinja only where add_generation_prompt is true"
            )
        after = longer[len(text) :].lstrip() if longer.startswith(text) else ""
        known = sorted(known, key=len, reverse=True)
        following = (name for name in known if name in self.control.names and after.startswith(name))
        return next((name for name in known if text.endswith(name)), next(following, None))

    def without_last_marks(self, through: str, longer: str) -> str:
        """`through` without tokens that are only written at the very end, if an end remains before them, as Phi-3's."""
        names, shorter = tuple(self.control.names), through
        while shorter.endswith(names) and not longer.startswith(shorter):
            shorter = shorter.removesuffix(next(name for name in names if shorter.endswith(name))).rstrip()
        return shorter if shorter.endswith(names) else through

    def answers_in(self, chat: Chat, place: str, account: Account) -> tuple[str, list[tuple[int, int]]]:
        """(a conversation as text, the character spans (begin, end) of its learned answers). Raises UserError."""
        text, spans = self.written(chat, place, account), []
        for number, message in enumerate(chat):
            if not is_learned(message):
                continue
            if number == 0:
                raise UserError(
                    f"{place} begins with a message of the {ASSISTANT}, before which nothing is asked; put a message "
                    f"of the user before it, or set task.system"
                )
            before = self.prompt(Chat(chat[:number], chat.variables), place)
            through = self.render(chat[: number + 1], place, **chat.variables).rstrip()
            through = self.without_last_marks(through, text)
            if not through.startswith(before) or not text.startswith(through):
                raise UserError(
                    f"the tokenizer's chat template writes a message otherwise once another follows ({place}), so its "
                    f"answers cannot be told apart; set tokenizer.name_or_path to one with a plainer template"
                )
            end, mark = len(through), self.ends.get("tool_calls" in message, self.ends[False])
            if not through.endswith(tuple(self.control.names)):
                if text[end:].lstrip().startswith(mark):
                    end = text.index(mark, end) + len(mark)
                elif number == len(chat) - 1:
                    text, end = through + mark, end + len(mark)
            spans.append((len(before), end))
        return text, spans

    # ---- tokens

    def check(self) -> None:
        """Raise UserError for a template that the tokenizer cannot learn an answer with."""
        ((ids, learned),) = self.encode([("a probe", Chat([ASK, SAY]))], Account())
        prompt = self.prompt(Chat([ASK]), "a probe")
        prompt_ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if not any(learned) or ids[: len(prompt_ids)] != prompt_ids:
            raise joins(prompt)

    def encode(self, conversations: list[tuple[str, Chat]], account: Account) -> list[Encoded]:
        """(token ids, which of them are learned) for each (place, conversation).

        An answer is what the template writes between its prompt and the next message, without white space at the end,
        and the token that ends it. A token that begins before the answer is not learned. account: counts what the
        template does not write.

        Raises UserError where the tokenizer joins the prompt's last space with the answer's first word: that word would
        not be learned, and in generation, where the prompt ends with the space, the tokens would differ from training.

        A control token spelled out in a message is read as ordinary text: marks replace it while the template writes
        the conversation. Control tokens that the template itself writes stay control tokens.
        """
        encoded = []
        parts = [self.answers_in(self.hidden(chat), place, account) for place, chat in conversations]
        for (text, spans), (ids, offsets) in zip(parts, self._tokens([text for text, _ in parts])):
            for begin, _ in spans:
                if text[:begin].endswith(" ") and any(start < begin < end for start, end in offsets):
                    raise joins(text[:begin])
            encoded.append((ids, [any(a <= start and end <= b for a, b in spans) for start, end in offsets]))
        return encoded

    def prompt_ids(self, chat: Chat) -> list[int]:
        """Token ids of a conversation up to the answer to be written. Raises UserError."""
        text = self.prompt(self.hidden(chat), "a question")
        return next(self._tokens([text]))[0]

    def last_answer(self, chat: Chat, encoded: Encoded) -> str:
        """What a written answer is compared with: the text of the last message, with its calls and thoughts if any."""
        if chat[-1].keys() == {"role", "content"}:
            return chat[-1]["content"]
        ids, learned = encoded
        end = len(learned) - learned[::-1].index(True)
        begin = end - next((number for number, own in enumerate(learned[:end][::-1]) if not own), end)
        return self.tokenizer.decode(ids[begin:end], skip_special_tokens=True)

    def _tokens(self, texts: list[str]) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """(token ids, the character span of each token) for each text, which may hold marks of control tokens."""
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


def with_text(call: dict[str, Any]) -> dict[str, Any]:
    """A call with its arguments as JSON text."""
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return call | {"function": call["function"] | {"arguments": arguments}}


def joins(prompt: str) -> UserError:
    """The error for a chat template whose prompt ends with what the tokenizer joins with the answer's first word."""
    return UserError(
        f"the tokenizer's chat template ends the prompt for an answer with {prompt[-16:]!r}, whose end the tokenizer "
        f"joins with the answer's first word, so that it could not be learned; change that end in chat_template.jinja, "
        f"or set tokenizer.name_or_path to one with another template"
    )
