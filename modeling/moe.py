"""The mixture-of-experts family: decoders with experts in some or all of their layers.

Experts (experts.py) have the decorator `@use_experts_implementation`; transformers knows a mixture by that word here.

Read in this order: moe.py (models and heads), decoder.py (what they share with decoders), stack.py (embeddings, masks,
the row of layers), block.py (norms, dense feed-forward, the layer), experts.py, attention.py, positions.py, lm_head.py;
configuration.py and configuration_moe.py have the fields.
"""

from .base import LAYERS_THAT_CROSS, AnyformerPreTrainedModel
from .configuration_moe import AnyformerMoeConfig
from .decoder import CausalForMaskedLM, CausalLanguageModel, CausalModel, PrefixGenerationMixin
from .experts_losses import ROUTER_LOGITS, ModelWithExperts
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class AnyformerMoePreTrainedModel(ModelWithExperts, AnyformerPreTrainedModel):
    config_class = AnyformerMoeConfig
    _can_record_outputs = LAYERS_THAT_CROSS | ROUTER_LOGITS


class AnyformerMoeModel(CausalModel, AnyformerMoePreTrainedModel):
    """Token embeddings, positions and a stack of causal blocks with experts; no head."""


class AnyformerMoeForCausalLM(CausalLanguageModel, AnyformerMoePreTrainedModel, PrefixGenerationMixin):
    base_class = AnyformerMoeModel


class AnyformerMoeForMaskedLM(CausalForMaskedLM, AnyformerMoePreTrainedModel):
    base_class = AnyformerMoeModel


class AnyformerMoeForSequenceClassification(ForSequenceClassification, AnyformerMoePreTrainedModel):
    base_class = AnyformerMoeModel


class AnyformerMoeForTokenClassification(ForTokenClassification, AnyformerMoePreTrainedModel):
    base_class = AnyformerMoeModel


class AnyformerMoeForQuestionAnswering(ForQuestionAnswering, AnyformerMoePreTrainedModel):
    base_class = AnyformerMoeModel
