"""ALBERT: narrow token embeddings, and layers shared within groups."""

from dataclasses import replace

from ...errors import UserError
from ..architecture_map import Computed, MustEqual, classifier_dropout
from ..heads import BERT_HEADS, masked_lm
from ..weights import renamed
from .bert import BERT, BERT_SIZES, EMBEDDINGS, QUERY_KEY_VALUE, SEGMENTS

LAYER = "encoder.albert_layer_groups.*.albert_layers.0"
MASKED_LM = masked_lm("predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias")


def _read_width(native) -> dict:
    if native.embedding_size == native.hidden_size:
        raise UserError(
            f"albert with embedding_size={native.embedding_size}, its hidden_size, has no anyformer twin: it projects "
            f"even then; a smaller one has"
        )
    return {"embedding_size": native.embedding_size}


ALBERT = replace(
    BERT,
    native="albert",
    fields={
        **BERT_SIZES,
        **SEGMENTS,
        ("embedding_size",): Computed(_read_width),
        "inner_group_num": MustEqual(1),
        **classifier_dropout("classifier_dropout_prob"),
    },
    weights={
        **EMBEDDINGS,
        "encoder.embedding_hidden_mapping_in": renamed("embedding_projection"),
        **{f"{LAYER}.attention.{name}": row for name, row in QUERY_KEY_VALUE.items()},
        f"{LAYER}.attention.dense": renamed("layers.*.self_attn.o_proj"),
        f"{LAYER}.attention.LayerNorm": renamed("layers.*.input_layernorm"),
        f"{LAYER}.ffn": renamed("layers.*.mlp.up_proj"),
        f"{LAYER}.ffn_output": renamed("layers.*.mlp.down_proj"),
        f"{LAYER}.full_layer_layer_norm": renamed("layers.*.post_attention_layernorm"),
        "pooler": renamed("pooler.dense"),
    },
    heads={
        **BERT_HEADS,
        "AutoModelForMaskedLM": MASKED_LM,
        "AutoModelForPreTraining": MASKED_LM | {"sop_classifier.classifier": renamed("seq_relationship")},
    },
)
