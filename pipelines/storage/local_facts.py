"""Facts about this machine that published files leave out: paths become names, loading leaves no trace."""

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

# What transformers notes in a tokenizer's settings about its loading, and then saves.
LOADING = ("is_local", "local_files_only")
# Paths from the root through at least one folder, from a home folder, or out of the working folder.
POSIX = re.compile(r"(file://)?(/[^/\n]+/|~[^/\n]*/|\.\./)[^\n]*")
WINDOWS = re.compile(r"[A-Za-z]:[\\/][^\n]*|\\\\[^\n]*")
# Keys of texts for people and models, in which a slash does not make a path.
TEXTS = ("description", "sample_prompts", "samples", "special_tokens", "label_names", "signatures", "chat_template")


def path_name(text: str) -> str:
    """The last part of a path of this machine; a relative path, and any other text, as it is."""
    if POSIX.fullmatch(text):
        return PurePosixPath(text).name or text
    return PureWindowsPath(text).name or text if WINDOWS.fullmatch(text) else text


def names_only(value: Any) -> Any:
    """A copy of plain data (mappings, lists, texts, numbers) in which each path of this machine is its name."""
    if isinstance(value, dict):
        return {key: item if key in TEXTS else names_only(item) for key, item in value.items()}
    if isinstance(value, list):
        return [names_only(item) for item in value]
    return path_name(value) if isinstance(value, str) else value


def forget_loading(tokenizer):
    """Take from a loaded tokenizer what transformers would save about its loading; returns the tokenizer."""
    for name in LOADING:
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer
