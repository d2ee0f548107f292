"""Tagged words: how tags mark entities, their numbers, and the tokens of a sentence that learn them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..data.account import Account
from ..data.batch_keys import IGNORE_INDEX, WORDS
from ..errors import UserError
from ..metrics.tag_parts import BIOES, NO_TYPE, OUTSIDE, parts, spelled
from ..recipes.types import show
from ..tokenizers.control_tokens import text_tokenizer
from .class_labels import ClassLabels

# Scheme -> the marks that may precede or follow the type of an entity. bio is also called BIO2 or IOB2, bioes IOBES,
# bilou BILUO, bmewo BMEOW. Of schemes with equally many of the tags the first one is taken.
SCHEMES = {"io": "I", "bio": "BI", "iob1": "BI", "bioes": "BIES", "bilou": "BILU", "bmes": "BMES", "bmewo": "BMEW"}


@dataclass(frozen=True)
class TagLabels(ClassLabels):
    """The tags of words. scheme: how those of the data mark entities."""

    counted: str = "tags"
    problem_type: str | None = None
    scheme: str = "plain"

    def of(self, row: dict, place: str, account: Account | None = None) -> list[str]:
        """The tags of an example's words, as the data name them. Raises UserError."""
        return [self._name(tag, where, account) for where, tag in self.classes_in(row[self.column], place)]

    def _name(self, tag: Any, place: str, account: Account | None = None) -> str:
        """The name of a tag: a class, also in another scheme than that which a model has learned."""
        known, written = self.classes.numbers, getattr(tag, "class_name", tag)
        tag = written
        if isinstance(tag, str) and tag not in known:
            tag = next((name for name in (spelled(tag, BIOES), spelled(tag)) if name in known), tag)
        name = self.classes.names[self.classes.number(tag, place, account)]
        learned = name if name in self.outputs else spelled(name)
        if account is not None and isinstance(written, str) and written != learned:
            account.read_as("tag", written, f"read as {learned}", is_usual=True)
        return name

    def facts(self, labels: list[list[int]]) -> dict[str, Any]:
        return super().facts([label for of_row in labels for label in of_row if label >= 0])


class TaggedWords:
    """The encoding of tagged words: the tokens of a sentence, some of which learn the tag of their word.

    The model reads the words joined by spaces, so that plain text later gives the same tokens with any tokenizer; the
    offsets of tokens in that text say to which words they belong.

    at: the tokens of a word that learn its tag, "first", "last" or "all". learns_spaces: whether tokens that are only
    spaces get tags, as pipelines take them for words.
    """

    def __init__(
        self, tokenizer: Any, max_length: int, labels: TagLabels, at: str = "first", learns_spaces: bool = False
    ):
        self.tokenizer, self.max_length, self.labels = text_tokenizer(tokenizer), max_length, labels
        self.at, self.outputs = at, labels.outputs
        self.learns_spaces = learns_spaces and OUTSIDE in self.outputs

    def encode(self, sentences: list[tuple[list[str], list[str] | None]]) -> dict[str, Any]:
        """The columns of the sentences that have a word, and facts about all: each (its words, their tags or None)."""
        filled = [(words, tags) for words, tags in sentences if "".join(words).strip()]
        rows: dict[str, list] = {"input_ids": [], "labels": [], WORDS: []}
        facts = {"tokens": 0, "examples": len(filled), "empty": len(sentences) - len(filled)}
        if not filled:
            return rows | {"facts": facts}
        facts |= {"words": 0, "words_cut": 0, "words_without_token": 0}
        texts = [" ".join(words) for words, _ in filled]
        options = {"truncation": True, "max_length": self.max_length, "return_offsets_mapping": True}
        encoded = self.tokenizer(texts, padding=False, **options)
        rows["input_ids"] = encoded["input_ids"]
        facts["tokens"] = sum(map(len, rows["input_ids"]))
        for (words, tags), offsets in zip(filled, encoded["offset_mapping"]):
            of_tokens = word_of_each_token(words, offsets)
            places = places_of_words(of_tokens)
            rows["labels"].append(self._labels(tags, places, of_tokens, offsets))
            measured = {self._at(of_word): word + 1 for word, of_word in places.items()}
            rows[WORDS].append([measured.get(place, 0) for place in range(len(offsets))])
            last = max(places, default=-1) if len(offsets) >= self.max_length else len(words)
            cut = max(0, len(words) - 1 - last)
            facts["words"] += len(places)
            facts["words_cut"] += cut
            facts["words_without_token"] += len(words) - len(places) - cut
        return rows | {"facts": facts | self.labels.facts(rows["labels"])}

    def _at(self, places: list[int]) -> int:
        """The place of a word's token at which its tag is measured."""
        return places[-1 if self.at == "last" else 0]

    def _labels(
        self,
        names: list[str] | None,
        places: dict[int, list[int]],
        of_tokens: list[int | None],
        offsets: list[tuple[int, int]],
    ) -> list[int]:
        """The number of the tag that each token learns. names: of the words' tags in the data; None: no word has one"""
        labels = [IGNORE_INDEX] * len(of_tokens)
        if names is None:
            return labels
        tags = [name if name in self.outputs else spelled(name) for name in names]
        for word, of_word in places.items():
            tag, learned = tags[word], [(self._at(of_word), tags[word])]
            if self.at == "all":  # an entity begins at the first token only
                is_plain = tag == OUTSIDE or self.labels.scheme == "plain"
                inside = tag if is_plain else spelled(f"I-{parts(tag)[1]}")
                learned += [(place, inside) for place in of_word[1:]]
            for place, name in learned:
                labels[place] = self.outputs.get(name, self.outputs[tag])
        after = None
        for place in reversed(range(len(of_tokens))) if self.learns_spaces else ():
            start, end = offsets[place]
            if of_tokens[place] is not None:
                after = of_tokens[place]
            elif start < end:  # only spaces, with the tag of the word behind if an entity continues
                mark, kind = parts(tags[after]) if after else (OUTSIDE, "")
                continues = mark == "I" and kind == parts(tags[after - 1])[1]
                labels[place] = self.outputs[tags[after] if continues else OUTSIDE]
        return labels


