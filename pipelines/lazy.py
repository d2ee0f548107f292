"""Large libraries, imported where they are first used: for modules with which a command is checked before any work."""

import importlib
from contextlib import suppress
from types import ModuleType


class Lazy(ModuleType):
    """A module that is imported when something in it is asked for, such as a module of its own."""

    def __getattr__(self, name: str):
        module = importlib.import_module(self.__name__)
        if not hasattr(module, name):
            with suppress(ImportError):
                importlib.import_module(f"{self.__name__}.{name}")
        return getattr(module, name)


np, torch = Lazy("numpy"), Lazy("torch")
tokenizers, transformers = Lazy("tokenizers"), Lazy("transformers")
datasets, hub, pyarrow, rich_text = map(Lazy, ("datasets", "huggingface_hub", "pyarrow", "rich.text"))
