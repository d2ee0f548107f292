"""Checks values from YAML against type annotations; each error is one sentence with the setting's dotted name."""

import sys
import types
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import UnknownName, UserError, did_you_mean
from ..words import Epochs, epochs_of
from .introspection import show

WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text", dict: "a mapping", list: "a list"}
WORDS[Epochs] = "passes over the data such as '0.5 epochs'"


def type_words(annotation: Any) -> str:
    """Return a type in a reader's words: `an integer or null`."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_words(arm) for arm in get_args(annotation)))
    if origin is Literal:
        return ", ".join(repr(choice) for choice in get_args(annotation))
    if origin is list:
        (item,) = get_args(annotation)
        plural = {int: "integers", float: "numbers", str: "texts", bool: "true/false values"}
        return f"a list of {plural[item]}" if item in plural else "a list"
    if origin is dict:
        return "a mapping"
    if annotation is type(None):
        return "null"
    return WORDS.get(annotation, "a mapping" if is_dataclass(annotation) else "any value")


def convert(value: Any, annotation: Any, path: str) -> Any:
    """Return `value` as the annotated type; `path` is its dotted name.

    Integers become floats where the annotation is float, mappings become dataclasses. Nothing else is converted.

    Raises:
        UserError: a value of another type, an unknown choice or an unknown key.
    """
    origin = get_origin(annotation)
    if annotation is Any:
        return value
    if annotation is Epochs and isinstance(value, str) and epochs_of(value) is not None:
        return value
    if is_dataclass(annotation):
        return build(annotation, value, path)
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(annotation), annotation, path)
    if origin is Literal:
        choices = get_args(annotation)
        if any(value == choice and type(value) is type(choice) for choice in choices):
            return value
        near = did_you_mean(str(value), map(str, choices))
        raise UnknownName(f"{path}={show(value)} is not one of its choices{near}")
    if origin is list and isinstance(value, list):
        return [convert(item, get_args(annotation)[0], f"{path}.{i}") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise UserError(f"{path}: the key {show(key)} is not text; put it in quotes")
        return {key: convert(item, get_args(annotation)[1], f"{path}.{key}") for key, item in value.items()}
    if annotation is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    if annotation is not float and origin is None and type(value) is annotation:
        return value
    raise UserError(f"{path}={show(value)} is not {type_words(annotation)}{_hint(value, annotation)}")


def _hint(value: Any, annotation: Any) -> str:
    if annotation is str and type(value) in (int, float, bool):
        return "; put it in quotes"
    if annotation is int and type(value) is float and value.is_integer():
        return f"; write {int(value)}"
    return ""


def _convert_union(value: Any, arms: tuple, annotation: Any, path: str) -> Any:
    # The exact type first: under `int | float` an integer stays one.
    arms = sorted(arms, key=lambda arm: type(value) is not arm)
    container = type(value) if isinstance(value, (list, dict)) else None
    for arm in arms:
        if container is not None and (get_origin(arm) is container or (container is dict and is_dataclass(arm))):
            return convert(value, arm, path)  # its error names the wrong entry, unlike the error for the whole union
        try:
            return convert(value, arm, path)
        except UserError:
            continue
    named = [arm for arm in arms if get_origin(arm) is Literal]
    if len(arms) == 2 and type(None) in arms:
        convert(value, next(arm for arm in arms if arm is not type(None)), path)  # raises the error for the plain type
    choices = [c for arm in named for c in get_args(arm)]
    near = did_you_mean(str(value), map(str, choices)) if choices and isinstance(value, str) else ""
    hint = "" if near else "".join(_hint(value, arm) for arm in arms)
    raise UserError(f"{path}={show(value)} is not {type_words(annotation)}{near or hint}")


def unknown_key(path: str, key: Any, known: Iterable[str]) -> UserError:
    """The error for an unknown key: its dotted name, and the setting most likely meant, here or in another section."""
    from ..aliases import ours_for
    from .find_setting import find_setting

    known = list(known)
    prefix = f"{path}." if path else ""
    noun = "setting" if path else "section"
    is_here = path.startswith("stages.") or any(name in known for name in ours_for(str(key)))
    meant = None if is_here else find_setting(str(key))
    near = f"; did you mean {meant}?" if meant else did_you_mean(str(key), known, prefix)
    return UnknownName(f"{prefix}{key}: no such {noun}{near}")


def as_mapping(value: Any, path: str) -> dict:
    """Return a section as a mapping; an empty one (`tokenizer:` alone) is an empty mapping."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{path}={show(value)} is not a section of settings, such as {path}: {{key: value}}")
    return value


def build(cls: type, value: Any, path: str, rest: str | None = None, allow: Iterable[str] = ()) -> Any:
    """Return dataclass `cls` filled from a mapping, unset fields at their defaults.

    Args:
        cls: the dataclass, or one whose class method `chosen(mapping, path)` returns the dataclass to use.
        path: dotted name of the section, empty for the whole recipe.
        rest: the field that collects the keys in `allow`; the caller checks the types of their values.

    Raises UserError: an unknown key, or a value of the wrong type or out of the field's bounds.
    """
    value = as_mapping(value, path or "recipe")
    cls = cls.chosen(value, path) if hasattr(cls, "chosen") else cls
    known = {f.name: f for f in fields(cls) if f.name != rest}
    taken: dict[str, Any] = {}
    other: dict[str, Any] = {}
    for key, item in value.items():
        if key in known:
            name = f"{path}.{key}" if path else key
            annotation = known[key].type
            if item == "" and type(None) in get_args(annotation):
                raise UserError(f"{name}='' is no value; leave it out, or set it to null")
            taken[key] = within_bounds(convert(item, annotation, name), known[key].metadata.get("bounds", {}), name)
        elif key in allow:
            other[key] = item
        else:
            raise unknown_key(path, key, [*known, *allow])
    return cls(**taken, **({rest: other} if rest else {}))


OUTSIDE = {
    "at least": lambda value, limit: value < limit,
    "0 or at least": lambda value, limit: value != 0 and value < limit,
    "above": lambda value, limit: value <= limit,
    "at most": lambda value, limit: value > limit,
    "below": lambda value, limit: value >= limit,
}


def within_bounds(value: Any, bounds: dict[str, float], path: str) -> Any:
    """Return `value`; raise UserError where it is outside its bounds, as `bounds_of` gives them."""
    for words, limit in bounds.items():
        if isinstance(value, int | float) and OUTSIDE[words](value, limit):
            raise UserError(f"{path}={show(value)} must be {words} {limit}")
    return value


def bounds_words(field) -> str:
    """The bounds of a field in words, such as `, above 0, below 1`; empty where it has none."""
    return "".join(f", {words} {limit}" for words, limit in field.metadata.get("bounds", {}).items())
