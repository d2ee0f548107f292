"""How much of each source a run trains, for its log and for people."""

from ...data.rows import Rows
from ...data.staged_rows import StagedRows
from ...recipes.schema import Recipe
from ...recipes.usual_rates import settled
from ...words import short_number
from ..arguments import steps_of_epoch, total_steps

# Muennighoff et al. 2023 (Scaling Data-Constrained Language Models): up to so many passes repeated text is nearly worth
# new text, and from then on ever less.
MANY_PASSES = 4


def rows_before(rows: Rows, per_step: int, steps: int) -> int:
    """How many rows of an order of their own (Rows.is_ordered) so many steps train; an epoch's last step is short."""
    epochs, rest = divmod(steps, steps_of_epoch(len(rows), per_step))
    return epochs * len(rows) + min(rest * per_step, len(rows))


def source_tokens(rows: Rows, per_step: int, step: int) -> dict[str, int]:
    """{"tokens_news": 12345} after a step; {} of rows without sources.

    They follow from the number of the step alone, so that a run that goes on counts on.
    """
    if not getattr(rows, "is_ordered", False):
        return {}
    return {f"tokens_{name}": n for name, n in rows.tokens_before(rows_before(rows, per_step, step)).items()}


def sources_of_run(rows: Rows, per_step: int, recipe: Recipe) -> list[tuple[str, str]]:
    """Facts for people: the tokens that the run trains of each source, and how often it reads it.

    rows: of an epoch, or of a whole run with stages.
    """
    if isinstance(rows, StagedRows):
        last = len(rows)
    elif getattr(rows, "is_ordered", False) and not recipe.stages:
        section = settled(recipe, steps_of_epoch(len(rows), per_step)).training
        last = rows_before(rows, per_step, total_steps(section, len(rows), per_step))
    else:
        return []
    found = []
    for name, tokens in rows.tokens_before(last).items():
        held = rows.parts[name].facts["tokens"]
        many = tokens > MANY_PASSES * held
        warning = f"; text that is read more than {MANY_PASSES} times teaches ever less (Muennighoff et al. 2023)"
        found.append(
            f"{name}: {short_number(tokens)} tokens, its {short_number(held)} {tokens / held:.2f} times"
            f"{warning if many else ''}"
        )
    return [("sources", "\n".join(found))] if found else []
