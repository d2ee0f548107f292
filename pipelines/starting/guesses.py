"""Which task learns from a table: a guess for each that fits, with a score and a reason."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ..objectives.chat_forms import recognise
from .what_columns_hold import Column, Table, hints, language_of

IMAGE = re.compile(r".*\.(png|jpe?g|bmp|gif|webp|tiff?)", re.IGNORECASE)
MARKED = re.compile(r"O|[BIESLUM]-\S+")
CHOICE = re.compile(r"(.*(?:option|choice|ending|answer|candidate)[ _]?)?([a-e]|\d)", re.IGNORECASE)
OF_CHOICES = re.compile(r"choice|option|ending", re.IGNORECASE)
CLASSIFIES, SIMILAR = "sequence_classification", "sentence_similarity"


@dataclass(frozen=True)
class Guess:
    """A task, and why it may be meant.

    settings: of its section; label: a comment on that of the label. reads: the columns of the text that is read;
    writes: of the text that is learned to be written. data, evaluation: settings of these sections. unfit: why the
    task cannot read the rows as they are, and what would be right.
    """

    task: str
    score: float
    reason: str
    settings: dict[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    label: str = ""
    writes: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    unfit: str = ""

    def needs(self, column: str) -> bool:
        named = [*self.settings.values(), self.writes]
        return column in self.reads or any(column == one or (isinstance(one, list) and column in one) for one in named)


def guesses(table: Table) -> list[Guess]:
    """The best guess for each task, the likeliest first."""
    found: dict[str, Guess] = {}
    for guess in (guess for guesser in GUESSERS for guess in guesser(table)):
        if guess.task not in found or guess.score > found[guess.task].score:
            found[guess.task] = guess
    return sorted(found.values(), key=lambda guess: -guess.score)


# ---- columns by what they are for


def texts_of(table: Table) -> list[Column]:
    """The columns of texts, the likeliest first; where none has sentences, the one with most different values."""
    found = [column for column in table.columns.values() if column.is_prose]
    others = [c for c in table.content() if c.texts and c.all_are(c.texts) and not c.numbers]
    found = found or sorted(others, key=lambda column: -column.different)[:1]
    return sorted(found, key=lambda column: -column.hint("texts") - min(column.words, 200) / 40)


def labels_of(table: Table, reads: tuple[str, ...] = ()) -> list[Column]:
    """The columns of classes, the likeliest first; names before the numbers that stand for them."""
    found = [column for column in table.content() if column.is_class and column.name not in reads]
    return sorted(found, key=lambda c: (-c.hint("labels"), "." in c.name, bool(c.numbers), c.name.count("_")))


def pair_of(table: Table, named: str = "pairs") -> tuple[Column, Column] | None:
    """Two columns of texts that are a pair by their names, such as sentence1 and sentence2, or those in names.yaml."""
    texts = {column.name.lower(): column for column in table.columns.values() if column.is_prose}
    for one, other in combinations(sorted(texts), 2) if named == "pairs" else ():
        at = next((place for place, letters in enumerate(zip(one, other)) if len({*letters}) > 1), None)
        if at is not None and one[:at] + one[at + 1 :] == other[:at] + other[at + 1 :] and one[at] in "a1l0":
            alike = [name for name in texts if name[:at] + name[at + 1 :] == one[:at] + one[at + 1 :]]
            if len(alike) == 2:
                return texts[one], texts[other]
    return next(((texts[a], texts[b]) for a, b in hints()[named] if a in texts and b in texts), None)


def text_fields(table: Table) -> tuple[dict[str, Any], tuple[str, ...], tuple[Column, Column] | None]:
    """(settings of the texts that are read, their columns, the pair that they are)."""
    pair, texts = pair_of(table) or pair_of(table, "seeks"), texts_of(table)
    if pair is not None:
        names = tuple(column.name for column in pair)
        return dict(zip(("text_field", "text_pair_field"), names)), names, pair
    heads = [c.name for c in texts[1:] if c.hint("texts") == 1 and c.words < texts[0].words]  # a subject, a title
    names = tuple(sorted([*heads, *(column.name for column in texts[:1])], key=list(table.columns).index))
    return {"text_field": list(names) if len(names) > 1 else names[0]} if names else {}, names, None


def of_counts(column: Column) -> str:
    """The classes of a column and how often each is there."""
    common = ", ".join(f"{name} {number:,}" for name, number in column.counts.most_common(6))
    more = len(column.counts) - 6
    return f"{common} and {more} more" if more > 0 else common


# ---- guesses


def images(table: Table) -> Iterator[Guess]:
    for column in table.columns.values():
        found = [value for value in column.filled if isinstance(value, dict) and "bytes" in value]
        found += [text for text in column.texts if IMAGE.fullmatch(text)]
        if not found or not column.all_are(found):
            continue
        of_image = {} if column.name == "image" else {"image_field": column.name}
        for label in labels_of(table, (column.name,))[:1]:
            reason = f"{column.name!r} holds images, and {label.name!r} {len(label.counts)} classes of them"
            yield Guess(
                "image_classification", 0.98, reason, of_image | {"label_field": label.name}, (), of_counts(label)
            )
        yield Guess("masked_image", 0.9, f"{column.name!r} holds images", of_image)


def tags(table: Table) -> Iterator[Guess]:
    lists = [column for column in table.columns.values() if column.lists and column.all_are(column.lists)]
    for words, tagged in ((one, other) for one in lists for other in lists if one is not other):
        pairs = list(zip(words.lists, tagged.lists))
        are_tags = all(len(one) == len(other) for one, other in pairs) and isinstance(words.lists[0][0], str)
        marked = any(name[:2] in ("B-", "I-") for name in tagged.counts)
        if are_tags and (marked or len(tagged.counts) < min(100, len(words.counts))):
            are_names = isinstance(tagged.lists[0][0], str)
            reason = f"each word in {words.name!r} has a tag in {tagged.name!r}"
            settings = {"tokens_field": words.name, "tags_field": tagged.name}
            score = 0.9 + 0.03 * marked + 0.02 * are_names + 0.01 * tagged.has_names
            yield Guess("token_classification", score, reason, settings, (words.name,), of_counts(tagged))
    for column in table.content():
        reason, unfit = f"{column.name!r} holds tags", ""
        if column.counts["O"] and not column.lists and all(MARKED.fullmatch(tag) for tag in column.counts):
            unfit = "a word with its tag is in each row; write a .conll file: a word and its tag in each line, and an "
            unfit += "empty line after each sentence"
        if column.lists and not column.counts and isinstance(column.lists[0][0], list | dict):
            unfit = f"{column.name!r} seems to hold spans of characters, such as [0, 4, PER]; write lists of words and "
            unfit += "of their tags, or a .conll file"
        if unfit:
            yield Guess("token_classification", 0.65 if column.lists else 0.95, reason, unfit=unfit)


def spans(table: Table) -> Iterator[Guess]:
    there = [column for column in table.columns.values() if column.filled and not isinstance(column.filled[0], dict)]

    def first(pattern: str, *others: Column | None) -> Column | None:
        return next((c for c in there if re.search(pattern, c.name, re.IGNORECASE) and c not in others), None)

    question, context = first("question"), first("context|passage|paragraph")
    start = first(r"answer.*start|start.*answer")
    answer = first(r"answers?[._]?text", start) or first(r"^answers?$", start)
    if question is None or context is None or answer is None or answer.is_class:
        return
    reads = (question.name, context.name)
    if start is not None:
        settings = dict(zip(("question_field", "context_field"), reads))
        settings |= {"answer_text_field": answer.name, "answer_start_field": start.name}
        settings |= {"no_answer": True} if answer.share < 1 else {}
        reason = f"{start.name!r} says where in {context.name!r} the answer begins"
        yield Guess("question_answering", 0.97, reason, settings, reads)
    reason = "it has a question, a context and an answer" + ", not where it begins there" * (start is None)
    settings = {"source": f"question: {{{reads[0]}}} context: {{{reads[1]}}}", "target_field": answer.name}
    yield Guess("text_to_text", 0.9, reason, settings, reads, writes=answer.name)


def chats(table: Table) -> Iterator[Guess]:
    form = recognise(table.rows[:100])
    if form is not None:
        answer = table.columns.get(str(form.settings.get("answer_field", "output")))
        score = {"alpaca": 0.9, "prompt_completion": 0.87}.get(form.name, 0.97)
        score = 0.55 if answer is not None and answer.is_class else score
        named = tuple(name for name in form.settings.values() if name in table.columns)
        yield Guess(form.task, score, form.words(), dict(form.settings), named)


def choices(table: Table) -> Iterator[Guess]:
    stems: dict[str | None, list[str]] = {}
    for column in table.columns.values():
        if (match := CHOICE.fullmatch(column.name)) and column.texts:
            stems.setdefault(match[1], []).append(column.name)
    lists = [column for column in table.columns.values() if column.lists and OF_CHOICES.search(column.name)]
    sizes = {column.name: {len(value) for value in column.lists} for column in lists if column.words_of_items > 1}
    found = [(name, size.pop()) for name, size in sizes.items() if len(size) == 1]
    found += [(names, len(names)) for stem, names in stems.items() if len(names) > (2 if stem is None else 1)]
    for these, size in found:
        texts = [column for column in texts_of(table) if column.name not in these][:2]
        texts = sorted(texts, key=lambda column: (bool(re.search("question|sent2", column.name, re.I)), -column.words))
        fields = dict(zip(("question_field", "context_field"), (column.name for column in reversed(texts))))
        for label in table.columns.values():
            numbers = label.numbers and {*label.numbers} <= {*range(size)}
            letters = {name.upper() for name in label.counts} <= {*"ABCDEFGHIJ"[:size]}
            if texts and label.counts and not label.lists and (numbers or letters) and label.name not in these:
                settings = {"context_field": None} | fields | {"choices_field": these, "label_field": label.name}
                reason = f"{label.name!r} says which of {size} choices is right"
                reads = tuple(column.name for column in texts)
                yield Guess("multiple_choice", 0.97, reason, settings, reads, of_counts(label))


def labelled(table: Table) -> Iterator[Guess]:
    settings, reads, pair = text_fields(table)
    if not reads:
        return
    noun, few = "pair of texts" if pair else "text", 0.12 * (len(table.content()) <= len(reads) + 2)
    for label in labels_of(table, reads):
        reason = f"{label.name!r} holds {len(label.counts)} values that come again and again, one for each {noun}"
        score = 0.5 + max(0.12 * label.hint("labels") + 0.1 * (pair is not None), few)
        own = settings | {"label_field": label.name}
        yield Guess(CLASSIFIES, score, reason, own, reads, of_counts(label))
    for label in (c for c in table.content() if c.numbers and c.name not in reads and not c.has_names):
        low, high = min(label.numbers), max(label.numbers)
        words = f"from {low:g} to {high:g}"
        reason = f"{label.name!r} holds numbers {words}, one for each {noun}"
        score = 0.48 + 0.12 * label.hint("labels") - 0.12 * label.is_class
        own = settings | {"label_field": label.name}
        if pair is not None and low < high and language_of(pair[0].texts) == language_of(pair[1].texts):
            own_range = own | {"label_range": [min(0, round(low)), round(high + 0.49)]}
            yield Guess(SIMILAR, score + 0.12, reason, own_range, reads, words)
        yield Guess("sequence_regression", score + 0.1 * (pair is not None), reason, own, reads, words)


def several(table: Table) -> Iterator[Guess]:
    """Several classes for a text: in lists, in a cell with signs between them, or in a column each."""
    settings, reads, _ = text_fields(table)
    for label in table.content() if reads else ():
        if label.parts and label.name not in reads:
            reason = f"{label.name!r} holds several of {len(label.parts)} classes for each text"
            score = 0.72 + 0.08 * label.hint("labels")
            own = settings | {"label_field": label.name}
            own |= {"label_separator": label.separator} if label.separator else {}
            yield Guess("multi_label_classification", score, reason, own, reads, of_counts(label))
    hot = [column.name for column in table.content() if column.numbers and {*column.numbers} == {0, 1}]
    if len(hot) > 2 and reads:
        reason = f"{len(hot)} columns say of each class whether a text has it"
        own = settings | {"label_field": hot, "labels_are": "multi_hot"}
        yield Guess("multi_label_classification", 0.9, reason, own, reads)


def pairs(table: Table) -> Iterator[Guess]:
    """Two texts that belong together: equals, translations, or a text and what is made of it."""
    texts, seeking = texts_of(table), pair_of(table, "seeks")
    pair = seeking or pair_of(table)
    has_label = any(label.hint("labels") > 0 for label in labels_of(table))
    if pair is not None and not has_label:
        reads = tuple(column.name for column in pair)
        settings = dict(zip(("text_field", "text_pair_field"), reads)) | {"label_field": None}
        reason = f"{reads[0]!r} and {reads[1]!r} are texts that belong together"
        score, words = 0.88 if seeking else 0.6, "a text has to find its pair among those of the batch"
        yield Guess(SIMILAR, score, reason, settings | {"loss": "in_batch_negatives"}, reads, words)
    if len(texts) < 2:
        return
    one, other = sorted(texts[:2], key=list(table.columns.values()).index)  # as they stand: en, de
    first, second = (language_of(column.texts) for column in (one, other))
    if first and second and first != second:
        settings = {"source_field": one.name, "target_field": other.name}
        reason = f"{one.name!r} is in one language ({first}) and {other.name!r} in another ({second})"
        yield Guess("translation", 0.6 if has_label else 0.9, reason, settings, (one.name,), writes=other.name)
    one, other = sorted(texts[:2], key=lambda column: (column.hint([hints()["written"]]), -column.words))
    is_named = other.hint([hints()["written"]]) > one.hint([hints()["written"]]) and not has_label
    settings = {"source": f"{{{one.name}}}", "target_field": other.name}
    reason = f"{other.name!r} can be written from {one.name!r}"
    yield Guess("text_to_text", 0.85 if is_named else 0.5, reason, settings, (one.name,), writes=other.name)


def corpora(table: Table) -> Iterator[Guess]:
    texts = texts_of(table)
    if not texts:
        return
    reads, text = (texts[0].name,), {"text_field": texts[0].name}
    minimal = next((name for name in ("good", "sentence_good") if name in table.columns), None)
    if minimal is not None and minimal.replace("good", "bad") in table.columns:
        reason = f"{minimal!r} and its bad twin are minimal pairs, by which models are measured; the good is learned"
        measured = {"minimal_pairs": True}
        yield Guess("causal", 0.99, reason, {}, (minimal,), data={"text_field": minimal}, evaluation=measured)
    others = [column for column in table.content() if column.is_class or column.numbers]
    score = 0.3 if len(texts) > 1 or any(column.hint("labels") for column in others) else 0.55
    score += 0.1 * (texts[0].words > 100) + 0.2 * (len(table.content()) == 1)
    reason = f"{texts[0].name!r} holds texts" + ", and no other column classes or answers" * (score > 0.5)
    yield Guess("causal", score, reason, {}, reads, data=text)
    yield Guess("masked", score - 0.1, reason, {}, reads, data=text)


GUESSERS = (images, tags, spans, chats, choices, labelled, several, pairs, corpora)
