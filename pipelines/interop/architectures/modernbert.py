"""ModernBERT: pre-norm, rotary positions with a theta per kind of layer, local attention in most layers."""

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, classifier_dropout
from ..heads import Heads
from ..rotary import NESTED_ROTARY, refuse_part
from ..weights import fused, query_key_value, renamed


def _read_layers(native) -> dict:
    kinds = list(native.layer_types)
    local = "sliding_attention" in kinds
    return {"attention_pattern": kinds, "sliding_window": native.local_attention // 2 if local else None}


def _write_layers(ours) -> dict:
    window = {} if ours.sliding_window is None else {"local_attention": 2 * ours.sliding_window}
    return {"layer_types": list(ours.layer_types), **window}


def _read_rope(native) -> dict:
    rope = NESTED_ROTARY.read(native)
    for kind, parameters in rope["rope_parameters"].items():
        refuse_part(native, parameters, f"rope_parameters.{kind}")
    return rope


TRANSFORM = {"head.dense": renamed("head_transform.dense"), "head.norm": renamed("head_transform.norm")}
CLASSIFIER = TRANSFORM | {"classifier": renamed("score")}
HEADS: Heads = {
    "AutoModel": {},
    "AutoModelForMaskedLM": TRANSFORM | {"decoder": renamed("lm_head")},
    "AutoModelForSequenceClassification": CLASSIFIER,
    "AutoModelForTokenClassification": CLASSIFIER,
    "AutoModelForQuestionAnswering": TRANSFORM | {"classifier": renamed("qa_outputs")},
    "AutoModelForMultipleChoice": CLASSIFIER,
}

MODERNBERT = ArchitectureMap(
    native="modernbert",
    family="encoder",
    fixed={
        "norm_type": "layernorm",
        "embedding_norm": True,
        "skip_first_norm": True,
        "add_pooling_layer": False,
        "task_head_transform": True,
    },
    fields={
        "hidden_activation": "hidden_act",
        "embedding_dropout": "hidden_dropout",
        ("initializer_cutoff_factor", "mlp_dropout", "deterministic_flash_attn"): IRRELEVANT,
        "decoder_bias": "lm_head_bias",
        "classifier_pooling": "pooler_type",
        "classifier_bias": "head_bias",
        ("classifier_activation",): Computed(
            lambda native: {"head_act": native.classifier_activation},
            lambda ours: {"classifier_activation": ours.head_act or ours.hidden_act},
        ),
        **classifier_dropout("classifier_dropout"),
        ("layer_types", "local_attention"): Computed(_read_layers, _write_layers),
        ("rope_parameters",): Computed(_read_rope, NESTED_ROTARY.write),
        ("sparse_prediction", "sparse_pred_ignore_index"): IRRELEVANT,  # they choose logits to keep with labels
    },
    weights={
        "embeddings.tok_embeddings": renamed("embed_tokens"),
        "embeddings.norm": renamed("embedding_norm"),
        "layers.*.attn_norm": renamed("layers.*.input_layernorm"),
        "layers.*.attn.Wqkv": query_key_value(),
        "layers.*.attn.Wo": renamed("layers.*.self_attn.o_proj"),
        "layers.*.mlp_norm": renamed("layers.*.post_attention_layernorm"),
        "layers.*.mlp.Wi": fused("gate_proj", "up_proj", under="layers.*.mlp"),
        "layers.*.mlp.Wo": renamed("layers.*.mlp.down_proj"),
        "final_norm": renamed("norm"),
    },
    heads=HEADS,
)
