"""Base of the tasks that learn answers in conversations: rows of examples, a chat template, samples at the end."""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..data.account import Account
from ..data.cells import IfThere
from ..data.documents import Corpus, in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..positions import most_positions
from ..recipes.recipe_files import chat_template_of
from ..recipes.row_words import Words
from ..recipes.schema import ObjectiveSettings, doc
from ..words import at_limit, counted
from .answering import continuations
from .answers import SAMPLES, Answers, FinishedModel
from .base import TOKENS, Objective
from .chat_forms import BESIDE, FORMS, SYSTEM, check_same_form, completed, form_of
from .chat_rows import ChatRows, Encoded, Turns
from .data import Data
from .example_reads import open_columns, stored, try_rows
from .learns import Learns
from .messages import ROLES, TOOLS, Chat, Conversations, Learned, is_learned
from .reads import Reads
from .showing import NOT_PREDICTED, tokens_text
from .tokens import Tokens, check_prompts, need_tokens, train_or_load

if TYPE_CHECKING:
    from ..data.examples import Example, Examples
    from .scores import Scored

ASKED = ("prompt_field", "input_field", "messages_field", *BESIDE)  # the prompt's columns
OPTIONAL = {name: name.removesuffix("_field") for name in ("input_field", *BESIDE)}  # read where data have them
DECODER = "AutoModelForCausalLM"


@dataclass
class ChatSettings(ObjectiveSettings):
    """Settings of all tasks over conversations."""

    enough_steps = 0  # a few epochs: more of few conversations are learned by heart

    prompt_field: str | None = doc(
        "column of what is asked: a text, or a list of messages {role, content}", "instruction"
    )
    input_field: str | None = doc(
        "column of a text that belongs to it, put after an empty line where there is one; null: none", "input"
    )
    tools_field: str | None = doc("column of the tools that may be called, a list or its JSON; null: none", TOOLS)
    system_field: str | None = doc("column of a system message, a text; null: as task.format recognises it")
    history_field: str | None = doc(
        "column of the turns before the prompt, pairs [question, answer] or messages; null: as system_field"
    )
    format: Literal["auto", *FORMS] = doc(
        "form of the rows, which says what each column is; auto: the columns set here if they are there, else the form "
        "that the content of the first rows shows. What is set here stays",
        "auto",
    )
    columns: dict[str, str] = doc("your columns for those of the form, as {instruction: ask, output: reply}", {})
    roles: dict[str, Literal[ROLES]] = doc("your roles for ours, as {customer: user, agent: assistant}", {})
    system: str | None = doc("text of a system message before each conversation that has none")
    learns: Learned = doc(
        "answers that are learned: all; the last one of a conversation; or those that carry a mark, such as weight: 1. "
        "One with weight: 0 is never learned",
        "answers",
    )
    max_length: int = doc("tokens per conversation; longer ones are cut at the end", 512, **TOKENS)


