"""Task heads as mixins: a family names its base model and gets the head.

Not transformers' Generic heads: those build the base model with `AutoModel.from_config`, which in code loaded from the
Hub asks for trust once more. A family's class sets `base_class`, and may override `pool` and `features`.
"""

import functools
import inspect
from typing import Unpack

import torch
from torch import nn
from transformers import modeling_outputs
from transformers.utils import TransformersKwargs, can_return_tuple

from .lm_head import with_router_fields
from .task_losses import problem_type_of, sequence_classification_loss, span_loss, token_classification_loss

SequenceClassifierOutputWithPast = with_router_fields(modeling_outputs.SequenceClassifierOutputWithPast, __name__)
TokenClassifierOutput = with_router_fields(modeling_outputs.TokenClassifierOutput, __name__)
QuestionAnsweringModelOutput = with_router_fields(modeling_outputs.QuestionAnsweringModelOutput, __name__)


def last_token_index(input_ids, attention_mask, pad_token_id, length: int, device) -> torch.Tensor:
    """Index (B,) of each row's last real token by the mask, else by the padding token; else (), that of the last.

    The mask comes first: many models pad with their end token.
    """
    if attention_mask is not None and attention_mask.dim() == 2:
        real = attention_mask.to(device)[:, -length:] != 0
    elif input_ids is not None and pad_token_id is not None:
        real = input_ids.to(device) != pad_token_id
    else:
        return torch.full((), length - 1, device=device)  # filled in there: a copy would make the host wait
    return (real * torch.arange(1, length + 1, device=device)).argmax(dim=-1)


def classifier_dropout(config) -> nn.Dropout:
    """The dropout before a task head: `classifier_dropout`, or if that is None `hidden_dropout`."""
    rate = getattr(config, "classifier_dropout", None)
    return nn.Dropout(config.hidden_dropout if rate is None else rate)


def classification_loss(config, logits, labels, num_items_in_batch=None):
    """The loss of `config.problem_type`; if that is None, the first labels decide it."""
    if config.problem_type is None:  # kept: transformers' pipelines choose softmax or sigmoid by it
        config.problem_type = problem_type_of(labels, config.num_labels)
    return sequence_classification_loss(logits, labels, config.problem_type, num_items_in_batch)


def with_inputs_of(base_forward, forward):
    """A head's `forward(self, ..., **kwargs)` with the base model's inputs before its own arguments in the signature.

    Trainer drops columns that no argument names. Keyword-only arguments of the base model do not count as inputs.
    """
    of_base, of_head = (list(inspect.signature(each).parameters.values()) for each in (base_forward, forward))
    taken = {parameter.name for parameter in of_head}
    inputs = [each for each in of_base if each.name not in taken and each.kind is each.POSITIONAL_OR_KEYWORD]
    itself, *others, var_keyword = of_head
    names = [parameter.name for parameter in (*inputs, *others)]

    @functools.wraps(forward)
    def named(self, *given, **kwargs):
        return forward(self, **dict(zip(names[: len(given)], given, strict=True)), **kwargs)

    named.__signature__ = inspect.Signature([itself, *inputs, *others, var_keyword])
    return named


class Head:
    """A mixin for heads: `forward` takes all inputs of `base_class`, and passes on those that it does not name."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "base_class" in vars(cls):
            cls.forward = with_inputs_of(cls.base_class.forward, cls.forward)


class TaskHead(Head):
    def run_base(self, **inputs):
        """The base model's outputs."""
        return self.model(**inputs, return_dict=True)

    def build_base(self, config):
        """Build the family's base model, and other modules that the head reads."""
        self.model = self.base_class(config)

    def features(self, hidden_states):
        """The head's input, made of (B, T, D) hidden states."""
        return hidden_states


class ForSequenceClassification(TaskHead):
    """One label, several labels or numbers for a whole row (`problem_type`)."""

    score_bias = False

    def serving_refusal(self, pages: bool = False) -> str:
        """vLLM applies only a linear layer to the first token, and finds no weights for it under the name `score`."""
        return "it does not classify as this head does"

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.build_base(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=self.score_bias)
        self.post_init()

    def pool(self, outputs, input_ids, attention_mask):
        """The base model's outputs -> (B, D): the last token, the only one of a causal model that has seen all."""
        hidden_states = outputs.last_hidden_state
        length, device = hidden_states.shape[1], hidden_states.device
        last = last_token_index(input_ids, attention_mask, self.config.pad_token_id, length, device)
        # Indexing by a scalar would read it on the host.
        return hidden_states[torch.arange(hidden_states.shape[0], device=device), last.reshape(-1)]

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutputWithPast:
        """labels: (B,) class numbers, (B, num_labels) of 0 and 1, or numbers -> logits (B, num_labels) and loss."""
        outputs = self.run_base(**kwargs)
        logits, loss = self.score(self.pool(outputs, kwargs.get("input_ids"), kwargs.get("attention_mask"))), None
        if labels is not None:
            loss = classification_loss(self.config, logits, labels, num_items_in_batch)
        return self.head_output(
            SequenceClassifierOutputWithPast, outputs, loss, labels, num_items_in_batch, logits=logits
        )


class ForTokenClassification(TaskHead):
    """One label for each token."""

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.build_base(config)
        self.dropout = classifier_dropout(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """labels: (B, T) class numbers, -100 not counted -> logits (B, T, num_labels) and loss."""
        outputs = self.run_base(**kwargs)
        logits = self.score(self.dropout(self.features(outputs.last_hidden_state)))
        loss = None if labels is None else token_classification_loss(logits, labels, num_items_in_batch)
        return self.head_output(TokenClassifierOutput, outputs, loss, labels, num_items_in_batch, logits=logits)


class ForQuestionAnswering(TaskHead):
    """First and last token of the answer in the row."""

    def __init__(self, config):
        super().__init__(config)
        self.build_base(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """start_positions, end_positions: (B,) token indices -> start and end logits (B, T) and loss."""
        outputs = self.run_base(**kwargs)
        start_logits, end_logits = self.qa_outputs(self.features(outputs.last_hidden_state)).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            ends = start_positions, end_positions
            loss = span_loss(start_logits, end_logits, *ends, num_items_in_batch, kwargs.get("attention_mask"))
        return self.head_output(
            QuestionAnsweringModelOutput,
            outputs,
            loss,
            start_positions,
            num_items_in_batch,
            start_logits=start_logits,
            end_logits=end_logits,
        )
