"""The families of models, one row each: all that lists families reads this table. Standard library only."""

import importlib
from dataclasses import dataclass

DECODER, MOE, ENCODER = "anyformer_decoder", "anyformer_moe", "anyformer_encoder"
SEQ2SEQ, VIT = "anyformer_seq2seq", "anyformer_vit"


@dataclass(frozen=True)
class Family:
    """A family of models. Its key in FAMILIES is the `model_type`: "anyformer_" and the name that recipes give it.

    words: its name in sentences. module: the file of this folder that has its models. config, config_module: the class
    of its config, and the file that has it. heads: {Auto class: the class of `module` that it loads}. pretraining: the
    Auto class assumed for a checkpoint that names no class. objective: the objective or task that a preset of the
    family is planned for. bidirectional: whether tokens see later tokens. has_decoder: whether a decoder reads an
    encoder's output. of_images: whether it reads images.
    """

    words: str
    module: str
    config: str
    config_module: str
    heads: dict[str, str]
    pretraining: str
    objective: str
    bidirectional: bool = False
    has_decoder: bool = False
    of_images: bool = False

    @property
    def exports(self) -> dict[str, str]:
        """{class: the file of this folder that has it}."""
        return {self.config: self.config_module} | dict.fromkeys(self.heads.values(), self.module)

    def load(self, name: str) -> type:
        """The class of this name, its config or one of its heads."""
        return getattr(importlib.import_module(f".{self.exports[name]}", __package__), name)


OF_TEXTS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")


def _heads(prefix: str, *names: str) -> dict[str, str]:
    """{Auto class: our class} of the base model and of these heads."""
    return {"AutoModel": f"{prefix}Model"} | {f"AutoModelFor{name}": f"{prefix}For{name}" for name in names}


FAMILIES = {
    DECODER: Family(
        "a decoder",
        module="decoder",
        config="AnyformerDecoderConfig",
        config_module="configuration",
        heads=_heads("AnyformerDecoder", "CausalLM", "MaskedLM", *OF_TEXTS, "ImageClassification"),
        pretraining="AutoModelForCausalLM",
        objective="causal",
    ),
    MOE: Family(
        "a mixture-of-experts decoder",
        module="moe",
        config="AnyformerMoeConfig",
        config_module="configuration_moe",
        heads=_heads("AnyformerMoe", "CausalLM", "MaskedLM", *OF_TEXTS),
        pretraining="AutoModelForCausalLM",
        objective="causal",
    ),
    ENCODER: Family(
        "an encoder",
        module="encoder",
        config="AnyformerEncoderConfig",
        config_module="configuration_encoder",
        heads=_heads("AnyformerEncoder", "MaskedLM", "PreTraining", *OF_TEXTS, "MultipleChoice"),
        pretraining="AutoModelForMaskedLM",
        objective="masked",
        bidirectional=True,
    ),
    SEQ2SEQ: Family(
        "a sequence-to-sequence model",
        module="seq2seq",
        config="AnyformerSeq2SeqConfig",
        config_module="configuration_seq2seq",
        heads={
            "AutoModel": "AnyformerSeq2SeqModel",
            "AutoModelForSeq2SeqLM": "AnyformerSeq2SeqForConditionalGeneration",
            "AutoModelForTextEncoding": "AnyformerSeq2SeqEncoderModel",
            "AutoModelForSequenceClassification": "AnyformerSeq2SeqForSequenceClassification",
        },
        pretraining="AutoModelForSeq2SeqLM",
        objective="span_corruption",
        has_decoder=True,
    ),
    VIT: Family(
        "a vision transformer",
        module="vit",
        config="AnyformerViTConfig",
        config_module="configuration_vit",
        heads=_heads("AnyformerViT", "ImageClassification", "MaskedImageModeling"),
        pretraining="AutoModelForImageClassification",
        objective="image_classification",
        bidirectional=True,
        of_images=True,
    ),
}
