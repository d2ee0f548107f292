"""Faults of a layer's residual form. Standard library only."""

from ..traits import BLOCKS, NORM_POSITIONS, attention_kinds


def block_faults(c):
    """One sentence for each setting of the residual form that no block has."""
    yield from _norm_positions(c)
    if c.block not in BLOCKS:
        yield f"block={c.block!r} is not known; known: {', '.join(BLOCKS)}"
    if c.block == "parallel" and c.norm_position != "pre":
        yield (
            f"norm_position={c.norm_position!r} does not go with block='parallel', whose norms are before both parts; "
            f"'pre' does"
        )
    if c.parallel_norms not in (1, 2):
        yield f"parallel_norms={c.parallel_norms} is not known; known: 1 (for both parts), 2 (one for each)"
    if c.parallel_norms != 1 and c.block != "parallel":
        yield f"parallel_norms={c.parallel_norms} is read by block='parallel' alone; leave it at 1"


def _norm_positions(c):
    """One form for all layers, or {kind of attention: its form}."""
    forms, used = c.norm_position, dict.fromkeys(attention_kinds(c))
    for kind, form in (forms if isinstance(forms, dict) else {None: forms}).items():
        field = "norm_position" if kind is None else f"norm_position.{kind}"
        if kind is not None and kind not in used:
            yield f"{field}={form!r} is read by no layer; layers of this model are {', '.join(used)}"
        if form not in NORM_POSITIONS:
            yield f"{field}={form!r} is not known; known: {', '.join(NORM_POSITIONS)}"
    missing = [kind for kind in used if isinstance(forms, dict) and kind not in forms]
    if missing:
        yield f"norm_position has no entry for {missing[0]!r}, which layers of this model use"
