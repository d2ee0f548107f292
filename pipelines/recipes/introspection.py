"""Fields of settings: `doc` declares those of our sections, `check_beside` checks them; others are read from sources.

`modeling/configuration*.py` and transformers' TrainingArguments are the only places that say which fields exist, but
importing either costs seconds; parsing them costs milliseconds.
"""

import ast
import importlib.util
import json
from collections.abc import Iterable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Union

from anyformer.modeling.families import FAMILIES, Family
from anyformer.modeling.traits import own_fields

from ..errors import UserError
from .secrets import without_signatures

OURS = "anyformer_"  # the prefix of a family's model_type
PLAIN_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list": list, "dict": dict, "None": type(None)}


def show(value: Any) -> str:
    """Return `value` as a recipe writes it, for errors and logs: shortened, and without signatures of URLs."""
    text = json.dumps(value) if isinstance(value, bool | None) else without_signatures(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."


def bounds_of(**limits: float) -> dict[str, float]:
    """Return {"at least": 1} for `at_least=1`: the words that users read, by which types.OUTSIDE checks values."""
    return {name.replace("zero_", "0_").replace("_", " "): limit for name, limit in limits.items()}


LIMITS = ("at_least", "zero_or_at_least", "above", "at_most", "below")


def doc(help: str, default: Any = None, **kwargs) -> Any:
    """A dataclass field with the help text that `--help` and the documentation show, and the bounds of its value.

    at_least, zero_or_at_least, at_most: the smallest and largest value. above, below: bounds that it must not reach.
    """
    limits = {name: kwargs.pop(name) for name in LIMITS if name in kwargs}
    metadata = {"help": help, "bounds": bounds_of(**limits)}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata, **kwargs)
    return field(default=default, metadata=metadata, **kwargs)


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


@dataclass(frozen=True)
class SourceField:
    """One annotated field of a class: its type (`Any` where the annotation is not plain data) and literal default.

    meaning: the comment at the end of its line.
    """

    name: str
    type: Any
    default: Any = None
    meaning: str = ""


def annotation_type(node: ast.expr) -> Any:
    """Return the type an annotation stands for; Any for classes that YAML cannot hold."""
    match node:
        case ast.Constant(value=None):
            return type(None)
        case ast.Constant(value=str(text)):
            return annotation_type(ast.parse(text, mode="eval").body)
        case ast.Name(id=name):
            return PLAIN_TYPES.get(name, Any)
        case ast.BinOp(op=ast.BitOr()):
            arms = annotation_type(node.left), annotation_type(node.right)
            return Any if Any in arms else Union[arms]  # noqa: UP007 (X | Y needs the arms spelled out)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            return Literal[ast.literal_eval(choices)]
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return list[annotation_type(inner)]
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[_, value])):
            return dict[str, annotation_type(value)]
    return Any


def _default(node: ast.expr | None) -> Any:
    """The literal default: `= 3`, `= field(default=3)`, `= field(default_factory=list)`; None for anything else."""
    if isinstance(node, ast.Call):
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        factory = keywords.get("default_factory")
        if isinstance(factory, ast.Name) and factory.id in ("list", "dict"):
            return {"list": [], "dict": {}}[factory.id]
        node = keywords.get("default")
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


@cache
def _classes(paths: tuple[str, ...]) -> dict[str, ast.ClassDef]:
    classes = {}
    for file in paths:
        text = Path(file).read_text(encoding="utf-8")
        for node in ast.parse(text, filename=file).body:
            if isinstance(node, ast.ClassDef):
                node.lines = text.splitlines()  # of the whole file, because syntax trees have no comments
                classes[node.name] = node
    return classes


