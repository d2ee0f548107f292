"""Texts that several examples share, in two splits or with several classes: found in stored rows, and noted."""

from collections import defaultdict
from typing import TYPE_CHECKING

from ..storage.cache import kept_value
from ..words import counted
from .data import Data

if TYPE_CHECKING:
    from ..data.example_store import EncodedExamples

SHOWN = 60  # characters of a text


def note_repeated(data: Data, rows: "dict[str, EncodedExamples]", way_out: str) -> None:
    """Note them in the accounts of the splits, by what the model reads of the texts. way_out: what keeps them apart."""

    def found() -> dict[str, list[str]]:
        sentences, of_train = {}, set()
        for split, one in rows.items():
            texts, classes, first = one.hashes("input_ids"), defaultdict(set), {}
            for number, (text, label) in enumerate(zip(texts, one.hashes("labels"))):
                classes[text].add(label)
                first.setdefault(text, number)
            twice = {text for text, labels in classes.items() if len(labels) > 1} if data.labels.names else ()
            kinds = [("also in train", of_train & first.keys(), way_out), ("of several classes", twice, "")]
            sentences[split] = [
                f"{counted(len(some), 'text')} {what}, such as {_shown(data, one, min(map(first.get, some)))}{then}"
                for what, some, then in kinds
                if some
            ]
            of_train = of_train or set(texts)
        return sentences

    identity = ["repeated texts", way_out, [(split, one.fingerprint) for split, one in rows.items()]]
    for split, sentences in kept_value(lambda: identity, found).items():
        rows[split].account.note(*sentences)


def _shown(data: Data, rows: "EncodedExamples", number: int) -> str:
    text = data.tokenizer.decode(rows[number]["input_ids"], skip_special_tokens=True)
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
