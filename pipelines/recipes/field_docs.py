"""Descriptions of all settings for help and documentation, read from the fields of the schema."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_origin

from ..plugins import OBJECTIVES
from .compose import names_of
from .idle_settings import default_of
from .schema import DEFAULT_NAMES, LEARNED, parts_of_recipe
from .types import bounds_words, type_words

WHAT = {
    "objective": "what the model learns to predict of plain text or images",
    "task": "what the model learns from labelled examples, in place of an objective",
}


@dataclass(frozen=True)
class FieldDoc:
    """The description of one setting. owners: the objectives or tasks that have it; empty for all other settings."""

    name: str
    type: str
    default: Any
    help: str
    owners: tuple[str, ...] = ()


def describe_fields() -> Iterator[FieldDoc]:
    """Yield the description of every setting, in the order of the schema."""
    for section in parts_of_recipe():
        cls = next((arm for arm in (section.type, *get_args(section.type)) if is_dataclass(arm)), None)
        if section.name in LEARNED:
            yield from _describe_learned(section.name)
        elif cls is not None:
            yield from _describe(cls, section.name)
        else:
            yield FieldDoc(section.name, type_words(section.type), default_of(section), section.metadata["help"])


def _describe_learned(section: str) -> Iterator[FieldDoc]:
    """Describe `name`, then the settings of all objectives or tasks; a setting that several share comes once."""
    names = names_of(section)
    yield FieldDoc(f"{section}.name", ", ".join(map(repr, names)), DEFAULT_NAMES[section], WHAT[section])
    described: dict[tuple, FieldDoc] = {}
    owners: dict[tuple, list[str]] = {}
    for name in names:
        for row in describe_objective(name):
            key = (row.name, row.type, repr(row.default), row.help)
            described[key] = row
            owners.setdefault(key, []).append(name)
    for key, row in described.items():
        yield replace(row, help=f"{', '.join(owners[key])}: {row.help}", owners=tuple(owners[key]))


def describe_objective(name: str) -> Iterator[FieldDoc]:
    """Yield the settings of one objective or task, without its `name`."""
    cls = OBJECTIVES[name]
    yield from (row for row in _describe(cls.Settings, cls.section) if row.name != f"{cls.section}.name")


def _describe(cls: type, path: str) -> Iterator[FieldDoc]:
    for row in fields(cls):
        if row.name in ("fields", "extra"):
            yield FieldDoc(f"{path}.*", "any value", None, row.metadata["help"])
            continue
        words = type_words(row.type) + bounds_words(row)
        yield FieldDoc(f"{path}.{row.name}", words, default_of(row), row.metadata["help"])
        inner = next((arm for arm in get_args(row.type) if is_dataclass(arm)), None)
        if inner is not None and get_origin(row.type) is not list:
            yield from _describe(inner, f"{path}.{row.name}")
        elif inner is not None:  # of an entry of data.mixture: only the fields that a plain source lacks
            base = {f.name for parent in inner.__mro__[1:] if is_dataclass(parent) for f in fields(parent)}
            yield from (doc for doc in _describe(inner, f"{path}.{row.name}.N") if doc.name.split(".")[-1] not in base)
