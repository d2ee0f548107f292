"""Settings that do nothing beside others, or exclude them: each owner has a table of them, and one loop checks it."""

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from ..errors import UserError
from .introspection import show


def check_beside(path: str, section: Any, rows: Iterable[tuple[str, Any, str]]) -> None:
    """Raise UserError for the first setting that is set where it must not be; at its default it is not set.

    Args:
        path: dotted name of the section.
        rows: the table: a setting, whether it must not be set, and what follows its name in the error. A setting that
            ends in "=" is shown with its value.
    """
    defaults = {row.name: default_of(row) for row in fields(section)}
    for setting, is_refused, sentence in rows:
        name = setting.removesuffix("=")
        value = getattr(section, name) if name in defaults else section.extra.get(name)
        is_set = value != defaults[name] if name in defaults else bool(value)
        if is_refused and is_set:
            shown = show(value) if setting.endswith("=") else ""
            raise UserError(f"{path}.{setting}{shown} {sentence}")


def default_of(field) -> Any:
    """Return a dataclass field's default, a new object if it has a default factory."""
    return field.default_factory() if field.default_factory is not MISSING else field.default
