"""Position schemes and kinds of attention that a test has registered, taken back."""

from anyformer.modeling import traits


def unregister(name: str) -> None:
    """Take back what `register_position_scheme` or `register_attention_kind` added under a name."""
    traits.POSITION_SCHEMES.pop(name, None)
    traits.ATTENTION_KINDS.pop(name, None)
