"""Help on the settings of recipes: their names by section, and each with its type, default and meaning."""

import shutil
import sys
import textwrap
from collections.abc import Iterable

from ..recipes.field_docs import FieldDoc, describe_fields
from ..words import aligned

NARROWEST = 60


def _width() -> int | None:
    """Columns to break lines at: the terminal's; None in a pipe, where grep wants whole lines."""
    return max(NARROWEST, shutil.get_terminal_size().columns - 1) if sys.stdout.isatty() else None


def by_section() -> dict[str, list[FieldDoc]]:
    """Every setting under its section; `name` and `description` are under "recipe"."""
    sections: dict[str, list[FieldDoc]] = {}
    for row in describe_fields():
        section, dot, _ = row.name.partition(".")
        sections.setdefault(section if dot else "recipe", []).append(row)
    return sections


def sections_help() -> str:
    """The names of all settings, section by section."""
    names = {}
    for section, rows in by_section().items():
        short = [row.name.removeprefix(f"{section}.") for row in rows]
        names[section] = ", ".join(REST[section] if name == "*" else name for name in short)
    return aligned(names.items(), _width())


# What is shown for the fields that the schema does not name.
REST = {"model": "every field of the family's config", "training": "every field of TrainingArguments"}


def settings_help(section: str | None) -> str | None:
    """Explain the settings of a section, or of `all`; None if there is no such section."""
    sections = by_section()
    if section not in (*sections, "all"):
        return None
    return explained(row for name, rows in sections.items() if section in (name, "all") for row in rows) + "\n"


def explained(rows: Iterable[FieldDoc]) -> str:
    """Settings with their meanings, types and defaults."""
    lines, width = [], _width()
    for row in rows:
        default = "" if row.default in (None, "", [], {}) else f", default {row.default}"
        text = f"{row.name}: {row.help} ({row.type}{default})"
        lines += [text] if width is None else textwrap.wrap(text, width, subsequent_indent="    ")
    return "\n".join(lines)
