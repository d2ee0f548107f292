"""The mixture-of-experts family: decoders with experts in some or all of their layers.

The experts (experts.py) have the decorator `@use_experts_implementation`: transformers knows a mixture by that word.
"""

from transformers import GenerationMixin

from .base import AnyformerPreTrainedModel
from .configuration_moe import AnyformerMoeConfig
from .decoder import CausalLanguageModel, CausalModel
from .experts_losses import ROUTER_LOGITS, ModelWithExperts
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class AnyformerMoePreTrainedModel(ModelWithExperts, AnyformerPreTrainedModel):
    config_class = AnyformerMoeConfig
    _can_record_outputs = AnyformerPreTrainedModel._can_record_outputs | ROUTER_LOGITS
    auto_classes = {
        "AutoModel": "AnyformerMoeModel",
        "AutoModelForCausalLM": "AnyformerMoeForCausalLM",
        "AutoModelForSequenceClassification": "AnyformerMoeForSequenceClassification",
        "AutoModelForTokenClassification": "AnyformerMoeForTokenClassification",
        "AutoModelForQuestionAnswering": "AnyformerMoeForQuestionAnswering",
    }


class AnyformerMoeModel(CausalModel, AnyformerMoePreTrainedModel):
    """Token embeddings, positions and a stack of causal blocks with experts; no head."""


class AnyformerMoeForCausalLM(CausalLanguageModel, AnyformerMoePreTrainedModel, GenerationMixin):
    base_class = AnyformerMoeModel


class AnyformerMoeForSequenceClassification(ForSequenceClassification, AnyformerMoePreTrainedModel):
    base_class = AnyformerMoeModel


class AnyformerMoeForTokenClassification(ForTokenClassification, AnyformerMoePreTrainedModel):
    base_class = AnyformerMoeModel


class AnyformerMoeForQuestionAnswering(ForQuestionAnswering, AnyformerMoePreTrainedModel):
    base_class = AnyformerMoeModel
