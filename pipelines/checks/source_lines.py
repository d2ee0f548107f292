"""Where the source of a class shows why a law does not hold."""

import inspect
import re
import sys
from pathlib import Path

MASKS = re.compile(r"create_\w*mask\w*\(")
KEYWORDS = re.compile(r"\*\*(\w+)")
STATELESS = ("attention", "dense", "sparse", "moe", "mlp")  # words in the names of layers that carry no state


def state_layers(config) -> str:
    """Which kinds of layers carry a state from token to token, by the config's names of them."""
    text = config.get_text_config()
    names = dict.fromkeys(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ())
    found = [name for name in names if "linear" in name or not any(word in name for word in STATELESS)]
    return f"layers of {' and '.join(found)} carry a state from one document to the next" if found else ""


def mask_without_positions(model) -> str:
    """The line of a class's source that makes its mask without asking the positions."""
    module = sys.modules[type(model.base_model).__module__]
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        return ""
    for match in MASKS.finditer(source):
        call = _call(source, match.end())
        handed = KEYWORDS.search(call)
        if handed:  # the last dictionary of that name above it
            begin = source.rfind(f"{handed[1]} = {{", 0, match.start())
            call += source[begin : source.find("}", begin)] if begin >= 0 else "position_ids"
        if "position_ids" not in call:
            line = source.count("\n", 0, match.start()) + 1
            return f"{Path(module.__file__).name}:{line} makes the mask without position_ids"
    return "" if "masking_utils" in source else f"{Path(module.__file__).name} makes its own mask, without position_ids"


def _call(source: str, start: int) -> str:
    """The arguments of a call, from behind its opening bracket."""
    depth = 1
    for end in range(start, len(source)):
        depth += {"(": 1, ")": -1}.get(source[end], 0)
        if depth == 0:
            return source[start:end]
    return source[start:]


def unpacked_by_mask() -> str:
    """The line of transformers that reads documents from positions only where no mask is given."""
    from transformers import masking_utils

    lines = inspect.getsource(masking_utils).splitlines()
    found = [
        n for n, line in enumerate(lines, 1) if "attention_mask is None" in line and "position_ids is not None" in line
    ]
    where = f"masking_utils.py:{found[0]}" if found else "masking_utils.py"
    return f"transformers reads documents from position_ids only where no attention_mask is given ({where})"
