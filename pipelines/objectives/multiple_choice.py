"""Multiple choice: which of several texts continues a text or answers a question (SWAG, RACE, CommonsenseQA)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby
from typing import Any

from ..data.account import Account
from ..data.batch_keys import row_ids
from ..data.cells import text_of, texts_of
from ..data.documents import in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..lazy import torch
from ..plugins import METRICS, register_objective
from ..recipes.row_words import PREDICTS
from ..recipes.schema import ObjectiveSettings, doc
from ..recipes.types import show
from ..tokenizers.control_tokens import text_tokenizer
from ..words import at_limit, counted
from .answering import OF_SCORES, by_length, count_cut
from .answers import Answers, FinishedModel
from .base import TOKENS, Objective, Planned
from .class_labels import ClassScores
from .data import Data
from .example_reads import ReadsExamples, stored
from .label_values import count_text, held
from .showing import sequence_pieces, tokens_text
from .tokens import Tokens, padding_collator


@dataclass
class MultipleChoiceSettings(ObjectiveSettings):
    context_field: str | None = doc("column of a text that all choices go with (SWAG: sent1; RACE: article)", "context")
    question_field: str | None = doc("column of a text that stands before each choice (SWAG: sent2; RACE: question)")
    choices_field: str | list[str] = doc(
        "column with the list of choices, or several columns with one each (SWAG: [ending0, ending1, ...])",
        "choices",
    )
    label_field: str = doc(
        "column with the right choice: its number, from 0, also as digits in a text, or its letter (A, B, ...)", "label"
    )
    max_length: int = doc(
        "tokens per choice with its context, special ones included; longer texts are cut", 256, **TOKENS
    )


def joined_choices(
    settings: MultipleChoiceSettings, tokenizer, found: list[list[tuple[str, str]]]
) -> tuple[dict[str, list], int]:
    """(columns of rows, how many texts have max_length).

    found: `ReadsChoices.pairs` of examples with equally many choices.
    """
    first, second = zip(*(pair for pairs in found for pair in pairs))
    encoded = tokenizer(list(first), list(second), truncation=True, max_length=settings.max_length, padding=False)
    names = ("input_ids", "token_type_ids") if "token_type_ids" in encoded else ("input_ids",)
    joined: dict[str, list] = {name: [] for name in (*names, "choice_ends")}
    for start in range(0, len(first), len(found[0])):
        texts = slice(start, start + len(found[0]))
        for name in names:
            joined[name].append([value for text in encoded[name][texts] for value in text])
        joined["choice_ends"].append(list(accumulate(map(len, encoded["input_ids"][texts]))))
    return joined, sum(len(ids) >= settings.max_length for ids in encoded["input_ids"])


class ReadsChoices(ReadsExamples):
    """Contexts or questions, with their choices."""

    def text_in(self, row: dict, column: str, field: str, place: str) -> str:
        """The text of a column, which may be empty, or the choices of a list, one on each line."""
        if field == "choices_field":
            return "\n".join(texts_of(row, column, field, place, "choice"))
        return text_of(row, column, field, place)

    def rows(self, data: Data, source, split: str) -> Rows:
        """Examples as input_ids and token_type_ids of all choices in sequence, choice_ends, and labels."""
        section, columns = self.settings, {"input_ids": "int32[]", "choice_ends": "int32[]", "labels": "int32"}
        if "token_type_ids" in data.tokenizer.model_input_names:
            columns["token_type_ids"] = "int8[]"
        fields = [section.context_field, section.question_field, section.choices_field]
        return stored(self, data, source, columns, [section.max_length, *fields, list(columns)])

    def _batches(self, data: Data, examples, account: Account) -> Iterator[dict[str, list]]:
        tokenizer = text_tokenizer(data.tokenizer)
        number = by_letter = None
        for batch in in_batches(examples):
            choices = [self.pairs(row, place) for place, row in batch]
            number = number or len(choices[0])
            for (place, _), pairs in zip(batch, choices):
                if len(pairs) != number:
                    raise UserError(
                        f"task.choices_field={show(self.settings.choices_field)}: {place} holds "
                        f"{counted(len(pairs), 'choice')}, but the first example {number}; all need equally many"
                    )
            by_letter = is_letter(batch[0][1][self.settings.label_field]) if by_letter is None else by_letter
            labels = [self._label(row, place, number, by_letter, account) for place, row in batch]
            joined, full = joined_choices(self.settings, tokenizer, choices)
            facts = {
                "examples": len(labels),
                "tokens": sum(map(len, joined["input_ids"])),
                "classes": {str(right): labels.count(right) for right in range(number)},
                "choices": len(choices) * number,
                "at_max_length": full,
            }
            yield joined | {"labels": labels, "facts": facts}

    def pairs(self, row: dict, place: str) -> list[tuple[str, str]]:
        """(context, question and choice) or (question, choice), a pair of texts for each choice of an example."""
        section = self.settings
        texts = {field: self.text_in(row, column, field, place) for field, column in self.text_columns().items()}
        if isinstance(section.choices_field, str):
            choices = texts_of(row, section.choices_field, "choices_field", place, "choice")
        else:
            choices = [texts[f"choices_field.{number}"] for number in range(len(section.choices_field))]
        if len(choices) < 2:
            raise UserError(
                f"task.choices_field={show(section.choices_field)}: {place} holds {len(choices)}; it takes two"
            )
        for number, choice in enumerate(choices):
            if not choice.strip():
                raise UserError(f"task.choices_field={show(section.choices_field)}: {place}, choice {number} is empty")
        context, question = texts.get("context_field"), texts.get("question_field")
        if not any(text and text.strip() for text in (context, question)):  # one may be empty, as in HellaSwag
            columns = ((name, getattr(section, name)) for name in ("context_field", "question_field"))
            named = " and ".join(f"task.{name}={column!r}" for name, column in columns if column is not None)
            raise UserError(f"{named}: {place} holds an empty text; remove the example")
        if context is None:
            return [(question, choice) for choice in choices]
        return [(context, choice if question is None else f"{question} {choice}") for choice in choices]

    def _label(self, row: dict, place: str, number: int, by_letter: bool, account: Account) -> int:
        """The number of the right choice. by_letter: whether the first example names it by a letter; all must do alike.

        Raises UserError where letters and numbers are mixed: ARC has both, and counts its numbers from 1.
        """
        value, field = row[self.settings.label_field], f"task.label_field={self.settings.label_field!r}"
        if is_letter(name := getattr(value, "class_name", None)):  # its number is that of the letter in the file's list
            value = ord(name.upper()) - ord("A")
        if isinstance(value, str | int) and is_letter(value) != by_letter:
            raise UserError(
                f"{field}: {place} holds {value!r}, but others before it are {'letters' if by_letter else 'numbers'}; "
                f"write all as letters, or all as numbers from 0"
            )
        if is_letter(value):
            value = ord(value.upper()) - ord("A")
        elif isinstance(value, str) and value.isdecimal():  # CSV files hold numbers as texts
            value = int(value)
            count_text(account)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"{field}: {place} holds {held(value)}, which is no number or letter of a choice")
        if not 0 <= value < number:
            raise UserError(
                f"{field}: {place} holds {row[self.settings.label_field]!r}, but there are {number} choices, numbered "
                f"from 0"
            )
        return value

    def describe(self, data: Data, rows) -> str:
        facts = rows.facts
        choices = facts["choices"]
        return (
            f"{counted(facts['examples'], 'example')} of {rows.name} with {choices // facts['examples']} choices of "
            f"{facts['tokens'] / choices:.0f} tokens, of which "
            f"{at_limit(facts['at_max_length'], choices, f'max_length={self.settings.max_length}')}; right ones by "
            "number: " + ", ".join(f"{name} {count:,}" for name, count in facts["classes"].items())
        )

    def collator(self, data: Data, packed: bool) -> "ChoiceCollator":
        return ChoiceCollator(data.tokenizer)

    def show(self, console, data: Data, rows, number: int, row: dict) -> None:
        ends, right = row["choice_ends"].tolist(), int(row["labels"])
        console.rule(f"example {number}: {len(ends)} choices, {right} is right", align="left")
        for choice, (start, end) in enumerate(zip([0, *ends], ends)):
            mark = "→ " if choice == right else "  "
            pieces = sequence_pieces(row["input_ids"][start:end].tolist(), data.tokenizer, name=mark)
            console.print(tokens_text(console, pieces))


class AnswersChoices(Answers):
    """The number of the likeliest choice."""

    head = "AutoModelForMultipleChoice"

    def asked(self, row: dict, place: str) -> list[tuple[str, str]]:
        return self.data.reads.pairs(row, place)

    def predict(self, finished: FinishedModel, asked: list[list[tuple[str, str]]]) -> list[dict[str, Any]]:
        """The number of the likeliest choice, from 0, and the scores of all; rows may differ in how many they have."""
        tokenizer, collate, model = text_tokenizer(self.tokenizer), ChoiceCollator(self.tokenizer), finished.model

        def answer(items: list) -> list[dict[str, Any]]:
            shares = []
            for _, equals in groupby(items, len):
                for batch in in_batches(equals, finished.batch_size):
                    joined, full = joined_choices(self.settings, tokenizer, batch)
                    if full:
                        whole = tokenizer(*map(list, zip(*chain(*batch))), verbose=False)["input_ids"]
                        count_cut(self.account, sum(len(ids) > self.settings.max_length for ids in whole))
                    rows = [dict(zip(joined, map(torch.tensor, values))) for values in zip(*joined.values())]
                    labels = {"labels": torch.tensor(0)}  # a dummy, because the collator stacks labels
                    inputs = collate([row | labels for row in rows])
                    inputs = {name: x.to(model.device) for name, x in inputs.items() if name != "labels"}
                    with torch.inference_mode():
                        shares += model(**inputs).logits.float().softmax(-1).tolist()
            return shares

        longest = [(len(item), max(len("".join(pair)) for pair in item)) for item in asked]
        scores = by_length(asked, [number * 2**32 + length for number, length in longest], answer)
        best = [max(range(len(item)), key=item.__getitem__) for item in scores]
        return [{"prediction": number, "score": item[number], "scores": item} for number, item in zip(best, scores)]


@register_objective
class MultipleChoice(Objective):
    """The right one of several choices, such as how a text goes on (SWAG).

    Each choice is read with the context, as a pair of texts, and has a score; the softmax is over the choices of an
    example (Devlin et al. 2019, section 4.4). All examples have equally many choices.
    """

    name = "multiple_choice"
    section, row_labels = "task", {"labels": ()}
    Settings = MultipleChoiceSettings
    Reads, Scores, Answers = ReadsChoices, ClassScores, AnswersChoices
    auto_class = AnswersChoices.head
    tokens = Tokens("cls_sep")
    compares, gives = "classes", OF_SCORES
    default_metrics = ("accuracy",)
    words = replace(PREDICTS, hub_task="multiple-choice")

    @classmethod
    def metric_names(cls) -> list[str]:
        """Only metrics that do not look at single classes: a choice's number means nothing beyond its example."""
        return [name for name in METRICS if name in ("accuracy", "expected_calibration_error")]

    def check(self) -> None:
        super().check()
        section = self.settings
        if section.context_field is None and section.question_field is None:
            raise UserError("task.context_field and task.question_field are both null; choices go with one of them")
        if isinstance(section.choices_field, list) and len(set(section.choices_field)) < 2:
            raise UserError(f"task.choices_field={show(section.choices_field)} must name two or more different columns")

    def planned(self) -> Planned:
        """A sequence for each choice; four are assumed for a list in one column, whose length only the data tell."""
        choices = self.settings.choices_field
        return replace(super().planned(), sequences=4 if isinstance(choices, str) else len(choices))


def is_letter(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 1 and value.isascii() and value.isalpha()


class ChoiceCollator:
    """Examples -> one batch (B, C, T) of B examples with C choices each, padded to the longest choice; labels (B,)."""

    def __init__(self, tokenizer: Any):
        self.pad = padding_collator(tokenizer)

    def __call__(self, rows: list[dict]) -> dict:
        texts = []
        for row in rows:
            ends = row["choice_ends"].tolist()
            sizes = [end - start for start, end in zip([0, *ends], ends)]
            names = [name for name in ("input_ids", "token_type_ids") if name in row]
            parts = zip(*(row[name].split(sizes) for name in names))
            texts += [dict(zip(names, part)) for part in parts]
        batch = {name: x.view(len(rows), -1, x.shape[-1]) for name, x in self.pad(texts).items()}
        return batch | {"labels": torch.stack([row["labels"] for row in rows])} | row_ids(rows)
