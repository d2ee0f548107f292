"""What data.clean allows beside the types and bounds of its settings. Standard library only."""

from ..errors import UserError
from .schema import DERIVED_FROM_TEXT, CleanSettings, DataSection
from .types import show


def check_clean(objective, data: DataSection) -> None:
    """Raise UserError for settings that exclude each other or have no effect; no file is touched."""
    clean = data.clean
    reads_text = objective.section != "task" and objective.special_tokens is not None
    if not reads_text and data.derive not in DERIVED_FROM_TEXT:
        raise UserError(f"data.clean is of plain text, and {objective.setting} reads none here; remove it")
    if clean == CleanSettings(decontaminate_words=clean.decontaminate_words):
        raise UserError("data.clean leaves nothing out; set some of it, such as {exact_duplicates: true}")
    for name in ("exact_duplicates", "near_duplicates"):
        if data.streaming and getattr(clean, name):
            raise UserError(
                f"data.clean.{name}={show(getattr(clean, name))} compares all documents before the first is read; set "
                f"data.streaming=false"
            )
    if None not in (clean.min_length, clean.max_length) and clean.min_length > clean.max_length:
        raise UserError(
            f"data.clean.min_length={clean.min_length} is above data.clean.max_length={clean.max_length}; swap them"
        )
    if clean.filter is not None and not all(clean.filter.rpartition(":")):
        raise UserError(f"data.clean.filter={show(clean.filter)} names no function, such as my_filters.py:is_english")
