"""Model families and the parts they are composed of. Imports torch, transformers and siblings only.

Exactly this folder's files travel to the Hub with a model, not kernels/ and rules/. Names are loaded on first use, so
that light users of the folder (the rules, the config fields) need not import torch.
"""

import importlib

from . import rules  # noqa: F401 - installs the checks of configs

_EXPORTS = {
    "TransformerConfig": "configuration",
    "AnyformerDecoderConfig": "configuration",
    "AnyformerDecoderModel": "decoder",
    "AnyformerDecoderForCausalLM": "decoder",
    "AnyformerDecoderForSequenceClassification": "decoder",
    "AnyformerDecoderForTokenClassification": "decoder",
    "AnyformerDecoderForQuestionAnswering": "decoder",
    "AnyformerDecoderForImageClassification": "decoder",
    "AnyformerMoeConfig": "configuration_moe",
    "AnyformerMoeModel": "moe",
    "AnyformerMoeForCausalLM": "moe",
    "AnyformerMoeForSequenceClassification": "moe",
    "AnyformerMoeForTokenClassification": "moe",
    "AnyformerMoeForQuestionAnswering": "moe",
    "AnyformerEncoderConfig": "configuration_encoder",
    "AnyformerEncoderModel": "encoder",
    "AnyformerEncoderForMaskedLM": "encoder",
    "AnyformerEncoderForPreTraining": "encoder",
    "AnyformerEncoderForSequenceClassification": "encoder",
    "AnyformerEncoderForTokenClassification": "encoder",
    "AnyformerEncoderForQuestionAnswering": "encoder",
    "AnyformerEncoderForMultipleChoice": "encoder",
    "AnyformerSeq2SeqConfig": "configuration_seq2seq",
    "AnyformerSeq2SeqModel": "seq2seq",
    "AnyformerSeq2SeqForConditionalGeneration": "seq2seq",
    "AnyformerSeq2SeqEncoderModel": "seq2seq",
    "AnyformerSeq2SeqForSequenceClassification": "seq2seq",
    "AnyformerViTConfig": "configuration_vit",
    "AnyformerViTModel": "vit",
    "AnyformerViTForImageClassification": "vit",
    "AnyformerViTForMaskedImageModeling": "vit",
    "AnyformerImageProcessor": "image_processing",
    "Kind": "traits",
    "Scheme": "traits",
    "register_attention_kind": "traits",
    "register_position_scheme": "traits",
}
__all__ = list(_EXPORTS)


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
