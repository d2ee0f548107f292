"""CoNLL files: a word and what is said of it in each line, an empty line after each sentence."""

import io
from itertools import chain

from ..errors import UserError
from .file_formats import FileFormat, register_file_format
from .files import open_file

NEW_DOCUMENT = "-DOCSTART-"  # the first column of a line between documents


@register_file_format(".conll")
class Conll(FileFormat):
    """Sentences as rows {"tokens", "tags"}: the first and the last column, separated by tabs, or else by spaces."""

    counts = "line"

    def rows(self, field, path, columns, limits):
        with open_file(path, limits.encoding) as stream:
            lines = io.TextIOWrapper(stream, "utf-8")
            start, words, size = 1, [], None
            for number, line in enumerate(chain(lines, [""]), start=1):
                values = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
                if any(values) and values[0] != NEW_DOCUMENT:
                    start = start if words else number
                    words.append((number, values))
                    size = size or len(values)
                elif words:
                    yield start, self._sentence(words, size, f"{field}: {path}")
                    words = []

    @staticmethod
    def _sentence(words, size, where) -> dict[str, list[str]] | UserError:
        """The columns of a sentence's lines; an error for a line with more or fewer."""
        for number, values in words:
            if len(values) != size or size < 2:
                wanted = f"{size} columns" if size > 1 else "two columns or more"
                return UserError(f"{where}, line {number} holds {len(values)} instead of {wanted}")
        return {"tokens": [values[0] for _, values in words], "tags": [values[-1] for _, values in words]}
