"""Conversations as token ids: which tokens are learned, and what a question looks like."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..errors import UserError
from ..tokenizers.control_tokens import text_tokenizer
from .chat_templates import ASK, SAY, ChatTemplate
from .messages import Chat

Encoded = tuple[list[int], list[bool]]  # token ids, whether each token belongs to an answer or to the mark that ends it


class ChatEncoder:
    """What writes conversations as token ids, by a chat template. padding: the id that fills up rows."""

    def __init__(self, template: ChatTemplate):
        tokenizer = template.tokenizer
        self.template, self.tokenizer = template, tokenizer
        self.padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def check(self) -> None:
        """Raise UserError for a template that the tokenizer cannot learn an answer with."""
        ((ids, learned),) = self.encode([("a probe", Chat([ASK, SAY]))], Counter())
        prompt = self.template.prompt(Chat([ASK]), "a probe")
        prompt_ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if not any(learned) or ids[: len(prompt_ids)] != prompt_ids:
            raise joins(prompt)

    def encode(self, conversations: list[tuple[str, Chat]], left_out: Counter) -> list[Encoded]:
        """(token ids, which of them are learned) for each (place, conversation).

        An answer is what the template writes between its prompt and the next message, without white space at the end,
        and the token that ends it. A token that begins before the answer is not learned. left_out: counts what the
        template does not write.

        Raises UserError where the tokenizer joins the prompt's last space with the answer's first word: that word would
        not be learned, and in generation, where the prompt ends with the space, the tokens would differ from training.

        A control token spelled out in a message is read as ordinary text: marks replace it while the template writes
        the conversation. Control tokens that the template itself writes stay control tokens.
        """
        template, encoded = self.template, []
        parts = [template.answers_in(template.hidden(chat), place, left_out) for place, chat in conversations]
        for (text, spans), (ids, offsets) in zip(parts, self._tokens([text for text, _ in parts])):
            for begin, _ in spans:
                if text[:begin].endswith(" ") and any(start < begin < end for start, end in offsets):
                    raise joins(text[:begin])
            encoded.append((ids, [any(a <= start and end <= b for a, b in spans) for start, end in offsets]))
        return encoded

    def prompt_ids(self, chat: Chat) -> list[int]:
        """Token ids of a conversation up to the answer to be written. Raises UserError."""
        text = self.template.prompt(self.template.hidden(chat), "a question")
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
        options: dict[str, Any] = {"add_special_tokens": False, "return_offsets_mapping": True}
        options["verbose"] = False  # rows are cut later
        encoded, as_text = self.tokenizer(texts, **options), None
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"]):
            parts = self.template.control.split(text)
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


def joins(prompt: str) -> UserError:
    """The error for a chat template whose prompt ends with what the tokenizer joins with the answer's first word."""
    return UserError(
        f"the tokenizer's chat template ends the prompt for an answer with {prompt[-16:]!r}, whose end the tokenizer "
        f"joins with the answer's first word, so that it could not be learned; change that end in chat_template.jinja, "
        f"or set tokenizer.name_or_path to one with another template"
    )
