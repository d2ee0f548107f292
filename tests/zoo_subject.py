"""A model of the zoo under the laws that `anyformer check` asks (pipelines/checks/laws)."""

import torch
from anyformer.pipelines.checks.subject import Subject

KINDS = {"decoder": "causal", "moe": "causal", "encoder": "masked", "seq2seq": "seq2seq", "vit": "image"}


class ZooSubject(Subject):
    """A variant's model, by default in fp64, which reads the variant's own inputs."""

    def __init__(self, variant, dtype=torch.float64, **fields):
        from family_variants import exactness

        self.variant, model = variant, variant.model(dtype, **fields)
        super().__init__(model, KINDS[variant.family], tolerance=exactness(model))

    def rows(self, rows: int = 2, tokens: int = 12, seed: int = 0) -> dict:
        found = self.variant.inputs(self._model, tokens, rows, seed)
        return {name: self._moved(x) for name, x in found.items()}
