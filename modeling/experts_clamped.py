"""Experts with the gate of glu_clamped.py."""

from .experts import GatedExperts
from .glu_clamped import clamped_glu


class ClampedExperts(GatedExperts):
    """Each expert is a glu_clamped.ClampedMLP."""

    def _apply_gate(self, gate_up):
        """(..., 2 I) -> (..., I); transformers calls it by this name."""
        return clamped_glu(*gate_up.chunk(2, dim=-1), self.config)
