"""Where recipes and presets come from: files of the user, or the ones shipped in configs/."""

import copy
import functools
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean
from .strict_yaml import MOST_CHARACTERS, parse_yaml
from .types import as_mapping, show


def shipped(folder: str, suffix: str = ".yaml") -> dict[str, Any]:
    """Return the files of configs/FOLDER, such as "recipes": name -> readable resource, sorted by name."""
    rows = [row for row in (files("anyformer.configs") / folder).iterdir() if row.name.endswith(suffix)]
    return {row.name.removesuffix(suffix): row for row in sorted(rows, key=lambda row: row.name)}


def shipped_yaml(folder: str, name: str) -> dict:
    """Return one shipped YAML file as a mapping, unchecked; the caller may change it."""
    return copy.deepcopy(_shipped_yaml(folder, name))


@functools.cache
def _shipped_yaml(folder: str, name: str) -> dict:
    return parse_yaml(shipped(folder)[name].read_text(encoding="utf-8"), f"configs/{folder}/{name}.yaml")


def read_yaml_file(name_or_path: str, folder: str, noun: str) -> tuple[dict, str]:
    """Return (mapping, stem) of a file, or of a shipped one where `name_or_path` is a bare name.

    folder: the folder of configs/ with the shipped ones, such as "recipes" or "models". noun: what it is, for errors.

    Raises UserError: no such file, not readable, not YAML, or not a mapping.
    """
    looks_like_path = Path(name_or_path).suffix in (".yaml", ".yml") or Path(name_or_path).name != name_or_path
    if not looks_like_path and name_or_path in shipped(folder):
        return as_mapping(shipped_yaml(folder, name_or_path), noun), name_or_path
    path = Path(name_or_path).expanduser()
    if not path.exists():
        if looks_like_path:
            raise UserError(f"{noun} {name_or_path!r}: no such file")
        known = shipped(folder)
        raise UserError(f"{noun} {name_or_path!r}: no such file, and no shipped one{did_you_mean(name_or_path, known)}")
    data = parse_yaml(text_of(path, f"{noun} {name_or_path!r}"), name_or_path)
    if data is None:
        raise UserError(f"{noun} {name_or_path!r} is empty")
    if not isinstance(data, dict):
        raise UserError(f"{noun} {name_or_path!r} holds {show(data)}, not sections with settings")
    return data, path.stem


def text_of(path: Path, what: str) -> str:
    """The text of a settings file. Raises UserError, beginning with `what`, if it cannot be one."""
    try:
        if path.is_dir():
            raise UserError(f"{what} is a folder; give the file in it")
        if not path.is_file():
            raise UserError(f"{what} is a device or a pipe, which may have no end; give a file")
        size = path.stat().st_size
        if size > MOST_CHARACTERS:
            raise UserError(f"{what} has {size:,} bytes, and no file of settings has more than {MOST_CHARACTERS:,}")
        return path.read_text(encoding="utf-8") if size else ""  # files of /proc have size 0, and some block forever
    except UnicodeDecodeError as error:
        raise UserError(f"{what} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{what} cannot be read: {error.strerror}") from None


def chat_template_of(name_or_path: str) -> str:
    """The text of a chat template: of a file, or of a shipped one by its name. Raises UserError."""
    known, path = shipped("chat_templates", ".jinja"), Path(name_or_path).expanduser()
    if name_or_path in known:
        return known[name_or_path].read_text(encoding="utf-8").removesuffix("\n")
    what = f"tokenizer.chat_template={name_or_path!r}"
    if not path.exists():
        hint = did_you_mean(name_or_path, known)
        raise UserError(f"{what}: no such file, and no shipped one{hint}; known: {', '.join(known)}")
    return text_of(path, what)


def recipe_beside(folder: str | Path) -> Path | None:
    """The recipe.yaml in a model's folder, or above it if the model is a checkpoint of a run; None: there is none."""
    folder = Path(folder).expanduser()
    for file in (folder / "recipe.yaml", folder.parent / "recipe.yaml"):
        if file.is_file():
            return file
    return None


def is_file_of(name_or_path: str, folder: str, key: str) -> bool:
    """Whether it is a file with a line `KEY: ...`, or a name in configs/FOLDER that no shipped recipe has."""
    path = Path(name_or_path).expanduser()
    if path.is_file():
        try:
            return any(line.startswith(f"{key}:") for line in text_of(path, "").splitlines())
        except UserError:  # load_recipe reports it
            return False
    return name_or_path in shipped(folder) and name_or_path not in shipped("recipes")
