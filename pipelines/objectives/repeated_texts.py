"""Texts that several examples share, in two splits or with several classes: found in stored rows, and noted."""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ..storage.cache import kept_value
from ..words import counted
from .data import Data

if TYPE_CHECKING:
    from ..data.example_store import EncodedExamples
    from ..data.examples import Examples

SHOWN = 60  # characters of a text


def note_repeated(
    data: Data, rows: "dict[str, EncodedExamples]", learned: "tuple[Any, Examples] | None", way_out: str
) -> None:
    """Note them in the accounts of the splits.

    learned: training texts that are not among the splits, and what reads them. way_out: what keeps texts apart.
    """
    from ..data.examples import examples_fingerprint

    def found() -> dict[str, list[str]]:
        sentences, of_train = {}, set() if learned is None else set(learned[0].hashes(learned[1]))
        for split, one in rows.items():
            texts, classes, first = list(data.reads.hashes(data.sources[split])), defaultdict(set), {}
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

    of_learned = learned and [examples_fingerprint(learned[1]), learned[0].text_columns()]
    identity = ["repeated texts", way_out, of_learned, [(split, one.fingerprint) for split, one in rows.items()]]
    for split, sentences in kept_value(lambda: identity, found).items():
        rows[split].account.note(*sentences)


def _shown(data: Data, rows: "EncodedExamples", number: int) -> str:
    text = data.tokenizer.decode(rows[number]["input_ids"], skip_special_tokens=True)
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
