"""Base of the tasks that learn answers in conversations: messages from columns, chat template, samples at the end."""

from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ..data.cells import IfThere
from ..data.documents import Corpus, in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..positions import most_positions
from ..recipes.schema import ObjectiveSettings, doc
from ..tokenizers.control_tokens import ControlTokens, text_tokenizer
from ..words import at_limit, counted
from .answering import continuations
from .base import TOKENS
from .chat_templates import ASK, SAY, ChatTemplate
from .finished_model import SAMPLES, FinishedModel
from .messages import (
    ASSISTANT,
    TOOLS,
    VARIABLES,
    Chat,
    Messages,
    is_learned,
    joined,
    not_learned,
    read_messages,
    read_variables,
)
from .text_task import TextTask

# For a tokenizer without a chat template: the role on a line of its own, then the text, ended by the end-of-text token.
# Every vocabulary can write these, so no embedding has to be added, and generation stops by itself. It is Zephyr's
# template (Tunstall et al. 2023), with the answer marked as transformers and TRL require.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] | trim + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] | trim + eos_token }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
ASKED = ("prompt_field", "input_field", "messages_field", "tools_field", VARIABLES)  # the prompt's columns
OPTIONAL = {"input_field": "input", "tools_field": TOOLS, VARIABLES: VARIABLES}  # by default, where data have them


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


