"""Descriptions of all settings for help and documentation, read from the fields of the schema.

The choices and bounds of a family's config fields come from the rules that check configs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_origin

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.rules import legality, parts
from anyformer.modeling.rules.bounds import BOUNDS, SHARES
from anyformer.modeling.traits import ATTENTION_KINDS, PARTS, POSITION_SCHEMES

from ..plugins import OBJECTIVES
from . import introspection
from .compose import names_of
from .introspection import default_of
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


CHOICES = {
    "norm_type": PARTS.norm_type,
    "norm_position": PARTS.norm_position,
    "block": PARTS.block,
    "attention_gate": parts.ATTENTION_GATES,
    "mlp_type": PARTS.mlp_type,
    "mlp_pattern": parts.MLP_KINDS,
    "mlp_layer_types": parts.MLP_KINDS,
    "router_scoring": parts.ROUTER_SCORINGS,
    "pooler_type": legality.POOLER_TYPES,
    "pos_att_type": legality.POSITION_TERMS,
}


def describe_family(family: str) -> Iterator[FieldDoc]:
    """Every field of the family's config."""
    for name, row in introspection.family_fields(family).items():
        choices = ", ".join(_choices(name, introspection.OURS + family))
        words = type_words(row.type) + (f": {choices}" if choices else "") + _bounds(name)
        yield FieldDoc(f"model.{name}", words, row.default, row.meaning)


def _choices(name: str, model_type: str) -> list[str]:
    if name in ("attention_pattern", "layer_types"):
        return [kind for kind, traits in ATTENTION_KINDS.items() if model_type in traits.families]
    if name == "position_encoding":
        row = FAMILIES[model_type]
        return [
            name
            for name, scheme in POSITION_SCHEMES.items()
            if (scheme.plane or not row.of_images) and (row.bidirectional or not scheme.bidirectional)
        ]
    return list(CHOICES.get(name, ()))


def _bounds(name: str) -> str:
    if name in SHARES:
        return ", at least 0, below 1"
    return ", at least {}, at most {:,}".format(*BOUNDS[name]) if name in BOUNDS else ""
