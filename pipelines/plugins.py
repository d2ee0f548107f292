"""Registries of what recipes can name, such as objectives and metrics, and the plug-ins that add to them.

Our own objectives, metrics and sources are in the same registries: at its first use a registry imports the package that
fills it. For an objective or source the package only names the module, which is imported when the row is first looked
up. A plug-in is a Python file or module that the user names on the command line (`--plugin`) or in
`$ANYFORMER_PLUGINS` (names separated by commas, for launchers). A recipe or a downloaded folder cannot name one.
"""

import ast
import difflib
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import UnknownName, UserError, did_you_mean
from .words import say

VARIABLE = "ANYFORMER_PLUGINS"
PARTS = ("Reads", "Learns", "Scores", "Answers")  # of an objective

# What an objective may need of a run (Objective.needs); an engine or a mixture that does not offer it refuses it.
OWN_BATCHES, WHOLE_MODEL, WHOLE_ROWS = "batches of its own", "the whole model", "whole rows"


class Registry:
    """Rows by name, in the order in which they were registered.

    Args:
        noun: what a row is, for errors.
        home: the package whose import registers our own rows.
    """

    def __init__(self, noun: str, home: str):
        self.noun, self.home, self._rows, self._loaded = noun, home, {}, False
        self._modules: dict[str, str] = {}  # name -> the module that registers it

    def announce(self, modules: dict[str, str]) -> None:
        """Announce modules that register rows, {name: module}; each is imported when its row is first looked up."""
        self._modules |= modules
        self._rows |= dict.fromkeys(modules)

    def add(self, name: str, row: Any) -> None:
        """Register a row; raise UserError where the name is taken by another one."""
        if not isinstance(name, str) or not name.isidentifier():
            raise UserError(f"{self.noun} name {name!r} is not a name: letters, digits and underscores")
        self._load()
        registered = self._rows.get(name)
        announced = self._modules.get(name)  # a module that may not have been imported yet
        is_others = announced is not None and announced != getattr(row, "__module__", None)
        if is_others or (registered is not None and not _is_same(registered, row)):
            raise UserError(f"{self.noun} {name!r} is registered already; choose another name")
        self._rows[name] = row

    def remove(self, name: str) -> None:
        """Take a row out, as a test of a plug-in does at its end."""
        del self._rows[name]

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True  # before the import, during which the package registers its rows
            importlib.import_module(self.home)

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._rows)

    def __contains__(self, name: str) -> bool:
        self._load()
        return name in self._rows

    def __getitem__(self, name: str) -> Any:
        """The row; raises UserError with the nearest name."""
        row = self.get(name)
        if row is None:
            raise UnknownName(f"{self.noun} {name!r} is not known{did_you_mean(name, self._rows)}")
        return row

    def get(self, name: str) -> Any | None:
        """The row, or None."""
        self._load()
        if name in self._modules:
            importlib.import_module(self._modules[name])
        return self._rows.get(name)

    def items(self) -> Iterator[tuple[str, Any]]:
        """(name, row) of every row."""
        return iter([(name, self[name]) for name in self])


def _is_same(there: Any, row: Any) -> bool:
    """Whether a module registers again what it registered before: notebooks run their cells twice."""
    return getattr(there, "__qualname__", there) == getattr(row, "__qualname__", row) and (
        getattr(there, "__module__", None) == getattr(row, "__module__", None)
    )


OBJECTIVES = Registry("objective", "anyformer.pipelines.objectives")
TEACHERS = Registry("kind of teacher", "anyformer.pipelines.objectives")  # by Objective.taught
METRICS = Registry("metric", "anyformer.pipelines.metrics")
SOURCES = Registry("data source", "anyformer.pipelines.data")
# Only plug-ins register here: transformers knows its own names; ours are in optimizer_rows.py and learning_rate.py.
OPTIMIZERS = Registry("optimizer", __name__)
SCHEDULES = Registry("schedule", __name__)


def less_is_better(name: str | None) -> bool:
    """Whether a lower value of the loss or metric is better.

    name: the metric's, which may have a split before it and a part of a mixture after it, as in the log.
    """
    name = (name or "").removeprefix("validation_").removeprefix("test_")
    if name == "loss" or name.startswith("loss_"):
        return True
    longest = max((metric for metric in METRICS if f"{name}_".startswith(f"{metric}_")), key=len, default=None)
    return longest is not None and METRICS[longest].lower


def register_objective(cls: Any) -> Any:
    """Class decorator: registers an Objective for `objective.name` (or, with section = "task", for `task.name`).

    Prints the methods that nothing calls.
    """
    for one in (cls, *(getattr(cls, kind, None) for kind in PARTS)):
        if isinstance(one, type) and one.__module__ == cls.__module__:
            print_uncalled(one)
    OBJECTIVES.add(cls.name, cls)
    return cls


