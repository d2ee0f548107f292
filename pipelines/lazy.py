"""Large libraries, imported at their first use, for modules that commands need before any work begins."""

import importlib
from contextlib import suppress
from types import ModuleType


class Lazy(ModuleType):
    """A module that is imported when one of its attributes or submodules is first used."""

    def __getattr__(self, name: str):
        module = importlib.import_module(self.__name__)
        if not hasattr(module, name):
            with suppress(ImportError):
                importlib.import_module(f"{self.__name__}.{name}")
        return getattr(module, name)


np, torch = Lazy("numpy"), Lazy("torch")
tokenizers, transformers = Lazy("tokenizers"), Lazy("transformers")
datasets, hub, pyarrow, rich_text = map(Lazy, ("datasets", "huggingface_hub", "pyarrow", "rich.text"))
