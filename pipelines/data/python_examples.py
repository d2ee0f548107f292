"""Examples made of Python sources: functions and what they do, questions that docstrings answer, conversations."""

import ast
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from .documents import Document
from .reader import Example

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
