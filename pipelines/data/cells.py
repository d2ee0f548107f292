"""Cells of rows: found by column name and read as text. Standard library only."""

import ast
import re
from contextlib import suppress
from typing import Any

from ..errors import UserError


class IfThere(str):
    """The name of a column that rows may lack: its cell is then None."""


class FromSheet(str):
    """A number, a truth value or a date in a sheet, as it is shown there."""


def from_sheet(value: Any) -> str | None:
    """A cell of a sheet as text, as tables that are text hold it; None: it is empty."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return FromSheet(str(value).upper())
    text = f"{value:.15g}" if isinstance(value, float) else str(value)  # 15 digits, as sheets have them
    return FromSheet(text.removesuffix(" 00:00:00"))  # of a date


def cell(row: dict[str, Any], name: str) -> Any:
    """The value of a column; dots in its name lead into nested dicts and, by numbers, into lists; of a list
    of dicts a key gives a list. Raises KeyError."""
    if name in row:
        return row[name]
    value: Any = row
    for key in name.split("."):
        if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
            continue
        if isinstance(value, list) and all(isinstance(one, dict) and key in one for one in value):
            value = [one[key] for one in value]
            continue
        if not isinstance(value, dict) or key not in value:
            if isinstance(name, IfThere):
                return None
            raise KeyError(name)
        value = value[key]
    return value


def cell_names(row: dict[str, Any], before: str = "") -> list[str]:
    """Every column name that `cell` accepts for this row, in order."""
    names = []
    for key, value in row.items():
        names.append(f"{before}{key}")
        names += cell_names(value, f"{before}{key}.") if isinstance(value, dict) else []
    return names


def list_in(value: Any) -> Any:
    """The list that a text writes, as JSON or Python do, in a table; any other value is returned as it is."""
    if isinstance(value, str) and value[:1] == "[" and not re.search(r"['\"]\s+['\"]", value):  # as numpy writes them
        with suppress(ValueError, SyntaxError, RecursionError):
            return ast.literal_eval(value)
    return value


def kind_of(value: Any) -> str:
    """What a cell holds, for errors: null, or the name of its type."""
    return "null" if value is None else type(value).__name__


def text_of(row: dict, column: str, field: str, place: str) -> str:
    """The text in a column; raises UserError for anything else."""
    value = row[column]
    if not isinstance(value, str):
        raise UserError(f"task.{field}={column!r}: {place} holds {kind_of(value)}, not text")
    return value


def filled_text_of(row: dict, column: str, field: str, place: str) -> str:
    """The text in a column; raises UserError for anything else, and for a text without a visible character."""
    text = text_of(row, column, field, place)
    if not text.strip():
        raise UserError(f"task.{field}={column!r}: {place} holds an empty text; remove the example")
    return text


def texts_of(row: dict, column: str, field: str, place: str, noun: str = "text") -> list[str]:
    """The list of texts in a column; raises UserError for anything else. noun: the word for one of them in errors."""
    values = list_in(row[column])
    if not isinstance(values, list):
        raise UserError(f"task.{field}={column!r}: {place} holds {kind_of(values)}, not a list of {noun}s")
    for number, value in enumerate(values, start=1):
        if not isinstance(value, str):
            raise UserError(f"task.{field}={column!r}: {place}, {noun} {number} is {kind_of(value)}, not text")
    return values