class ReadsChats(Reads):
    """Rows of conversations. A subclass says which columns hold answers, and makes rows from encoded conversations.

    _noun: what an example is, in words. _columns: {column: type} of a training row, as schema_of takes them. _turns,
    _mend: as ChatRows.encode takes them. The data's labels are the ChatRows.
    """

    _noun: ClassVar[str] = "conversation"
    _columns: ClassVar[dict[str, str]]
    _turns: Turns = "together"
    _mend: ClassVar[str]

    def columns(self) -> dict[str, str]:
        """Recipe field -> column that is read."""
        section = self.settings
        names = {name: getattr(section, name, name) for name in BESIDE}
        names |= {name: getattr(section, name) for name in ("prompt_field", "input_field") if section.prompt_field}
        there = {name: IfThere(column) for name, column in names.items() if column in (OPTIONAL.get(name), *SYSTEM)}
        return {name: column for name, column in (names | there).items() if column is not None}

    def text_columns(self) -> dict[str, str]:
        return {name: column for name, column in self.columns().items() if name not in BESIDE}

    def asked_columns(self, there: Collection[str] | None = None) -> dict[str, str]:
        there = self.text_columns().values() if there is None else there
        fields = {name: column for name, column in self.columns().items() if name in ASKED}
        return {name: column for name, column in fields.items() if name not in OPTIONAL or column in there}

    @abstractmethod
    def _conversations(self, read: Conversations, place: str, row: dict) -> list[Chat]:
        """The conversations of an example, each ending with an answer. Raises UserError."""

    @abstractmethod
    def _row_of(self, encoded: list[Encoded]) -> dict[str, Any] | None:
        """A row of an example: of one row of each of its conversations; None where no answer fits into max_length.

        `full` in it: one reaches max_length. `cut`: a part of an answer is beyond it.
        """

    def open(self) -> "dict[str, Examples]":
        sources = open_columns(self)
        for examples in sources.values():
            examples.source.view.says = form_of
        return sources

    def texts(self, source: "Examples") -> Corpus:
        from ..data.examples import ExampleTexts

        read = Conversations(self.settings, Account())

        def texts(place: str, row: dict) -> list[str]:
            # With the template's marks: a vocabulary of characters must contain every character of them.
            return [
                "".join(f"<|{part['role']}|>\n{part['content']}\n" for part in messages)
                for messages in self._conversations(read, place, row)
            ]

        return ExampleTexts(source, texts, {"texts": "chats", "system": self.settings.system})

    def prepare(self, sources: "dict[str, Examples]", tokenizer: Any = None) -> Data:
        """Raises UserError for a tokenizer without end-of-text token, or with a template that cannot be used."""
        tokenizer = train_or_load(self.objective, self.texts(sources["train"]), tokenizer)
        need_tokens(self.objective, tokenizer, eos="an end-of-text")
        if tokenizer.chat_template is None:
            tokenizer.chat_template = chat_template_of("plain")
        return Data(self.objective, self, tokenizer, ChatRows.with_ends(tokenizer), sources=sources)

    def rows(self, data: Data, source: "Examples", split: str) -> Rows:
        """Rows with `_columns`; in splits other than `train` also with the columns prompt and answer.

        Of the rows of a conversation the last one has these two, for its last answer; they are null in the others.
        """
        columns = self._columns | ({} if split == "train" else {"prompt": "string", "answer": "string"})
        section = self.settings
        of_rows = [section.max_length, section.system, data.tokenizer.chat_template, list(columns)]
        of_rows += [section.roles] if section.roles else []
        chosen = [section.learns, getattr(section, "turns", "auto")]
        of_rows += chosen if chosen != ["answers", "auto"] else []
        rows = stored(self, data, source, columns, of_rows, kind=[self.objective.name])
        rows.account.note(*self.objective.recognised)
        if not len(rows):
            raise UserError(
                f"task.max_length={section.max_length}: no {self._noun} of {source.name} leaves room for an answer; "
                f"set it higher"
            )
        return rows

    def with_rows(self, data: Data, source: "Examples") -> "Iterator[Example]":
        read = Conversations(self.settings, Account())
        for batch in in_batches(source):
            for example, rows in zip(batch, self._rows_of(data, read, batch)):
                yield from [example] * len(rows)

    try_examples = try_rows

    def _batches(self, data: Data, examples: "Examples", account: Account) -> Iterator[dict[str, Any]]:
        """Columns of the rows, batch after batch, with facts about them."""
        names, read = [*self._columns, "prompt", "answer"], Conversations(self.settings, account)
        for batch in in_batches(examples):
            made = self._rows_of(data, read, batch)
            columns = {name: [row[name] for rows in made for row in rows] for name in names}
            yield columns | {"facts": self._facts(made)}

    def _rows_of(self, data: Data, read: Conversations, batch: "list[Example]") -> list[list[dict[str, Any]]]:
        """The rows of each example, the last with prompt and answer of its first conversation."""
        per_row = self.objective.planned().sequences
        conversations = [(place, chat) for place, row in batch for chat in self._conversations(read, place, row)]
        encoded = data.labels.encode(conversations, read.account, self._turns, self._mend)
        made = []
        for start in range(0, len(conversations), per_row):
            of_chats = encoded[start : start + per_row]
            tried = [self._row_of(list(each)) for each in zip(*of_chats)]
            rows = [row | {"prompt": None, "answer": None} for row in tried if row is not None]
            if rows:
                chat = conversations[start][1]
                asked, answer = Chat(chat[:-1], chat.variables), data.labels.last_answer(chat, of_chats[0][-1])
                rows[-1] |= {"prompt": asked.to_json(), "answer": answer}
                rows[-1]["cut"] |= len(rows) < len(tried)
            made.append(rows)
        return made

    def show_texts(self, console: Any, number: int, place: str, row: dict) -> None:
        """Print an example before there is a tokenizer: what its conversations share, then the rest of each."""
        chats = self._conversations(Conversations(self.settings, Account()), place, row)
        parts = {"conversation": chats[0]}
        if len(chats) > 1:
            shared = chats[1].repeated
            parts = {"prompt": chats[0][:shared], "chosen": chats[0][shared:], "rejected": chats[1][shared:]}
        console.rule(f"{self._noun} {number}", align="left")
        for name, messages in parts.items():
            pieces = [(f"{name}:", "bold", False)]
            for message in messages:
                text = message["content"] + "".join(map(str, message.get("tool_calls", ())))
                style = NOT_PREDICTED if is_learned(message) else ""
                pieces += [(f" {message['role']}: ", "dim", False), (text, style, is_learned(message))]
            console.print(tokens_text(console, pieces))

    def _facts(self, made: list[list[dict[str, Any]]]) -> dict:
        """Counts of the rows of some examples, and of examples without a row."""
        with_rows = [rows for rows in made if rows]
        return {
            "examples": len(with_rows),
            "tokens": sum(len(row["input_ids"]) for rows in with_rows for row in rows),
            "at_max_length": sum(any(row["full"] for row in rows) for rows in with_rows),
            "answers_cut": sum(any(row["cut"] for row in rows) for rows in with_rows),
            "left_out": len(made) - len(with_rows),
        }

    def _described(self, rows: Rows, tokens: str) -> str:
        """A line about the encoded conversations. tokens: words that say how many tokens each has."""
        number, left_out = rows.facts["examples"], rows.facts["left_out"]
        limit = at_limit(rows.facts["at_max_length"], number, f"max_length={self.settings.max_length}")
        more = f"; {left_out:,} more left out, whose prompt alone is longer" if left_out else ""
        total = counted(number, self._noun)
        cut = rows.facts["answers_cut"]
        if cut > number / 10:
            more += f"\nin {cut:,} of {total} an answer is cut off at its end; raise task.max_length"
        return f"{total} of {rows.name}, {tokens}; {limit}{more}"


