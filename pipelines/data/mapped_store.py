"""Prepared data in the cache: files that are written once and memory-mapped, and a meta.json that describes them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ..storage.cache import cached_folder
from ..storage.contents import States
from .account import Account

META = "meta.json"


class MappedStore(ABC):
    """One folder of mapped files. A subclass opens them in `_open`.

    kind: folder of the cache that holds all stores of the class. fingerprint: identity of the content and of the way it
    was made. name: of the data, for people. account: of what came in for it.
    """

    kind: str

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        meta = json.loads((self.folder / META).read_text())
        self.fingerprint, self.name = meta["fingerprint"], meta["name"]
        self.account = Account.from_json(meta.get("account", ()))
        self._open(meta)

    @abstractmethod
    def _open(self, meta: dict[str, Any]) -> None:
        """Set the attributes that meta.json holds, and map the files."""

    @classmethod
    def cached(cls, cache: Path, key: str, build: Callable[[Path], None], files: States | None) -> Self:
        """The store in cache/kind/key; `build` writes its files and meta.json where it is missing or damaged."""
        return cls(cached_folder(Path(cache), cls.kind, key, build, files))

    def __reduce__(self) -> tuple:
        """Pickled as its folder: a worker process maps the files itself instead of receiving their content."""
        return type(self), (self.folder,)