def places_of_words(of_tokens: list[int | None]) -> dict[int, list[int]]:
    """{word: the places of its tokens}. of_tokens: the word of each token."""
    places: dict[int, list[int]] = {}
    for word, run in groupby(range(len(of_tokens)), of_tokens.__getitem__):
        if word is not None and word not in places:
            places[word] = list(run)
    return places


def is_tag_of(tag: str, scheme: str) -> bool:
    mark, kind = parts(tag)
    return tag == OUTSIDE or scheme == "plain" or (kind != "" and mark in SCHEMES[scheme])


def scheme_of(names: Sequence[str]) -> str:
    """The scheme of most tags of these names.

    plain, where no tag beside O names a type of entity, and those of the scheme are not more than half, or none is as
    in bio.
    """
    marked = [name for name in names if name != OUTSIDE]
    counts = {scheme: sum(is_tag_of(name, scheme) for name in marked) for scheme in SCHEMES}
    scheme = max(counts, key=counts.__getitem__)
    typed = OUTSIDE in names and any(is_tag_of(name, "bio") and parts(name)[1] != NO_TYPE for name in marked)
    most = counts["bio"] and (typed or 2 * counts[scheme] > len(marked))
    return scheme if most or counts[scheme] == len(marked) > 0 else "plain"


def check_scheme(names: Sequence[str], scheme: str) -> None:
    """Raise UserError for the first tag that is none of the scheme, nor one that is learned for it."""
    for name in names:
        if not is_tag_of(name, scheme) and not is_tag_of(name, "bio"):
            known = ", ".join([OUTSIDE, *(f"{mark}-..." for mark in SCHEMES[scheme])])
            raise UserError(f"task.scheme={scheme}: {name!r} is no tag of it ({known}); the tags are {show(names)}")


def word_of_each_token(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """The number of the word to which each token belongs, in a text of the words joined by spaces.

    offsets: of the tokens in that text. None for tokens of no word: special ones, and spaces. A token that covers
    several words belongs to the first.
    """
    bounds, at = [], 0
    for word in words:
        bounds.append((at, at + len(word)))
        at += len(word) + 1
    numbers, number = [], 0
    for start, end in offsets:
        if start == end:  # special tokens
            numbers.append(None)
            continue
        # A token may begin with the space before its word.
        while number < len(bounds) - 1 and (bounds[number][1] <= start or not words[number]):
            number += 1
        begin, stop = bounds[number] if bounds else (0, 0)
        numbers.append(number if start < stop and end > begin else None)
    return numbers
