"""Instructions and their answers, or whole conversations, of which only the answers are learned."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..data.batch_keys import IGNORE_INDEX
from ..data.cells import text_of
from ..data.rows import Rows
from ..plugins import METRICS, register_objective
from ..recipes.schema import Recipe, doc
from ..words import counted
from .answering import continuations
from .answers import FinishedModel
from .chat_rows import Encoded, Turns
from .chats import ChatSettings, ChatTask, ReadsChats
from .collectives import ASSISTANT, Chat, Conversations
from .data import Data
from .scores import Scored
from .showing import is_label, row_pieces, tokens_text
from .text import PerplexityScores

if TYPE_CHECKING:
    from ..data.examples import Examples


@dataclass
class InstructionTuningSettings(ChatSettings):
    answer_field: str = doc("column of the answer: a text, or a list of messages {role, content}", "output")
    messages_field: str | None = doc(
        "column of whole conversations, lists of messages {role, content} or their JSON; takes the place of the other "
        "columns"
    )
    turns: Turns = doc(
        "together: all answers of a conversation in one row; apart: a row for each, behind exactly the prompt that the "
        "model will be asked with; auto: together where the tokens are the same, which the chat template decides",
        "auto",
    )
    packing: bool = doc("several whole conversations share a row, none sees another; false: one to a row", True)
    max_new_tokens: int = doc("tokens of an answer that is written to be measured, such as by bleu", 128, at_least=1)


class ReadsInstructions(ReadsChats):
    """The conversations as input_ids and labels (-100 except in answers), one or several to a row."""

    legend = (
        "a colour per conversation; [unpredicted]underlined[/]: read, but not learned; the rest is learned "
        "(without colours what [[ ]] hold): the answers and what ends them; [padding]struck through[/]: padding"
    )

    _columns = {"input_ids": "int32[]", "labels": "int32[]"}
    _mend = "turns=auto"

    @property
    def _turns(self) -> Turns:
        return self.settings.turns

    def columns(self) -> dict[str, str]:
        section, columns = self.settings, super().columns()
        if section.messages_field is None:
            return columns | {"answer_field": section.answer_field}
        others = {name: column for name, column in columns.items() if name not in ("prompt_field", "input_field")}
        return others | {"messages_field": section.messages_field}

    def _conversations(self, read: Conversations, place: str, row: dict) -> list[Chat]:
        if self.settings.messages_field is not None:
            messages = read.messages("messages_field", place, row, None)
            return [read.learned("messages_field", [], messages, place, row)]
        answer = read.messages("answer_field", place, row, ASSISTANT)
        return [read.learned("answer_field", read.prompt(place, row), answer, place, row)]

    def _row_of(self, encoded: list[Encoded]) -> dict[str, Any] | None:
        longest = self.settings.max_length
        ((ids, learned),) = encoded
        labels = [number if is_learned else IGNORE_INDEX for number, is_learned in zip(ids[:longest], learned)]
        if not any(learned[:longest]):
            return None
        full, cut = len(ids) >= longest, any(learned[longest:])
        return {"input_ids": ids[:longest], "labels": labels, "full": full, "cut": cut}

    def rows(self, data: Data, source: "Examples", split: str) -> Rows:
        encoded = super().rows(data, source, split)
        if not self.settings.packing:
            return encoded
        from ..data.packing import PackedExamples

        return PackedExamples(encoded, self.settings.max_length, data.labels.padding)

    def _facts(self, made: list[list[dict[str, Any]]]) -> dict:
        learned = sum(label >= 0 for rows in made for row in rows for label in row["labels"])
        facts, apart = super()._facts(made) | {"answer_tokens": learned}, [rows for rows in made if len(rows) > 1]
        if apart:
            more = sum(len(row["input_ids"]) for rows in apart for row in rows[:-1])
            facts["apart"] = {"conversations": len(apart), "rows": sum(map(len, apart)), "tokens": more}
        return facts

    def collator(self, data: Data, packed: bool) -> Callable[[list[dict]], dict]:
        from ..data.length_batching import PaddingCollator
        from .causal import CausalCollator

        return CausalCollator(packed) if self.settings.packing else PaddingCollator(data.labels.padding)

    def questions(self, data: Data, source: "Examples") -> Iterator[tuple[dict[str, str], str]]:
        section, columns = self.settings, self.asked_columns()
        for place, row in source:
            cells = (
                row if section.input_field is None else row | {section.input_field: row.get(section.input_field) or ""}
            )
            texts = {column: text_of(cells, column, field, place) for field, column in columns.items()}
            yield texts, text_of(row, section.answer_field, "answer_field", place)

    def describe(self, data: Data, rows: Rows) -> str:
        facts = rows.facts
        number = facts["examples"]
        answers = f"{facts['answer_tokens'] / number:.0f} are answers"
        text = self._described(rows, f"{facts['tokens'] / number:.0f} tokens each, of which {answers}")
        if "apart" in facts:
            words = (
                "{conversations:,} of them in {rows:,} rows, one for each answer: {tokens:,} tokens more than together"
            )
            text += f"\n{words.format(**facts['apart'])} (task.turns={self._turns})"
        if "fill_rate" in facts:
            text += f"\npacked into {counted(len(rows), 'row')}, {facts['fill_rate']:.1%} filled"
        return text

    def show(self, console, data: Data, rows: Rows, number: int, row: dict) -> None:
        documents = rows.documents(number, row) or [(number, 0, len(row["input_ids"]))]
        learned = int(is_label(row["labels"]).sum())
        conversations = counted(len(documents), "conversation")
        console.rule(f"row {number}: {len(row['input_ids'])} tokens, {conversations}, {learned} learned", align="left")
        console.print(tokens_text(console, row_pieces(row, documents, data.tokenizer)))


class AnswerScores(PerplexityScores):
    """Perplexity of the answers' tokens; metrics of texts compare the last answers with what the model writes there."""

    def of_answers(self, finished: FinishedModel, rows: Rows, numbers: Sequence[int]) -> Scored:
        """Metrics of the last answers of the conversations in the rows `numbers`; every process writes a share."""
        names = self.objective.metrics_of_answers()
        if not names:
            return Scored()
        in_rows = ([document[0] for document in rows.documents(number)] or [number] for number in numbers)
        prompts, references = map(rows.texts, ("prompt", "answer"))
        last = [number for number, prompt in enumerate(prompts) if prompt is not None]  # row of each conversation
        conversations = sorted({last[bisect_left(last, number)] for members in in_rows for number in members})

        def write(mine: list[int]) -> list[str]:
            ids = [self.data.labels.prompt_ids(Chat.from_json(prompts[number])) for number in mine]
            return continuations(finished, self.tokenizer, ids, self.settings.max_new_tokens)

        written = [text.strip() for text in finished.shared(conversations, write)]
        true = [references[number].strip() for number in conversations]
        return self._compare(written, true, names=names, rows=conversations)


@register_objective
class InstructionTuning(ChatTask):
    """Answers to instructions, or the assistant's part of conversations, by a chat template.

    Next-token prediction on the tokens of the answers (Ouyang et al. 2022, section 3.4), as TRL's SFTTrainer with
    assistant_only_loss computes it. The template is the tokenizer's own, else a plain one that is saved with it.
    Metrics of texts, such as bleu, compare the last answer of each conversation with what the model writes there.
    """

    name = "instruction_tuning"
    Settings = InstructionTuningSettings
    Reads, Scores = ReadsInstructions, AnswerScores
    compares, also_compares = "tokens", ("texts",)
    default_metrics = ("perplexity",)
    words = replace(ChatTask.words, step="conversations", loss="nats per token of the answers")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        if self.settings.packing:
            self.words = replace(self.words, step=f"rows x {self.settings.max_length} tokens")

    @property
    def asks_for(self) -> str | None:
        section = self.settings
        return "texts" if section.messages_field is None and section.prompt_field is not None else None

    def metrics_of_answers(self) -> list[str]:
        return [name for name in self.metrics if METRICS[name].fits("texts")]
