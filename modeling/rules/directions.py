"""Refusals about what a token sees: prefixes, and layers of both stacks of an encoder-decoder."""

from ..traits import attention_kinds, has_experts, mlp_kinds, one_way_kind

# As the rows of legality.py.
PREFIX_ROWS = [
    (
        lambda c: getattr(c, "prefix_lm", False) and one_way_kind(c) is not None,
        lambda c: (
            f"prefix_lm=True does not go with {one_way_kind(c)}, which reads tokens in their order only; "
            f"full_attention, sliding_attention and strided_attention can look ahead"
        ),
    ),
]


def _of_one_stack(name: str, pattern: str, is_told_apart):
    """A row: the field `name` tells layers apart, but of the encoder alone."""
    return (
        is_told_apart,
        lambda c: (
            f"{name}={getattr(c, name)} names the encoder's layers only; name {pattern}, which both stacks follow"
        ),
    )


STACK_ROWS = [
    _of_one_stack(
        "layer_types", "attention_pattern", lambda c: not c.attention_pattern and len(set(attention_kinds(c))) > 1
    ),
    _of_one_stack(
        "mlp_layer_types",
        "mlp_pattern",
        lambda c: has_experts(c) and not c.mlp_pattern and "dense" in mlp_kinds(c),
    ),
]
