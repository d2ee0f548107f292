"""The tables of RESULTS.md: their rows, the commands behind a row, and a row with another figure."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "RESULTS.md"
HEADER = ("recipe", "data, sizes", "result", "reference", "goal", "measured")
CODE = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LETTER = re.compile(r"\((\w)\)$")


@dataclass(frozen=True)
class Row:
    """A row: its cells in the order of HEADER, and the commands that measure it, the last of which gives the figure."""

    cells: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        """What it is called by: its letter, if it has one, and its first cell without quotes."""
        letter = LETTER.search(self.cells[0])
        return {self.cells[0].replace("`", "")} | ({letter[1]} if letter else set())

    def line(self) -> str:
        return re.sub(r"  +", " ", f"| {' | '.join(self.cells)} |")

    def with_figure(self, result: str, measured: str) -> "Row":
        cells = dict(zip(HEADER, self.cells)) | {"result": result, "measured": measured}
        return replace(self, cells=tuple(cells.values()))


def rows_of(text: str) -> list[Row]:
    """The rows of the tables of recipes in a text of markdown."""
    rows, by_letter, header = [], commands_by_letter(text), ()
    for line in text.splitlines():
        cells = tuple(cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))
        if not line.startswith("|"):
            header = ()
        elif not header:
            header = cells
        elif header == HEADER and set(cells) != {"---"}:
            letter = LETTER.search(cells[0])
            rows.append(Row(cells, by_letter[letter[1]] if letter else commands_of(cells[0])))
    return rows


def commands_by_letter(text: str) -> dict[str, tuple[str, ...]]:
    """{letter: commands} of the blocks below the tables, without what stands behind a #."""
    found: dict[str, list[str]] = {}
    for block in CODE.findall(text):
        for line in block.splitlines():
            letter, command = line[:1].strip(), line[1:].partition(" #")[0]
            if letter:
                found[letter] = last = []
            last += [part.strip() for part in command.split(";")]
    return {letter: tuple(commands) for letter, commands in found.items()}


def commands_of(cell: str) -> tuple[str, ...]:
    """The command of a row without a letter: of its recipe, or of its recipe after another one's run."""
    recipe, *after = re.findall(r"`([^`]+)`", cell)
    start = [f" model.name_or_path=runs/{name} training.output_dir=runs/{recipe}_after_{name}" for name in after]
    return (f"anyformer train {recipe}{''.join(start)}",)
