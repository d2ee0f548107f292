"""A tag for each word of a sentence: named entities, parts of speech."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..data.account import Account
from ..data.batch_keys import IGNORE_INDEX, WORDS
from ..data.cells import filled_text_of, list_in, texts_of
from ..data.documents import in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..lazy import np, torch
from ..metrics.tag_parts import OUTSIDE, parts, spelled
from ..plugins import METRICS, register_objective
from ..recipes.row_words import PREDICTS
from ..recipes.schema import doc
from ..words import counted
from .answering import piped
from .answers import Answers, FinishedModel
from .base import TOKENS, Objective
from .class_labels import (
    ClassScores,
    Judged,
    LearnsClasses,
    NamedClassSettings,
    find_classes,
    names_of_outputs,
    texts_of_row,
)
from .data import Data
from .example_reads import ReadsExamples, stored
from .label_values import held
from .scores import Scored
from .showing import tagged_pieces, tokens_text
from .tagged_words import TaggedWords, TagLabels, check_scheme, scheme_of, word_of_each_token
from .tokens import Tokens, need_offsets, padding_collator

if TYPE_CHECKING:
    from ..data.examples import Example, Examples

# labelled_token -> the aggregation_strategy by which transformers' pipeline reads the tokens that learned a word's tag;
# None: it has no strategy for last tokens.
STRATEGIES = {"first": "first", "last": None, "all": "simple"}


@dataclass
class TokenClassificationSettings(NamedClassSettings):
    tokens_field: str = doc("column with the list of words of a sentence", "tokens")
    sentence_field: str | None = doc(
        "column that says to which sentence a word belongs, of tables with a word in each row (there tokens_field and "
        "tags_field name the columns of a word and its tag): another value begins a sentence, an empty one goes on; "
        "null: a sentence is in each row",
        None,
    )
    tags_field: str = doc("column with the list of their tags, names or numbers", "tags")
    scheme: Literal["bio", "iob1", "io", "bioes", "bilou", "bmes", "bmewo", "plain"] | None = doc(
        "how tags mark entities: bio (B- begins one, I- goes on; also called BIO2), iob1 (I- begins one, too), io (I- "
        "alone), bioes (E- ends one, S- is one), bilou (L- and U-), bmes (M- goes on), bmewo (W- is one), plain (they "
        "mark none, as parts of speech); also as B_PER, PER-B, PER_B; all are learned as B- and I-, which pipelines "
        "read; null: the scheme of most tags' names"
    )
    labelled_token: Literal["first", "last", "all"] = doc(
        "which tokens of a word the tag is learned at; measured at its first one, or its last one", "first"
    )
    max_length: int = doc(
        "tokens per sentence, special ones included; longer ones are cut, and the words beyond are counted",
        256,
        **TOKENS,
    )


class ReadsTags(ReadsExamples):
    """Sentences of tagged words; for a teacher also sentences without tags.

    `prepare` raises UserError for a tokenizer without offsets, tags that do not follow the scheme, and metrics of
    entities where tags mark none.
    """

    legend = (
        "the sentence as the model reads it, a colour per type of entity, tags behind the tokens that they are learned "
        "at; [unpredicted]tokens without a tag of their own[/] (without colours [[ ]]: those with one)"
    )

    def text_in(self, row: dict, column: str, field: str, place: str) -> str:
        """The words, joined by spaces."""
        return " ".join(texts_of(row, column, field, place, "word"))

    def prepare(self, sources: "dict[str, Examples]", tokenizer: Any = None) -> Data:
        data = super().prepare(sources, tokenizer)
        need_offsets(self.objective, data.tokenizer)
        labels, section = data.labels, self.recipe.evaluation
        if self.settings.scheme is not None:
            check_scheme(labels.classes.names, labels.scheme)
        names = [] if section.metrics == list(self.objective.default_metrics) else section.metrics
        for name in [*names, section.best_metric]:
            if name in METRICS and METRICS[name].of_entities and labels.scheme == "plain":
                raise UserError(
                    f"evaluation.metrics={name!r} counts entities, but the tags {', '.join(labels.names[:4])}, ... "
                    f"mark none (B-..., I-..., O); name them by task.label_names, or use tag_accuracy"
                )
        return data

    def _labels(self, sources: "dict[str, Examples]") -> TagLabels:
        labels = find_classes(self, sources, learned=self._learned, kind=TagLabels)
        return replace(labels, scheme=self._scheme(labels.classes.names))

    def _scheme(self, names: list[str]) -> str:
        return self.settings.scheme or scheme_of(names)

    def _learned(self, names: list[str]) -> list[str]:
        """The names of the tags as bio, unless a checkpoint has learned the tags as they are."""
        if self._scheme(names) == "plain":
            return names
        has_learned = self.recipe.model.name_or_path is not None
        as_they_are = has_learned and sorted(names_of_outputs(self.objective.facts.config)) == sorted(names)
        return names if as_they_are else list(dict.fromkeys(map(spelled, names)))

    def classes_in(self, value: Any, place: str) -> Iterable[tuple[str, Any]]:
        value = list_in(value)
        if not isinstance(value, list):
            raise UserError(
                f"task.tags_field={self.settings.tags_field!r}: {place} holds {held(value)}, not a list of tags"
            )
        return [(f"{place}, tag {number}", tag) for number, tag in enumerate(value, start=1)]

    def rows(self, data: Data, source: "Examples", split: str, labelled: bool = True) -> Rows:
        """The sentences, with a label for each token, -100 where none is learned; for a teacher also WORDS.

        labelled: whether the sentences have tags.
        """
        section, labels = self.settings, data.labels
        at = section.labelled_token
        if split != "train" and at == "all":
            at = "first"  # metrics count a word once
        columns = {"input_ids": "int32[]", "labels": "int32[]"}
        if self.recipe.teacher is not None:
            columns[WORDS] = "int32[]"
        names = [labels.classes.names, labels.names]
        settings = [section.max_length, names, labels.scheme, at, "tags of tokens"]
        of_spaces = ["tags of spaces"] * (split == "train") + [WORDS] * (WORDS in columns)
        words = TaggedWords(data.tokenizer, section.max_length, labels, at, learns_spaces=split == "train")
        make = partial(self._batches, data, words=words, labelled=labelled)
        rows = stored(self, data, source, columns, settings, of_spaces, make=make)
        if not len(rows):
            raise UserError(f"task.tokens_field={section.tokens_field!r}: no sentence of {rows.name} has a word")
        return rows

    def with_rows(self, data: Data, source: "Examples") -> "Iterator[Example]":
        return ((place, row) for place, row in source if "".join(self._sentence(data, row, place)[0]).strip())

    def _batches(
        self,
        data: Data,
        examples: "Examples",
        account: Account,
        words: TaggedWords | None = None,
        labelled: bool = True,
    ) -> Iterator[dict[str, Any]]:
        words = words or TaggedWords(data.tokenizer, self.settings.max_length, data.labels)
        for batch in in_batches(examples):
            yield words.encode([self._sentence(data, row, place, account, labelled) for place, row in batch])

    def _sentence(
        self, data: Data, row: dict, place: str, account: Account | None = None, labelled: bool = True
    ) -> tuple[list[str], list[str] | None]:
        """The words of an example and their tags."""
        column = self.settings.tokens_field
        if not labelled:
            return words_asked(row, column, place), None
        words, tags = texts_of(row, column, "tokens_field", place, "word"), data.labels.of(row, place, account)
        if len(words) != len(tags):
            raise UserError(
                f"task.tags_field={self.settings.tags_field!r}: {place} holds {counted(len(tags), 'tag')} for "
                f"{counted(len(words), 'word')} of task.tokens_field={column!r}; each word needs one"
            )
        return words, tags

    def collator(self, data: Data, packed: bool) -> Any:
        return padding_collator(data.tokenizer, labels_of_tokens=True)

    # ---- words

    def describe(self, data: Data, rows: Rows) -> str:
        facts = {"words": 0, "words_cut": 0, "words_without_token": 0, "tags": {}} | rows.facts
        labels = data.labels
        words = (
            f"{counted(facts['examples'], 'sentence')} of {rows.name}, {counted(facts['words'], 'word')}, "
            f"{facts['tokens'] / max(1, facts['words']):.2f} tokens each; tags: {labels.scheme}"
            f"{', learned as bio' if set(labels.names) != set(labels.classes.names) else ''}, "
        )
        words += ", ".join(f"{name} {count:,}" for name, count in facts["tags"].items() if count)
        faults = {
            "words_cut": f"beyond max_length={self.settings.max_length}, neither learned nor measured",
            "words_without_token": "of which the tokenizer leaves nothing, neither learned nor measured",
        }
        lines = [f"{counted(facts[name], 'word')} {remark}" for name, remark in faults.items() if facts[name]]
        odd = {tag: count for tag, count in facts["tags"].items() if count and tag != OUTSIDE and not parts(tag)[1]}
        if odd and labels.scheme != "plain":
            names = ", ".join(f"{name!r} {count:,}" for name, count in odd.items())
            lines.append(f"{counted(sum(odd.values()), 'tag')} of no such scheme, part of no entity: {names}")
        if facts["empty"]:
            lines.append(f"{counted(facts['empty'], 'sentence')} without a word skipped")
        return "\n".join([words, *lines])

    def show(self, console, data: Data, rows: Rows, number: int, row: dict) -> None:
        ids, labels, names = row["input_ids"].tolist(), row["labels"].tolist(), data.labels.names
        tags = [names[label] if label >= 0 else None for label in labels]
        kinds = sorted({parts(name)[1] or name for name in names if name != OUTSIDE})
        console.rule(f"sentence {number}: {len(ids)} tokens, {sum(tag is not None for tag in tags)} tags", align="left")
        pieces = tagged_pieces(ids, tags, kinds, data.tokenizer, self.settings.labelled_token == "first")
        console.print(tokens_text(console, pieces))


class TagScores(ClassScores):
    """Metrics of the tags of words; in the report types of entities, and a confusion matrix of words."""

    predicts = "label"
    unit = "words"

    def predictions(self, logits, labels):
        """(B, T, C) and (B, T) -> float32 (words, 4): whether the word begins a sentence, its predicted and true tags,
        the probability of the predicted one."""
        counts = labels != IGNORE_INDEX
        first = counts & (counts.cumsum(-1) == 1)
        shares = logits[counts].float().softmax(-1).amax(-1)
        return torch.stack(
            [first[counts].float(), logits.argmax(-1)[counts].float(), labels[counts].float(), shares], -1
        )

    def scored(self, predictions) -> Scored:
        """Metrics of all words, an array of shape (words, 4)."""
        begins, predicted, true = predictions[:, :3].astype("int32").T
        judged = Judged(predicted, true, predictions[:, 3].copy(), begins.cumsum().astype("int32") - 1)
        marks_none = self.data.labels.scheme == "plain"  # metrics of entities are a default then, and dropped
        names = [name for name in self.objective.metrics if not (marks_none and METRICS[name].of_entities)]
        return self._compare(*self._sentences(judged), names=names, judged=judged)

    def _sentences(self, judged: Judged) -> tuple[list[list[str]], list[list[str]]]:
        """(predicted, true) tags of the words of each sentence."""
        both: tuple[list[list[str]], list[list[str]]] = [], []
        names = self.data.labels.names
        for number, *tags in zip(judged.rows.tolist(), judged.given.tolist(), judged.true.tolist()):
            for sentences, tag in zip(both, tags):
                if number == len(sentences):
                    sentences.append([])
                sentences[-1].append(names[tag])
        return both

    def named(self, value: list[str]) -> list[str]:
        return value  # metrics compare the names of tags

    def _judged_classes(self, judged: Judged) -> dict[str, Any]:
        from ..metrics.class_report import confusion, per_entity

        if self.data.labels.scheme == "plain":
            return super()._judged_classes(judged)
        kinds = [parts(name)[1] or name for name in self.data.labels.names]
        names = list(dict.fromkeys(kinds))
        number = np.array([names.index(kind) for kind in kinds])
        words = confusion(names, number[judged.given], number[judged.true])
        return {"classes": per_entity(*self._sentences(judged))} | words

    def _as_read(self, judged: Judged, place: int, row: dict) -> dict[str, str]:
        """The sentence with the word in [[ ]]."""
        which = int((judged.rows[:place] == judged.rows[place]).sum())  # index in the sentence's words
        ids, at = row["input_ids"].tolist(), (row["labels"] >= 0).nonzero().ravel().tolist()
        if self.settings.labelled_token == "last":
            start, end = at[which - 1] + 1 if which else 0, at[which] + 1
        else:
            start, end = at[which], at[which + 1] if which + 1 < len(at) else len(ids)
        before, word, after = (
            " ".join(texts_of_row(part, self.tokenizer)) for part in (ids[:start], ids[start:end], ids[end:])
        )
        return {"text": f"{before} [[{word}]] {after}".strip()}


class AnswersTags(Answers):
    """The entities of a text, or the tags of words."""

    head = "AutoModelForTokenClassification"

    def asked(self, row: dict, place: str) -> str | list[str]:
        """A text, or the words of a sentence."""
        return asked_of(row, self.settings.tokens_field, place)

    def predict(self, finished: FinishedModel, asked: list[str | list[str]]) -> list[dict[str, Any]]:
        """Of texts the entities, as pipelines return them; of words a tag and a score each, None beyond max_length."""
        strategy = STRATEGIES[self.settings.labelled_token] or "simple"
        texts = [item for item in asked if isinstance(item, str)]
        entities = iter(piped(self, finished, "TokenClassification", texts, aggregation_strategy=strategy))
        sentences = [" ".join(item) for item in asked if not isinstance(item, str)]
        tokens = iter(piped(self, finished, "TokenClassification", sentences, ignore_labels=[]))
        return [
            {"prediction": next(entities)} if isinstance(item, str) else self._tags_in(item, next(tokens))
            for item in asked
        ]

    def _tags_in(self, words: list[str], tokens: list[dict[str, Any]]) -> dict[str, list]:
        """The tag of each word, read at the token at which words are measured."""
        answers: list[dict[str, Any]] = [{"entity": None, "score": None} for _ in words]
        of_tokens = word_of_each_token(words, [(token["start"], token["end"]) for token in tokens])
        pairs = list(zip(of_tokens, tokens))
        for word, token in pairs if self.settings.labelled_token == "last" else reversed(pairs):
            if word is not None:
                answers[word] = token
        return {"prediction": [each["entity"] for each in answers], "scores": [each["score"] for each in answers]}


def asked_of(row: dict, column: str, place: str) -> str | list[str]:
    """The text in a column of a row without tags, or the words of a sentence. Raises UserError."""
    if isinstance(list_in(row[column]), str):
        return filled_text_of(row, column, "tokens_field", place)
    return texts_of(row, column, "tokens_field", place, "word")


def words_asked(row: dict, column: str, place: str) -> list[str]:
    """The words of a row without tags. Raises UserError."""
    asked = asked_of(row, column, place)
    return asked.split() if isinstance(asked, str) else asked


def your_sentence(settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The example with the pipeline's strategy for the token that the recipe labels."""
    strategy = STRATEGIES[settings.get("labelled_token", "first")]
    return "your text", {} if strategy is None else {"aggregation_strategy": strategy}


@register_objective
class TokenClassification(Objective):
    """A tag for each word: named entities (BIO, BIOES, BILOU), parts of speech."""

    name = "token_classification"
    section = "task"
    Settings = TokenClassificationSettings
    Reads, Learns, Scores, Answers = ReadsTags, LearnsClasses, TagScores, AnswersTags
    auto_class = AnswersTags.head
    tokens = Tokens("cls_sep", {"AutoModelForCausalLM": "none"})
    compares, gives = "tags", ("prediction", "scores")
    default_metrics = ("entity_f1", "tag_accuracy")
    taught = "tags"
    words = replace(
        PREDICTS, row="sentence", loss="nats per word", example=your_sentence, hub_task="token-classification"
    )
