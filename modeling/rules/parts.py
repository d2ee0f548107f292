"""The legality table's rows about parts of attention and of feed-forwards, for legality.py. Standard library only."""

from ..traits import ATTENTION_KINDS
from .positions import own_classes

ATTENTION_GATES = ("head", "channel")


def _ungated(c):
    """A kind of attention, or the position scheme, whose class has no gate, neither this one nor one of its own."""
    return next((name for name in own_classes(c) if not getattr(ATTENTION_KINDS.get(name), "own_gate", False)), None)


# (is this config illegal?, the sentence a user reads), checked in order: later rows rely on earlier ones.
PART_ROWS = [
    (
        lambda c: c.mlp_type == "clamped_glu" and c.hidden_act not in ("silu", "swish"),
        lambda c: (
            f"hidden_act={c.hidden_act!r} is not read by mlp_type='clamped_glu', whose gate is a silu with "
            f"swiglu_alpha; leave it at 'silu'"
        ),
    ),
    (
        lambda c: c.mlp_type != "clamped_glu" and (c.swiglu_limit, c.swiglu_alpha) != (7.0, 1.702),
        lambda c: (
            f"swiglu_limit={c.swiglu_limit} and swiglu_alpha={c.swiglu_alpha} are read by mlp_type='clamped_glu' "
            f"alone; leave them at 7.0 and 1.702"
        ),
    ),
    (
        lambda c: c.attention_gate not in (None, *ATTENTION_GATES),
        lambda c: f"attention_gate={c.attention_gate!r} is not known; known: {', '.join(ATTENTION_GATES)}",
    ),
    (
        lambda c: c.attention_gate is not None and _ungated(c) is not None,
        lambda c: f"attention_gate={c.attention_gate!r} does not go with {_ungated(c)}, whose class has none",
    ),
    (
        lambda c: c.attention_sinks and bool(own_classes(c)),
        lambda c: (
            f"attention_sinks=True stands beside the scores of a softmax over tokens, and {own_classes(c)[0]} is "
            f"computed by a class without; set attention_sinks=False"
        ),
    ),
    (
        lambda c: c.attention_sinks and c.position_at == "queries_keys",
        lambda c: "attention_sinks=True and position_at='queries_keys' are two classes of attention; set one of them",
    ),
]
