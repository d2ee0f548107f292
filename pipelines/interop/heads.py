"""Heads: for each Auto class, the modules behind the base model, native beside ours, named from the whole model."""

from .weights import Weights, convolution, renamed, tied

Heads = dict[str, dict[str, Weights]]

CLASSIFIER = {"classifier": renamed("score")}

DECODER_HEADS: Heads = {
    "AutoModel": {},
    "AutoModelForCausalLM": {},
    "AutoModelForSequenceClassification": {},
    "AutoModelForTokenClassification": CLASSIFIER,
    "AutoModelForQuestionAnswering": {},
}


def masked_lm(transform: str, norm: str, decoder: str, bias: str) -> dict[str, Weights]:
    """A masked-LM head: dense layer, norm, product with the vocabulary, and the vocabulary's bias kept once more."""
    return {
        transform: renamed("head_transform.dense"),
        norm: renamed("head_transform.norm"),
        decoder: renamed("lm_head"),
        bias: tied("lm_head.bias"),
    }


BERT_MASKED_LM = masked_lm(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
)
# The pooler belongs to the base model where a sequence is read through BERT's; RoBERTa has one in the head.
POOLING_CLASSIFIER = {"classifier.dense": renamed("model.pooler.dense"), "classifier.out_proj": renamed("score")}

BERT_HEADS: Heads = {
    "AutoModel": {},
    "AutoModelForMaskedLM": BERT_MASKED_LM,
    "AutoModelForPreTraining": BERT_MASKED_LM | {"cls.seq_relationship": renamed("seq_relationship")},
    "AutoModelForSequenceClassification": CLASSIFIER,
    "AutoModelForTokenClassification": CLASSIFIER,
    "AutoModelForQuestionAnswering": {},
    "AutoModelForMultipleChoice": CLASSIFIER,
}
ROBERTA_HEADS: Heads = BERT_HEADS | {
    "AutoModelForMaskedLM": masked_lm("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
    "AutoModelForSequenceClassification": POOLING_CLASSIFIER,
}
VIT_HEADS: Heads = {
    "AutoModel": {},
    "AutoModelForImageClassification": {
        **CLASSIFIER,
        "cls_classifier": renamed("score"),
        "distillation_classifier": renamed("distillation_score"),
    },
    "AutoModelForMaskedImageModeling": {"decoder.0": convolution("decoder", 1)},
}
SEQ2SEQ_CLASSIFIER = {
    "classification_head.dense": renamed("pooler.dense"),
    "classification_head.out_proj": renamed("score"),
}
