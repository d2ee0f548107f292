"""The number of tokens that a run trains from each source, for the printed summary."""

from ...data.rows import Rows, steps_of_epoch
from ...recipes.schema import Recipe
from ...recipes.usual_rates import settled
from ...words import short_number
from ..arguments import total_steps

# Muennighoff et al. 2023 (Scaling Data-Constrained Language Models): up to this many passes repeated text is nearly
# worth new text, and less and less afterwards.
MANY_PASSES = 4


def steps_of_run(rows: Rows, per_step: int, recipe: Recipe) -> int:
    """The optimizer steps of the whole run. per_step: rows of a step."""
    per_epoch = steps_of_epoch(rows.in_epoch, per_step)
    return total_steps(settled(recipe, per_epoch).training, per_epoch)


def sources_of_run(rows: Rows, last: int) -> list[tuple[str, str]]:
    """Lines for the summary: the tokens that the run trains of each source, and the number of passes over it.

    last: the number of rows that the run trains.
    """
    lines = []
    for name, tokens in rows.tokens_before(last).items():
        available = rows.parts[name].facts["tokens"]
        many = tokens > MANY_PASSES * available
        warning = f"; text that is read more than {MANY_PASSES} times teaches ever less (Muennighoff et al. 2023)"
        lines.append(
            f"{name}: {short_number(tokens)} tokens, its {short_number(available)} {tokens / available:.2f} times"
            f"{warning if many else ''}"
        )
    return [("sources", "\n".join(lines))] if lines else []
