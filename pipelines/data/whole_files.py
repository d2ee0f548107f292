"""Files that are one row each: an image, or a text, and the folder that it lies in, as its class."""

from pathlib import Path

from .documents import UTF8
from .file_formats import FileFormat
from .plain_text import TEXT, PlainText, no_format, suffix_of

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def is_image_file(path: Path) -> bool:
    return path.name.lower().endswith(IMAGES)


class WholeFile(FileFormat):
    """named: {"image_field", "text_field", "label_field": the column of an image's path, of a text, of a class}."""

    def __init__(self, named: dict[str, str]):
        self.named = named

    def check_kind(self, field: str, path: Path, pattern: str) -> None:
        texts = TEXT if "label_field" in self.named else (*TEXT, ".md")  # beside labelled texts a README.md is none
        is_image = "image_field" in self.named and is_image_file(path)
        if not is_image and suffix_of(path.name) not in texts:
            raise no_format(field, path, texts)

    def encoding(self, path):
        return UTF8 if is_image_file(path) else super().encoding(path)

    def rows(self, field, path, columns, limits):
        row: dict | str = {"image_field": str(path)}
        if not is_image_file(path):
            [(_, row)] = PlainText().rows(field, path, ["text_field"], limits)
        if isinstance(row, dict):
            row |= {"label_field": path.parent.name}
            row = {column: row[name] for name, column in self.named.items() if name in row}
        yield None, row
