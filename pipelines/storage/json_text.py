"""JSON that every parser reads: Python itself writes NaN and Infinity, which are not JSON."""

import json
import math
from typing import Any


def json_text(value: Any, indent: int | None = 1) -> str:
    """Plain data as JSON; numbers that are not finite are null."""
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """The same with None for NaN and infinities, which a diverged run produces."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
