"""What tasks share that learn answers in conversations: messages from columns, chat template, samples at the end."""

import json
from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..data.cells import kind_of
from ..data.documents import Corpus, in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..recipes.schema import ObjectiveSettings, doc
from ..tokenizers.control_tokens import ControlTokens, text_tokenizer
from ..words import at_limit, counted
from .answering import continuations
from .base import TOKENS
from .finished_model import SAMPLES, FinishedModel
from .text_task import TextTask

# For a tokenizer that has none: the role in a line of its own, then the text, ended by the end-of-text token. All of
# these are in every vocabulary, so a model of any tokenizer learns them without a new embedding, and generation stops
# by itself. Zephyr's template (Tunstall et al. 2023), with the answer marked as transformers and TRL want it.
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
ASKED = ("prompt_field", "input_field", "messages_field")  # settings of the columns that are no answers

Messages = list[dict[str, str]]


@dataclass
class ChatSettings(ObjectiveSettings):
    """What all tasks over conversations have."""

    prompt_field: str | None = doc(
        "column of what is asked: a text, or a list of messages {role, content}", "instruction"
    )
    input_field: str | None = doc(
        "column of a text that belongs to it, put after an empty line where there is one; null: none", "input"
    )
    system: str | None = doc("text of a system message before each conversation that has none")
    max_length: int = doc("tokens per conversation; longer ones are cut at the end", 512, **TOKENS)


