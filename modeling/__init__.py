"""Model families and the parts they are composed of. Imports only torch, transformers and siblings.

Models are saved with copies of the files of this folder that they need, never of kernels/ and rules/. Names are loaded
on first use, so that code that needs only the rules or the config fields does not import torch.
"""

import importlib

from . import rules  # noqa: F401 - installs the checks of configs
from .families import FAMILIES

_EXPORTS = {
    "TransformerConfig": "configuration",
    "AnyformerImageProcessor": "image_processing",
    "Kind": "traits",
    "Scheme": "traits",
    "register_attention_kind": "traits",
    "register_position_scheme": "traits",
}
for _family in FAMILIES.values():
    _EXPORTS |= _family.exports
__all__ = list(_EXPORTS)


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
