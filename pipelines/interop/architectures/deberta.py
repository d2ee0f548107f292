"""DeBERTa, and DeBERTa-v2 with v3: disentangled attention."""

from dataclasses import replace

from ...errors import UserError
from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, Converted, MustEqual, Same
from ..heads import BERT_HEADS, BERT_MASKED_LM, CLASSIFIER, Heads
from ..weights import by_head, query_key_value, renamed
from .bert import BERT_FIXED, BERT_SIZES, EMBEDDINGS, QUERY_KEY_VALUE, bert_layers

FIXED = {
    **BERT_FIXED,
    "position_encoding": "disentangled",
    "add_pooling_layer": False,  # only the classifiers have one
}


def _read_terms(native) -> dict:
    terms = native.pos_att_type or []
    if not terms or set(terms) - {"c2p", "p2c"} or len(set(terms)) != len(terms):
        raise UserError(
            f"{native.model_type} with pos_att_type={native.pos_att_type!r} has no anyformer twin; 'c2p', 'p2c' and "
            f"both have one"
        )
    return {"pos_att_type": sorted(terms)}


def positive_or_none(ours: str) -> Converted:
    return Converted(ours, lambda number: number if number > 0 else None, lambda number: number or -1)


FIELDS = {
    **BERT_SIZES,
    "relative_attention": MustEqual(True),  # without it, a BERT whose keys have no bias
    ("pos_att_type",): Computed(_read_terms, lambda ours: {"pos_att_type": sorted(ours.pos_att_type)}),
    "max_relative_positions": positive_or_none("max_relative_positions"),
    "pooler_hidden_act": "pooler_act",
    "pooler_hidden_size": Same("hidden_size"),
    "pooler_dropout": IRRELEVANT,
    "embedding_size": Same("hidden_size"),
    "legacy": IRRELEVANT,  # chooses the names in the masked-LM head
    "cls_dropout": "classifier_dropout",
}
WEIGHTS = {
    **EMBEDDINGS,
    "embeddings.position_embeddings": renamed("absolute_positions"),
    "encoder.rel_embeddings": renamed("position_encoding.rel_embeddings"),
}
MASKED_LM = {
    **BERT_MASKED_LM,
    # The head of `legacy=False` has no table of its own: it reads the embeddings'.
    "lm_predictions.lm_head.dense": renamed("head_transform.dense"),
    "lm_predictions.lm_head.LayerNorm": renamed("head_transform.norm"),
    "lm_predictions.lm_head.bias": renamed("lm_head.bias"),
    "lm_predictions.lm_head.weight": renamed("lm_head.weight"),  # transformers < 5.23: the embeddings'
}
POOLING_CLASSIFIER = {"pooler.dense": renamed("model.pooler.dense"), **CLASSIFIER}
HEADS: Heads = BERT_HEADS | {
    "AutoModelForMaskedLM": MASKED_LM,
    "AutoModelForSequenceClassification": POOLING_CLASSIFIER,
    "AutoModelForMultipleChoice": POOLING_CLASSIFIER,
}

ROOT = 1e-6  # transformers < 5.23: the root of the head size is fp32, in a TorchScript that Float64Mode does not reach

DEBERTA = ArchitectureMap(
    native="deberta",
    tolerance=ROOT,
    family="encoder",
    fixed={**FIXED, "attention_key_bias": False},
    fields={**FIELDS, "talking_head": MustEqual(False)},
    weights=WEIGHTS
    | bert_layers(
        in_proj=query_key_value(layout=by_head),
        q_bias=renamed("layers.*.self_attn.q_proj.bias"),
        v_bias=renamed("layers.*.self_attn.v_proj.bias"),
        pos_proj=renamed("layers.*.self_attn.pos_key_proj"),
        pos_q_proj=renamed("layers.*.self_attn.pos_query_proj"),
    ),
    heads=HEADS,
)


DEBERTA_V2 = replace(
    DEBERTA,
    native="deberta-v2",
    fixed=FIXED,
    fields={
        **FIELDS,
        "position_buckets": positive_or_none("position_buckets"),
        "norm_rel_ebd": Converted(
            "relative_embedding_norm",
            lambda names: "layer_norm" in [name.strip() for name in names.lower().split("|")],
            lambda is_normed: "layer_norm" if is_normed else "none",
        ),
        **{name: name for name in ("share_att_key", "conv_kernel_size", "conv_groups", "conv_act")},
    },
    weights={
        **WEIGHTS,
        **bert_layers(
            **{f"{name}_proj": row for name, row in QUERY_KEY_VALUE.items()},
            pos_key_proj=renamed("layers.*.self_attn.pos_key_proj"),
            pos_query_proj=renamed("layers.*.self_attn.pos_query_proj"),
        ),
        "encoder.LayerNorm": renamed("position_encoding.norm"),
        "encoder.conv.conv": renamed("conv.conv"),
        "encoder.conv.LayerNorm": renamed("conv.norm"),
    },
)
