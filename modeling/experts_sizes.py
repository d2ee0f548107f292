"""Sizes of experts that torch's own grouped product refuses. Standard library only."""

# It needs rows of multiples of 16 bytes; 8 channels are that in every dtype of weights.
CHANNELS = 8


def odd_sizes(c) -> str | None:
    """A size of the experts that grouped_mm refuses, as `name=value`, or None.

    A size that is not set yet (None: the config derives it) is not judged.
    """
    sizes = {name: getattr(c, name) for name in ("hidden_size", "moe_intermediate_size")}
    return next((f"{name}={size}" for name, size in sizes.items() if size is not None and size % CHANNELS), None)
