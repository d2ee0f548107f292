"""Settings that there were once: folders of earlier runs name them, as saved recipes spell out every default."""

from typing import Any

REGULAR, SEQUENTIAL, EXTREME = "<|R|>", "<|S|>", "<|X|>"
DENOISERS = (
    *((0.15, 3.0, REGULAR), (0.15, 8.0, REGULAR), (0.25, None, SEQUENTIAL)),
    *((0.5, 3.0, EXTREME), (0.5, 8.0, EXTREME), (0.15, 64.0, EXTREME), (0.5, 64.0, EXTREME)),
)
# Name -> the one value that says what is done now.
FORMER: dict[str, Any] = {
    "shortest_prefix": 0.0,
    "longest_prefix": 1.0,
    "positive_from": 0.8,
    "denoisers": [
        {"noise_density": rate, "mean_span_length": length, "weight": 1.0, "mode_token": token}
        for rate, length, token in DENOISERS
    ],
}


def without_former(recipe: Any) -> Any:
    """A recipe as plain data without settings that are gone, where their value says what is done now."""
    if isinstance(recipe, list):
        return [without_former(item) for item in recipe]
    if not isinstance(recipe, dict):
        return recipe
    return {key: without_former(value) for key, value in recipe.items() if key not in FORMER or value != FORMER[key]}