class ChatTask(TextTask):
    """A subclass says which columns hold answers, and makes rows of conversations.

    noun: what a row is made of. columns_of_rows: of numbers, as schema_of takes them.
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
        section = self.settings
        names = {"prompt_field": section.prompt_field, "input_field": section.input_field}
        return {field: column for field, column in names.items() if None not in (column, section.prompt_field)}

    # ---- messages

    def prompt_of(self, place: str, row: dict) -> Messages:
        """What is asked, as messages. Raises UserError."""
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
        """The messages in a column; raises UserError, naming `field`, for none.

        A text is one message of `role`. None: the column holds whole conversations, and a text is the JSON of one, as
        in CSV files.
        """
        value, where = row[column], f"task.{field}={column!r}: {place}"
        if isinstance(value, str):
            value = list_in_json(value) if role is None else [{"role": role, "content": value}]
        if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
            wanted = "neither a text nor a list of messages {role, content}"
            if role is None:
                wanted = "which is no list of messages {role, content}, nor its JSON"
            raise UserError(f"{where} holds {kind_of(row[column])}, {wanted}")
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
        """Prompt and answer, whose last message is the assistant's, after the recipe's system message."""
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
            # With the template's marks, of which a vocabulary of characters has to hold every one.
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
        asked = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if not any(learned) or ids[: len(asked)] != asked:
            raise joined(prompt)
        self.end_of_answer = [number for number, is_learned in zip(ids, learned) if is_learned][-1]

    def render(self, messages: Messages, place: str, **kwargs) -> str:
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        except TemplateError as error:
            raise UserError(f"{place} does not suit the tokenizer's chat template: {error}") from error

    def answers_in(self, messages: Messages, place: str) -> tuple[str, list[tuple[int, int]]]:
        """(a conversation as text, from where to where answers stand in it). Raises UserError."""
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
        """(token ids, whether each belongs to an answer, with the mark that ends it) of each (place, messages).

        An answer is what the template writes between the prompt for it and the next message, without white space at its
        end. A token that begins before it is not learned.

        Raises UserError for a prompt whose last space is in one token with the answer's first word: that word would not
        be learned, and the prompt of a generation, which ends in the space alone, would be unlike that of the training.

        A control token in a message is ordinary text, those of the template are control tokens: while the template
        writes the conversation, marks stand in place of the former.
        """
        control = ControlTokens(self.tokenizer)
        hidden = [
            (place, [message | {"content": control.hide(message["content"])} for message in messages])
            for place, messages in conversations
        ]
        parts = [self.answers_in(messages, place) for place, messages in hidden]
        found = []
        for (text, spans), (ids, offsets) in zip(parts, self._tokens([text for text, _ in parts], control)):
            for begin, _ in spans:
                if text[:begin].endswith(" ") and any(start < begin < end for start, end in offsets):
                    raise joined(text[:begin])
            found.append((ids, [any(a <= start and end <= b for a, b in spans) for start, end in offsets]))
        return found

    def _tokens(self, texts: list[str], control: ControlTokens) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """(token ids, where each stands) of each text, which may hold marks of control tokens."""
        encoded, as_text = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True), None
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"]):
            parts = control.split(text)
            if any(name for _, name in parts):
                ids, offsets, begin, as_text = [], [], 0, as_text or text_tokenizer(self.tokenizer)
                for part, name in parts:
                    read = self.tokenizer if name is None else as_text
                    own = read(name or part, add_special_tokens=False, return_offsets_mapping=True)
                    spans = own["offset_mapping"] if name is None else [(0, len(part))] * len(own["input_ids"])
                    ids += own["input_ids"]
                    offsets += [(begin + start, begin + end) for start, end in spans]
                    begin += len(part)
            yield ids, offsets

    @property
    def kind_of_rows(self) -> list[str]:
        return [self.name]

    def rows(self, source, split: str, cache: Path, progress: bool = False) -> Rows:
        """Rows of `columns_of_rows`; beside those that are not trained on stand prompt and answer."""
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
        """The encoded conversations in a line. tokens: how many each has, in words."""
        number, left_out = rows.facts["examples"], rows.facts["left_out"]
        limit = at_limit(rows.facts["at_max_length"], number, f"max_length={self.settings.max_length}")
        more = f"; {counted(left_out, 'more')} left out, whose prompt alone is longer" if left_out else ""
        return f"{counted(number, self.noun)} of {rows.name}, {tokens}; {limit}{more}"

    @abstractmethod
    def row_of(self, encoded: list[tuple[list[int], list[bool]]]) -> dict[str, Any] | None:
        """The row of an example's conversations, as `encode` gives them, with `full`, whether one reaches max_length.

        None where no answer has room.
        """

    def _batches(self, examples) -> Iterator[dict[str, Any]]:
        each, names = self.sequences_per_row, [*self.columns_of_rows, "prompt", "answer", "full"]
        for batch in in_batches(examples):
            asked = [(place, messages) for place, row in batch for messages in self.conversations(place, row)]
            encoded = self.encode(asked)
            rows = [self.row_of(encoded[start : start + each]) for start in range(0, len(asked), each)]
            found = [
                row | {"prompt": json.dumps(messages[:-1], ensure_ascii=False), "answer": messages[-1]["content"]}
                for row, (_, messages) in zip(rows, asked[::each])
                if row is not None
            ]
            yield {name: [row[name] for row in found] for name in names} | {"left_out": rows.count(None)}

    def _facts(self, batch: dict[str, Any]) -> dict:
        """Numbers of one batch that are worth telling."""
        return {
            "examples": len(batch["labels"]),
            "tokens": sum(map(len, batch["input_ids"])),
            "at_max_length": sum(batch["full"]),
            "left_out": batch["left_out"],
        }

    def prepare_model(self, model) -> None:
        """Let generation stop at the mark that ends an answer."""
        config = model.generation_config
        known = config.eos_token_id if config.eos_token_id is not None else []
        known = known if isinstance(known, list) else [known]
        if self.end_of_answer in self.tokenizer.all_special_ids and self.end_of_answer not in known:
            config.eos_token_id = [*known, self.end_of_answer] if known else self.end_of_answer
        if config.pad_token_id is None:
            config.pad_token_id = self.padding

    # ---- rows without labels

    answers_by = auto_class

    def asked_columns(self, there: Collection[str]) -> dict[str, str]:
        fields = {name: column for name, column in self.columns().items() if name in ASKED}
        return {name: column for name, column in fields.items() if name != "input_field" or column in there}

    def asked(self, row: dict, place: str) -> Messages:
        """The conversation up to the answer that is written; one that the row has already is left out."""
        whole = getattr(self.settings, "messages_field", None)
        if whole is None:
            return self.with_system(self.prompt_of(place, {self.settings.input_field: None} | row))
        messages = self.messages_of("messages_field", whole, place, row, None)
        return self.with_system(messages[:-1] if messages[-1]["role"] == ASSISTANT else messages)

    def predict(self, finished: FinishedModel, asked: list[Messages]) -> list[dict[str, Any]]:
        prompts = list(map(self.prompt_ids, asked))
        return [{"prediction": text} for text in continuations(finished, self.tokenizer, prompts)]

    def prompt_ids(self, messages: Messages) -> list[int]:
        """A conversation up to the answer that is to be written."""
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]

    # ---- samples

    def prompt_tokens(self, prompt: str) -> int:
        return len(self.prompt_ids(self.with_system([{"role": "user", "content": prompt}])))

    def check_model_length(self, most: int) -> None:
        super().check_model_length(most)
        self.check_prompts(most)

    def samples(self, finished: FinishedModel, splits: dict[str, Any]) -> list[dict]:
        """Answers to the first conversations of the validation, or to evaluation.sample_prompts."""
        prompts = [([{"role": "user", "content": text}], {}) for text in self.recipe.evaluation.sample_prompts]
        others = [rows for split, rows in splits.items() if split != "train"]
        if not prompts and others:
            asked, answers = others[0].texts("prompt")[:SAMPLES], others[0].texts("answer")[:SAMPLES]
            prompts = [(json.loads(messages), {"reference": answer}) for messages, answer in zip(asked, answers)]
        asked = [self.prompt_ids(self.with_system(messages)) for messages, _ in prompts]
        texts = continuations(finished, self.tokenizer, asked, self.recipe.evaluation.sample_tokens)
        return [
            {"prompt": messages[-1]["content"], "text": text} | beside
            for (messages, beside), text in zip(prompts, texts)
        ]


def joined(prompt: str) -> UserError:
    """The error for a chat template whose prompts end so that the tokenizer joins them with the answer."""
    return UserError(
        f"the tokenizer's chat template ends the prompt for an answer with {prompt[-16:]!r}, whose end the tokenizer "
        f"joins with the answer's first word, so that it could not be learned; change that end in chat_template.jinja, "
        f"or set tokenizer.name_or_path to one with another template"
    )


def list_in_json(text: str) -> list | None:
    """The list that a text is the JSON of; None where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None
