"""Finds the section of a setting that is written without a section, or in the wrong one."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache

from ..aliases import ALIASES
from . import introspection, schema


def find_setting(key: str) -> str | None:
    """`section.key` of the setting that anyformer or another library calls `key`; None: no section has it."""
    for name in (key, *ALIASES.get(key.lower().replace("-", "_"), ())):
        section, _, bare = name.partition(".") if "." in name else ("", "", name)
        for path, names in _sections().items():
            if bare.partition(".")[0] in names and section in ("", path):
                return f"{path}.{bare}"
    return None


def families_with(name: str) -> list[str]:
    """The families whose config has the field."""
    return [family for family in introspection.family_names() if name in introspection.family_fields(family)]


@cache
def _sections() -> dict[str, frozenset[str]]:
    """The settings of each section; the sections that are likelier meant come first."""
    return {
        "training": frozenset(_names(schema.TrainingSection)) | introspection.training_argument_fields().keys(),
        "objective": frozenset(_learned("objective")),
        "task": frozenset(_learned("task")),
        "tokenizer": frozenset(_names(schema.TokenizerSection)) - {"name_or_path"},
        "model": frozenset(_names(schema.ModelSection)).union(
            *map(introspection.family_fields, introspection.family_names())
        ),
        "data": frozenset(_names(schema.DataSection)),
        "evaluation": frozenset(_names(schema.EvaluationSection)),
        "teacher": frozenset(_names(schema.TeacherSection)),
        "publish": frozenset(_names(schema.PublishSection)),
    }


def _names(cls: type) -> Iterator[str]:
    return (row.name for row in fields(cls) if row.name not in ("fields", "extra"))


def _learned(section: str) -> Iterator[str]:
    """The settings of all objectives or tasks but `name`, which is in too many sections to find one by it."""
    from ..plugins import OBJECTIVES

    for _, cls in OBJECTIVES.items():
        if cls.section == section:
            yield from (row.name for row in fields(cls.Settings) if row.name != "name")
