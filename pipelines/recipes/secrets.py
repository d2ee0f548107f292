"""Secrets: text in the form of a key or a password, which no recipe may hold and nothing published does.

A recipe is written into recipe.yaml, run.json, README.md and every checkpoint.
"""

import re
from typing import Any

from ..errors import UserError

HUB_TOKEN = r"\bhf_[A-Za-z0-9]{30,}"
FORMS = {
    "an access token of the Hub": HUB_TOKEN,
    "an access token of GitHub": r"\bgh[opsu]_[A-Za-z0-9]{36,}|\bgithub_pat_\w{22,}",
    "an API key": r"\bsk-[A-Za-z0-9_-]{32,}",
    "an access key of AWS": r"\bAKIA[0-9A-Z]{16}\b",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a password in an address": r"\b[a-z][a-z0-9+.-]*://[^\s/:@]*:[^\s/@]+@",
}
_PATTERNS = {words: re.compile(form) for words, form in FORMS.items()}


def find_secret(text: str) -> str | None:
    """What secret a text holds, in words; None: none of a known form."""
    return next((words for words, pattern in _PATTERNS.items() if pattern.search(text)), None)


def check_no_secret(value: Any, path: str) -> None:
    """Raise UserError where a setting, or one within it, holds a secret; the sentence does not repeat it."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_no_secret(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            check_no_secret(item, f"{path}.{number}")
    elif isinstance(value, str) and (found := find_secret(value)):
        raise UserError(
            f"{path} holds {found}, and a recipe is saved and published; remove it, and give secrets in the "
            f"environment, such as HF_TOKEN"
        )
