"""The legality table's rows about parts of attention and of feed-forwards, for legality.py. Standard library only."""

from ..traits import ATTENTION_KINDS, ATTENTION_PARTS
from .positions import own_classes

ATTENTION_GATES = ("head", "channel")


def _ungated(c):
    """A kind of attention, or the position scheme, whose class has no gate, neither this one nor one of its own."""
    return next((name for name in own_classes(c) if not getattr(ATTENTION_KINDS.get(name), "own_gate", False)), None)


def _of_softmax(c):
    """A part that only attention of the plain class has, or None."""
    names = ("attention_sinks", "value_residual", "differential_attention")
    return next((name for name in names if getattr(c, name, False)), None)


def _classes(c) -> list[str]:
    """The settings that each give all layers another class of attention."""
    of_parts = [f"{name}=True" for name in ATTENTION_PARTS if getattr(c, name, False)]
    return of_parts + ([f"position_at={c.position_at!r}"] if c.position_at == "queries_keys" else [])


def _differential_faults(c):
    """Faults of differential attention, one sentence each."""
    if not getattr(c, "differential_attention", False):
        return
    heads = c.num_key_value_heads or c.num_attention_heads
    if heads % 2:
        field = "num_attention_heads" if c.num_key_value_heads is None else "num_key_value_heads"
        yield f"{field}={heads} is odd, but differential_attention=True pairs heads; choose an even number"
    if c.attention_dropout:
        yield (
            f"attention_dropout={c.attention_dropout} would differ in the two softmaxes of "
            f"differential_attention=True; set it to 0 and use hidden_dropout"
        )


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
        lambda c: _of_softmax(c) is not None and bool(own_classes(c)),
        lambda c: (
            f"{_of_softmax(c)}=True is a part of softmax attention over tokens, and {own_classes(c)[0]} is computed "
            f"by a class without; set {_of_softmax(c)}=False"
        ),
    ),
    (
        lambda c: len(_classes(c)) > 1,
        lambda c: f"{' and '.join(_classes(c))} are two classes of attention; set one of them",
    ),
    (
        lambda c: getattr(c, "value_residual", False) and getattr(c, "num_nextn_predict_layers", 0) > 0,
        lambda c: (
            f"num_nextn_predict_layers={c.num_nextn_predict_layers} adds modules behind the layers, which the first "
            f"layer's values do not reach; set value_residual=False"
        ),
    ),
    (
        lambda c: next(_differential_faults(c), None) is not None,
        lambda c: next(_differential_faults(c)),
    ),
]