def print_uncalled(cls: type) -> None:
    """Print the public methods of a plug-in's class that no base class has and that the plug-in's file does not use."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or cls.__module__.startswith("anyformer."):
        return
    source = Path(file).read_text(encoding="utf-8")
    known = {name for base in cls.__mro__[1:] for name in dir(base)}
    for name in sorted(vars(cls).keys() - known):
        if callable(vars(cls)[name]) and name[0] != "_" and len(re.findall(rf"\b{name}\b", source)) == 1:
            near = difflib.get_close_matches(name, known, n=1)
            say([f"{file}: nothing calls {cls.__name__}.{name}" + "".join(f"; did you mean {x}?" for x in near)])


def register_source(name: str) -> Callable:
    """Class decorator: `data.source: NAME` then reads documents from this Source (see data/documents.py).

    It is built as cls(limits, where): bounds on documents, and the recipe's field that its errors name.
    """

    return _decorator(SOURCES, name)


def register_optimizer(name: str) -> Callable:
    """Decorator of a class or function (groups of parameters, lr) -> torch optimizer: `training.optim: NAME`.

    Each group is a dict of `params` and their `weight_decay`; lr is training.learning_rate.
    """
    return _decorator(OPTIMIZERS, name)


def register_schedule(name: str) -> Callable:
    """Decorator of a function (step, total, warmup, **kwargs) -> share of the peak: `training.lr_scheduler_type: NAME`.

    step counts from 0 to total - 1, warmup is a number of steps, kwargs are training.lr_scheduler_kwargs.
    """
    return _decorator(SCHEDULES, name)


def _decorator(registry: Registry, name: str) -> Callable:
    def register(row: Any) -> Any:
        if isinstance(row, type):
            print_uncalled(row)
        registry.add(name, row)
        return row

    return register


def objective_of(recipe: Any) -> Any:
    """The Objective of a recipe, bound to it; nothing is read yet."""
    return OBJECTIVES[recipe.learned.name](recipe)


# ------------------------------------------------------------------------------------------------- loading

_loaded: dict[str, dict[str, str]] = {}  # absolute path, or name of a module -> what run.json says of it
_of_command: list[str] = []  # the names of the command line, in its order


def load_plugins(names: Sequence[str] = ()) -> None:
    """Import the plug-ins of the command line and of the environment, each once.

    Raises:
        UserError: no such file or module, or an error while it is imported.
    """
    _of_command[:] = names
    for name in (*names, *os.environ.get(VARIABLE, "").split(",")):
        if name.strip():
            _load_plugin(name.strip())


def loaded_plugins() -> list[dict[str, str]]:
    """What run.json records of each plug-in: its path or name, and the SHA-256 of the file."""
    return list(_loaded.values())


def with_plugins(command: str) -> str:
    """A command that is proposed to the user, with the plug-ins that the command line has named."""
    words = "".join(f"--plugin {shlex.quote(name)} " for name in _of_command)
    return command.replace("anyformer ", f"anyformer {words}", 1)


def lacking_plugins(folder: Path) -> str:
    """`--plugin FILE ...` for the plug-ins of a run or a saved model that are not loaded; "" if there are none."""
    with suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
        run, code = folder / "run.json", folder / "plugin_code.py"  # which imports those saved with a model
        names = [row["plugin"] for row in json.loads(run.read_text()).get("plugins", [])] if run.is_file() else []
        if not names and code.is_file():
            names = [f"{stem}.py" for stem in re.findall(r"^from \.(\w+) import \*", code.read_text(), re.MULTILINE)]
        lacking = [Path(name) for name in names if Path(name).name not in {Path(other).name for other in _loaded}]
        near = [path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path for path in lacking]
        return " ".join(f"--plugin {shlex.quote(str(path if path.is_file() else path.name))}" for path in near)
    return ""


def _load_plugin(name: str) -> None:
    path = Path(name).expanduser()
    is_file = path.suffix == ".py" or len(path.parts) > 1
    if is_file and not path.is_file():
        raise UserError(f"--plugin {name}: no such file")
    key = str(path.resolve()) if is_file else name
    if key in _loaded:
        return
    if not is_file:
        _run(lambda: importlib.import_module(name), f"--plugin {name}")
        origin = sys.modules[name].__file__
        _loaded[key] = {"plugin": name} | ({"sha256": _digest(Path(origin), name.count("."))} if origin else {})
        return
    # Under a name of its own, so that data loader workers can unpickle what the file defines.
    module_name = f"anyformer_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    if spec is None or (loader := spec.loader) is None:
        raise UserError(f"--plugin {name}: not a Python file; its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _run(lambda: loader.exec_module(module), f"--plugin {name}")
    _loaded[key] = {"plugin": key, "sha256": _digest(path)}


def _digest(path: Path, depth: int = 0) -> str:
    """The SHA-256 of a plug-in, with the modules beside it that it imports. depth: of packages that it lies in."""
    files = _with_imported(path.resolve(), path.resolve().parents[depth], {})
    hashes = [hashlib.sha256(content).hexdigest() for content in files.values()]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _with_imported(file: Path, root: Path, found: dict[Path, bytes]) -> dict[Path, bytes]:
    """`found`, with a file and the files that its imports name, relative to itself or to `root`: {file: content}."""
    if file in found or not file.is_file():
        return found
    found[file] = file.read_bytes()
    for node in ast.walk(ast.parse(found[file])):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        base = root
        if isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else root
            names = [node.module or "", *(f"{node.module or ''}.{name}" for name in names)]
        for name in (name for name in names if name.partition(".")[0] != "anyformer"):
            place = base.joinpath(*name.split("."))
            for one in (place.with_suffix(".py"), place / "__init__.py"):
                _with_imported(one, root, found)
    return found


def _run(load: Callable, what: str) -> None:
    try:
        load()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())}") from error