class ChatTask(TextTask):
    """Base class; a subclass says which columns hold answers, and makes rows from conversations.

    noun: what a row is made from, in words. columns_of_rows: {column: type} of a training row, as schema_of takes them.
    """

    auto_class = "AutoModelForCausalLM"
    special_tokens = "none"
    noun: ClassVar[str] = "conversation"
    columns_of_rows: ClassVar[dict[str, str]]
    hub_task = "text-generation"
    finishes_on = "one"
    continues_prompts = True
    samples_are_answers = True
    sample_words = "answer to"
    use = 'anyformer generate {folder} "your question" --chat'

    def columns(self) -> dict[str, str]:
        section = self.settings
        names = {"tools_field": section.tools_field, VARIABLES: VARIABLES}
        names |= {name: getattr(section, name) for name in ("prompt_field", "input_field") if section.prompt_field}
        there = {name: IfThere(column) for name, column in names.items() if column == OPTIONAL.get(name)}
        return {name: column for name, column in (names | there).items() if column is not None}

    def text_columns(self) -> dict[str, str]:
        return {name: column for name, column in self.columns().items() if name not in ("tools_field", VARIABLES)}

    # ---- messages

    def prompt_of(self, place: str, row: dict) -> Messages:
        """The prompt of an example, as messages. Raises UserError."""
        section = self.settings
        if section.prompt_field is None:
            return []
        messages = self.messages_of("prompt_field", section.prompt_field, place, row, "user")
        more = row[section.input_field] if section.input_field is not None else None
        if more is not None and not isinstance(more, str):
            raise UserError(f"task.input_field={section.input_field!r}: {place} holds {type(more).__name__}, not text")
        if more and more.strip():
            messages[-1] = messages[-1] | {"content": f"{messages[-1]['content']}\n\n{more}"}
        return messages

    def messages_of(self, field: str, column: str, place: str, row: dict, role: str | None) -> Messages:
        """The messages in a column, as read_messages. Raises UserError, which names `field`, where it holds none."""
        return read_messages(row[column], f"task.{field}={column!r}: {place}", role, self.template.left_out)

    def conversation(self, field: str, prompt: Messages, answer: Messages, place: str, row: dict) -> Chat:
        """System message, prompt and answer, up to the last learned one; of the prompt nothing is learned.

        Raises UserError if the last message is not the assistant's, or if no answer is learned.
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
        return self.with_system(Chat(messages, self.variables(place, row)))

    def variables(self, place: str, row: dict) -> dict[str, Any]:
        """What the template reads beside the messages of an example. Raises UserError."""
        return read_variables(row, self.settings.tools_field, place, self.template.left_out)

    def with_system(self, chat: Chat) -> Chat:
        system = self.settings.system
        if system is None or (chat and chat[0]["role"] == "system"):
            return chat
        return Chat([{"role": "system", "content": system}, *chat], chat.variables)

    @abstractmethod
    def conversations(self, place: str, row: dict) -> list[Chat]:
        """The conversations of an example, each ending with an answer. Raises UserError."""

    # ---- tokens

    def corpus(self, source) -> Corpus:
        from ..data.examples import ExampleTexts

        def texts(place: str, row: dict) -> list[str]:
            # With the template's marks: a vocabulary of characters must contain every character of them.
            return [
                "".join(f"<|{part['role']}|>\n{part['content']}\n" for part in messages)
                for messages in self.conversations(place, row)
            ]

        return ExampleTexts(source, texts, {"texts": "chats", "system": self.settings.system})

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        """Raises UserError for a tokenizer without end-of-text token, or with a template that cannot be used."""
        self.processor = self.train_or_load_tokenizer(self.corpus(splits["train"]), cache, progress)
        self.need_tokens(eos="an end-of-text")
        tokenizer = self.tokenizer
        if tokenizer.chat_template is None:
            tokenizer.chat_template = CHAT_TEMPLATE
        self.padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.template = ChatTemplate(tokenizer)
        self.template.find_ends()
        probe = Chat([ASK, SAY])
        ((ids, learned),) = self.encode([("a probe", probe)])
        prompt = self.template.prompt(Chat([ASK]), "a probe")
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if not any(learned) or ids[: len(prompt_ids)] != prompt_ids:
            raise joins(prompt)

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate(self.tokenizer)

    def encode(self, conversations: list[tuple[str, Chat]]) -> list[tuple[list[int], list[bool]]]:
        """(token ids, whether each token belongs to an answer or to the mark that ends it) for each (place, messages).

        An answer is what the template writes between its prompt and the next message, without white space at the end,
        and the token that ends it. A token that begins before the answer is not learned.

        Raises UserError where the tokenizer joins the prompt's last space with the answer's first word: that word would
        not be learned, and in generation, where the prompt ends with the space, the tokens would differ from training.

        A control token spelled out in a message is read as ordinary text: marks replace it while the template writes
        the conversation. Control tokens that the template itself writes stay control tokens.
        """
        template, encoded = self.template, []
        parts = [template.answers_in(template.hidden(chat), place) for place, chat in conversations]
        for (text, spans), (ids, offsets) in zip(parts, self._tokens([text for text, _ in parts], template.control)):
            for begin, _ in spans:
                if text[:begin].endswith(" ") and any(start < begin < end for start, end in offsets):
                    raise joins(text[:begin])
            encoded.append((ids, [any(a <= start and end <= b for a, b in spans) for start, end in offsets]))
        return encoded

    def _tokens(self, texts: list[str], control: ControlTokens) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """(token ids, the character span of each token) for each text, which may hold marks of control tokens."""
        options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}  # rows are cut later
        encoded, as_text = self.tokenizer(texts, **options), None
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"]):
            parts = control.split(text)
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

    @property
    def kind_of_rows(self) -> list[str]:
        return [self.name]

    def rows(self, source, split: str, cache: Path, progress: bool = False) -> Rows:
        """Rows with `columns_of_rows`; in splits other than `train` also with the columns prompt and answer."""
        columns = self.columns_of_rows | ({} if split == "train" else {"prompt": "string", "answer": "string"})
        settings = [self.settings.max_length, self.settings.system, self.tokenizer.chat_template, list(columns)]
        rows = self.stored(source, cache, columns, settings)
        if not len(rows):
            raise UserError(
                f"task.max_length={self.settings.max_length}: no {self.noun} of {source.name} leaves room for an "
                f"answer; set it higher"
            )
        return rows

    def described(self, rows: Rows, tokens: str) -> str:
        """A line about the encoded conversations. tokens: words that say how many tokens each has."""
        number, left_out = rows.facts["examples"], rows.facts["left_out"]
        limit = at_limit(rows.facts["at_max_length"], number, f"max_length={self.settings.max_length}")
        more = f"; {left_out:,} more left out, whose prompt alone is longer" if left_out else ""
        total = counted(number, self.noun)
        cut = rows.facts.get("answers_cut", 0)  # rows that earlier versions have stored do not say it
        if cut > number / 10:
            more += f"\nin {cut:,} of {total} an answer is cut off at its end; raise task.max_length"
        return f"{total} of {rows.name}, {tokens}; {limit}{more}"

    @abstractmethod
    def row_of(self, encoded: list[tuple[list[int], list[bool]]]) -> dict[str, Any] | None:
        """The row of an example's conversations, as `encode` returns them; None where no answer fits into max_length.

        `full` in it: one reaches max_length. `cut`: a part of an answer is beyond it.
        """

    def _batches(self, examples) -> Iterator[dict[str, Any]]:
        names = [*self.columns_of_rows, "prompt", "answer", "full", "cut"]
        self.template.left_out.clear()
        for batch in in_batches(examples):
            rows = self._rows_of(batch)
            usable = [row for row in rows if row is not None]
            yield {name: [row[name] for row in usable] for name in names} | {"left_out": len(rows) - len(usable)}

    def _rows_of(self, batch: list) -> list[dict[str, Any] | None]:
        """What row_of returns for each example (place, row), with prompt and answer of its first conversation."""
        per_row = self.sequences_per_row
        conversations = [(place, chat) for place, row in batch for chat in self.conversations(place, row)]
        encoded, rows = self.encode(conversations), []
        for start in range(0, len(conversations), per_row):
            row, (_, chat) = self.row_of(encoded[start : start + per_row]), conversations[start]
            prompt = Chat(chat[:-1], chat.variables).to_json()
            rows.append(row and row | {"prompt": prompt, "answer": self.last_answer(chat, encoded[start])})
        return rows

    def last_answer(self, chat: Chat, encoded: tuple[list[int], list[bool]]) -> str:
        """What a written answer is compared with: the text of the last message, with its calls and thoughts if any."""
        if chat[-1].keys() == {"role", "content"}:
            return chat[-1]["content"]
        ids, learned = encoded
        end = len(learned) - learned[::-1].index(True)
        begin = end - next((number for number, own in enumerate(learned[:end][::-1]) if not own), end)
        return self.tokenizer.decode(ids[begin:end], skip_special_tokens=True)

    def notes_of_rows(self) -> list[str]:
        left_out = [f"{what} ({counted(number, 'time')})" for what, number in self.template.left_out.items() if number]
        return [f"left out, or not written by the chat template: {', '.join(left_out)}"] if left_out else []

    def with_rows(self, source) -> Iterator[tuple[str, dict]]:
        for batch in in_batches(source):
            yield from (example for example, row in zip(batch, self._rows_of(batch)) if row is not None)

    def _facts(self, batch: dict[str, Any]) -> dict:
        """Counts of one batch, which are added up over all batches."""
        return {
            "examples": len(batch["labels"]),
            "tokens": sum(map(len, batch["input_ids"])),
            "at_max_length": sum(batch["full"]),
            "answers_cut": sum(batch["cut"]),
            "left_out": batch["left_out"],
        }

    def prepare_model(self, model) -> None:
        """Let generation stop at the tokens that end answers."""
        config = model.generation_config
        stops = config.eos_token_id if config.eos_token_id is not None else []
        stops = stops if isinstance(stops, list) else [stops]
        ends = self.tokenizer.convert_tokens_to_ids(list(self.template.ends.values()))
        every = list(dict.fromkeys([*stops, *ends]))
        if every != stops:
            config.eos_token_id = every if len(every) > 1 else every[0]
        if config.pad_token_id is None:
            config.pad_token_id = self.padding

    # ---- rows without labels

    answers_by = auto_class

    def asked_columns(self, there: Collection[str]) -> dict[str, str]:
        fields = {name: column for name, column in self.columns().items() if name in ASKED}
        return {name: column for name, column in fields.items() if name not in OPTIONAL or column in there}

    def asked(self, row: dict, place: str) -> Chat:
        """The conversation up to the answer to be written; an answer that already ends it is left out.

        Raises UserError where there is none, or where the chat template cannot write it.
        """
        whole = getattr(self.settings, "messages_field", None)
        if whole is None:
            messages = self.prompt_of(place, {self.settings.input_field: None} | row)
        else:
            messages = self.messages_of("messages_field", whole, place, row, None)
            messages = messages[:-1] if messages[-1]["role"] == ASSISTANT else messages
        chat = self.with_system(Chat(messages, self.variables(place, row)))
        self.template.written(chat, place, add_generation_prompt=True)
        return chat

    def predict(self, finished: FinishedModel, asked: list[Chat]) -> list[dict[str, Any]]:
        prompts = list(map(self.prompt_ids, asked))
        return [{"prediction": text} for text in continuations(finished, self.tokenizer, prompts)]

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Token ids of a conversation up to the answer to be written. Raises UserError."""
        text = self.template.prompt(self.template.hidden(messages), "a question")
        return next(self._tokens([text], self.template.control))[0]

    # ---- samples

    def prompt_tokens(self, prompt: str) -> int:
        return len(self.prompt_ids(self.with_system(Chat([{"role": "user", "content": prompt}]))))

    def check_model_length(self, most: int) -> None:
        super().check_model_length(most)
        self.check_prompts(most)

    def sample_answer(self, finished: FinishedModel, ids: list[int]) -> str:
        """An answer of evaluation.sample_tokens, or of as many as the positions leave after a prompt that fits them."""
        most = self.recipe.evaluation.sample_tokens
        free = (most_positions(finished.model.config) or 0) - len(ids)
        return continuations(finished, self.tokenizer, [ids], min(most, free) if free > 0 else most)[0]

    def samples(self, finished: FinishedModel, splits: dict[str, Any]) -> list[dict]:
        """Answers to evaluation.sample_prompts, or else to the first conversations of a split other than `train`."""
        prompts = [(Chat([{"role": "user", "content": text}]), {}) for text in self.recipe.evaluation.sample_prompts]
        others = [rows for split, rows in splits.items() if split != "train"]
        if not prompts and others:
            questions, answers = others[0].texts("prompt")[:SAMPLES], others[0].texts("answer")[:SAMPLES]
            prompts = [(Chat.from_json(chat), {"reference": answer}) for chat, answer in zip(questions, answers)]
        questions = [self.prompt_ids(self.with_system(messages)) for messages, _ in prompts]
        texts = [self.sample_answer(finished, ids) for ids in questions]
        return [
            {"prompt": messages[-1]["content"], "text": text} | reference
            for (messages, reference), text in zip(prompts, texts)
        ]


def joins(prompt: str) -> UserError:
    """The error for a chat template whose prompt ends with what the tokenizer joins with the answer's first word."""
    return UserError(
        f"the tokenizer's chat template ends the prompt for an answer with {prompt[-16:]!r}, whose end the tokenizer "
        f"joins with the answer's first word, so that it could not be learned; change that end in chat_template.jinja, "
        f"or set tokenizer.name_or_path to one with another template"
    )
