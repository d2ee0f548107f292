"""Classes or a number for a text or a pair of texts: how examples are read, and rows without labels answered."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..data.account import Account
from ..data.batch_keys import UNLABELLED
from ..data.cells import text_of
from ..data.documents import in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..recipes.introspection import check_beside, show
from ..recipes.row_words import PREDICTS, your_text
from ..recipes.schema import ObjectiveSettings, doc
from ..tokenizers.control_tokens import text_tokenizer
from ..words import at_limit, counted
from .answering import of_scores, piped
from .answers import Answers, FinishedModel
from .base import TOKENS, Objective
from .class_labels import try_classes, with_class_notes
from .data import Data
from .example_reads import ReadsExamples, stored
from .repeated_texts import note_repeated
from .showing import sequence_pieces, tokens_text
from .tokens import Tokens

if TYPE_CHECKING:
    from ..data.examples import Example, Examples


@dataclass
class LabelledTextSettings(ObjectiveSettings):
    text_field: str | list[str] = doc(
        "column that holds the text, or several, such as [Subject, Description], whose texts become lines of one",
        "text",
    )
    text_names: bool = doc("several columns of text: write the name of each before its text", False)
    text_pair_field: str | None = doc("column of a second text, judged together with the first")
    max_length: int = doc("tokens per text, special ones included; longer texts are cut", 256, **TOKENS)


def your_text_or_pair(settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The example of a model that reads a text or a pair of texts."""
    pair = {"text": "your text", "text_pair": "your second text"}
    return your_text(settings) if settings.get("text_pair_field") is None else (pair, {})


