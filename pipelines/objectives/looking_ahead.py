"""Objectives in which one of our decoders reads tokens in both directions: a prefix, or a row with masks.

Their batches hold PREFIX_MASK (data/batch_keys.py).
"""

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import one_way_kind

from ..backends import is_flash
from ..errors import UserError
from .base import Objective
from .data import ModelFacts


def has_encoder(facts: ModelFacts) -> bool:
    """Whether the model is an encoder-decoder."""
    return facts.family.has_decoder if facts.family is not None else bool(facts.config.is_encoder_decoder)


def is_our_decoder(facts: ModelFacts) -> bool:
    """Whether the model is one of our decoders, which can be told to read in both directions."""
    family = FAMILIES.get(facts.config.model_type) if facts.family is None else facts.family
    return family is not None and not family.bidirectional and not family.has_decoder


def check_ahead(objective: Objective) -> None:
    """Raise UserError for one of our decoders whose tokens cannot see those after them."""
    facts, backend, kind = objective.facts, objective.recipe.model.attn_implementation, None
    if not is_our_decoder(facts):
        return
    if is_flash(backend):
        raise UserError(
            f"model.attn_implementation={backend} hides the future from every token, and with {objective.setting} some "
            f"see it; sdpa and eager can show it"
        )
    if facts.family is not None or facts.config.model_type in FAMILIES:
        kind = one_way_kind(facts.config)
    if kind is not None:
        raise UserError(
            f"model.attention_pattern holds {kind}, which reads tokens in their order, and with {objective.setting} "
            f"some see those after them; full_attention, sliding_attention and strided_attention can"
        )
