"""Heads: for each Auto class, the rows of the modules after the base model, with names from the whole model."""

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
    """A masked-LM head: dense layer, norm, product with the vocabulary, and a second copy of the latter's bias."""
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
# BERT's sequence classifier reads the pooler of the base model; RoBERTa's has a pooler of its own.
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
