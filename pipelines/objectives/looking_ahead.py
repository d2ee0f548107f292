"""Mixin of objectives in which one of our decoders reads tokens in both directions: a prefix, or a row with masks.

Their batches hold a prefix_mask (B, T), nonzero at tokens that all tokens of their document see, earlier ones, too.
"""

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import one_way_kind

from ..backends import is_flash
from ..errors import UserError

PREFIX_MASK = "prefix_mask"  # key of a batch


class LooksAhead:
    """Mixin, named before the base class, of objectives over text that decoders and other models can learn."""

    @property
    def has_encoder(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return self.family.has_decoder if self.family is not None else bool(self.config.is_encoder_decoder)

    @property
    def by_decoder(self) -> bool:
        family = FAMILIES.get(self.config.model_type) if self.family is None else self.family
        return family is not None and not family.bidirectional and not family.has_decoder

    def check(self) -> None:
        super().check()
        if self.family is not None and self.by_decoder:
            self.check_ahead()

    def open(self):
        if self.by_decoder:
            self.check_ahead()
        return super().open()

    def check_ahead(self) -> None:
        """Raise UserError for a decoder whose tokens cannot see those after them."""
        backend, kind = self.recipe.model.attn_implementation, None
        if is_flash(backend):
            raise UserError(
                f"model.attn_implementation={backend} hides the future from every token, and with {self.setting} some "
                f"see it; sdpa and eager can show it"
            )
        if self.family is not None or self.config.model_type in FAMILIES:
            kind = one_way_kind(self.config)
        if kind is not None:
            raise UserError(
                f"model.attention_pattern holds {kind}, which reads tokens in their order, and with {self.setting} "
                f"some see those after them; full_attention, sliding_attention and strided_attention can"
            )
