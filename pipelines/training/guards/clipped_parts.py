"""Gradient clipping by part of the model: `training.max_grad_norm` with norms for embeddings, layers and head."""

from collections import defaultdict

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ...accounting.layers import places_of
from ...recipes.schema import PartNorms


def parts_of_model(model: torch.nn.Module) -> dict[str, str]:
    """{name of a parameter: "embeddings", "layers" or "head"}; a tied head counts as embeddings."""
    places, parts = places_of(model), dict.fromkeys((name for name, _ in model.named_parameters()), "layers")
    return parts | dict.fromkeys(places.embeddings, "embeddings") | dict.fromkeys(places.after, "head")


class ClippedParts:
    """Clips the gradients of each part of a model to its own norm: a spike in one part does not slow the others.

    norms: {part: norm of its gradients in the last step, before clipping}.
    """

    def __init__(self, most: PartNorms):
        self.most, self.parts = most, {}
        self.norms: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def clip(self, model: torch.nn.Module) -> torch.Tensor:
        """Clip all gradients, also those of split weights (DTensor); returns the norm of all before clipping."""
        self.parts = self.parts or parts_of_model(model)
        groups = defaultdict(lambda: defaultdict(list))
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                groups[self.parts[name]][getattr(parameter.grad, "device_mesh", None)].append(parameter)
        self.norms = {part: norm_of(by_mesh.values()) for part, by_mesh in groups.items()}
        for part, by_mesh in groups.items():
            most = getattr(self.most, part)
            for parameters in by_mesh.values() if most > 0 else ():
                clip_grads_with_norm_(parameters, most, self.norms[part])
        return torch.linalg.vector_norm(torch.stack(list(self.norms.values())))

    def log(self) -> dict[str, float]:
        """{"grad_norm_layers": ..., ...}: the norms of the last step, for the log."""
        return {f"grad_norm_{part}": norm.item() for part, norm in self.norms.items()}


def norm_of(groups) -> torch.Tensor:
    """The norm of the gradients of all parameters. groups: lists of parameters, each list on one mesh or on none."""
    norms = [get_total_norm([parameter.grad for parameter in parameters]) for parameters in groups]
    whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    return torch.linalg.vector_norm(torch.stack(whole))
