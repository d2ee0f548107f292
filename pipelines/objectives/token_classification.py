"""A tag for each word of a sentence: named entities, parts of speech."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..data.batch_keys import IGNORE_INDEX, WORDS
from ..data.cells import filled_text_of, texts_of
from ..data.documents import in_batches
from ..data.rows import Rows
from ..errors import UserError
from ..lazy import np, torch
from ..metrics.tag_parts import BIOES, OUTSIDE, parts, spelled
from ..plugins import METRICS, register_objective
from ..recipes.schema import doc
from ..tokenizers.control_tokens import text_tokenizer
from ..words import counted
from . import tag_schemes
from .answering import piped
from .base import TOKENS
from .class_task import Answers, ClassTask, NamedClassSettings, names_of_outputs, texts_of_row
from .finished_model import FinishedModel
from .label_values import held
from .showing import tagged_text
from .text_task import TextTask

# labelled_token -> the aggregation_strategy by which transformers' pipeline reads the tokens that learned a word's tag;
# None: it has no strategy for last tokens.
STRATEGIES = {"first": "first", "last": None, "all": "simple"}


@dataclass
class TokenClassificationSettings(NamedClassSettings):
    tokens_field: str = doc("column with the list of words of a sentence", "tokens")
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


@register_objective
class TokenClassification(ClassTask, TextTask):
    """A tag for each word: named entities (BIO, BIOES, BILOU), parts of speech.

    The model reads the words joined by spaces, so that plain text later gives the same tokens with any tokenizer; the
    offsets of tokens in that text say to which words they belong. `prepare` raises UserError for a tokenizer without
    offsets, tags that do not follow the scheme, and metrics of entities where tags mark none.
    """

    name = "token_classification"
    Settings = TokenClassificationSettings
    auto_class = "AutoModelForTokenClassification"
    framing_of_head = {"AutoModelForCausalLM": "none"}
    compares = "tags"
    default_metrics = ("entity_f1", "tag_accuracy")
    hub_task = "token-classification"
    loss_unit = "nats per word"
    counted = "tags"
    labels_of_tokens = True
    taught = "tags"
    columns_of_rows: ClassVar[dict[str, str]] = {"input_ids": "int32[]", "labels": "int32[]"}
    row_noun = "sentence"
    legend_words = (
        "the sentence as the model reads it, a colour per type of entity, tags behind the tokens that they are learned "
        "at; [unpredicted]tokens without a tag of their own[/]"
    )

    def columns(self) -> dict[str, str]:
        return {**self.text_columns(), "tags_field": self.settings.tags_field}

    def text_columns(self) -> dict[str, str]:
        return {"tokens_field": self.settings.tokens_field}

    def text_in(self, row: dict, column: str, field: str, place: str) -> str:
        """The words, joined by spaces."""
        return " ".join(texts_of(row, column, field, place, "word"))

    def learned_names(self, names: list[str]) -> list[str]:
        """As bio, unless a checkpoint has learned the tags as they are."""
        start = self.recipe.model.name_or_path
        if (self.settings.scheme or tag_schemes.scheme_of(names)) == "plain":
            return names
        as_they_are = start is not None and sorted(names_of_outputs(self.config)) == sorted(names)
        return names if as_they_are else list(dict.fromkeys(map(spelled, names)))

    def classes_in(self, value: Any, place: str) -> Iterable[tuple[str, Any]]:
        if not isinstance(value, list):
            raise UserError(f"{self._label_field}: {place} holds {held(value)}, not a list of tags")
        return [(f"{place}, tag {number}", tag) for number, tag in enumerate(value, start=1)]

    # ---- data

    def prepare(self, splits, cache: Path, progress: bool) -> None:
        super().prepare(splits, cache, progress)
        self.need_offsets()
        self.scheme = self.settings.scheme or tag_schemes.scheme_of(self.classes.names)
        if self.settings.scheme is not None:
            tag_schemes.check_scheme(self.classes.names, self.scheme)
        section = self.recipe.evaluation
        names = [] if section.metrics == list(self.default_metrics) else section.metrics
        for name in [*names, section.best_metric]:
            if name in METRICS and METRICS[name].of_entities and self.scheme == "plain":
                raise UserError(
                    f"evaluation.metrics={name!r} counts entities, but the tags {', '.join(self.label_names[:4])}, ... "
                    f"mark none (B-..., I-..., O); name them by task.label_names, or use tag_accuracy"
                )

    def rows(self, source, split: str, cache: Path, progress: bool = False) -> Rows:
        """The sentences as `columns_of_rows`: labels of tokens, -100 where none is learned; for a teacher also WORDS,
        the number of a word, from 1, at the token where its tag is measured, 0 elsewhere."""
        labelled = self.settings.labelled_token
        if split != "train" and labelled == "all":
            labelled = "first"  # metrics count a word once
        names = [self.classes.names, self.label_names]
        settings = [self.settings.max_length, names, self.scheme, labelled, "tags of tokens"]
        of_spaces = ["tags of spaces"] * (split == "train") + [WORDS] * (WORDS in self.columns_of_rows)
        make = partial(self._batches, labelled=labelled, learns_spaces=split == "train")
        rows = self.stored(source, cache, self.columns_of_rows, settings, of_spaces, make=make)
        if not len(rows):
            raise UserError(f"task.tokens_field={self.settings.tokens_field!r}: no sentence of {rows.name} has a word")
        return rows

    def with_rows(self, source) -> Iterator[tuple[str, dict]]:
        return ((place, row) for place, row in source if "".join(self._sentence(row, place)[0]).strip())

    def _batches(self, examples, labelled: str = "first", learns_spaces=False) -> Iterator[dict[str, list]]:
        """learns_spaces: whether tokens that are only spaces get tags, as pipelines take them for words."""
        tokenizer = text_tokenizer(self.tokenizer)
        longest = self.settings.max_length
        for batch in in_batches(examples):
            sentences = [self._sentence(row, place) for place, row in batch]
            filled = [(words, tags) for words, tags in sentences if "".join(words).strip()]
            facts = {"examples": len(filled), "empty": len(sentences) - len(filled)}
            if not filled:
                yield {"input_ids": [], "labels": [], WORDS: [], "facts": facts}
                continue
            encoded = tokenizer(
                [" ".join(words) for words, _ in filled],
                truncation=True,
                max_length=longest,
                padding=False,
                return_offsets_mapping=True,
            )
            all_labels, all_words = [], []
            for (words, names), offsets in zip(filled, encoded["offset_mapping"]):
                of_tokens, labels = tag_schemes.word_of_each_token(words, offsets), [IGNORE_INDEX] * len(offsets)
                measured = [0] * len(offsets)
                tags = [name if name in self._outputs else spelled(name) for name in names]
                seen = set()
                for word, places in groupby(range(len(offsets)), of_tokens.__getitem__):
                    if word is None or word in seen:
                        continue
                    seen.add(word)
                    places = list(places)
                    at = places[-1 if labelled == "last" else 0]
                    measured[at], learned = word + 1, [(at, tags[word])]
                    if labelled == "all":
                        learned = zip(places, tag_schemes.tags_of_tokens(tags[word], len(places), self.scheme))
                    for place, tag in learned:
                        labels[place] = self._outputs.get(tag, self._outputs[tags[word]])
                if learns_spaces and OUTSIDE in self._outputs:
                    for place, tag in tags_of_spaces(tags, of_tokens, offsets):
                        labels[place] = self._outputs[tag]
                all_labels.append(labels)
                all_words.append(measured)
                last = max(seen, default=-1) if len(offsets) >= longest else len(words)
                cut = max(0, len(words) - 1 - last)
                add = {"words": len(seen), "words_cut": cut, "words_without_token": len(words) - len(seen) - cut}
                facts = facts | {name: facts.get(name, 0) + number for name, number in add.items()}
            facts["tags"] = self.class_histogram([label for row in all_labels for label in row if label >= 0])
            yield {"input_ids": encoded["input_ids"], "labels": all_labels, WORDS: all_words, "facts": facts}

    def _sentence(self, row: dict, place: str) -> tuple[list[str], list[str]]:
        """The words of an example and their tags."""
        section = self.settings
        words = texts_of(row, section.tokens_field, "tokens_field", place, "word")
        tags = [self._name_in_data(tag, where) for where, tag in self.classes_in(row[section.tags_field], place)]
        if len(words) != len(tags):
            raise UserError(
                f"{self._label_field}: {place} holds {counted(len(tags), 'tag')} for {counted(len(words), 'word')} of "
                f"task.tokens_field={section.tokens_field!r}; each word needs one"
            )
        return words, tags

    def _name_in_data(self, tag: Any, place: str) -> str:
        """The name of a tag: a class, also in another scheme than that which a model has learned."""
        known, tag = self.classes.numbers, getattr(tag, "class_name", tag)
        if isinstance(tag, str) and tag not in known:
            tag = next((name for name in (spelled(tag, BIOES), spelled(tag)) if name in known), tag)
        return self.classes.names[self.classes.number(tag, place)]

    @staticmethod
    def _facts(batch: dict[str, list]) -> dict:
        return {"tokens": sum(map(len, batch["input_ids"])), **batch["facts"]}

    def describe(self, rows) -> str:
        facts = {"words": 0, "words_cut": 0, "words_without_token": 0, "tags": {}} | rows.facts
        section = self.settings
        words = (
            f"{counted(facts['examples'], 'sentence')} of {rows.name}, {counted(facts['words'], 'word')}, "
            f"{facts['tokens'] / max(1, facts['words']):.2f} tokens each; tags: {self.scheme}"
            f"{', learned as bio' if set(self.label_names) != set(self.classes.names) else ''}, "
        )
        words += ", ".join(f"{name} {count:,}" for name, count in facts["tags"].items() if count)
        faults = {
            "words_cut": f"beyond max_length={section.max_length}, neither learned nor measured",
            "words_without_token": "of which the tokenizer leaves nothing, neither learned nor measured",
        }
        lines = [f"{counted(facts[name], 'word')} {remark}" for name, remark in faults.items() if facts[name]]
        odd = {tag: count for tag, count in facts["tags"].items() if count and tag != OUTSIDE and not parts(tag)[1]}
        if odd and self.scheme != "plain":
            names = ", ".join(f"{name!r} {count:,}" for name, count in odd.items())
            lines.append(f"{counted(sum(odd.values()), 'tag')} of no such scheme, part of no entity: {names}")
        if facts["empty"]:
            lines.append(f"{counted(facts['empty'], 'sentence')} without a word skipped")
        return "\n".join([words, *lines])

    def config_fields(self) -> dict:
        """Without a problem_type; `pipeline()` answers with the names of the tags, and makes entities of them."""
        return {name: value for name, value in super().config_fields().items() if name != "problem_type"}

    # ---- measuring

    @property
    def metrics(self) -> list[str]:
        """The recipe's metrics. Those of entities, a default, are dropped where tags mark no entities."""
        marks_none = getattr(self, "scheme", None) == "plain"
        return [name for name in super().metrics if not (marks_none and METRICS[name].of_entities)]

    def predictions(self, logits, labels):
        """(B, T, C) and (B, T) -> float32 (words, 4): whether the word begins a sentence, its predicted and true tags,
        the probability of the predicted one."""
        counts = labels != IGNORE_INDEX
        first = counts & (counts.cumsum(-1) == 1)
        shares = logits[counts].float().softmax(-1).amax(-1)
        return torch.stack(
            [first[counts].float(), logits.argmax(-1)[counts].float(), labels[counts].float(), shares], -1
        )

    def compute_metrics(self, predictions) -> dict[str, float]:
        """Metrics of all words, an array of shape (words, 4)."""
        begins, predicted, true = predictions[:, :3].astype("int32").T
        self.answers = Answers(predicted, true, predictions[:, 3].copy(), begins.cumsum().astype("int32") - 1)
        return self.compare(*self.sentences())

    def sentences(self) -> tuple[list[list[str]], list[list[str]]]:
        """(predicted, true) tags of the words of each sentence."""
        both: tuple[list[list[str]], list[list[str]]] = [], []
        for number, *tags in zip(self.answers.rows.tolist(), self.answers.given.tolist(), self.answers.true.tolist()):
            for sentences, tag in zip(both, tags):
                if number == len(sentences):
                    sentences.append([])
                sentences[-1].append(self.label_names[tag])
        return both

    # ---- single classes: types of entities; a confusion matrix of words

    unit = "words"

    def judged_classes(self) -> dict[str, Any]:
        from ..metrics.class_report import confusion, per_entity

        if self.scheme == "plain":
            return super().judged_classes()
        kinds = [parts(name)[1] or name for name in self.label_names]
        names = list(dict.fromkeys(kinds))
        number = np.array([names.index(kind) for kind in kinds])
        words = confusion(names, number[self.answers.given], number[self.answers.true])
        return {"classes": per_entity(*self.sentences())} | words

    def as_read(self, place: int, row: dict) -> dict[str, str]:
        """The sentence with the word in [[ ]]."""
        which = int((self.answers.rows[:place] == self.answers.rows[place]).sum())  # index in the sentence's words
        ids, at = row["input_ids"].tolist(), (row["labels"] >= 0).nonzero().ravel().tolist()
        if self.settings.labelled_token == "last":
            start, end = at[which - 1] + 1 if which else 0, at[which] + 1
        else:
            start, end = at[which], at[which + 1] if which + 1 < len(at) else len(ids)
        before, word, after = (
            " ".join(texts_of_row(part, self.tokenizer)) for part in (ids[:start], ids[start:end], ids[end:])
        )
        return {"text": f"{before} [[{word}]] {after}".strip()}

    def named(self, value: list[str]) -> list[str]:
        return value  # metrics compare the names of tags

    # ---- rows without labels

    answers_by = auto_class

    def asked(self, row: dict, place: str) -> str | list[str]:
        """A text, or the words of a sentence."""
        column = self.settings.tokens_field
        if isinstance(row[column], str):
            return filled_text_of(row, column, "tokens_field", place)
        return texts_of(row, column, "tokens_field", place, "word")

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
        of_tokens = tag_schemes.word_of_each_token(words, [(token["start"], token["end"]) for token in tokens])
        pairs = list(zip(of_tokens, tokens))
        for word, token in pairs if self.settings.labelled_token == "last" else reversed(pairs):
            if word is not None:
                answers[word] = token
        return {"prediction": [each["entity"] for each in answers], "scores": [each["score"] for each in answers]}

    # ---- words

    @classmethod
    def example_of_use(cls, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        strategy = STRATEGIES[settings.get("labelled_token", "first")]
        return "your text", {} if strategy is None else {"aggregation_strategy": strategy}

    def show(self, console, rows, number: int, row: dict) -> None:
        ids, labels = row["input_ids"].tolist(), row["labels"].tolist()
        tags = [self.label_names[label] if label >= 0 else None for label in labels]
        kinds = sorted({parts(name)[1] or name for name in self.label_names if name != OUTSIDE})
        console.rule(f"sentence {number}: {len(ids)} tokens, {sum(tag is not None for tag in tags)} tags", align="left")
        console.print(tagged_text(ids, tags, kinds, self.tokenizer, self.settings.labelled_token == "first"))


def tags_of_spaces(
    tags: list[str], of_tokens: list[int | None], offsets: list[tuple[int, int]]
) -> Iterator[tuple[int, str]]:
    """(position, tag) of the tokens that are only spaces."""
    after = None
    for place in reversed(range(len(of_tokens))):
        start, end = offsets[place]
        if of_tokens[place] is not None:
            after = of_tokens[place]
        elif start < end:  # no special token
            yield place, tag_schemes.tag_of_space(tags[after - 1], tags[after]) if after else OUTSIDE
