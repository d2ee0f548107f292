"""The sentences of a text."""

import re

_BREAK = re.compile(r"\s*(?:<br\s*/?>|\n)\s*")  # the end of a line, also as HTML, as in reviews from the web
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+(?=[\"'“‘«(\[]*[A-ZÀ-Þ0-9])")
_ABBREVIATION = re.compile(r"(?:^|[\s(\"'])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|No|vs|etc|e\.g|i\.e)\.\s+$")


def sentences_of(text: str) -> list[str]:
    """The sentences of a text: each ends at . ! ? or … before a capital or a digit, but not after an abbreviation."""
    sentences = []
    for line in _BREAK.split(text):
        begin = 0
        for end in _END.finditer(line):
            if not _ABBREVIATION.search(line[begin : end.end()]):
                sentences.append(line[begin : end.end()].strip())
                begin = end.end()
        sentences.append(line[begin:].strip())
    return [sentence for sentence in sentences if sentence]
