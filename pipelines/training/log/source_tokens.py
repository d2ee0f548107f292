"""The number of tokens that a run trains from each source, for the log and the printed summary."""

from ...data.rows import Rows
from ...data.staged_rows import StagedRows
from ...recipes.schema import Recipe
from ...recipes.usual_rates import settled
from ...words import short_number
from ..arguments import steps_of_epoch, total_steps

# Muennighoff et al. 2023 (Scaling Data-Constrained Language Models): up to this many passes repeated text is nearly
# worth new text, and less and less afterwards.
MANY_PASSES = 4


def rows_before(rows: Rows, per_step: int, steps: int) -> int:
    """The number of ordered rows (Rows.is_ordered) that the first `steps` steps train; an epoch's last may be short."""
    epochs, rest = divmod(steps, steps_of_epoch(len(rows), per_step))
    return epochs * len(rows) + min(rest * per_step, len(rows))


def source_tokens(rows: Rows, per_step: int, step: int) -> dict[str, int]:
    """{"tokens_news": 12345}: trained tokens of each source after a step; {} for rows without sources.

    They are computed from the step's number, so a resumed run needs no stored counts.
    """
    if not getattr(rows, "is_ordered", False):
        return {}
    return {f"tokens_{name}": n for name, n in rows.tokens_before(rows_before(rows, per_step, step)).items()}


def sources_of_run(rows: Rows, per_step: int, recipe: Recipe) -> list[tuple[str, str]]:
    """Lines for the summary: the tokens that the run trains of each source, and the number of passes over it.

    rows: those of an epoch, or those of a whole run with stages.
    """
    if isinstance(rows, StagedRows):
        last = len(rows)
    elif getattr(rows, "is_ordered", False) and not recipe.stages:
        section = settled(recipe, steps_of_epoch(len(rows), per_step)).training
        last = rows_before(rows, per_step, total_steps(section, len(rows), per_step))
    else:
        return []
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
