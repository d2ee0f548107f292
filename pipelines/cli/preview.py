"""Real rows as the model will see them: tokens, labels, documents, positions, and what is not predicted."""

from rich.console import Console

from ..objectives.prepare import describe_data, prepare_data
from ..recipes.schema import Recipe
from .preview_rows import KINDS


def spread(total: int, wanted: int) -> list[int]:
    """`wanted` row numbers from first to last, evenly spread."""
    wanted = min(wanted, total)
    return sorted({round(i * (total - 1) / max(1, wanted - 1)) for i in range(wanted)})


def rows_to_show(train, wanted: int) -> list[int]:
    """Evenly spread rows, one of which holds several documents if any row does."""
    chosen = spread(len(train), wanted)
    if not hasattr(train, "segments") or any(len(train.segments(i)) > 1 for i in chosen):
        return chosen
    for i in range(len(train)):
        if len(train.segments(i)) > 1:
            nearest = min(range(len(chosen)), key=lambda n: abs(chosen[n] - i))
            return sorted({*chosen[:nearest], i, *chosen[nearest + 1 :]})
    return chosen


def preview(recipe: Recipe, rows: int = 5, console: Console | None = None) -> int:
    """Print `rows` rows of the training data of a recipe; nothing is trained. Returns the exit code 0."""
    console = console or Console(highlight=False, soft_wrap=True)
    data = prepare_data(recipe, progress=console.is_terminal)
    console.print(describe_data(data), markup=False)
    legend, print_row = KINDS[recipe.task.name if recipe.task else recipe.objective.name]
    console.print(legend)
    train = data.rows["train"]
    if hasattr(train, "__len__"):
        chosen = [(i, train[i]) for i in rows_to_show(train, rows)]
    else:
        chosen = list(zip(range(rows), train))
    for number, row in chosen:
        print_row(console, data, number, row, segments_of(train, number, row))
    return 0


def segments_of(train, number: int, row: dict) -> list[tuple[int, int, int]]:
    """The document parts of a row: (document, first token in it, tokens); none where rows are examples.

    A stream knows its documents by their places in the row alone, so they are numbered within it.
    """
    if hasattr(train, "segments"):
        return train.segments(number)
    if "position_ids" not in row:
        return []
    positions = row["position_ids"].tolist()
    starts = [i for i, p in enumerate(positions) if p == 0 or i == 0]
    ends = [*starts[1:], len(positions)]
    return [(part, positions[s], e - s) for part, (s, e) in enumerate(zip(starts, ends))]
