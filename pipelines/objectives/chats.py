"""Base of the tasks that learn answers in conversations: messages from columns, chat template, samples at the end."""

import json
from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..data.cells import IfThere, kind_of
from ..data.documents import Corpus, in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..positions import most_positions
from ..recipes.schema import ObjectiveSettings, doc
from ..tokenizers.control_tokens import ControlTokens, text_tokenizer
from ..words import at_limit, counted
from .answering import continuations
from .base import TOKENS
from .finished_model import SAMPLES, FinishedModel
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
ASSISTANT = "assistant"
ASKED = ("prompt_field", "input_field", "messages_field")  # settings that name the prompt's columns

Messages = list[dict[str, str]]


@dataclass
class ChatSettings(ObjectiveSettings):
    """Settings of all tasks over conversations."""

    prompt_field: str | None = doc(
        "column of what is asked: a text, or a list of messages {role, content}", "instruction"
    )
    input_field: str | None = doc(
        "column of a text that belongs to it, put after an empty line where there is one; null: none", "input"
    )
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
    last_only: ClassVar[bool] = False  # whether only the last answer of a conversation is learned
    hub_task = "text-generation"
    finishes_on = "one"
    continues_prompts = True
    samples_are_answers = True
    sample_words = "answer to"
    use = 'anyformer generate {folder} "your question" --chat'

    def columns(self) -> dict[str, str]:
        section, further = self.settings, self.settings.input_field
        if further is not None and further == ChatSettings.input_field:  # not set: many data sets have no such column
            further = IfThere(further)
        names = {"prompt_field": section.prompt_field, "input_field": further}
        return {field: column for field, column in names.items() if None not in (column, section.prompt_field)}

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
        """The messages in a column. Raises UserError, which names `field`, where it holds none.

        A text is one message of `role`. With role=None the column holds whole conversations, and a text is the JSON of
        one, as in CSV files.
        """
        value, where = row[column], f"task.{field}={column!r}: {place}"
        if isinstance(value, str):
            value = list_in_json(value) if role is None else [{"role": role, "content": value}]
        if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
            problem = "neither a text nor a list of messages {role, content}"
            if role is None:
                problem = "which is no list of messages {role, content}, nor its JSON"
            raise UserError(f"{where} holds {kind_of(row[column])}, {problem}")
        for message in value:
            for name in ("role", "content"):
                if not isinstance(message.get(name), str):
                    raise UserError(f"{where} holds a message without {name}, which must be a text")
            if not message["content"].strip():
                raise UserError(f"{where} holds an empty text of the {message['role']}; leave the example out")
        if not value:
            raise UserError(f"{where} holds no message")
        return [{"role": message["role"], "content": message["content"]} for message in value]

    def conversation(self, field: str, prompt: Messages, answer: Messages, place: str) -> Messages:
        """System message, prompt and answer. Raises UserError if the last message is not the assistant's."""
        messages = [*prompt, *answer]
        if messages[-1]["role"] != ASSISTANT:
            raise UserError(
                f"task.{field}: {place} ends with a message of the {messages[-1]['role']}, not with an answer of the "
                f"{ASSISTANT}, which alone is learned"
            )
        return self.with_system(messages)

    def with_system(self, messages: Messages) -> Messages:
        system = self.settings.system
        if system is None or (messages and messages[0]["role"] == "system"):
            return messages
        return [{"role": "system", "content": system}, *messages]

    @abstractmethod
    def conversations(self, place: str, row: dict) -> list[Messages]:
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
        probe = [{"role": "user", "content": "a"}, {"role": ASSISTANT, "content": "b"}]
        ((ids, learned),) = self.encode([("a probe", probe)])
        prompt = self.render(probe[:1], "a probe", add_generation_prompt=True)
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if not any(learned) or ids[: len(prompt_ids)] != prompt_ids:
            raise joined(prompt)
        self.end_of_answer = [number for number, is_learned in zip(ids, learned) if is_learned][-1]

    def render(self, messages: Messages, place: str, **kwargs) -> str:
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        except TemplateError as error:
            raise UserError(f"{place} does not suit the tokenizer's chat template: {error}") from error

    def answers_in(self, messages: Messages, place: str) -> tuple[str, list[tuple[int, int]]]:
        """(a conversation as text, the character spans (begin, end) of its answers). Raises UserError."""
        text = self.render(messages, place)
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT or (self.last_only and number < len(messages) - 1):
                continue
            if number == 0:
                raise UserError(
                    f"{place} begins with a message of the {ASSISTANT}, before which nothing is asked; put a message "
                    f"of the user before it, or set task.system"
                )
            before = self.render(messages[:number], place, add_generation_prompt=True)
            through = self.render(messages[: number + 1], place).rstrip()
            if not through.startswith(before) or not text.startswith(through):
                raise UserError(
                    f"the tokenizer's chat template writes a message otherwise once another follows ({place}), so its "
                    f"answers cannot be told apart; set tokenizer.name_or_path to one with a plainer template"
                )
            spans.append((len(before), len(through)))
        return text, spans

    def encode(self, conversations: list[tuple[str, Messages]]) -> list[tuple[list[int], list[bool]]]:
        """(token ids, whether each token belongs to an answer or to the mark that ends it) for each (place, messages).

        An answer is what the template writes between its prompt and the next message, without white space at the end. A
        token that begins before the answer is not learned.

        Raises UserError where the tokenizer joins the prompt's last space with the answer's first word: that word would
        not be learned, and in generation, where the prompt ends with the space, the tokens would differ from training.

        A control token spelled out in a message is read as ordinary text: marks replace it while the template writes
        the conversation. Control tokens that the template itself writes stay control tokens.
        """
        control = ControlTokens(self.tokenizer)
        hidden = [
            (place, [message | {"content": control.hide(message["content"])} for message in messages])
            for place, messages in conversations
        ]
        parts = [self.answers_in(messages, place) for place, messages in hidden]
        encoded = []
        for (text, spans), (ids, offsets) in zip(parts, self._tokens([text for text, _ in parts], control)):
            for begin, _ in spans:
                if text[:begin].endswith(" ") and any(start < begin < end for start, end in offsets):
                    raise joined(text[:begin])
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
        for batch in in_batches(examples):
            rows = self._rows_of(batch)
            usable = [
                row | {"prompt": json.dumps(messages[:-1], ensure_ascii=False), "answer": messages[-1]["content"]}
                for row, messages in rows
                if row is not None
            ]
            yield {name: [row[name] for row in usable] for name in names} | {"left_out": len(rows) - len(usable)}

    def _rows_of(self, batch: list) -> list[tuple[dict[str, Any] | None, Messages]]:
        """(what row_of returns, its first conversation) of each example (place, row)."""
        per_row = self.sequences_per_row
        conversations = [(place, messages) for place, row in batch for messages in self.conversations(place, row)]
        encoded = self.encode(conversations)
        rows = [self.row_of(encoded[start : start + per_row]) for start in range(0, len(conversations), per_row)]
        return [(row, messages) for row, (_, messages) in zip(rows, conversations[::per_row])]

    def with_rows(self, source) -> Iterator[tuple[str, dict]]:
        for batch in in_batches(source):
            yield from (example for example, (row, _) in zip(batch, self._rows_of(batch)) if row is not None)

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
        """Let generation stop at the mark that ends an answer."""
        config = model.generation_config
        stops = config.eos_token_id if config.eos_token_id is not None else []
        stops = stops if isinstance(stops, list) else [stops]
        if self.end_of_answer in self.tokenizer.all_special_ids and self.end_of_answer not in stops:
            config.eos_token_id = [*stops, self.end_of_answer] if stops else self.end_of_answer
        if config.pad_token_id is None:
            config.pad_token_id = self.padding

    # ---- rows without labels

    answers_by = auto_class

    def asked_columns(self, there: Collection[str]) -> dict[str, str]:
        fields = {name: column for name, column in self.columns().items() if name in ASKED}
        return {name: column for name, column in fields.items() if name != "input_field" or column in there}

    def asked(self, row: dict, place: str) -> Messages:
        """The conversation up to the answer to be written; an answer that already ends it is left out."""
        whole = getattr(self.settings, "messages_field", None)
        if whole is None:
            return self.with_system(self.prompt_of(place, {self.settings.input_field: None} | row))
        messages = self.messages_of("messages_field", whole, place, row, None)
        return self.with_system(messages[:-1] if messages[-1]["role"] == ASSISTANT else messages)

    def predict(self, finished: FinishedModel, asked: list[Messages]) -> list[dict[str, Any]]:
        prompts = list(map(self.prompt_ids, asked))
        return [{"prediction": text} for text in continuations(finished, self.tokenizer, prompts)]

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Token ids of a conversation up to the answer to be written."""
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]

    # ---- samples

    def prompt_tokens(self, prompt: str) -> int:
        return len(self.prompt_ids(self.with_system([{"role": "user", "content": prompt}])))

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
        prompts = [([{"role": "user", "content": text}], {}) for text in self.recipe.evaluation.sample_prompts]
        others = [rows for split, rows in splits.items() if split != "train"]
        if not prompts and others:
            questions, answers = others[0].texts("prompt")[:SAMPLES], others[0].texts("answer")[:SAMPLES]
            prompts = [(json.loads(messages), {"reference": answer}) for messages, answer in zip(questions, answers)]
        questions = [self.prompt_ids(self.with_system(messages)) for messages, _ in prompts]
        texts = [self.sample_answer(finished, ids) for ids in questions]
        return [
            {"prompt": messages[-1]["content"], "text": text} | reference
            for (messages, reference), text in zip(prompts, texts)
        ]


def joined(prompt: str) -> UserError:
    """The error for a chat template whose prompt ends with what the tokenizer joins with the answer's first word."""
    return UserError(
        f"the tokenizer's chat template ends the prompt for an answer with {prompt[-16:]!r}, whose end the tokenizer "
        f"joins with the answer's first word, so that it could not be learned; change that end in chat_template.jinja, "
        f"or set tokenizer.name_or_path to one with another template"
    )


def list_in_json(text: str) -> list | None:
    """The list that `text` is the JSON of; None where it is not the JSON of a list."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None
