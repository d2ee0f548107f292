"""Records: what a kept result is of (weights, data, recipe, code), and whether that is what stands beside it."""

import glob
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..adapters import is_same_model, weights_identity
from ..errors import UserError
from ..manifest import sha
from ..plugins import loaded_plugins
from .contents import content_hash

OF = "of"  # the key of a record in the JSON of its result
RESULTS = ("metrics", "samples", "signatures")  # in run.json, of the finished model
PACKAGES = ("anyformer", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "deepspeed")
# Settings of a recipe that change no number.
WORDS = (("name",), ("description",), ("publish",), ("data", "cache_dir"), ("training", "output_dir"))
WORDS += (("task", "label_names"),)  # filled in from the model


@dataclass(frozen=True)
class Record:
    """What a kept result is of.

    weights: as weights_identity. data: as data_identity. recipe: a hash of the settings. code: versions of the packages
    and hashes of the plug-ins. None: the result does not depend on it, or nobody asks for it.
    """

    weights: list | None = None
    data: dict[str, str | None] | None = None
    recipe: str | None = None
    code: dict[str, str] | None = None

    @classmethod
    def now(cls, model: str | Path | None, settings: dict[str, Any] | None = None, *, shown: bool = False) -> "Record":
        """The record of a result that is made now. settings: a recipe as plain data. shown: as weights_identity."""
        weights = None if model is None else weights_identity(str(model), shown=shown)
        if settings is None:
            return cls(weights)
        return cls(weights, data_identity(settings), recipe_identity(settings), code_identity())

    @classmethod
    def of_run(cls, folder: Path, data: dict[str, str | None] | None = None, *, shown: bool = False) -> "Record":
        """The record of a run's own results, which no tokenizer or default of generation changes afterwards."""
        return cls(weights_identity(folder, shown=shown, alone=True), data)

    @classmethod
    def of(cls, result: Any) -> "Record":
        """The record in a result's JSON; an empty one where it says nothing, which is of nothing that is asked for."""
        kept = result.get(OF) if isinstance(result, dict) else None
        kept = kept if isinstance(kept, dict) else {}
        return cls(**{name: kept.get(name) for name in cls.__dataclass_fields__})

    def check_still(
        self, name_or_path: str | Path, what: str, settings: dict[str, Any] | None = None, alone: bool = False
    ) -> None:
        """Raise UserError where a model, or the data of `settings`, has changed since this record was made.

        It is made before they are read, and what is kept of them would else lie under the identity of other files.
        what: the setting that names the model. alone: as weights_identity.
        """
        if weights_identity(name_or_path, alone=alone) != self.weights:
            raise UserError(f"{what}={name_or_path} was changed while it was read; start again once it is written")
        if settings is not None and data_identity(settings) != self.data:
            raise UserError("a file of the data was changed while it was read; start again once it is written")

    @property
    def key(self) -> str:
        """A name for what is kept of it, another one where any part differs."""
        return sha(asdict(self))

    def facts(self) -> dict[str, Any]:
        """{OF: the known parts}, for the JSON of the result."""
        return {OF: {name: value for name, value in asdict(self).items() if value is not None}}

    def differs_from(self, now: "Record") -> str | None:
        """The first part of `now` that this result is not of: "weights", "data", "recipe" or "code"; None: it is of it.

        A base or file that cannot be found now is not compared: nothing says that it has changed.
        """
        for name, here in asdict(now).items():
            if here is not None and not _is_same(getattr(self, name), json.loads(json.dumps(here))):
                return name
        return None


def of_its_model(folder: Path, run: dict[str, Any], *, shown: bool = False) -> tuple[dict[str, Any], list[str]]:
    """run.json of a folder without results that are not of the model there, and a sentence that names them.

    shown: as weights_identity.
    """
    now = Record.of_run(folder, shown=shown) if OF in run else Record()
    if Record.of(run).differs_from(now) is None:
        return run, []
    sentence = f"metrics and samples of the run are left out: the model in {folder} has been changed since"
    return {name: value for name, value in run.items() if name not in RESULTS}, [sentence]


def _is_same(kept: Any, here: Any) -> bool:
    if isinstance(here, list):
        return is_same_model(kept, here)
    if isinstance(kept, dict) and isinstance(here, dict):
        return kept.keys() == here.keys() and all(_is_same([kept[key]], [here[key]]) for key in here)
    return kept == here


def data_identity(settings: dict[str, Any]) -> dict[str, str | None]:
    """{hash of a path or pattern that a recipe names: hash of the files there}; None for one that is not found here.

    Empty for streamed data, which is never read whole.
    """
    if (settings.get("data") or {}).get("streaming"):
        return {}
    return {sha(name): _hash_of_files(os.path.expanduser(name)) for name in _named(settings, "files", "dataset")}


def _named(settings: dict[str, Any], *endings: str) -> Iterator[str]:
    """The texts in plain data under keys with some endings."""
    for key, value in settings.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from _named(item, *endings)
            elif isinstance(item, str) and key.endswith(endings):
                yield item


def _hash_of_files(pattern: str) -> str | None:
    paths = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    hashes = []
    for path in map(Path, paths):
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            # Hidden files are written by programs that show or download a folder: .DS_Store, .cache.
            is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if file.is_file() and not is_hidden:
                hashes.append(content_hash(file) if os.access(file, os.R_OK) else None)  # its reader will say it
    return sha(hashes) if hashes else None


def local_names(settings: dict[str, Any]) -> list[str]:
    """The models and data sets that a recipe names and that are folders of this machine: nobody else has them.

    It is decided where the recipe is used, because a relative name is none of a folder elsewhere.
    """
    names = _named(settings, "name_or_path", "dataset", "reference", "converted_from")
    return sorted({name for name in names if os.path.exists(os.path.expanduser(name))})


def recipe_identity(settings: dict[str, Any]) -> str:
    """A hash of a recipe's settings, without those that change no number."""
    copy = json.loads(json.dumps(settings))
    for *sections, name in WORDS:
        section = copy.get(sections[0]) if sections else copy
        (section or {}).pop(name, None)
    return sha(copy)


@cache
def package_versions() -> dict[str, str]:
    """The installed versions of Python and of the packages that a run's results depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed
    return versions


def code_identity() -> dict[str, str]:
    """The versions of packages, and the hash of each plug-in."""
    plugins = {Path(row["plugin"]).name: row.get("sha256", "") for row in loaded_plugins()}
    return package_versions() | plugins
