"""A page in a browser without a window, where there is one."""

import shutil
import subprocess
from pathlib import Path

import pytest

needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the browser chromium")


def dom_of(page: str, folder: Path) -> str:
    """The elements of a page after its scripts. folder: for a file."""
    file = folder / "clicked.html"
    file.write_text(page)
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
    done = subprocess.run([*words, f"file://{file}"], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