class LabelledTextTask(Objective, ABC):
    """Base of tasks over a text or a pair of texts. A subclass defines what a label is (`labels`).

    classes_in: (value, place) -> (place, class) of each class in a column's value; None: labels are no classes.
    """

    classes_in: ClassVar[Callable | None] = None

    section = "task"
    auto_class = "AutoModelForSequenceClassification"
    # The head reads one token's vector: the last token's in a decoder, the end-of-text token's in an encoder-decoder.
    tokens = Tokens("cls_sep", {"AutoModelForCausalLM": "none", "AutoModelForSeq2SeqLM": "eos"})
    words = replace(PREDICTS, hub_task="text-classification", example=your_text_or_pair)

    def check(self) -> None:
        super().check()
        named = self.settings.text_field
        if not named or (isinstance(named, list) and len(set(named)) < len(named)):
            raise UserError(f"task.text_field={show(named)} must name a column, or several different ones")
        check_beside("task", self.settings, [("text_names=", isinstance(named, str), "is of several text columns")])

    @abstractmethod
    def labels(self, reads: "ReadsLabelledTexts", sources: dict, cache: Path) -> Any:
        """The labels of the examples of all splits, such as ClassLabels. Raises UserError."""

    def answer_of(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer from the pipeline's result for a row: {"label", "score"} of each of the model's outputs."""
        return of_scores(found)

    def encoding(self) -> "JoinedTexts":
        """How the texts of an example become token ids."""
        return JoinedTexts(self.settings)


class JoinedTexts:
    """The encoding of a text, or of a pair of texts that the model reads together.

    needs_both: whether nothing can be asked about the first text of a pair alone.
    """

    needs_both = True

    def __init__(self, settings: LabelledTextSettings):
        self.settings = settings

    def columns(self, tokenizer) -> dict[str, str]:
        """The columns that it makes, as schema_of takes them; token_type_ids are for pairs of texts."""
        pair = self.settings.text_pair_field is not None and "token_type_ids" in tokenizer.model_input_names
        return {"input_ids": "int32[]"} | ({"token_type_ids": "int8[]"} if pair else {})

    def encode(self, tokenizer, texts: list[list[str]]) -> dict[str, list]:
        """{column: its value in each row} for a batch of examples. texts: for each text column, one per example."""
        return tokenizer(*texts, truncation=True, max_length=self.settings.max_length, padding=False)

    def lengths(self, batch: dict[str, list]) -> list[tuple[int, ...]]:
        """For each encoded example, the numbers of tokens that max_length bounds."""
        return [(len(ids),) for ids in batch["input_ids"]]

    def collator(self, pads, tokenizer) -> Any:
        """The collator of these rows. pads: that of rows with one sequence."""
        return pads

    def show(self, console, tokenizer, number: int, row: dict, label: str) -> None:
        console.rule(f"row {number}: {len(row['input_ids'])} tokens, {label}", align="left")
        console.print(tokens_text(console, sequence_pieces(row["input_ids"].tolist(), tokenizer)))


class ReadsLabelledTexts(ReadsExamples):
    """Texts or pairs of texts, each with a label; for a teacher also texts without."""

    def asked_columns(self, there: Collection[str] | None = None) -> dict[str, str]:
        needed = self.objective.encoding().needs_both
        columns, there = self.text_columns(), self.text_columns().values() if there is None else there
        of_pair = {name for name in columns if name.startswith("text_pair_field")}
        return {name: column for name, column in columns.items() if needed or name not in of_pair or column in there}

    def texts_in(self, row: dict, place: str, account: Account | None = None) -> list[str]:
        """The text of an example, or both of a pair; of several columns those with a text, and the others counted."""
        texts = []
        for field in dict.fromkeys(name.partition(".")[0] for name in self.asked_columns(row)):
            named = getattr(self.settings, field)
            if isinstance(named, str):
                texts.append(self.text_in(row, named, field, place))
                continue
            empty = [column for column in named if row[column] is None or not str(row[column]).strip()]
            if len(empty) == len(named):
                raise UserError(f"task.{field}={show(named)}: {place} holds no text in any of them; remove the example")
            for column in empty if account is not None else ():
                account.left_out("part", f"of texts left out, as {column!r} is empty")
            parts = {column: text_of(row, column, field, place) for column in named if column not in empty}
            lines = [f"{column}: {part}" if self.settings.text_names else part for column, part in parts.items()]
            texts.append("\n".join(lines))
        return texts

    def _labels(self, sources: "dict[str, Examples]", cache: Path) -> Any:
        return self.objective.labels(self, sources, cache)

    def try_examples(self, examples: "list[Example]", data: Data | None) -> None:
        super().try_examples(examples, data)
        classes_in = self.objective.classes_in
        if data is None and classes_in is not None:
            try_classes(self.settings, examples, classes_in)

    def rows(
        self, data: Data, source: "Examples", split: str, cache: Path, progress: bool = False, labelled: bool = True
    ) -> Rows:
        """Rows with the columns of the encoding, and labels. labelled: whether the examples have labels."""
        labels = data.labels if labelled else NoLabels(data.labels)
        columns = self.objective.encoding().columns(data.tokenizer) | {"labels": labels.type}
        settings = [self.settings.max_length, labels.identity(), list(columns)] + ["names"] * self.settings.text_names
        return stored(self, data, source, cache, columns, settings, make=partial(self._batches, data, labels=labels))

    def _batches(
        self, data: Data, examples: "Examples", account: Account, labels: Any = None
    ) -> Iterator[dict[str, list]]:
        encoding, labels = self.objective.encoding(), labels or data.labels
        tokenizer = text_tokenizer(data.tokenizer)
        for batch in in_batches(examples):
            texts = zip(*(self.texts_in(row, place, account) for place, row in batch))
            encoded = encoding.encode(tokenizer, list(map(list, texts)))
            lengths = encoding.lengths(encoded)
            for (place, _), of_row in zip(batch, lengths):
                if not all(of_row):
                    raise UserError(f"task.text_field={self.settings.text_field!r}: {place} holds no token")
            of_batch = [labels.of(row, place, account) for place, row in batch]
            facts = {
                "examples": len(batch),
                "tokens": sum(len(ids) for ids in encoded["input_ids"]),
                "at_max_length": sum(max(of_row) >= self.settings.max_length for of_row in lengths),
                **labels.facts(of_batch),
            }
            yield {**encoded, "labels": of_batch, "facts": facts}

    def completed(self, data: Data, rows: dict[str, Any], cache: Path, progress: bool) -> dict[str, Any]:
        """With notes on texts that several examples share."""
        section, column = self.recipe.data, next(iter(self.text_columns().values()))
        is_divided = not (section.validation_files or section.validation_split or section.group_field)
        is_measured = self.facts.measured is not None
        learned = self._learned(data, cache) if is_measured and "train" not in rows else {}
        way_out = f"; data.group_field={column} keeps equal ones in one part" if is_divided and not is_measured else ""
        note_repeated(data, learned | rows, way_out)
        return with_class_notes(self, data, rows, cache, progress)

    def _learned(self, data: Data, cache: Path) -> dict[str, Any]:
        """{"train": the rows by which the model that is measured was trained}; {} where they cannot be read."""
        from ..plugins import objective_of
        from ..recipes.compose import load_recipe
        from ..recipes.recipe_files import recipe_beside
        from .prepare import leaves_out

        own, name = self.recipe, self.recipe.model.name_or_path
        beside = name and recipe_beside(name)
        with suppress(UserError, OSError):
            recipe = load_recipe(beside, trust_remote_code=own.trust_remote_code) if beside else own
            if beside and recipe.learned.name == own.learned.name and not recipe.data.streaming:
                objective, is_same = objective_of(recipe), recipe.learned == own.learned
                reads = objective.Reads(objective, replace(self.facts, recipe=recipe, split="train"))
                train = reads.open()["train"]
                leaves_out(reads, {"train": train}, UserError(""), None)
                return {"train": reads.rows(data, train, "train", cache, labelled=is_same)}
        return {}

    def collator(self, data: Data, packed: bool) -> Any:
        return self.objective.encoding().collator(super().collator(data, packed), data.tokenizer)

    def _true_answer(self, data: Data, row: dict, place: str) -> Any:
        return data.labels.answer(row, place)

    # ---- words

    def describe(self, data: Data, rows: Rows) -> str:
        facts = rows.facts
        return (
            f"{counted(facts['examples'], 'example')} of {rows.name}, "
            f"{facts['tokens'] / facts['examples']:.0f} tokens each, "
            f"{at_limit(facts['at_max_length'], facts['examples'], f'max_length={self.settings.max_length}')}; "
            f"{data.labels.words(facts)}"
        )

    def show(self, console, data: Data, rows: Rows, number: int, row: dict) -> None:
        label = row["labels"]
        is_missing = label.dim() == 0 and label == UNLABELLED
        words = "no label" if is_missing else data.labels.shown(label)
        self.objective.encoding().show(console, data.tokenizer, number, row, words)


class NoLabels:
    """The labels of texts whose own are not read, as only a teacher answers them. labels: those of the other texts."""

    def __init__(self, labels: Any):
        self.type, self.others = labels.type, labels

    def of(self, row: dict, place: str, account: Account | None = None) -> int | list[int]:
        return [] if self.type.endswith("[]") else UNLABELLED

    def identity(self) -> str:
        return "no labels"

    def facts(self, labels: list) -> dict[str, Any]:
        return self.others.facts([])


class AnswersTexts(Answers):
    """A class, or a number, for a text or a pair of texts."""

    head = LabelledTextTask.auto_class

    def asked(self, row: dict, place: str) -> dict[str, str]:
        return dict(zip(("text", "text_pair"), self.data.reads.texts_in(row, place, self.account)))

    def predict(self, finished: FinishedModel, asked: list[dict[str, str]]) -> list[dict[str, Any]]:
        results = piped(self, finished, "TextClassification", asked, top_k=None, truncation=True)
        return list(map(self.objective.answer_of, results))