def class_fields(paths: tuple[str, ...], name: str) -> dict[str, SourceField]:
    """Return the annotated fields of class `name` in some files, those of its base classes first."""
    node = _classes(paths)[name]
    fields: dict[str, SourceField] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in _classes(paths):
            fields |= class_fields(paths, base.id)
    for row in node.body:
        if isinstance(row, ast.AnnAssign) and isinstance(row.target, ast.Name) and not row.target.id.startswith("_"):
            name = row.target.id
            meaning = node.lines[row.end_lineno - 1].partition("  # ")[2]
            fields[name] = SourceField(name, annotation_type(row.annotation), _default(row.value), meaning)
    return fields


def class_texts(paths: tuple[str, ...], name: str) -> list[str]:
    """The docstrings of class `name` in some files, those of its base classes first."""
    node = _classes(paths)[name]
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in _classes(paths)]
    return [text for base in bases for text in class_texts(paths, base)] + [ast.get_docstring(node) or ""]


def _transformers_file(name: str) -> tuple[str]:
    # find_spec locates a top-level package without importing it.
    return (str(Path(importlib.util.find_spec("transformers").origin).parent / name),)


def family_names() -> tuple[str, ...]:
    """The families as recipes name them: "decoder"."""
    return tuple(model_type.removeprefix(OURS) for model_type in FAMILIES)


def family_row(family: str) -> Family:
    return FAMILIES[OURS + family]


@cache
def family_fields(family: str) -> dict[str, SourceField]:
    """Return the config fields of a model family, such as "decoder"."""
    return class_fields(_config_files(), family_row(family).config)


def family_texts(family: str) -> list[str]:
    """What the docstrings of a family's config say of its fields, the shared ones first."""
    return class_texts(_config_files(), family_row(family).config)


def family_config(family: str, fields: dict[str, Any]) -> SimpleNamespace:
    """A family's config as a namespace: the defaults, overridden by `fields`; nothing is derived from other fields."""
    defaults = {name: field.default for name, field in family_fields(family).items()}
    return SimpleNamespace(**(defaults | {"model_type": OURS + family} | fields))


def _config_files() -> tuple[str, ...]:
    """The files of all families' configs, which import their base classes from one another."""
    modules = ["configuration", *(row.config_module for row in FAMILIES.values())]
    return tuple(importlib.util.find_spec(f"anyformer.modeling.{name}").origin for name in dict.fromkeys(modules))


def plugin_fields() -> dict[str, SourceField]:
    """Return the config fields that plug-ins' position schemes and kinds of attention have added; any type fits."""
    ours = set().union(*map(family_fields, family_names()))
    return {name: SourceField(name, Any) for name in own_fields() - ours}


@cache
def training_argument_fields() -> dict[str, SourceField]:
    """Return the fields of the installed transformers.TrainingArguments."""
    return class_fields(_transformers_file("training_args.py"), "TrainingArguments")


def enum_values(file: str, name: str) -> set[str]:
    """The values of an enum in a file of transformers: those that an argument such as `optim` takes."""
    rows = _classes(_transformers_file(file))[name].body
    return {row.value.value for row in rows if isinstance(row, ast.Assign) and isinstance(row.value, ast.Constant)}


@cache
def rope_keys() -> set[str]:
    """Return the settings of rotary positions, with those that transformers before 5.23 reads but does not list."""
    listed = class_fields(_transformers_file("modeling_rope_utils.py"), "RopeParameters").keys()
    return {*listed, "mscale", "mscale_all_dim", "truncate"} - {"mrope_section"}  # it is for images among texts


@cache
def activation_names() -> set[str]:
    """Return the activation functions transformers knows by name (the keys of its table ACT2CLS)."""
    (file,) = _transformers_file("activations.py")
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "ACT2CLS":
            return {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    raise LookupError("transformers/activations.py has no table ACT2CLS")


class FrozenWhenMade(type):
    """Metaclass of settings: `__post_init__` may still fill in a field, and afterwards nothing may."""

    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        vars(made)["_is_made"] = True
        return made


class Frozen(metaclass=FrozenWhenMade):
    """A dataclass that nothing changes once it is made. With frozen=True a plain @dataclass could not be a subclass."""

    def __setattr__(self, name: str, value: Any) -> None:
        if "_is_made" in vars(self):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")
