"""Finds the section of a setting that is written without a section, or in the wrong one."""

from dataclasses import fields
from functools import cache

from ..aliases import ALIASES
from ..plugins import OBJECTIVES
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
def _sections() -> dict[str, set[str]]:
    """The settings of each section; the sections that are likelier meant come first."""
    learned = {
        section: [cls.Settings for _, cls in OBJECTIVES.items() if cls.section == section] for section in schema.LEARNED
    }
    of_families = set().union(*map(introspection.family_fields, introspection.family_names()))
    return {
        "training": _names(schema.TrainingSection) | introspection.training_argument_fields().keys(),
        **{section: _names(*classes) for section, classes in learned.items()},
        "tokenizer": _names(schema.TokenizerSection) - {"name_or_path"},
        "model": _names(schema.ModelSection) | of_families,
        "data": _names(schema.DataSection),
        "evaluation": _names(schema.EvaluationSection),
        "teacher": _names(schema.TeacherSection),
        "publish": _names(schema.PublishSection),
    }


def _names(*sections: type) -> set[str]:
    """The names of settings but `name`, which is in too many sections to find one by it."""
    return {row.name for section in sections for row in fields(section)} - {"fields", "extra", "name"}
