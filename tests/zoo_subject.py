"""A model of the zoo under the laws that `anyformer check` asks (pipelines/checks/laws)."""

import functools

from anyformer.pipelines.checks.subject import TOLERANCE_OF_FP32, Subject
from family_variants import Variant, exactness

KINDS = {"decoder": "causal", "moe": "causal", "encoder": "masked", "seq2seq": "seq2seq", "vit": "image"}


class ZooSubject(Subject):
    """A variant's model, by default one in fp64, which reads the variant's own inputs."""

    def __init__(self, variant: Variant, model=None):
        model = variant.model() if model is None else model
        super().__init__(model, KINDS[variant.family])
        self.variant, self.tolerance = variant, exactness(model)
        self.fp32_tolerance = max(self.tolerance, TOLERANCE_OF_FP32)

    @staticmethod
    @functools.cache
    def of(variant: Variant) -> "ZooSubject":
        """The subject of a variant, made once: whoever asks it gets copies of its model."""
        return ZooSubject(variant)

    def rows(self, rows: int = 2, tokens: int = 12, seed: int = 0) -> dict:
        found = self.variant.inputs(self._model, tokens, rows, seed)
        return {name: self._moved(x) for name, x in found.items()}
