"""Value residual: the values of the first layer's attention, mixed into those of every other layer."""

import functools

import torch
from torch import nn
from transformers import initialization as init


class Values:
    """A place for the first layer's values (B, G, T, K), of one forward pass. No list: hooks would copy that."""

    tensor: torch.Tensor


class ValueResidual(nn.Module):
    """w1 v + w2 (v of the first layer); each other layer learns w1 and w2, from 1/2: Zhou et al. 2024 (ResFormer).

    Both values are of the same tokens, so that a cache holds only the sum.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__()
        self.weights = None if layer_idx == 0 else nn.Parameter(torch.empty(2))

    def init_own_weights(self, std: float, residual_std: float) -> None:
        if self.weights is not None:
            init.constant_(self.weights, 0.5)

    def forward(self, q_BHTK, k_BGSK, v_BGSK, first_values, **kwargs) -> tuple:
        """See traits.Adjustment; first_values: the first layer's values, in the first layer a place for them."""
        if self.weights is None:
            first_values.tensor = v_BGSK
        else:
            v_BGSK = self.weights[0] * v_BGSK + self.weights[1] * first_values
        return q_BHTK, k_BGSK, v_BGSK, kwargs


class PassesValues:
    """A mixin for blocks: values leave the first one as its last output and enter the others as an argument.

    So reentrant checkpointing, which is about `forward`, finds their gradients; the stack sees neither.
    """

    form: type  # the block's class without values

    def __init__(self, config, layer_idx: int, *attentions: nn.Module):
        super().__init__(config, layer_idx, *attentions)
        self.is_first = layer_idx == 0

    def __call__(self, hidden_states, *trained, shared: Values, trained_names=(), **context):
        """As TransformerBlock's forward. shared: of all blocks in this pass."""
        if self.is_first:
            *outputs, shared.tensor = super().__call__(hidden_states, *trained, trained_names=trained_names, **context)
            return tuple(outputs) if self.is_sparse else outputs[0]
        trained_names = (*trained_names, "first_values")
        return super().__call__(hidden_states, *trained, shared.tensor, trained_names=trained_names, **context)

    def forward(self, *inputs, **context):
        """As TransformerBlock's; the first layer's outputs end with its values."""
        if not self.is_first:
            return super().forward(*inputs, **context)
        values = Values()
        outputs = super().forward(*inputs, first_values=values, **context)
        return (*outputs, values.tensor) if self.is_sparse else (outputs, values.tensor)

    def __reduce__(self) -> tuple:
        return unpickled, (self.form,), vars(self)


@functools.cache
def passing(form: type) -> type:
    """A block's class as one that passes values, under the same name: libraries find blocks by it."""
    return type(form.__name__, (PassesValues, form), {"form": form})


def unpickled(form: type) -> PassesValues:
    """A block without state; pickle finds no class by a name that two classes have."""
    return object.__new__(passing(form))
