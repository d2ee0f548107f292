"""Which task learns from a table: a guess for each that fits, with a score and a reason."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..objectives.chat_forms import recognise
from ..objectives.label_values import groups_alike
from ..objectives.messages import TOOLS
from ..plugins import METRICS
from .what_columns_hold import Column, Table, hints

IMAGE = re.compile(r".*\.(png|jpe?g|bmp|gif|webp|tiff?)", re.IGNORECASE)
MARKED = re.compile(r"O|[BIESLUM]-\S+")
OF_SENTENCE = re.compile("sent(?!im)|satz|phrase", re.IGNORECASE)
TWIN = re.compile(r"(?<![a-z])[ab](?![a-z])|\d")  # of sentence1 and sentence2, text_a and text_b
CHOICE = re.compile(r"(.*(?:option|choice|ending|answer|candidate)[ _]?)?([a-e]|\d)", re.IGNORECASE)
OF_CLASSES = {"metrics": ["accuracy", "f1_macro"]}


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
    others = [column for column in table.content() if column.texts and not column.numbers]
    found = [column for column in others if column.is_prose] or sorted(others, key=lambda c: -len(c.counts))[:1]
    return sorted(found, key=lambda column: -column.hint("texts") - min(column.words, 200) / 40)


def labels_of(table: Table, reads: tuple[str, ...] = ()) -> list[Column]:
    """The columns of classes, the likeliest first; names before the numbers that stand for them."""
    found = [column for column in table.content() if column.is_class and column.name not in reads]
    return sorted(found, key=lambda c: (-c.hint("labels"), "." in c.name, bool(c.numbers), c.name.count("_")))


def pair_of(table: Table, named: str = "pairs") -> tuple[Column, Column] | None:
    """Two columns of texts that are a pair by their names, such as sentence1 and sentence2, or those in names.yaml."""
    texts = {column.name.lower(): column for column in table.columns.values() if column.is_prose}
    stems: dict[str, list[str]] = {}
    for name in texts:
        stems.setdefault(TWIN.sub("", name), []).append(name)
    twins = [names for names in stems.values() if len(names) == 2] if named == "pairs" else []
    return next(((texts[a], texts[b]) for a, b in [*twins, *hints()[named]] if a in texts and b in texts), None)


def text_fields(table: Table) -> tuple[dict[str, Any], tuple[str, ...], tuple[Column, ...]]:
    """(settings of the texts that are read, their columns, those that are a pair)."""
    pair, texts = pair_of(table, "seeks") or pair_of(table) or (), texts_of(table)
    if pair:
        names = tuple(column.name for column in pair)
        return dict(zip(("text_field", "text_pair_field"), names)), names, pair
    heads = [c.name for c in texts[1:] if c.hint("texts") == 1 and c.words < texts[0].words]  # a subject, a title
    names = tuple(sorted([*heads, *(column.name for column in texts[:1])], key=list(table.columns).index))
    return {"text_field": list(names) if len(names) > 1 else names[0]} if names else {}, names, ()


def of_counts(column: Column) -> str:
    """The classes of a column and how often each is there."""
    common = ", ".join(f"{name} {number:,}" for name, number in column.counts.most_common(6))
    more = len(column.counts) - 6
    return f"{common} and {more} more" if more > 0 else common


# ---- guesses


def images(table: Table) -> Iterator[Guess]:
    for column in table.columns.values():
        found = [one for one in column.filled if isinstance(one, bytes) or (isinstance(one, dict) and "bytes" in one)]
        found += [text for text in column.texts if IMAGE.fullmatch(text)]
        if found and len(found) >= 0.95 * len(column.filled):
            reason = f"{column.name!r} holds images"
            own = {"image_field": column.name}
            for label in labels_of(table, (column.name,))[:1]:
                why = f"{reason}, and {label.name!r} {len(label.counts)} classes of them"
                settings = own | {"label_field": label.name}
                yield Guess("image_classification", 0.98, why, settings, (), of_counts(label), evaluation=OF_CLASSES)
            yield Guess("masked_image", 0.9, reason, own)


def is_tag(column: Column) -> bool:
    """Whether it holds a tag of a word in each row."""
    return bool(column.counts["O"] and column.texts) and all(MARKED.fullmatch(tag) for tag in column.counts)


def sentence_field_of(table: Table) -> str | None:
    """The column that says to which sentence the word in a row belongs; None: none does, or rows hold no tags."""
    named = [one.name for one in table.columns.values() if OF_SENTENCE.search(one.name) and len(one.counts) > 1]
    return next(iter(named), None) if any(map(is_tag, table.content())) else None


def tags(table: Table) -> Iterator[Guess]:
    columns = sorted(table.columns.values(), key=lambda column: -len(column.counts))  # words before their tags
    sequences = {column: column.lists or [text.split() for text in column.texts] for column in columns}
    for words, tagged in ((one, other) for one in sequences for other in sequences if one is not other):
        pairs = list(zip(sequences[words], sequences[tagged]))
        are_tags = bool(pairs) and all(len(one) == len(other) for one, other in pairs)
        if not are_tags or not isinstance(pairs[0][0][0], str) or isinstance(pairs[0][1][0], list | dict):
            continue
        kinds = {str(tag) for _, of_row in pairs for tag in of_row}
        marked = all(MARKED.fullmatch(tag) for tag in kinds)
        if marked or (words.lists and tagged.lists and len(kinds) < min(100, len(words.counts))):
            reason = f"each word in {words.name!r} has a tag in {tagged.name!r}"
            own = {"sentence_field": table.sentence_field} if table.sentence_field else {}
            settings = {"tokens_field": words.name, **own, "tags_field": tagged.name}
            score = 0.9 + 0.05 * marked + 0.02 * isinstance(pairs[0][1][0], str) + 0.01 * tagged.has_names
            if max(len(one) for one, _ in pairs) > 1:
                yield Guess("token_classification", score, reason, settings, (words.name,), of_counts(tagged))
    for column in table.content():
        reason = f"{column.name!r} holds tags"
        if is_tag(column):
            way_out = "name the column that numbers the sentences `sentence`, or write a .conll file"
            yield Guess("token_classification", 0.94, reason, unfit=f"a word is in each row; {way_out}")
        if column.lists and not column.counts and isinstance(column.lists[0][0], list):
            way_out = "write lists of words and of their tags, or a .conll file"
            yield Guess("token_classification", 0.65, reason, unfit=f"{column.name!r} holds spans of texts; {way_out}")


def spans(table: Table) -> Iterator[Guess]:
    there = [column for column in table.columns.values() if column.filled and not isinstance(column.filled[0], dict)]
    question = next((column for column in there if column.hint("questions") and column.texts), None)
    context = next((column for column in there if column.hint("contexts") and column.texts), None)
    start = next((column for column in there if re.search(r"answer.*start|start.*answer", column.name)), None)
    answers = [c for c in there if re.search(r"answers?[._]?text$|^answers?$", c.name) and c is not start]
    if None in (question, context) or not answers or answers[0].is_class:
        return
    reads, answer = (question.name, context.name), answers[0]
    if start is not None:
        settings = dict(zip(("question_field", "context_field"), reads)) | {"max_length": 384}
        settings |= {"answer_text_field": answer.name, "answer_start_field": start.name}
        settings |= {"no_answer": True} if answer.share < 1 else {}
        reason = f"{start.name!r} says where in {context.name!r} the answer begins"
        yield Guess("question_answering", 0.97, reason, settings, reads)
    reason = "it has a question, a context and an answer" + ", not where it begins there" * (start is None)
    settings = {"source": f"question: {{{reads[0]}}} context: {{{reads[1]}}}", "target_field": answer.name}
    yield Guess("text_to_text", 0.9, reason, settings, reads, writes=answer.name, evaluation=of_written(answer))


def chats(table: Table) -> Iterator[Guess]:
    form = recognise(table.rows[:100])
    if form is not None:
        answer = table.columns.get(str(form.settings.get("answer_field", "output")))
        score = {"alpaca": 0.9, "prompt_completion": 0.87}.get(form.name, 0.97)
        score = 0.55 if answer is not None and answer.is_class else score
        named = tuple(name for name in (*form.settings.values(), TOOLS) if name in table.columns)
        yield Guess(form.task, score, form.words(), dict(form.settings), named)


def choices(table: Table) -> Iterator[Guess]:
    stems: dict[str | None, list[str]] = {}
    for column in table.columns.values():
        if (match := CHOICE.fullmatch(column.name)) and column.texts:
            stems.setdefault(match[1], []).append(column.name)
    found: list[tuple[Any, int]] = [(names, len(names)) for stem, names in stems.items() if len(names) > 1 + (not stem)]
    for column in table.columns.values():
        sizes = {len(value) for value in column.lists if re.search("choice|option|ending", column.name, re.IGNORECASE)}
        are_texts = any(len(text) > 2 for text in column.counts)  # and no letters
        found += [(column.name, *sizes)] if len(sizes) == 1 and are_texts else []
    for these, size in found:
        texts = [column for column in texts_of(table) if column.name not in these][:2]
        texts = sorted(texts, key=lambda column: (not column.hint("questions"), column.words))
        fields = dict(zip(("question_field", "context_field"), (column.name for column in texts)))
        for label in table.columns.values() if texts else ():
            are_numbers = label.numbers and {*label.numbers} <= {*range(size)}
            are_letters = {name.upper() for name in label.counts} <= {*"ABCDEFGHIJ"[:size]}
            if label.counts and not label.lists and (are_numbers or are_letters) and label.name not in these:
                settings = {"context_field": None} | fields | {"choices_field": these, "label_field": label.name}
                reason = f"{label.name!r} says which of {size} choices is right"
                yield Guess("multiple_choice", 0.97, reason, settings, tuple(fields.values()), of_counts(label))
            elif {*label.numbers} == {*range(1, size + 1)} and re.search("answer|label|correct", label.name):
                unfit = f"{label.name!r} counts the choices from 1; write its numbers from 0, or letters"
                yield Guess("multiple_choice", 0.96, unfit, unfit=unfit)


def labelled(table: Table) -> Iterator[Guess]:
    settings, reads, pair = text_fields(table)
    if reads and table.columns[reads[0]].texts[0].startswith("__label__"):  # fastText
        way_out = "write a table of two columns, the labels and the text behind them"
        yield Guess("sequence_classification", 0.9, "", unfit=f"`__label__` begins its lines; {way_out}")
    noun, few = "pair of texts" if pair else "text", 0.12 * (len(table.content()) <= len(reads) + 2)
    for label in labels_of(table, reads) if reads else ():
        reason = f"{label.name!r} holds {len(label.counts)} values that come again and again, one for each {noun}"
        score = 0.5 + max(0.12 * label.hint("labels") + 0.1 * bool(pair), few)
        own = settings | {"label_field": label.name}
        own |= {"merge_labels": True} if groups_alike(Counter(label.texts)) else {}  # spellings of one class
        yield Guess("sequence_classification", score, reason, own, reads, of_counts(label), evaluation=OF_CLASSES)
    numbers = [column for column in table.content() if column.numbers and not column.has_names]
    for label in (column for column in numbers if reads and column.name not in reads):
        low, high = min(label.numbers), max(label.numbers)
        words = f"from {low:g} to {high:g}"
        reason = f"{label.name!r} holds numbers {words}, one for each {noun}"
        is_measured = 0.1 * (not label.are_whole and not label.is_class)  # with decimals
        score = 0.48 + 0.12 * label.hint("labels") - 0.12 * label.is_class + is_measured
        own = settings | {"label_field": label.name}
        if pair and low < high and pair[0].language == pair[1].language:
            own_range = own | {"label_range": [min(0, round(low)), round(high + 0.49)]}
            yield Guess("sentence_similarity", score + 0.12, reason, own_range, reads, words)
        yield Guess("sequence_regression", score + 0.1 * bool(pair), reason, own, reads, words)


def several(table: Table) -> Iterator[Guess]:
    """Several classes for a text: in lists, in a cell with signs between them, or in a column each."""
    settings, reads, _ = text_fields(table)
    for label in (column for column in table.content() if reads and column.name not in reads):
        classes, separator = label.parts
        if classes:
            reason = f"{label.name!r} holds several of {len(classes)} classes for each text"
            score, own = 0.72 + 0.08 * label.hint("labels"), settings | {"label_field": label.name}
            words = f"with {separator}s between: " * bool(separator) + ", ".join(sorted(classes)[:12])
            yield Guess("multi_label_classification", score, reason, own, reads, words)
    hot = [column.name for column in table.content() if column.numbers and {*column.numbers} == {0, 1}]
    if len(hot) > 2 and reads:
        reason, own = f"{len(hot)} columns each say whether a text has a class", settings | {"label_field": hot}
        yield Guess("multi_label_classification", 0.9, reason, own, reads)


def pairs(table: Table) -> Iterator[Guess]:
    """Two texts that belong together: equals, translations, or a text and what is made of it."""
    texts, has_label = texts_of(table), any(label.hint("labels") for label in labels_of(table))
    settings, reads, pair = text_fields(table)
    if pair and not has_label:
        settings |= {"label_field": None, "loss": "in_batch_negatives"}
        reason = f"{reads[0]!r} and {reads[1]!r} are texts that belong together"
        words, score = "each text has to find its pair in a batch", 0.88 if pair == pair_of(table, "seeks") else 0.6
        yield Guess("sentence_similarity", score, reason, settings, reads, words)
    if len(texts) < 2:
        return
    first = {column.language: column for column in table.columns.values() if column in texts}  # as they stand: en, de
    first.pop(None, None)
    if len(first) == 2:
        one, other = first.values()
        reason = f"{one.name!r} is in one language ({one.language}) and {other.name!r} in another ({other.language})"
        settings = {"source_field": one.name, "target_field": other.name}
        yield Guess("translation", 0.6 if has_label else 0.9, reason, settings, (one.name,), writes=other.name)
    one, other = sorted(texts[:2], key=lambda column: (column.hint("written"), -column.words))
    score = 0.85 if other.hint("written") > one.hint("written") and not has_label else 0.5
    reason = f"{other.name!r} is made of {one.name!r}"
    own = {"source": f"{{{one.name}}}", "target_field": other.name}
    yield Guess("text_to_text", score, reason, own, (one.name,), writes=other.name, evaluation=of_written(other))


def of_written(column: Column) -> dict[str, Any]:
    """Settings of the evaluation of texts that are written: of long ones no two are equal."""
    metric = "rougeL" if METRICS["rougeL"].missing() is None else "chrf"
    return {"metrics": [metric]} if column.words > 5 else {}


def corpora(table: Table) -> Iterator[Guess]:
    texts, good = texts_of(table), next((name for name in ("good", "sentence_good") if name in table.columns), None)
    if good is not None and good.replace("good", "bad") in table.columns:
        reason = f"{good!r} and its bad twin are minimal pairs, by which models are measured; the good ones are learned"
        yield Guess("causal", 0.99, reason, {}, (good,), data={"text_field": good}, evaluation={"minimal_pairs": None})
    others = [column for column in table.content() if column.is_class or column.numbers]
    for text in texts[:1]:
        bodies = [column for column in texts if column is text or column.hint("texts") != 1]  # beside titles
        are_labels = any(c.hint("labels") or {text.lower() for text in c.counts} <= {"yes", "no"} for c in others)
        score = 0.3 if len(bodies) > 1 or are_labels else 0.55
        reason = f"{text.name!r} holds texts" + ", and no other column classes or answers" * (score > 0.5)
        score += 0.1 * (text.words > 100) + 0.2 * (len(table.content()) == 1)
        for task, less in (("causal", 0.0), ("masked", 0.1)):
            yield Guess(task, score - less, reason, {}, (text.name,), data={"text_field": text.name})


GUESSERS = (images, tags, spans, chats, choices, labelled, several, pairs, corpora)
