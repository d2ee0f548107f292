"""The decoder family: causal language models from GPT-2 to LLaMA."""

from transformers import GenerationMixin

from .base import AnyformerPreTrainedModel
from .causal import CausalLanguageModel, CausalModel
from .configuration import AnyformerDecoderConfig
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class AnyformerDecoderPreTrainedModel(AnyformerPreTrainedModel):
    config_class = AnyformerDecoderConfig
    auto_classes = {
        "AutoModel": "AnyformerDecoderModel",
        "AutoModelForCausalLM": "AnyformerDecoderForCausalLM",
        "AutoModelForSequenceClassification": "AnyformerDecoderForSequenceClassification",
        "AutoModelForTokenClassification": "AnyformerDecoderForTokenClassification",
        "AutoModelForQuestionAnswering": "AnyformerDecoderForQuestionAnswering",
        "AutoModelForImageClassification": "AnyformerDecoderForImageClassification",
    }


class AnyformerDecoderModel(CausalModel, AnyformerDecoderPreTrainedModel):
    """Token embeddings, positions and a stack of causal blocks; no head."""


class AnyformerDecoderForCausalLM(CausalLanguageModel, AnyformerDecoderPreTrainedModel, GenerationMixin):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForSequenceClassification(ForSequenceClassification, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForTokenClassification(ForTokenClassification, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForQuestionAnswering(ForQuestionAnswering, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForImageClassification(ForSequenceClassification, AnyformerDecoderPreTrainedModel):
    """One class for an image whose pixels are tokens, from the mean over them (Chen et al. 2020, section 2.3)."""

    base_class = AnyformerDecoderModel

    def pool(self, outputs, input_ids, attention_mask):
        """(B, T, D) -> (B, D): all pixels, none of which is ever padding."""
        return outputs.last_hidden_state.mean(dim=1)


for _auto_class, _name in AnyformerDecoderPreTrainedModel.auto_classes.items():
    globals()[_name].register_for_auto_class(_auto_class)
