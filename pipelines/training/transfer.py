"""Learning rates of a small model, the base, transferred to a wider or deeper one (training.transfer).

Yang et al. 2022 (muP, table 8) for the width, Dey et al. 2025 (CompleteP, table 1, alpha = 1) for the depth. Growth is
found by comparing the shapes of the weights with those of the base, as the package `mup` does. With r the factor by
which the inputs of a matrix grow:

| weights | initial standard deviation | AdamW's rate | weight decay |
|---|---|---|---|
| vectors, embeddings, convolutions of images | as the base's | as the base's | as the base's |
| matrices whose outputs grow as well | / sqrt(r) | / r | x r |
| matrices to a fixed number of outputs: classes, routers | / r | / r | x r |
| the head over a vocabulary, whose logits are divided by r (base_width.multipliers) | as the base's | as the base's | |

AdamW's epsilon is divided by the growth of the width and, inside layers, of the depth. Muon's updates have the spectral
norm rate x sqrt(outputs / inputs) in every width (Yang, Simon and Bernstein 2023): its rate and weight decay stay.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ..accounting.layers import OUTERMOST
from .optimizers import split_groups


@dataclass(frozen=True)
class Scale:
    """Factors for a weight's initial values, and for its learning rate, weight decay and epsilon of AdamW."""

    initial: float = 1.0
    rate: float = 1.0
    decay: float = 1.0
    epsilon: float = 1.0


def scales_of(model: nn.Module, base: nn.Module, depth: float) -> dict[str, Scale]:
    """{name: Scale} of the weights of a model, or of those that this process has.

    base: a model with the base's widths and the model's depth, on the meta device. depth: the model's number of layers
    divided by the base's.
    """
    config, names = base.config, {id(p): name for name, p in base.named_parameters()}
    head = base.get_output_embeddings()
    head = names.get(id(head.weight)) if head is not None and hasattr(config, "logit_multiplier") else None
    scales, smaller = {}, dict(base.named_parameters())
    for name, parameter in model.named_parameters():
        owner = base.get_submodule(name.rpartition(".")[0])
        shape = getattr(parameter, "ds_shape", parameter.shape)  # under ZeRO-3 p.shape is that of an empty tensor
        growth = [size / base_size for size, base_size in zip(shape, smaller[name].shape)]
        in_layer = depth if OUTERMOST.match(name) else 1.0
        epsilon = 1 / (max(growth) * in_layer)
        is_matrix = len(shape) == 2 and not isinstance(owner, nn.Embedding)
        if not is_matrix and not (len(shape) == 3 and ".experts." in name):
            scales[name] = Scale(epsilon=epsilon)
            continue
        outputs, inputs = growth[-2:]
        drawn = inputs**-0.5 if config.fan_in_init else 1.0  # the factor that the model's own initialisation includes
        if config.scale_residual_init and (getattr(owner, "writes_residual", False) or name.endswith("down_proj")):
            drawn *= depth**-0.5
        if name == head:
            scales[name] = Scale(initial=1 / drawn, epsilon=epsilon)
        else:
            initial = 1 / inputs if outputs == 1 else inputs**-0.5
            scales[name] = Scale(initial / drawn, 1 / inputs, inputs, epsilon)
    return scales


@torch.no_grad()
def scale_new_weights(model: nn.Module, scales: dict[str, Scale]) -> None:
    """Multiply fresh weights by their factors; weights that are drawn later (late_weights.py) are scaled then."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            parameter.drawn_times = scales[name].initial
        else:
            parameter.mul_(scales[name].initial)


def scale_rates(optimizer: torch.optim.Optimizer, model: nn.Module, scales: dict[str, Scale]) -> None:
    """Multiply AdamW's settings by the factors, splitting its groups as needed; Muon's groups do not change."""
    by_id = {id(p): scales[name] for name, p in model.named_parameters()}

    def scaled(parameter, group: dict) -> dict:
        if "ns_steps" in group:
            return {}
        by = by_id[id(parameter)]
        factors = {"lr": by.rate, "weight_decay": by.decay, "eps": by.epsilon}
        return {name: group[name] * factor for name, factor in factors.items()}

    split_groups(optimizer, scaled)
