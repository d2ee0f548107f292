"""transformers' output classes with fields for routers' losses and statistics; None in models without experts."""

from dataclasses import dataclass, fields, make_dataclass

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


def with_router_fields(output_class: type, module: str = __name__) -> type:
    """A class of the same name, with the fields of RouterFields after its own. module: where it is to be found."""
    names = {"__module__": module, "__doc__": output_class.__doc__}
    return dataclass(type(output_class.__name__, (RouterFields, output_class), names))


LOGITS = ("logits", "prediction_logits")  # over a vocabulary
NO_LOGITS = "this training step made its loss without logits; pass return_logits=True to the model to have them"


class WithoutLogits(ModelOutput):
    """Outputs of a step that made no logits, nor has a field for them; who reads them is told how to get them."""

    def __getattr__(self, name):
        raise AttributeError(NO_LOGITS if name in LOGITS else f"{type(self).__name__} has no attribute {name!r}")

    def __getitem__(self, key):
        if key in LOGITS:
            raise KeyError(NO_LOGITS)
        return super().__getitem__(key)


def without_logits(output_class: type) -> type:
    """The class of such outputs; pickle finds it in the module of `output_class`, as <its name>WithoutLogits."""
    kept = [(each.name, each.type, None) for each in fields(output_class) if each.name not in LOGITS]
    made = make_dataclass(f"{output_class.__name__}WithoutLogits", kept, bases=(WithoutLogits,))
    made.__module__, output_class.without_logits = output_class.__module__, made
    return made


BaseModelOutputWithPast = with_router_fields(modeling_outputs.BaseModelOutputWithPast)
CausalLMOutputWithPast = with_router_fields(modeling_outputs.CausalLMOutputWithPast)
CausalLMOutputWithPastWithoutLogits = without_logits(CausalLMOutputWithPast)
SequenceClassifierOutputWithPast = with_router_fields(modeling_outputs.SequenceClassifierOutputWithPast)
TokenClassifierOutput = with_router_fields(modeling_outputs.TokenClassifierOutput)
QuestionAnsweringModelOutput = with_router_fields(modeling_outputs.QuestionAnsweringModelOutput)
