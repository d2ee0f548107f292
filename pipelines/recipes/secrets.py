"""Finds keys and passwords by their form, so that none gets into a recipe or into anything published.

A recipe is written into recipe.yaml, run.json, README.md and every checkpoint. It may contain signed URLs, because a
run needs them; they are written without their signatures.
"""

import re
from typing import Any
from urllib.parse import unquote

from ..errors import UserError

HUB_TOKEN = r"\bhf_[A-Za-z0-9]{30,}"
FORMS = {
    "an access token of the Hub": HUB_TOKEN,
    "an access token of GitHub": r"\bgh[opsu]_[A-Za-z0-9]{36,}|\bgithub_pat_\w{22,}",
    "an API key": r"\bsk-[A-Za-z0-9_-]{32,}|\bAIza[A-Za-z0-9_-]{35}",
    "an access key of AWS": r"\bAKIA[0-9A-Z]{16}\b",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a password in an address": r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*:[^\s/@]+@",
}
_PATTERNS = {words: re.compile(form) for words, form in FORMS.items()}
# A URL with a query; a period or quote after it belongs to the sentence around the URL.
_QUERY = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s?#]*)[?#](\S*[^\s.,:;'\"])")
# Query parameters that give access to a URL, and those that they sign (S3, Google, Alibaba, Tencent).
_SIGNED = re.compile(
    r"x-(amz|goog|oss|cos|ms)-.*|(aws|google|oss)access(key)?id|key-pair-id|policy|expires|sig|auth|authorization|hmac|jwt"
    r"|.*(signature|token|secret|credential|passw|api[-_]?key).*",
    re.IGNORECASE,
)
# The parameters that Azure's `sig` signs.
_AZURE = re.compile(r"s[veprtis]|spr|srt|sdd|sip|sk(oid|tid|[tesv])")


def check_no_secret(value: Any, path: str) -> None:
    """Raise UserError where a setting, or one within it, holds a secret; the error does not repeat it."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_no_secret(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            check_no_secret(item, f"{path}.{number}")
    for words, pattern in _PATTERNS.items() if isinstance(value, str) else ():
        if pattern.search(value):
            raise UserError(
                f"{path} holds {words}, and a recipe is saved and published; remove it, and give secrets in the "
                f"environment, such as HF_TOKEN"
            )


def without_signatures(value: Any) -> Any:
    """Return plain data (mappings, lists, texts, numbers) without the signatures and tokens in queries of URLs."""
    if isinstance(value, dict):
        return {key: without_signatures(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_signatures(item) for item in value]
    return _QUERY.sub(_unsigned, value) if isinstance(value, str) else value


def without_secrets(value: Any) -> Any:
    """As without_signatures, also without passwords and keys: for names of folders, tables and lines."""
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    value = without_signatures(value)
    for pattern in _PATTERNS.values() if isinstance(value, str) else ():
        value = pattern.sub("", value)
    return value


def _unsigned(match: re.Match) -> str:
    address = match[1]
    parameters = re.split("[&;#]", match[2])
    names = [unquote(parameter.partition("=")[0]) for parameter in parameters]
    if not any(map(_SIGNED.fullmatch, names)):
        return match[0]
    unsigned = [p for p, name in zip(parameters, names) if not (_SIGNED.fullmatch(name) or _AZURE.fullmatch(name))]
    return f"{address}?{'&'.join(unsigned)}" if unsigned else address
