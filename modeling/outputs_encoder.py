"""Output classes of encoders; see outputs.py."""

from dataclasses import dataclass

import torch
from transformers import modeling_outputs
from transformers.models.bert import modeling_bert

from .outputs import with_router_fields, without_logits

BaseModelOutputWithPooling = with_router_fields(modeling_outputs.BaseModelOutputWithPooling, __name__)
MaskedLMOutput = with_router_fields(modeling_outputs.MaskedLMOutput, __name__)
MaskedLMOutputWithoutLogits = without_logits(MaskedLMOutput)
MultipleChoiceModelOutput = with_router_fields(modeling_outputs.MultipleChoiceModelOutput, __name__)


@dataclass
class BertForPreTrainingOutput(with_router_fields(modeling_bert.BertForPreTrainingOutput, __name__)):
    """masked_lm_loss, next_sentence_loss: parts of `loss`, divided as it is; None where their labels are missing."""

    masked_lm_loss: torch.FloatTensor | None = None
    next_sentence_loss: torch.FloatTensor | None = None


BertForPreTrainingOutputWithoutLogits = without_logits(BertForPreTrainingOutput)