class LearnsChats(Learns):
    """Answers, and where they end."""

    shifts_labels = True

    def adapt(self, model: Any) -> None:
        """Let generation stop at the tokens that end answers."""
        config, template = model.generation_config, self.data.labels
        stops = config.eos_token_id if config.eos_token_id is not None else []
        stops = stops if isinstance(stops, list) else [stops]
        ends = self.tokenizer.convert_tokens_to_ids([end.strip() for end in template.ends.values()])
        every = list(dict.fromkeys([*stops, *ends]))
        if every != stops:
            config.eos_token_id = every if len(every) > 1 else every[0]
        if config.pad_token_id is None:
            config.pad_token_id = template.padding


class AnswersChats(Answers):
    """Questions, and conversations up to an answer, which the model writes."""

    head = DECODER

    def __init__(self, data: Data):
        super().__init__(data)
        self._template = data.labels or ChatRows(self.tokenizer)  # a finished model is asked without rows
        self._read = Conversations(self.settings, self.account)
        self.account.note(*self.objective.recognised)

    @property
    def finishes_on(self) -> str:
        return "all" if self.objective.metrics_of_answers() else "one"

    def check_prompts(self, most: int) -> None:
        prompts = self.recipe.evaluation.sample_prompts
        check_prompts([len(self._template.prompt_ids(self._question(text))) for text in prompts], most)

    def asked(self, row: dict, place: str) -> Chat:
        """The conversation up to the answer; raises UserError also where the chat template cannot write it."""
        chat = self._read.asked(place, row)
        self._template.counted(chat, place, self.account, self._template.asked)
        return chat

    def predict(self, finished: FinishedModel, asked: list[Chat]) -> list[dict[str, Any]]:
        prompts = list(map(self._template.prompt_ids, asked))
        return [{"prediction": text} for text in continuations(finished, self.tokenizer, prompts)]

    def samples(self, finished: FinishedModel, splits: dict[str, Rows], scored: "Scored | None") -> list[dict]:
        """Answers to evaluation.sample_prompts, or else to the first conversations of a split other than `train`."""
        prompts = [(self._question(text), {}) for text in self.recipe.evaluation.sample_prompts]
        others = [rows for split, rows in splits.items() if split != "train"]
        if not prompts and others:
            asked = zip(*(others[0].texts(name) for name in ("prompt", "answer")))
            prompts = [
                (self._read.with_system(Chat.from_json(chat)), {"reference": answer})
                for chat, answer in islice((pair for pair in asked if pair[0] is not None), SAMPLES)
            ]
        questions = [self._template.prompt_ids(chat) for chat, _ in prompts]
        texts = [self._sample(finished, ids) for ids in questions]
        return [
            {"prompt": chat[-1]["content"], "text": text} | reference for (chat, reference), text in zip(prompts, texts)
        ]

    def _question(self, text: str) -> Chat:
        return self._read.with_system(Chat([{"role": "user", "content": text}]))

    def _sample(self, finished: FinishedModel, ids: list[int]) -> str:
        """An answer of evaluation.sample_tokens, or of as many as the positions leave after a prompt that fits them."""
        most = self.recipe.evaluation.sample_tokens
        free = (most_positions(finished.model.config) or 0) - len(ids)
        return continuations(finished, self.tokenizer, [ids], min(most, free) if free > 0 else most)[0]


