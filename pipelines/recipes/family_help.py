"""Descriptions of a family's config fields; their choices and bounds come from the rules that check configs."""

from collections.abc import Iterator

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.rules import legality, parts
from anyformer.modeling.rules.bounds import BOUNDS, SHARES
from anyformer.modeling.traits import ATTENTION_KINDS, PARTS, POSITION_SCHEMES

from . import introspection
from .field_docs import FieldDoc
from .types import type_words

CHOICES = {
    "norm_type": PARTS.norm_type,
    "norm_position": PARTS.norm_position,
    "block": PARTS.block,
    "attention_gate": parts.ATTENTION_GATES,
    "mlp_type": PARTS.mlp_type,
    "mlp_pattern": parts.MLP_KINDS,
    "mlp_layer_types": parts.MLP_KINDS,
    "router_scoring": parts.ROUTER_SCORINGS,
    "pooler_type": legality.POOLER_TYPES,
    "pos_att_type": legality.POSITION_TERMS,
}


def describe_family(family: str) -> Iterator[FieldDoc]:
    """Every field of the family's config."""
    for name, row in introspection.family_fields(family).items():
        choices = ", ".join(_choices(name, introspection.OURS + family))
        words = type_words(row.type) + (f": {choices}" if choices else "") + _bounds(name)
        yield FieldDoc(f"model.{name}", words, row.default, row.meaning)


def _choices(name: str, model_type: str) -> list[str]:
    if name in ("attention_pattern", "layer_types"):
        return [kind for kind, traits in ATTENTION_KINDS.items() if model_type in traits.families]
    if name == "position_encoding":
        row, schemes = FAMILIES[model_type], POSITION_SCHEMES.items()
        return [n for n, s in schemes if (s.plane or not row.of_images) and (row.bidirectional or not s.bidirectional)]
    return list(CHOICES.get(name, ()))


def _bounds(name: str) -> str:
    if name in SHARES:
        return ", at least 0, below 1"
    return ", at least {}, at most {:,}".format(*BOUNDS[name]) if name in BOUNDS else ""
