"""Labelled examples derived from data without such labels (`data.derive`); standard library and numpy.

From documents (`OF_DOCUMENTS`): any source of plain text, split into training and validation by document. From other
examples (`EntityKinds`): row by row, under the names of the task's columns. The result depends on the data alone, not
on a seed: it is the same data set in every run.
"""

import ast
import re
import textwrap
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import PurePath
from typing import Any

from ..errors import UserError
from ..lazy import np
from ..recipes.schema import DataSection
from ..storage.cache import kept_value
from .account import UNUSED, USED, Account
from .cells import texts_of
from .documents import Corpus, Document, Limits, counted_from
from .examples import Examples
from .reader import Example, ExampleView, Reader, Row, check_some
from .splits import VALIDATION, Split

CHOICES = 4
BLOCK = 1000  # documents that take their wrong choices from each other
EVERY = 8  # sentences of a document per example
SENTENCE = (20, 300)  # shortest and longest usable sentence, in characters
NEAR = 30  # candidates for wrong choices: sentences of other documents, the nearest in length
_FORMAT = 2  # raise it when other examples are made


def next_sentences(documents: Iterable[Document], unfit: Counter[str]) -> Iterator[Example]:
    """Examples of two sentences and four choices for the next one (as SWAG, Zellers et al. 2018, from any text).

    A row is {"context", "choices", "label"}. The wrong choices are drawn from the sentences of other documents that
    are nearest in length to the right one, so that length does not tell. Each run of 8 sentences gives one example.
    unfit: counts, by reason, the documents that give none.
    """
    documents, number = iter(documents), 0
    block = list(islice(documents, BLOCK))
    while block:
        following = list(islice(documents, BLOCK))
        if len(following) < BLOCK // 2:  # a small last block would have too few choices
            block, following = block + following, []
        yield from _of_block(block, number, unfit)
        number, block = number + len(block), following


def _of_block(block: list[Document], first: int, unfit: Counter[str]) -> Iterator[Example]:
    def fits(sentence: str) -> bool:
        return SENTENCE[0] <= len(sentence) <= SENTENCE[1]

    sentences = [sentences_of(document.text) for document in block]
    pool = sorted((len(text), place, text) for place, texts in enumerate(sentences) for text in texts if fits(text))
    for place, (document, texts) in enumerate(zip(block, sentences)):
        draw, has_example = np.random.default_rng(first + place), False
        for start in range(0, max(len(texts) - 2, 0), EVERY):
            ends = [i for i in range(start + 2, min(start + EVERY, len(texts))) if all(map(fits, texts[i - 2 : i + 1]))]
            if not ends:
                continue
            end = ends[int(draw.integers(len(ends)))]
            right = texts[end]
            wrong = _near(pool, len(right), place, right)
            if len(wrong) < CHOICES - 1:
                continue
            choices = [right, *(wrong[i] for i in draw.permutation(len(wrong))[: CHOICES - 1].tolist())]
            order = draw.permutation(CHOICES).tolist()
            row = {"context": " ".join(texts[end - 2 : end]), "choices": [choices[i] for i in order]}
            has_example = True
            yield f"{document.source}, sentence {end + 1}", row | {"label": order.index(0)}
        unfit["too few sentences of ordinary length, or none to choose from"] += not has_example


def _near(pool: list[tuple[int, int, str]], length: int, place: int, right: str) -> list[str]:
    """Different sentences nearest in length, from other documents than number `place`."""
    after = bisect_left(pool, (length,))
    before, texts = after - 1, {}
    while len(texts) < NEAR and (before >= 0 or after < len(pool)):
        below = length - pool[before][0] if before >= 0 else SENTENCE[1]
        above = pool[after][0] - length if after < len(pool) else SENTENCE[1]
        _, document, text = pool[before if below < above else after]
        before, after = (before - 1, after) if below < above else (before, after + 1)
        if document != place and text != right:
            texts[text] = None
    return list(texts)


