"""The page of an inspection: one HTML file with everything in it."""

import html
import json
from importlib import resources
from pathlib import Path

from ..storage.atomic import write_atomically


def write_page(path: Path, facts: dict) -> int:
    """Write the page; returns its size in bytes.

    facts: {"model": name, "about": [sentences], "views": [what views.py gives of each text or image]}.
    """
    template = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    data = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = template.replace("%TITLE%", html.escape(facts["model"])).replace("%DATA%", data)
    write_atomically(path, page)
    return len(page.encode())
