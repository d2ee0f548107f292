"""Classes or a number for a text or a pair of texts: how examples are read, and rows without labels answered."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
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
from ..storage.cache import kept_value
from ..tokenizers.control_tokens import text_tokenizer
from ..words import at_limit, counted
from .answering import of_scores, piped
from .answers import Answers, FinishedModel
from .base import TOKENS, Objective
from .class_labels import find_classes, with_class_notes
from .data import Data
from .example_reads import ReadsExamples, stored
from .showing import sequence_pieces, tokens_text
from .tokens import Tokens

if TYPE_CHECKING:
    from ..data.examples import Examples

SHOWN = 60  # characters of a text that several examples share


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


class LabelledTextTask(Objective):
    """Base of tasks over a text or a pair of texts. A subclass defines what a label is (`labels`).

    classes_in: (value, place) -> (place, class) of each class in a column's value; None: labels are no classes.
    """

    classes_in: ClassVar[Callable | None] = None

    section, row_labels = "task", {"labels": ()}
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

    def labels(self, reads: "ReadsLabelledTexts", sources: dict) -> Any:
        """The labels of the examples of all splits; by default classes. Raises UserError."""
        return find_classes(reads, sources)

    def answer_of(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer from the pipeline's result for a row: {"label", "score"} of each of the model's outputs."""
        return of_scores(found)


