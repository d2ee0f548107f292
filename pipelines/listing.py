"""`anyformer list`: what can be named in a recipe or on the command line, as tables."""

import ast
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_type_hints

from rich.console import Console
from rich.table import Table

from . import source_fields
from .parameter_count import decoder_parameters, short_number
from .recipe import load_preset
from .recipe_files import shipped, shipped_yaml
from .schema import ObjectiveSection

KINDS = ("presets", "recipes", "objectives")
# A pipe has no width; wide enough that no row of ours is broken, so that grep finds whole lines.
PIPE_WIDTH = 200


def preset_rows() -> list[tuple[str, str, str]]:
    """Return (name, parameters, one line) of each shipped architecture."""
    rows = []
    for name in shipped("models"):
        family, fields = load_preset(name)
        defaults = {key: field.default for key, field in source_fields.family_fields(family).items()}
        config = SimpleNamespace(**(defaults | {"vocab_size": 0} | fields))
        count = short_number(decoder_parameters(config)) + ("" if config.vocab_size else " + embeddings")
        rows.append((name, count, shipped_yaml("models", name)["description"]))
    return rows


def recipe_rows() -> list[tuple[str, str]]:
    """Return (name, one line) of each shipped recipe."""
    return [(name, shipped_yaml("recipes", name)["description"]) for name in shipped("recipes")]


def objective_rows() -> list[tuple[str, str]]:
    """Return (name, one line) of each objective: the first line of its module's docstring, read without importing."""
    rows = []
    folder = Path(importlib.util.find_spec("anyformer.pipelines.objectives").origin).parent
    for name in get_args(get_type_hints(ObjectiveSection)["name"]):
        source = (folder / f"{name}.py").read_text(encoding="utf-8")
        rows.append((name, ast.get_docstring(ast.parse(source)).splitlines()[0]))
    return rows


def print_tables(kind: str | None = None) -> None:
    """Print one table, or all three where `kind` is None."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    makers = {
        "presets": (preset_rows, ("preset", "parameters", "architecture")),
        "recipes": (recipe_rows, ("recipe", "what it trains")),
        "objectives": (objective_rows, ("objective", "what the model learns to predict")),
    }
    for name in KINDS if kind is None else [kind]:
        make, columns = makers[name]
        table = Table(*columns, title=name, title_justify="left", title_style="bold", box=None, pad_edge=False)
        table.columns[0].no_wrap = True
        table.columns[0].style = "cyan"
        for row in make():
            table.add_row(*row)
        console.print(table)
        if kind is None and name != KINDS[-1]:
            console.print()
