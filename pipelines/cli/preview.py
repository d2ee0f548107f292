"""Real rows as the model will see them: tokens, labels, documents, positions, and what is not predicted."""

from rich.console import Console

from ..objectives.prepare import describe_data, prepare_data
from ..objectives.showing import spread
from ..recipes.schema import Recipe
from ..words import aligned


def rows_to_show(train, wanted: int) -> list[int]:
    """Evenly spread rows, one of which holds several documents if any row does."""
    chosen = spread(len(train), wanted)
    if not train.is_packed or any(len(train.documents(i)) > 1 for i in chosen):
        return chosen
    packed = next((i for i in range(len(train)) if len(train.documents(i)) > 1), None)
    if packed is None:
        return chosen
    nearest = min(range(len(chosen)), key=lambda n: abs(chosen[n] - packed))
    return sorted({*chosen[:nearest], packed, *chosen[nearest + 1 :]})


def preview(recipe: Recipe, rows: int) -> None:
    """Print `rows` rows of the training data of a recipe; nothing is trained."""
    console = Console(highlight=False, soft_wrap=True)
    data = prepare_data(recipe, progress=console.is_terminal)
    console.print(aligned(describe_data(data), console.width if console.is_terminal else None), markup=False)
    console.print(data.objective.legend())
    train = data.rows["train"]
    numbered = zip(range(rows), train) if train.is_stream else ((i, train[i]) for i in rows_to_show(train, rows))
    for number, row in numbered:
        data.objective.show(console, train, number, row)
