"""The number of tokens that a run trains from each source, for the printed summary."""

from collections.abc import Callable

from ...data.rows import Rows, steps_of_epoch
from ...recipes.schema import Recipe
from ...recipes.usual_rates import settled
from ...words import short_number
from ..arguments import total_steps

# Muennighoff et al. 2023 (Scaling Data-Constrained Language Models): up to this many passes repeated text is nearly
# worth new text, and less and less afterwards.
MANY_PASSES = 4


def sources_of_run(
    rows: Rows, per_step: int, recipe: Recipe, tokens_after: Callable[[int], dict[str, int]]
) -> list[tuple[str, str]]:
    """Lines for the summary: the tokens that the run trains of each source, and the number of passes over it.

    per_step: rows of a step. tokens_after: number of steps -> the tokens of each source that they train.
    """
    if not tokens_after(0):  # there are no sources
        return []
    per_epoch, lines = steps_of_epoch(rows.in_epoch, per_step), []
    for name, tokens in tokens_after(total_steps(settled(recipe, per_epoch).training, per_epoch)).items():
        available = rows.parts[name].facts["tokens"]
        many = tokens > MANY_PASSES * available
        warning = f"; text that is read more than {MANY_PASSES} times teaches ever less (Muennighoff et al. 2023)"
        lines.append(
            f"{name}: {short_number(tokens)} tokens, its {short_number(available)} {tokens / available:.2f} times"
            f"{warning if many else ''}"
        )
    return [("sources", "\n".join(lines))]
