"""Which task learns from a table: a guess for each that fits, with a score and a reason."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ..objectives.chat_forms import recognise
from .languages import language_of
from .what_columns_hold import LABELS, TEXTS, Column, Table

IMAGE = re.compile(r".*\.(png|jpe?g|bmp|gif|webp|tiff?)", re.IGNORECASE)
# Columns whose names make them pairs of texts, whatever they hold.
PAIRS = (("premise", "hypothesis"), ("question", "sentence"), ("src", "mt"), ("anchor", "positive"), ("text", "text_pair"))
SEEKS, FOUND = ("anchor", "query", "question"), ("positive", "pos.0", "pos", "passage", "document")
WRITTEN = ("summary", "highlights", "target", "headline", "output", "tgt", "abstract", "title", "answer", "corrected")
CHOICE = re.compile(r"(.*(?:option|choice|ending|answer|candidate)[ _]?)?([a-eA-E]|\d)")


@dataclass(frozen=True)
class Guess:
    """A task, and why it may be meant.

    settings: of its section; comments: on them. reads: the columns of which one text is made; writes: of the text that
    is learned to be written. data, evaluation: settings of these sections.
    """

    task: str
    score: float
    reason: str
    settings: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    writes: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)


def guesses(table: Table) -> list[Guess]:
    """The best guess for each task, the likeliest first."""
    found: dict[str, Guess] = {}
    for guesser in GUESSERS:
        for guess in guesser(table):
            if guess.task not in found or guess.score > found[guess.task].score:
                found[guess.task] = guess
    return sorted(found.values(), key=lambda guess: -guess.score)


def images(table: Table) -> Iterator[Guess]:
    for column in table.columns.values():
        is_image = [
            value for value in column.filled if (isinstance(value, dict) and "bytes" in value) or is_image_path(value)
        ]
        if not is_image or not column.all_are(is_image):
            continue
        field = {} if column.name == "image" else {"image_field": column.name}
        for label in classes_of(table, ()):
            settings = field | {"label_field": label.name}
            reason = f"{column.name!r} holds images, and {label.name!r} {len(label.counts)} classes of them"
            yield Guess("image_classification", 0.98, reason, settings, {"label_field": of_counts(label)})
        yield Guess("masked_image", 0.9, f"{column.name!r} holds images", field)


def is_image_path(value: Any) -> bool:
    return isinstance(value, str) and IMAGE.fullmatch(value) is not None


def tags(table: Table) -> Iterator[Guess]:
    lists = [column for column in table.columns.values() if column.lists and column.all_are(column.lists)]
    for words, of_words in ((a, b) for a in lists for b in lists if a is not b):
        sizes = [(len(one), len(other)) for one, other in zip(words.lists, of_words.lists)]
        if len(sizes) < len(words.lists) or any(one != other for one, other in sizes):
            continue
        if not isinstance(words.lists[0][0], str) or len(of_words.counts) > MOST_TAGS or words.name == of_words.name:
            continue
        marked = any(name[:2] in ("B-", "I-") for name in of_words.counts)
        names = isinstance(of_words.lists[0][0], str)
        if names and not marked and len(of_words.counts) >= len(words.counts):
            continue
        settings = {"tokens_field": words.name, "tags_field": of_words.name}
        reason = f"each word in {words.name!r} has a tag in {of_words.name!r}"
        score = 0.9 + 0.05 * marked + 0.02 * names + 0.01 * of_words.has_names
        yield Guess("token_classification", score, reason, settings, {"tags_field": of_counts(of_words)}, (words.name,))


MOST_TAGS = 100


def spans(table: Table) -> Iterator[Guess]:
    there = table.columns
    question, context = (next((c for c in there.values() if c.hint((name,)) and c.texts), None) for name in ("question", "context|passage|paragraph"))
    if question is None or context is None or question is context:
        return
    starts = next((name for name in there if re.search(r"answer.*start|start.*answer", name)), None)
    answers = next((name for name in there if re.search(r"answers?[._]?text|^answers?$", name) and name != starts and not isinstance(there[name].filled[0], dict)), None)
    if answers is None:
        return
    settings = {"question_field": question.name, "context_field": context.name}
    if starts is not None:
        settings |= {"answer_text_field": answers, "answer_start_field": starts}
        settings |= {"no_answer": True} if there[answers].share < 1 else {}
        reason = f"{starts!r} says where in {context.name!r} the answer begins"
        yield Guess("question_answering", 0.97, reason, settings, {}, (question.name, context.name))
    elif not there[answers].is_class:
        source = f"question: {{{question.name}}} context: {{{context.name}}}"
        reason = f"a question, a context and an answer, of which no column says where it begins in the context"
        settings = {"source": source, "target_field": answers}
        yield Guess("text_to_text", 0.9, reason, settings, {}, (question.name, context.name), answers)


def chats(table: Table) -> Iterator[Guess]:
    form = recognise(table.rows[:100])
    if form is None:
        return
    score = {"preference": 0.97, "openai": 0.96, "sharegpt": 0.96, "alpaca": 0.9}.get(form.name, 0.8)
    answer = table.columns.get(str(form.settings.get("answer_field", "output")))
    if answer is not None and answer.is_class:
        score = 0.55
    names = [name for name in form.settings.values() if name is not None]
    yield Guess(form.task, score, form.words(), dict(form.settings), {}, tuple(names))


def choices(table: Table) -> Iterator[Guess]:
    named = {name: match for name in table.columns if (match := CHOICE.fullmatch(name)) and table.columns[name].texts}
    stems = {match[1] for match in named.values()}
    lists = [c.name for c in table.content() if c.lists and c.all_are(c.lists) and c.hint(("choice|option|ending",))]
    lists = [name for name in lists if len({len(value) for value in table.columns[name].lists}) == 1]
    found = [*lists, *([name for name in named if named[name][1] == stem] for stem in stems)]
    found = [one for one in found if isinstance(one, str) or len(one) > 2 or (len(one) == 2 and named[one[0]][1])]
    for these in found:
        size = len(these) if isinstance(these, list) else len(table.columns[these].lists[0])
        letters = {chr(ord("A") + number) for number in range(size)}
        for label in table.columns.values():
            if label.name in these or not label.counts:
                continue
            values = {value.upper() for value in label.counts}
            if values <= letters or values <= {str(number) for number in range(size)}:
                texts = [c for c in prose_of(table) if c.name not in these and c is not label][:2]
                if texts:
                    fields = dict(zip(("question_field", "context_field"), (c.name for c in texts)))
                    settings = {"context_field": None} | fields | {"choices_field": these, "label_field": label.name}
                    reason = f"{label.name!r} says which of {size} choices is right"
                    yield Guess("multiple_choice", 0.93, reason, settings, {}, tuple(c.name for c in texts))


def prose_of(table: Table) -> list[Column]:
    """The columns of texts, the likeliest first; where none has sentences, the one with most different values."""
    found = [column for column in table.columns.values() if column.is_prose]
    others = [c for c in table.columns.values() if c.texts and c.all_are(c.texts) and not c.numbers and not c.is_aside]
    found = found or sorted(others, key=lambda column: -column.different)[:1]
    return sorted(found, key=lambda column: (-column.hint(TEXTS) - min(column.words, 200) / 40, column.name))


def pair_of(texts: list[Column]) -> tuple[Column, Column] | None:
    """Two columns that are a pair of equals by their names: sentence1 and sentence2, premise and hypothesis."""
    for one, other in combinations(sorted(texts, key=lambda column: column.name), 2):
        names = one.name.lower(), other.name.lower()
        differing = [(a, b) for a, b in zip(*names) if a != b]
        if len(names[0]) == len(names[1]) and differing in ([("1", "2")], [("a", "b")], [("0", "1")]):
            return one, other
    named = {column.name.lower(): column for column in texts}
    return next(((named[a], named[b]) for a, b in PAIRS if a in named and b in named), None)


def classes_of(table: Table, texts: tuple[str, ...]) -> list[Column]:
    """The columns of classes, the likeliest first; names before the numbers that stand for them."""
    found = [c for c in table.content() if c.is_class and c.name not in texts]
    return sorted(found, key=lambda c: (-c.hint(LABELS), "." in c.name, c.name.count("_")))


def text_fields(table: Table) -> tuple[dict[str, Any], tuple[str, ...], tuple[Column, Column] | None]:
    """(settings of the texts that are read, their columns, the pair that they are)."""
    texts = prose_of(table)
    pair = pair_of(texts)
    if pair is not None:
        names = pair[0].name, pair[1].name
        return dict(zip(("text_field", "text_pair_field"), names)), names, pair
    return ({"text_field": texts[0].name}, (texts[0].name,), None) if texts else ({}, (), None)


def labelled(table: Table) -> Iterator[Guess]:
    settings, reads, pair = text_fields(table)
    if not reads:
        return
    noun = "pair of texts" if pair else "text"
    for label in classes_of(table, reads):
        reason = f"{label.name!r} holds {len(label.counts)} values that come again and again, and {reads[0]!r} texts"
        score = 0.5 + 0.12 * label.hint(LABELS) + 0.1 * (pair is not None)
        comments = {"label_field": of_counts(label)}
        yield Guess("sequence_classification", score, reason, settings | {"label_field": label.name}, comments, reads)
    for label in (c for c in table.content() if c.numbers and c.name not in reads and not c.has_names):
        low, high = min(label.numbers), max(label.numbers)
        reason = f"{label.name!r} holds numbers from {low:g} to {high:g}, one for each {noun}"
        score = 0.45 + 0.12 * label.hint(LABELS) - 0.12 * label.is_class
        own = settings | {"label_field": label.name}
        comments = {"label_field": f"from {low:g} to {high:g}"}
        if pair is not None and low < high and language_of(pair[0].texts) == language_of(pair[1].texts):
            own_range = own | {"label_range": [nearest_round(low), nearest_round(high)]}
            yield Guess("sentence_similarity", score + 0.15, reason, own_range, comments, reads)
        yield Guess("sequence_regression", score + 0.1 * (pair is not None), reason, own, comments, reads)


def several(table: Table) -> Iterator[Guess]:
    settings, reads, _ = text_fields(table)
    for label in table.content():
        is_list = label.lists and label.all_are(label.lists)
        if not reads or not is_list or not label.counts or 2 * len(label.counts) > sum(label.counts.values()) + 2:
            continue
        reason = f"{label.name!r} holds lists of {len(label.counts)} classes"
        score = 0.7 + 0.08 * label.hint(LABELS)
        comments = {"label_field": of_counts(label)}
        yield Guess("multi_label_classification", score, reason, settings | {"label_field": label.name}, comments, reads)


def pairs(table: Table) -> Iterator[Guess]:
    """Two texts that belong together: translations, equals, or a text and what is made of it."""
    texts = prose_of(table)
    pair = pair_of(texts)
    names = {column.name.lower(): column.name for column in texts}
    seeks, found = (next((names[name] for name in of if name in names), None) for of in (SEEKS, FOUND))
    if seeks and found:
        pair = table.columns[seeks], table.columns[found]
    if pair is not None:
        settings = {"text_field": pair[0].name, "text_pair_field": pair[1].name, "label_field": None}
        reason = f"{pair[0].name!r} and {pair[1].name!r} are texts that belong together"
        score = 0.88 if seeks and found else 0.55
        comments = {"label_field": "every pair is one of equals, the other texts of a batch are not"}
        reads = (pair[0].name, pair[1].name)
        yield Guess("sentence_similarity", score, reason, settings | {"loss": "in_batch_negatives"}, comments, reads)
    if len(texts) < 2:
        return
    one, other = sorted(texts[:2], key=lambda c: (c.name.lower().rpartition(".")[2] in WRITTEN, -c.words))
    order = list(table.columns)
    languages = [language_of(column.texts) or column.name for column in (one, other)]
    if order.index(other.name) < order.index(one.name) and other.name.lower() not in WRITTEN:
        one, other = (other, one) if languages[0] != languages[1] else (one, other)
    first, second = language_of(one.texts), language_of(other.texts)
    if first and second and first != second:
        settings = {"source_field": one.name, "target_field": other.name}
        reason = f"{one.name!r} is in one language ({first}) and {other.name!r} in another ({second})"
        yield Guess("translation", 0.9, reason, settings, {}, (one.name,), other.name)
    is_named = other.name.lower() in WRITTEN
    settings = {"source": f"{{{one.name}}}", "target_field": other.name}
    reason = f"{other.name!r} can be written from {one.name!r}"
    yield Guess("text_to_text", 0.85 if is_named else 0.5, reason, settings, {}, (one.name,), other.name)


def corpora(table: Table) -> Iterator[Guess]:
    texts = prose_of(table)
    if not texts:
        return
    text = {"text_field": texts[0].name}
    good, bad = ("good", "bad") if "good" in table.columns else ("sentence_good", "sentence_bad")
    if good in table.columns and bad in table.columns:
        reason = f"{good!r} and {bad!r} are minimal pairs, by which models are measured; the good texts are learned"
        yield Guess("causal", 0.9, reason, {}, {}, (good,), data={"text_field": good}, evaluation={"minimal_pairs": True})
    alone = len(texts) == 1 and not any(c.hint(LABELS) == 3 for c in classes_of(table, (texts[0].name,)))
    score = (0.6 if alone else 0.3) + 0.1 * (alone and texts[0].words > 100)
    score = 0.8 if alone and len(table.content()) == 1 else score
    reason = f"{texts[0].name!r} holds texts, and no other column classes or answers"
    yield Guess("causal", score, reason, {}, {}, (texts[0].name,), data=text)
    yield Guess("masked", score - 0.1, reason, {}, {}, (texts[0].name,), data=text)


GUESSERS = (images, tags, spans, chats, choices, labelled, several, pairs, corpora)


def of_counts(column: Column) -> str:
    """The classes of a column and how often each is there."""
    common = ", ".join(f"{name} {number:,}" for name, number in column.counts.most_common(6))
    more = len(column.counts) - 6
    return f"{common} and {more} more" if more > 0 else common


def nearest_round(value: float) -> float:
    """The number of a scale that a lowest or highest value stands for: 4.9 is 5."""
    return round(value)
