"""`anyformer list`: what can be named in a recipe or on the command line, as tables."""

import ast
import re
import shutil
import sys
import textwrap
from collections import Counter
from functools import partial
from importlib import resources
from typing import Any

from rich.table import Table

from ..errors import UserError, did_you_mean
from ..plugins import METRICS, OBJECTIVES, SOURCES
from ..recipes import introspection
from ..recipes.compose import load_preset, names_of
from ..recipes.field_docs import describe_family, describe_objective
from ..recipes.recipe_files import shipped, shipped_yaml
from ..reporting.console import wide_console
from ..words import aligned, counted, short_number
from .output import print_json
from .settings_help import explained

HEAD = re.compile(r"Anyformer\w+For(\w+)")


def family_rows() -> list[tuple[str, str, str]]:
    """Return (name, one line, heads) of each family; the line is from its module's docstring."""
    folder, rows = resources.files("anyformer.modeling"), []
    for name in introspection.family_names():
        row = introspection.family_row(name)
        heads = [match[1] for match in map(HEAD.fullmatch, row.heads.values()) if match]
        docstring = ast.get_docstring(ast.parse((folder / f"{row.module}.py").read_text(encoding="utf-8")))
        rows.append((name, docstring.splitlines()[0].rstrip(".").partition(": ")[2], ", ".join(heads)))
    return rows


def preset_rows() -> list[tuple[str, str, str, str]]:
    """Return (name, family, parameters, one line) of each shipped architecture, family by family.

    A plus after the parameters stands for the embeddings of an architecture without a vocabulary of its own. In a
    mixture of experts the active parameters are those used for one token.
    """
    rows = []
    for name in shipped("models"):
        family, fields = load_preset(name)
        facts = shipped_yaml("models", name)
        lacks_vocabulary = "vocab_size" in introspection.family_fields(family) and "vocab_size" not in fields
        count = short_number(facts["parameters"]) + ("+" if lacks_vocabulary else "")
        if "active_parameters" in facts:
            count += f", {short_number(facts['active_parameters'])} active"
        rows.append((name, family, count, facts["description"]))
    return sorted(rows, key=lambda row: (introspection.family_names().index(row[1]), row[0]))


def described_rows(folder: str) -> list[tuple[str, str]]:
    """Return (name, one line) of each file of configs/FOLDER."""
    return [(name, shipped_yaml(folder, name)["description"]) for name in shipped(folder)]


def summary(name: str, cls: Any) -> str:
    """The first line of the docstring of an objective or source, without its full stop."""
    return (cls.__doc__ or name).strip().splitlines()[0].rstrip(".")


def learned_rows(section: str) -> list[tuple[str, str]]:
    """Return (name, one line) of each objective or task."""
    return [(name, summary(name, OBJECTIVES[name])) for name in names_of(section)]


def metric_rows() -> list[tuple[str, str, str]]:
    """Return (name, what it is of, one line) of each metric."""
    return [
        (name, ", ".join((row.compares, *row.also)), row.description + (f" ({row.missing()})" if row.missing() else ""))
        for name, row in METRICS.items()
    ]


TABLES = {
    "families": (family_rows, ("family", "models", "heads")),
    "presets": (preset_rows, ("preset", "family", "parameters", "architecture")),
    "recipes": (partial(described_rows, "recipes"), ("recipe", "what it trains")),
    "objectives": (partial(learned_rows, "objective"), ("objective", "what it learns from plain text or images")),
    "tasks": (partial(learned_rows, "task"), ("task", "what it learns from labelled examples")),
    "metrics": (metric_rows, ("metric", "of", "what it measures")),
    "suites": (partial(described_rows, "suites"), ("suite", "what it measures")),
    "stories": (partial(described_rows, "stories"), ("story", "what it trains, step by step")),
    "experiments": (partial(described_rows, "experiments"), ("experiment", "what it compares, by anyformer sweep")),
    "sources": (lambda: [(name, summary(name, cls)) for name, cls in SOURCES.items()], ("source", "what it reads")),
}


def print_settings(name: str, as_json: bool = False) -> None:
    """Print one objective or task: what it is, the models it trains, and each of its settings."""
    cls = OBJECTIVES[name]
    if as_json:
        facts = {"name": name, "section": cls.section, "summary": summary(name, cls), "families": list(cls.families)}
        settings = [vars(row) | {"owners": list(row.owners)} for row in describe_objective(name)]
        print_json(facts | {"metrics": list(cls.metric_names()), "settings": settings})
        return
    console = wide_console()
    console.print(f"{cls.section} {name}: {summary(name, cls)}", markup=False)
    families, metrics = ", ".join(cls.families), ", ".join(cls.metric_names()) or "none"
    console.print(f"families: {families}; metrics: {metrics}", markup=False)
    print(explained(describe_objective(name)))


def print_fields(family: str | None, as_json: bool = False) -> None:
    """Print every field that `model:` takes for a family."""
    families = introspection.family_names()
    if family not in families:
        raise UserError(f"list fields: name a family, such as list fields decoder{did_you_mean(str(family), families)}")
    print_json([vars(row) for row in describe_family(family)]) if as_json else print(explained(describe_family(family)))


MANY = 24  # if a kind has more names, the summary shows only the first ones


def print_summary() -> None:
    """Print on one screen the names that recipes can use; `anyformer list KIND` explains them."""
    facts, width = [], max(40, shutil.get_terminal_size().columns - 1)
    for kind, (make, _) in TABLES.items():
        names = sorted((row[0] for row in make()), key="quickstart".__ne__)  # what to begin with comes first
        if kind == "presets":  # too many for a screen
            families = Counter(row[1] for row in preset_rows())
            names = [f"{counted(len(names), 'architecture')}: {', '.join(f'{n} {f}' for f, n in families.items())}"]
        text, more = ", ".join(names), f" and more, {len(names)} in all"
        facts.append((kind, textwrap.shorten(text, 2 * (width - 30), placeholder=more) if len(names) > MANY else text))
    print(aligned(facts, width))
    print("\nwhat they are: anyformer list KIND, such as anyformer list presets")
    print("settings of one: anyformer list masked; of a model: anyformer list fields moe")
    print("what goes together in a model: anyformer list --legal")


def print_tables(kind: str | None = None, as_json: bool = False) -> None:
    """Print one table. With `kind` None, print all tables to a pipe, and only their names on a terminal."""
    if as_json:
        tables = {name: _records(name) for name in TABLES if kind in (None, name)}
        print_json(tables if kind is None else tables[kind])
        return
    if kind is None and sys.stdout.isatty():
        print_summary()
        return
    console = wide_console()
    for number, name in enumerate(TABLES if kind is None else [kind]):
        make, columns = TABLES[name]
        table = Table(*columns, title=name, title_justify="left", title_style="bold", box=None, pad_edge=False)
        table.columns[0].no_wrap = True
        table.columns[0].style = "cyan"
        for row in make():
            table.add_row(*row)
        if number:
            console.print()
        console.print(table)


def _records(kind: str) -> list[dict[str, str]]:
    """The rows of a table for JSON: each with its name, its description and the other columns."""
    make, columns = TABLES[kind]
    texts = [column for column in columns if column.startswith("what ") or column == "architecture"]
    names = {columns[0]: "name"} | dict.fromkeys(texts, "description")
    return [{names.get(column, column): text for column, text in zip(columns, row)} for row in make()]
