"""Raw data to rows: sources, documents, examples, validation split, mixture, stores, packing."""

from ..plugins import SOURCES

SOURCES.announce(dict.fromkeys(("stdlib", "stdlib_code"), f"{__name__}.stdlib"))
