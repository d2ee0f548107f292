"""What a user can do where a law does not hold."""

from ..interop.matching import ARCHITECTURES


def converted_family(config) -> str:
    """The family of ours that holds the same architecture; empty where none does."""
    row = ARCHITECTURES.get(config.model_type)
    return row.family if row else ""
