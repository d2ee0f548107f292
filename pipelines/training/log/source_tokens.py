"""How many tokens of each source a run has trained so far, for its log."""

from ..arguments import rows_of, steps_of_epoch


def source_tokens(rows, args, step: int) -> dict[str, int]:
    """{"tokens_news": 12345} after a step, of rows in an order of their own (Rows.is_ordered); {} of others.

    They follow from the number of the step alone, so that a run that goes on counts on. args: as Trainer has them.
    """
    if not getattr(rows, "is_ordered", False):
        return {}
    per_step = rows_of(args)
    epochs, rest = divmod(step, steps_of_epoch(len(rows), per_step))
    trained = epochs * len(rows) + min(rest * per_step, len(rows))
    return {f"tokens_{name}": tokens for name, tokens in rows.tokens_before(trained).items()}
