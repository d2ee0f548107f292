"""GGUF files read as models; the files beside the packages open them, and so it stands there."""

from ...gguf_files import is_gguf, load_gguf

__all__ = ["is_gguf", "load_gguf"]
