"""The decoder family with kinds of attention that keep states: linear, compressive and recurrent attention.

A folder of such a model names this file in its `auto_map`, so that transformers carries the imports below along with
those of `decoder.py`. Other decoders' folders name `decoder.py` and hold none of these files.
"""

from .attention_linear import LinearAttention
from .attention_recurrent import CompressiveAttention, RecurrentAttention
from .decoder import *  # noqa: F403

OPTIONAL_PARTS = (LinearAttention, CompressiveAttention, RecurrentAttention)
