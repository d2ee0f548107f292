"""Rows of the training data as people read them, from rows.json, which a run writes when it begins."""

import html
import json
from pathlib import Path
from typing import Any

from .charts_page import write_page
from .run_log import ROWS_FILE

COLORS = {1: "red", 2: "green", 3: "yellow", 4: "blue", 5: "magenta", 6: "cyan"}  # of a terminal, by their numbers


def read_rows(folder: Path) -> dict[str, Any]:
    """{"legend", "rows": texts with terminal colours, "is_picture"}; {} if the run has written none."""
    try:
        content = json.loads((folder / ROWS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # an older run, or half a file: the page shows no rows
    return content if isinstance(content, dict) and isinstance(content.get("rows"), list) else {}


def write_rows(path: Path, name: str, ansi: str, is_picture: bool) -> int:
    """Write a page of what a preview prints in terminal colours; returns its bytes."""
    values = {"title": f"{name}: rows as the model sees them", "rows": as_html(ansi), "is_picture": is_picture}
    return write_page(path, "preview.html.jinja", charts=[], axes=[], runs=[], **values)


def as_html(ansi: str) -> str:
    """A text with terminal colours as HTML: a span with the names of the styles for each piece."""
    from rich.ansi import AnsiDecoder

    return "\n".join(map(line_as_html, AnsiDecoder().decode(ansi)))


def line_as_html(line) -> str:
    """A line of rich's Text as HTML."""
    if "──" in line.plain:  # a rule with its title
        return f"<b>{html.escape(line.plain.strip('─ '))}</b>"
    edges, shown = {at for span in line.spans for at in (span.start, span.end)} - {0, len(line)}, []
    for piece in line.divide(sorted(edges)):
        styles = dict.fromkeys(name for span in piece.spans for name in style_names(span.style))
        plain = html.escape(piece.plain)
        if "reverse" in styles:  # light on dark, in any colour
            plain = f"<span>{plain}</span>"
        shown.append(f'<span class="{" ".join(styles)}">{plain}</span>' if styles else plain)
    return "".join(shown)


def style_names(style) -> list[str]:
    """The CSS classes of a style of rich."""
    color = COLORS.get(style.color.number) if style.color is not None else None
    shown = [name for name in ("bold", "dim", "underline", "strike", "reverse") if getattr(style, name)]
    return [color, *shown] if color else shown
