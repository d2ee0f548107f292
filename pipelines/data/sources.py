"""Corpora that `data.source` names: ours and those of plug-ins (plugins.SOURCES).

A source is one class:

    @register_source("fortunes")
    class Fortunes(Source):
        name = "fortunes"

        def __init__(self, limits, where="data"):
            self.limits, self.where, self.path = limits, where, Path("/usr/share/games/fortunes/fortunes")

        def items(self):
            for number, text in enumerate(self.path.read_text().split("\\n%\\n")):
                yield self.limits.checked(text, f"fortunes:{number}")

        def identity(self):  # changes whenever the documents do
            return {"source": self.name, "files": file_identities(f"{self.where}.source", [self.path])}
"""

from ..plugins import register_source
from .stdlib import StdlibCodeSource, StdlibSource

register_source("stdlib")(StdlibSource)
register_source("stdlib_code")(StdlibCodeSource)
