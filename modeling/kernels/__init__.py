"""Attention backends for any model of transformers: a mask builder and an attention function in its registries.

Beside them norms.py, the backward pass of our own models' norms on CPUs.

They are chosen by name, `attn_implementation="anyformer"`, once this folder is imported. It does not travel with a
saved model, which runs sdpa where the package is absent.
"""

from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from .tiles import supports_backend, tiles_attention, tiles_mask

NAME = "anyformer"


def computes(config_class: type, supports: str = "_supports_sdpa") -> bool:
    """Whether transformers' class of a config is known to compute its attention by a backend. supports: as below."""
    from transformers import MODEL_MAPPING

    try:
        return config_class in MODEL_MAPPING and supports_backend(config_class, supports)
    except ValueError:
        return False


AttentionInterface.register(NAME, tiles_attention)
AttentionMaskInterface.register(NAME, tiles_mask)
