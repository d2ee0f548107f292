"""The page of an inspection, one HTML file with everything in it, and helpers that other pages share."""

import html
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from ..storage.atomic import write_atomically
from ..storage.json_text import finite


def write_page(path: Path, facts: dict) -> int:
    """Write the page; returns its size in bytes.

    facts: {"model": name, "about": a sentence, "views": [views.py's result for each text or image]}.
    """
    values = {"TITLE": html.escape(facts["model"]), "ABOUT": html.escape(facts["about"]), "STYLE": style()}
    values |= {"DATA": as_script({"views": facts["views"]}), "SCRIPT": part("maps.js")}
    # In a single pass: placeholders inside a value are never replaced.
    page = re.sub(r"%([A-Z]+)%", lambda found: values[found[1]], part("page.html"))
    write_atomically(path, page)
    return len(page.encode())


def style() -> str:
    """The style that our pages share (colours of light and dark, texts, tables, buttons), and that of maps."""
    return part("look.css") + part("maps.css")


def part(name: str, package: str = __package__) -> str:
    """The text of a file in the folder of a package."""
    return (resources.files(package) / name).read_text(encoding="utf-8")


def as_script(value: Any) -> str:
    """Plain data as JSON that may stand in a script element, because nothing in it can end the element."""
    return json.dumps(finite(value), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
