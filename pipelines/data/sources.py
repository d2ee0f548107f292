"""Corpora that `data.source` names: ours and those of plug-ins (plugins.SOURCES)."""

from ..plugins import register_source
from .stdlib import StdlibSource

register_source("stdlib")(StdlibSource)