class ReadsLabelledTexts(ReadsExamples):
    """Texts or pairs of texts, which the model reads together, each with a label; for a teacher also texts without.

    _needs_both: whether nothing can be asked about the first text of a pair alone.
    """

    _needs_both: ClassVar[bool] = True

    @property
    def classes_in(self) -> Callable | None:
        return self.objective.classes_in

    def asked_columns(self, there: Collection[str] | None = None) -> dict[str, str]:
        columns, there = self.text_columns(), self.text_columns().values() if there is None else there
        of_pair = {name for name in columns if name.startswith("text_pair_field")}
        return {
            name: column
            for name, column in columns.items()
            if self._needs_both or name not in of_pair or column in there
        }

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

    def _labels(self, sources: "dict[str, Examples]") -> Any:
        return self.objective.labels(self, sources)

    def rows(self, data: Data, source: "Examples", split: str, labelled: bool = True) -> Rows:
        """Rows with the columns of the encoding, and labels. labelled: whether the examples have labels."""
        labels = data.labels
        columns = self._encoded_columns(data.tokenizer) | {"labels": labels.type}
        identity = labels.identity() if labelled else "no labels"
        settings = [self.settings.max_length, identity, list(columns)] + ["names"] * self.settings.text_names
        make = partial(self._batches, data, labelled=labelled)
        return stored(self, data, source, columns, settings, make=make)

    def _batches(
        self, data: Data, examples: "Examples", account: Account, labelled: bool = True
    ) -> Iterator[dict[str, list]]:
        labels, tokenizer = data.labels, text_tokenizer(data.tokenizer)
        missing = [] if labels.type.endswith("[]") else UNLABELLED
        for batch in in_batches(examples):
            texts = zip(*(self.texts_in(row, place, account) for place, row in batch))
            encoded = self._encoded(tokenizer, list(map(list, texts)))
            lengths = self._lengths(encoded)
            for (place, _), of_row in zip(batch, lengths):
                if not all(of_row):
                    raise UserError(f"task.text_field={self.settings.text_field!r}: {place} holds no token")
            of_batch = [labels.of(row, place, account) for place, row in batch] if labelled else []
            facts = {
                "examples": len(batch),
                "tokens": sum(len(ids) for ids in encoded["input_ids"]),
                "at_max_length": sum(max(of_row) >= self.settings.max_length for of_row in lengths),
                **labels.facts(of_batch),
            }
            yield {**encoded, "labels": of_batch or [missing] * len(batch), "facts": facts}

    def _encoded_columns(self, tokenizer: Any) -> dict[str, str]:
        """The columns of encoded texts, as schema_of takes them; token_type_ids are for pairs of texts."""
        pair = self.settings.text_pair_field is not None and "token_type_ids" in tokenizer.model_input_names
        return {"input_ids": "int32[]"} | ({"token_type_ids": "int8[]"} if pair else {})

    def _encoded(self, tokenizer: Any, texts: list[list[str]]) -> dict[str, list]:
        """{column: its value in each row} for a batch of examples. texts: for each text column, one per example."""
        return tokenizer(*texts, truncation=True, max_length=self.settings.max_length, padding=False)

    def _lengths(self, encoded: dict[str, list]) -> list[tuple[int, ...]]:
        """For each encoded example, the numbers of tokens that max_length bounds."""
        return [(len(ids),) for ids in encoded["input_ids"]]

    def completed(self, data: Data, rows: dict[str, Any]) -> dict[str, Any]:
        """With notes on texts that several examples share, in two splits or with several classes."""
        from ..data.examples import examples_fingerprint

        section, column = self.recipe.data, next(iter(self.text_columns().values()))
        is_divided = not (section.validation_files or section.validation_split or section.group_field)
        is_measured = self.facts.measured is not None
        learned = self._learned() if is_measured and "train" not in rows else None
        way_out = f"; data.group_field={column} keeps equal ones in one part" if is_divided and not is_measured else ""
        of_learned = learned and [examples_fingerprint(learned[1]), learned[0].text_columns()]
        identity = ["repeated texts", way_out, of_learned, [(split, one.fingerprint) for split, one in rows.items()]]
        found = partial(self._repeated, data, rows, learned, way_out)
        for split, sentences in kept_value(lambda: identity, found).items():
            rows[split].account.note(*sentences)
        return with_class_notes(self, data, rows)

    def _repeated(self, data: Data, rows: dict[str, Any], learned: tuple | None, way_out: str) -> dict[str, list[str]]:
        """Sentences on them for each split. learned: as `_learned`. way_out: what keeps equal texts in one split."""
        sentences, of_train = {}, set() if learned is None else set(learned[0].hashes(learned[1]))
        for split, one in rows.items():
            texts, classes, first = list(self.hashes(data.sources[split])), defaultdict(set), {}
            for number, (text, label) in enumerate(zip(texts, one.hashes("labels"))):
                classes[text].add(label)
                first.setdefault(text, number)
            twice = {text for text, labels in classes.items() if len(labels) > 1} if data.labels.names else ()
            kinds = [("also in train", of_train & first.keys(), way_out), ("of several classes", twice, "")]
            sentences[split] = []
            for what, some, then in kinds:
                if some:
                    ids = one[min(map(first.get, some))]["input_ids"]
                    text = data.tokenizer.decode(ids, skip_special_tokens=True)
                    shown = repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
                    sentences[split].append(f"{counted(len(some), 'text')} {what}, such as {shown}{then}")
            of_train = of_train or set(texts)
        return sentences

    def _learned(self) -> "tuple[ReadsLabelledTexts, Examples] | None":
        """What reads the texts by which the model that is measured was trained, and these; None: they are not there."""
        from ..plugins import objective_of
        from ..recipes.compose import load_recipe
        from ..recipes.recipe_files import recipe_beside

        own, name = self.recipe, self.recipe.model.name_or_path
        beside = name and recipe_beside(name)
        with suppress(UserError, OSError):
            recipe = load_recipe(beside, trust_remote_code=own.trust_remote_code) if beside else own
            if beside and recipe.learned.name == own.learned.name and not recipe.data.streaming:
                reads = type(self)(objective_of(recipe))
                return reads, reads.open()["train"]
        return None

    def hashes(self, source: "Examples") -> Iterator[int]:
        """A number for each example of a source that has texts, equal where the texts are."""
        for _, (place, row) in source.numbered():
            with suppress(UserError):
                if isinstance(row, dict):
                    yield hash(tuple(self.texts_in(row, place)))

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
        label, texts = row["labels"], self._texts_of(row)
        is_missing = label.dim() == 0 and label == UNLABELLED
        sizes = " and ".join(str(len(ids)) for ids in texts.values())
        words = "no label" if is_missing else data.labels.shown(label)
        console.rule(f"row {number}: {sizes} tokens, {words}", align="left")
        for name, ids in texts.items():
            console.print(tokens_text(console, sequence_pieces(ids.tolist(), data.tokenizer, name=name)))

    def _texts_of(self, row: dict) -> dict[str, Any]:
        """{what stands before it where it is shown: tokens} of each sequence of a row."""
        return {"": row["input_ids"]}


class AnswersTexts(Answers):
    """A class, or a number, for a text or a pair of texts."""

    head = LabelledTextTask.auto_class

    def asked(self, row: dict, place: str) -> dict[str, str]:
        return dict(zip(("text", "text_pair"), self.data.reads.texts_in(row, place, self.account)))

    def predict(self, finished: FinishedModel, asked: list[dict[str, str]]) -> list[dict[str, Any]]:
        results = piped(self, finished, "TextClassification", asked, top_k=None, truncation=True)
        return list(map(self.objective.answer_of, results))
