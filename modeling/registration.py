"""Registers all families in transformers' Auto classes. Not saved with models: there `auto_map` does this.

Nothing of transformers is imported for it. Its tables of classes are filled as soon as transformers has imported them
itself, and hold our classes by name until somebody asks for one. What is replaced for that is listed with reasons in
pipelines/patches.py.
"""

import importlib
import sys
from collections import UserDict
from collections.abc import Callable
from functools import partial
from importlib.machinery import PathFinder

from .families import FAMILIES
from .traits import RULES

AUTO = "transformers.models.auto"


class LateEntries(UserDict):
    """Entries of one of transformers' tables, some of which are loaded when they are asked for.

    late: returns {name of a key: (function that returns the key, function that returns its value)}. The name of a class
    is its `__name__`; another class of that name, from a folder of the Hub, is no key.
    """

    def __init__(self, entries, late: Callable[[], dict[str, tuple[Callable, Callable]]]):
        super().__init__(entries)
        self.late = late

    def __contains__(self, key):
        name, late = getattr(key, "__name__", key), self.late()
        return key in self.data or (name in late and late[name][0]() == key)

    def __missing__(self, key):
        if key not in self:
            raise KeyError(key)
        self.data[key] = self.late()[getattr(key, "__name__", key)][1]()
        return self.data[key]

    def __iter__(self):
        return iter(dict.fromkeys([*self.data, *(key() for key, _ in self.late().values())]))

    def __len__(self):
        return sum(1 for _ in self)


def add_configs(module) -> None:
    """Add the families' configs to AutoConfig. module: transformers' configuration_auto."""

    def late() -> dict:
        return {name: (partial(str, name), partial(row.load, row.config)) for name, row in FAMILIES.items()}

    module.CONFIG_MAPPING._extra_content = LateEntries(module.CONFIG_MAPPING._extra_content, late)


def add_models(module) -> None:
    """Add the families' classes to AutoModel and the Auto heads. module: transformers' modeling_auto."""

    def late(auto_class: str) -> dict:
        rows = [row for row in FAMILIES.values() if auto_class in row.heads]
        return {row.config: (partial(row.load, row.config), partial(row.load, row.heads[auto_class])) for row in rows}

    for auto_class in dict.fromkeys(head for row in FAMILIES.values() for head in row.heads):
        table = getattr(module, auto_class)._model_mapping
        table._extra_content = LateEntries(table._extra_content, partial(late, auto_class))


def add_image_processors(module) -> None:
    """Add the processor of images to AutoImageProcessor. module: transformers' image_processing_auto."""
    from transformers.utils import is_vision_available

    def classes() -> dict:
        return {"pil": importlib.import_module(".image_processing", __package__).AnyformerImageProcessor}

    def late() -> dict:
        return {row.config: (partial(row.load, row.config), classes) for row in FAMILIES.values() if row.of_images}

    if is_vision_available():  # without Pillow, models still take tensors
        table = module.IMAGE_PROCESSOR_MAPPING
        table._extra_content = LateEntries(table._extra_content, late)


def add_backend(module) -> None:
    """Add our attention backend for all models, and norms of our own. module: transformers' modeling_utils."""
    importlib.import_module(".kernels", __package__)  # which registers it; it may itself be what imports `module`
    RULES.update(rms_norm=importlib.import_module(".kernels.norms", __package__).rms_norm)


def delta_kernels() -> dict:
    """The kernels of delta nets by kind of attention, where flash-linear-attention is installed."""
    return importlib.import_module(".attention_delta_fla", __package__).kernels()


# {module of transformers: what to do once it is imported}.
WHEN_IMPORTED = {
    f"{AUTO}.configuration_auto": add_configs,
    f"{AUTO}.modeling_auto": add_models,
    f"{AUTO}.image_processing_auto": add_image_processors,
    "transformers.modeling_utils": add_backend,
}


class Watch:
    """A finder of modules that lets the usual one find those of WHEN_IMPORTED, and acts once they have been run."""

    @staticmethod
    def find_spec(name: str, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name in WHEN_IMPORTED else None
        if spec is not None:
            run = spec.loader.exec_module

            def run_and_act(module) -> None:
                run(module)
                WHEN_IMPORTED[name](module)

            spec.loader.exec_module = run_and_act
        return spec


def register() -> None:
    """Make AutoConfig, AutoModel, the Auto heads and AutoImageProcessor know every family, and all models our attention
    backend. Safe to call more than once."""
    if Watch in sys.meta_path:
        return
    RULES.update(delta_kernels=delta_kernels)
    sys.meta_path.insert(0, Watch)
    for name, act in WHEN_IMPORTED.items():
        if name in sys.modules:
            act(sys.modules[name])
