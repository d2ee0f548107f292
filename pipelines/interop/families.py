"""Which families are ours, and the class of each head in transformers."""

import transformers
from anyformer.modeling.families import FAMILIES
from transformers.models.auto import modeling_auto

from ..errors import UserError
from ..recipes.introspection import OURS

# Heads by Auto class: transformers' tables of class names by model_type. A class in several of them counts for the
# first.
HEADS = {
    "AutoModel": modeling_auto.MODEL_MAPPING_NAMES,
    "AutoModelForCausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    | modeling_auto.MODEL_FOR_CAUSAL_IMAGE_MODELING_MAPPING_NAMES,
    "AutoModelForSeq2SeqLM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "AutoModelForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "AutoModelForPreTraining": modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES,
    "AutoModelForSequenceClassification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForTokenClassification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForQuestionAnswering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "AutoModelForMultipleChoice": modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
    "AutoModelForTextEncoding": modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
    "AutoModelForImageClassification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForMaskedImageModeling": modeling_auto.MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES,
}
# A class of transformers' own that no Auto class loads: (model_type, the Auto class it stands for) -> its name.
WITHOUT_AUTO_CLASS = {("imagegpt", "AutoModelForCausalLM"): "ImageGPTForCausalImageModeling"}


def is_ours(config) -> bool:
    """Whether a config is of an anyformer family, by its model_type, since a Hub model brings a class of its own."""
    return config.model_type in FAMILIES


def saved_class(config, what: str) -> type:
    """The class that a checkpoint's config names; raises UserError, which begins with `what`, if there is none."""
    import anyformer

    name = (config.architectures or ["a model without a name"])[0]
    cls = getattr(anyformer, name, None) or getattr(transformers, name, None)
    if cls is None:
        raise UserError(f"{what} is {name}, which neither anyformer nor transformers has")
    return cls


def family_name(config) -> str:
    """The family of a config of ours: "decoder", "moe", "encoder", "seq2seq" or "vit"."""
    return config.model_type.removeprefix(OURS)


def native_classes(model_type: str, auto_class: str) -> tuple[str, ...]:
    """The classes of an architecture that an Auto class may load; the checkpoint names one of them."""
    names = HEADS[auto_class].get(model_type, ())
    return names if isinstance(names, tuple) else (names,)


def native_class_names(model_type: str) -> dict[str, str]:
    """{Auto class: name of transformers' class} of an architecture; the first if several, and each class only once."""
    names: dict[str, str] = {}
    for auto_class in HEADS:
        for name in native_classes(model_type, auto_class)[:1]:
            if name not in names.values():
                names[auto_class] = name
    return names
