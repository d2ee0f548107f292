"""transformers' output classes with fields for routers' losses and statistics; None in models without experts."""

from dataclasses import dataclass

import torch
from transformers import modeling_outputs
from transformers.modeling_outputs import ModelOutput


@dataclass
class RouterFields(ModelOutput):
    """L sparse layers (those of an encoder before those of a decoder), E experts, B rows.

    Filled in training, and in evaluation with `output_router_logits`.

    router_losses: (L, B, 2), of each row the balance loss and the z-loss, without coefficients; of base models, and of
        heads without labels.
    aux_loss, z_loss: a head's means of them, scalars, without coefficients; in training they are part of `loss`.
    router_load: (L, E), each expert's share of the assignments of real tokens, summing to 1.
    router_entropy: (L,), mean over tokens of the entropy of their scores, in nats; log E where nothing is preferred.
    router_dropped: (L,), the share of assignments that found their expert full; 0 without `expert_capacity`.
    router_logits: L tensors (B T, E), with `output_router_logits` only.
    """

    aux_loss: torch.FloatTensor | None = None
    z_loss: torch.FloatTensor | None = None
    router_losses: torch.FloatTensor | None = None
    router_load: torch.FloatTensor | None = None
    router_entropy: torch.FloatTensor | None = None
    router_dropped: torch.FloatTensor | None = None
    router_logits: tuple[torch.FloatTensor, ...] | None = None

    def __setattr__(self, name, value):
        """As transformers', which first looks up the names of all fields; most of them stay None, for each token."""
        if value is None:
            object.__setattr__(self, name, None)
        else:
            super().__setattr__(name, value)


def with_router_fields(output_class: type) -> type:
    """A class of the same name, with the fields of RouterFields after its own."""
    names = {"__module__": __name__, "__doc__": output_class.__doc__}
    return dataclass(type(output_class.__name__, (RouterFields, output_class), names))


BaseModelOutputWithPast = with_router_fields(modeling_outputs.BaseModelOutputWithPast)
CausalLMOutputWithPast = with_router_fields(modeling_outputs.CausalLMOutputWithPast)
SequenceClassifierOutputWithPast = with_router_fields(modeling_outputs.SequenceClassifierOutputWithPast)
TokenClassifierOutput = with_router_fields(modeling_outputs.TokenClassifierOutput)
QuestionAnsweringModelOutput = with_router_fields(modeling_outputs.QuestionAnsweringModelOutput)
