"""Task heads of encoders, as mixins over those of task_heads.py: pooling, global tokens, multiple choice."""

from typing import Unpack

import torch
from torch import nn
from transformers import modeling_outputs
from transformers.utils import TransformersKwargs, can_return_tuple

from .lm_head import with_router_fields
from .masked_head import HeadTransform
from .task_heads import TaskHead, classifier_dropout
from .task_losses import token_classification_loss

MultipleChoiceModelOutput = with_router_fields(modeling_outputs.MultipleChoiceModelOutput, __name__)


def pool_tokens(hidden_states, attention_mask, pooler_type: str):
    """(B, T, D) -> (B, D): the first token's vector ("cls"), or the mean over real tokens ("mean")."""
    if pooler_type == "cls":
        return hidden_states[:, 0]
    if attention_mask is None or attention_mask.dim() != 2:
        return hidden_states.mean(dim=1)
    real_BT1 = attention_mask.to(hidden_states.dtype)[..., None]
    return (hidden_states * real_BT1).sum(dim=1) / real_BT1.sum(dim=1)


class EncoderHead(TaskHead):
    """Base of task heads: they read hidden states, or the output of the masked-LM head's transform on them."""

    score_bias = True
    pools = False

    def build_base(self, config):
        self.model = self.base_class(config, add_pooling_layer=self.pools and not config.task_head_transform)
        self.head_transform = HeadTransform(config) if config.task_head_transform else None
        self.classifier_dropout = classifier_dropout(config)

    @property
    def num_kept_tokens(self) -> int | None:
        """How many tokens of the last layer the head reads: the first one; None: all."""
        return 1 if self.pools and self.config.pooler_type == "cls" and self.last_mlp_is_for_heads else None

    def first_tokens(self, input_ids, inputs_embeds, output_hidden_states=None, **others) -> dict:
        """The base model's `kept_tokens` if the head reads only the first token of each row."""
        inputs = input_ids if input_ids is not None else inputs_embeds
        if self.num_kept_tokens is None or output_hidden_states or self.config.output_hidden_states or inputs is None:
            return {}
        rows, length = inputs.shape[:2]
        return {"kept_tokens": torch.arange(rows, device=inputs.device) * length}

    def run_base(self, input_ids=None, inputs_embeds=None, global_attention_mask=None, **kwargs):
        """As in TaskHead. If layers have global tokens and no mask of them is passed, the head's task chooses them."""
        if global_attention_mask is None and self.config.has_global_tokens:
            global_attention_mask = self.default_global_attention_mask(input_ids, inputs_embeds)
        inputs = {
            "input_ids": input_ids,
            "inputs_embeds": inputs_embeds,
            "global_attention_mask": global_attention_mask,
            "return_dict": True,
        }
        return self.model(**inputs, **self.first_tokens(input_ids, inputs_embeds, **kwargs), **kwargs)

    def features(self, hidden_states):
        return hidden_states if self.head_transform is None else self.head_transform(hidden_states)

    def pool(self, outputs, input_ids, attention_mask):
        pooled = outputs.pooler_output
        if pooled is None:
            pooled = pool_tokens(outputs.last_hidden_state, attention_mask, self.config.pooler_type)
            pooled = self.features(pooled)
        return self.classifier_dropout(pooled)

    def default_global_attention_mask(self, input_ids, inputs_embeds):
        """(B, T), nonzero at the task's global tokens (Beltagy et al. 2020, section 3.1), or None for none."""
        return first_token(input_ids, inputs_embeds) if self.pools else None


def first_token(input_ids, inputs_embeds):
    """(B, T), 1 at the first token."""
    inputs = input_ids if input_ids is not None else inputs_embeds[..., 0]
    is_first = torch.zeros(inputs.shape, dtype=torch.long, device=inputs.device)
    is_first[:, 0] = 1
    return is_first


class ForMultipleChoice(EncoderHead):
    """One score for each of several texts that belong together; the right text should get the highest."""

    pools = True

    def __init__(self, config):
        super().__init__(config)
        self.build_base(config)
        self.score = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        """Inputs (B, C, T) for C choices, labels (B,) in [0, C) -> logits (B, C) and loss."""
        input_ids = kwargs.get("input_ids")
        choices = (kwargs["inputs_embeds"] if input_ids is None else input_ids).shape[1]
        inputs = {name: x.flatten(0, 1) if torch.is_tensor(x) else x for name, x in kwargs.items()}
        outputs = self.run_base(**inputs)
        scores = self.score(self.pool(outputs, inputs.get("input_ids"), inputs.get("attention_mask")))
        logits, loss = scores.view(-1, choices), None
        if labels is not None:
            loss = token_classification_loss(logits, labels, num_items_in_batch)
        return self.head_output(MultipleChoiceModelOutput, outputs, loss, labels, num_items_in_batch, logits=logits)