class ChatTask(Objective):
    """Base of the tasks over conversations."""

    section = "task"
    Reads: type[ReadsChats]
    Learns, Answers = LearnsChats, AnswersChats
    recognised: Sequence[str] = ()  # a sentence on the form of the rows, where the settings leave it to them
    auto_class = DECODER
    tokens = Tokens()
    continues_prompts = True
    words = Words(
        row="example",
        sample="answer to {prompt!r}",
        answers=True,
        use="anyformer chat {folder}",
        hub_task="text-generation",
    )

    def for_rows(self, asked: Sequence[dict[str, Any]] | None = None) -> "ChatTask":
        """The task with the columns of the form that the rows are in."""
        from ..data.opening import SPLITS, first_rows

        reads, is_asked = self.Reads(self), asked is not None
        rows, place = (asked, "") if is_asked else first_rows(self.recipe.data)
        wanted = reads.asked_columns() if is_asked else reads.columns()
        form = completed(self.settings, wanted, rows, place, is_asked) if rows else None
        task = self if form is None else type(self)(self.recipe.with_(task=form.settings))
        task.recognised = self.recognised if form is None else [form.words()]
        for split in () if is_asked else SPLITS[1:]:
            check_same_form(self.name, task.Reads(task).columns(), place, *first_rows(self.recipe.data, [split]))
        return task