def entity_kinds(row: dict[str, Any], columns: dict[str, str], place: str) -> dict[str, Any]:
    """Turn tagged words into a text labelled with the kinds of entities in it: B-PER, I-PER and O give PER."""
    words, tags = (
        texts_of(row, columns[field], field, place, noun)
        for field, noun in (("text_field", "word"), ("label_field", "tag"))
    )
    if len(words) != len(tags):
        raise UserError(
            f"task.label_field={columns['label_field']!r}: {place} has {len(tags)} tags of {len(words)} words"
        )
    kinds = dict.fromkeys(tag.partition("-")[2] or tag for tag in tags if tag != "O")
    return row | {columns["text_field"]: " ".join(words), columns["label_field"]: list(kinds)}


WORDS = (3, 40)  # of a summary
LONGEST_ARGUMENTS = 60  # characters
_BREAK = re.compile(r"\s*(?:<br\s*/?>|\n)\s*")  # the end of a line, also as HTML, as in reviews from the web
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+(?=[\"'“‘«(\[]*[A-ZÀ-Þ0-9])")
_ABBREVIATION = re.compile(r"(?:^|[\s(\"'])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|No|vs|etc|e\.g|i\.e)\.\s+$")
PLACES = {"posixpath": "os.path"}  # module of the standard library -> the name that programs import it by

# Questions about a function or class {name}: in training, and in validation, with words that training never uses.
ASKED = (
    "What does {name} do?",
    "What is {name}?",
    "Explain {name}.",
    "What is {name} for?",
    "Describe {name}.",
    "Can you explain {name}?",
    "I would like to know about {name}.",
    "How would you describe {name}?",
)
ASKED_OTHERWISE = ("Tell me what {name} does.", "Please explain to me what {name} is.", "When do I need {name}?")


def trees(documents: Iterable[Document], unfit: Counter[str]) -> Iterator[tuple[Document, ast.Module]]:
    """The documents that are valid Python, parsed. unfit: counts the others."""
    for document in documents:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about escapes that Python will refuse one day
                yield document, ast.parse(document.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            unfit["no Python"] += 1


def sentences_of(text: str) -> list[str]:
    """The sentences of a text: each ends at . ! ? or … before a capital or a digit, but not after an abbreviation."""
    sentences = []
    for line in _BREAK.split(text):
        begin = 0
        for end in _END.finditer(line):
            if not _ABBREVIATION.search(line[begin : end.end()]):
                sentences.append(line[begin : end.end()].strip())
                begin = end.end()
        sentences.append(line[begin:].strip())
    return [sentence for sentence in sentences if sentence]


def summary_of(docstring: str) -> str:
    """The first paragraph, which PEP 257 calls a summary, in one line."""
    return " ".join(re.split(r"\n\s*\n", docstring.strip())[0].split())


def function_summaries(documents: Iterable[Document], unfit: Counter[str]) -> Iterator[Example]:
    """Functions of Python sources without their docstrings, and the summaries of these.

    {"code", "summary", "function"}. Left out are documents that are no Python, functions of nothing but a docstring,
    summaries of fewer than 3 or more than 40 words, and of equal functions in a split all but the first one.
    unfit: counts the documents that are no Python.
    """
    seen = set()
    for document, tree in trees(documents, unfit):
        lines = re.split(r"\r\n|\r|\n", document.text)  # as ast counts them; a form feed ends none
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        for node in sorted(functions, key=lambda node: node.lineno):
            text, docstring = ast.get_docstring(node), node.body[0]
            if (
                text is None
                or len(node.body) < 2
                or docstring.lineno == node.lineno
                or node.body[1].lineno <= docstring.end_lineno
            ):
                continue
            summary = summary_of(text)
            code = [*lines[node.lineno - 1 : docstring.lineno - 1], *lines[docstring.end_lineno : node.end_lineno]]
            row = {"code": textwrap.dedent("\n".join(code)).strip(), "summary": summary, "function": node.name}
            if WORDS[0] <= len(summary.split()) <= WORDS[1] and row["code"] not in seen:
                seen.add(row["code"])
                yield f"{document.source}, line {node.lineno}", row


@dataclass(frozen=True)
class Definition:
    """A public function or class of a module. arguments: a function's, as code; None: of a class, or too long."""

    name: str
    module: str
    summary: str
    arguments: str | None


def definitions(document: Document, tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """(place, definition) of the public functions and classes of a module whose docstring begins with a sentence."""
    path = PurePath(document.source).with_suffix("")
    parts = path.parts[:-1] if path.name == "__init__" else path.parts
    if not parts or any(part.startswith("_") for part in parts):
        return
    module = PLACES.get(".".join(parts), ".".join(parts))
    for node in tree.body:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not (is_function or isinstance(node, ast.ClassDef)) or node.name.startswith("_"):
            continue
        sentences = sentences_of(summary_of(ast.get_docstring(node) or ""))
        if not sentences or not WORDS[0] <= len(sentences[0].split()) <= WORDS[1] or sentences[0].startswith(">>>"):
            continue
        arguments = ast.unparse(node.args) if is_function else None
        arguments = arguments if arguments is None or len(arguments) <= LONGEST_ARGUMENTS else None
        definition = Definition(f"{module}.{node.name}", module, sentences[0], arguments)
        yield f"{document.source}, line {node.lineno}", definition


def docstring_questions(
    documents: Iterable[Document], unfit: Counter[str], wordings: tuple[str, ...] = ASKED
) -> Iterator[Example]:
    """Questions, in all wordings, about each public function and class; the answer is its docstring's first sentence.

    {"instruction", "output"}. unfit: counts the documents that are no Python.
    """
    for document, tree in trees(documents, unfit):
        known = list(definitions(document, tree))
        for wording in wordings:
            for place, definition in known:
                yield place, {"instruction": wording.format(name=definition.name), "output": definition.summary}


def docstring_conversations(
    documents: Iterable[Document], unfit: Counter[str], wordings: tuple[str, ...] = ASKED
) -> Iterator[Example]:
    """Conversations about the public functions and classes of modules, each of several questions about one of them.

    {"messages"}: what it does, which module it is in, its arguments, and what the definition before it does; some
    begin with a greeting or end with thanks. unfit: counts the documents that are no Python.
    """
    number = 0
    for document, tree in trees(documents, unfit):
        before = None
        for place, definition in definitions(document, tree):
            turns = [("Which module is it in?", f"It is in {definition.module}.")]
            if definition.arguments is not None:
                takes = f"It takes {definition.arguments}." if definition.arguments else "It takes no arguments."
                turns.insert(number % 2, ("What are its arguments?", takes))
            turns.insert(0, (wordings[number % len(wordings)].format(name=definition.name), definition.summary))
            if before is not None:
                turns.append((f"And {before.name}?", before.summary))
            if number % 4 == 0:
                turns.insert(0, ("Hello!", "Hello! Which function do you want to know about?"))
            elif number % 4 == 1:
                turns.append(("Thank you.", "You are welcome."))
            pairs = [({"role": "user", "content": q}, {"role": "assistant", "content": a}) for q, a in turns]
            yield place, {"messages": [message for turn in pairs for message in turn]}
            before, number = definition, number + 1


# Name -> (function that makes examples of documents, the columns of these examples).
OF_DOCUMENTS: dict[str, tuple[Callable[[Iterable[Document], Counter[str]], Iterator[Example]], tuple[str, ...]]] = {
    "next_sentence": (next_sentences, ("context", "choices", "label")),
    "function_summary": (function_summaries, ("code", "summary", "function")),
    "docstring_questions": (docstring_questions, ("instruction", "output")),
    "docstring_conversations": (docstring_conversations, ("messages",)),
}
# For these, validation asks about the training documents in words that training never uses: the model learns what these
# documents say, so it could not answer about others.
ASKS_OTHERWISE = ("docstring_questions", "docstring_conversations")


class DerivedFromDocuments(Reader):
    """The examples that `derive` makes of a split's documents. otherwise: ask in the words for validation."""

    def __init__(self, derive: str, corpus: Corpus, view: ExampleView, otherwise: bool = False):
        super().__init__(view)
        self.derive, self.corpus, self.unfit = derive, corpus, Counter()
        self.words = (ASKED_OTHERWISE,) if otherwise else ()
        self.name = f"{corpus.name} ({derive})"
        view.check_columns(list(OF_DOCUMENTS[derive][1]), f"what data.derive={derive} makes")

    def rows_from(self, place: int | None = None) -> Iterator[tuple[Row, int]]:
        return counted_from(place, self._rows())

    def _rows(self) -> Iterator[Row]:
        self.unfit = Counter()
        for where, row in OF_DOCUMENTS[self.derive][0](self.corpus.documents(), self.unfit, *self.words):
            yield Row(where, where, row)

    def account(self) -> Account:
        """How the documents were read, those that the latest pass skipped, and those of which it made no example."""
        of_documents = self.corpus.account().entries()
        account = Account(item for item in of_documents if item[0].fate not in (USED, UNUSED))
        for why, number in self.unfit.items():
            account.left_out("source document", why, number)
        return account

    def identity(self) -> Any:
        derived = [self.derive, _FORMAT, *self.words]
        return {"derived": derived, "documents": self.corpus.identity(), "columns": self.columns}


class EntityKinds(Reader):
    """The examples of another reader, converted by `entity_kinds`."""

    def __init__(self, source: Reader):
        super().__init__(source.view)
        self.source, self.name = source, f"{source.name} (entity_kinds)"

    def rows_from(self, place: Any = None) -> Iterator[tuple[Row, Any]]:
        for read, (where, row), after in self.source.read_from(place):
            try:
                row = row if isinstance(row, UserError) else entity_kinds(row, self.columns, where)
            except UserError as error:
                row = error
            yield Row(where, where, row, unread=read.unread), after

    def only(self, *columns: str | None) -> Reader:
        return self  # every column is needed

    def identity(self) -> Any:
        return {"derived": ["entity_kinds", _FORMAT], "examples": self.source.identity()}


def open_derived(
    data: DataSection, columns: dict[str, str], open_corpora: Callable, open_source: Callable
) -> dict[str, Examples]:
    """The derived examples of each split of a section with `derive`.

    open_corpora: (section) -> {split: its documents}. open_source: () -> {split: its examples as they are in the data}.

    Raises UserError as these do, for a task that reads other columns, and for a split from which no example can be
    made.
    """
    derive = data.derive
    if derive in OF_DOCUMENTS:
        held = 0.0 if data.validation_files or data.validation_split else data.share_held_back
        same_documents = derive in ASKS_OTHERWISE and held > 0
        corpora = open_corpora(replace(data, validation_fraction=0.0) if same_documents else data)
        view = ExampleView(columns, Limits.of(data))
        splits = {
            split: Examples(split, DerivedFromDocuments(derive, corpus, view)) for split, corpus in corpora.items()
        }
        if same_documents:
            source = DerivedFromDocuments(derive, corpora["train"], view, otherwise=True)
            splits[VALIDATION] = Examples(VALIDATION, source, rule=Split({VALIDATION: held}))
    else:
        if set(columns) != {"text_field", "label_field"}:
            raise UserError(
                f"data.derive={derive} makes the columns that task.text_field and task.label_field name, and this task "
                f"reads those of {', '.join(f'task.{name}' for name in columns)}; take "
                f"task.name=multi_label_classification"
            )
        splits = open_source()
        made: dict[int, EntityKinds] = {}  # validation may be a part of the training source
        for examples in splits.values():
            source = made.setdefault(id(examples.source), EntityKinds(examples.source))
            examples.source, examples.name = source, source.name
    for examples in splits.values():
        if kept_value(examples.identity, partial(_is_empty, examples)):
            raise UserError(f"data.derive={derive}: no example for {examples.split} can be made of {examples.name}")
    return splits


def _is_empty(examples: Examples) -> bool:
    check_some(read for _, read in examples.numbered())
    return next(examples.numbered(), None) is None
