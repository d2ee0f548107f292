"""The script that makes pages of the documentation, for tests; mkdocs is not needed."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "scripts" / "docs_pages.py")
docs_pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(docs_pages)
