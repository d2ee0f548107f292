"""ModernBERT: pre-norm, rotary positions with a theta per kind of layer, local attention in most layers."""

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, classifier_dropout, same
from ..heads import Heads
from ..rotary import flat_rope, refuse_part
from ..weights import fused, query_key_value, renamed


def _read_layers(native) -> dict:
    kinds = list(native.layer_types)
    local = "sliding_attention" in kinds
    return {"attention_pattern": kinds, "sliding_window": native.local_attention // 2 if local else None}


def _write_layers(ours) -> dict:
    window = {} if ours.sliding_window is None else {"local_attention": 2 * ours.sliding_window}
    return {"layer_types": list(ours.layer_types), **window}


def _read_rope(native) -> dict:
    used = {kind: dict(native.rope_parameters[kind]) for kind in dict.fromkeys(native.layer_types)}
    for kind, parameters in used.items():
        refuse_part(native, parameters, f"rope_parameters.{kind}")
    return {"rope_parameters": used}


def _write_rope(ours) -> dict:
    flat = flat_rope(ours)
    nested = ours.rope_parameters if flat is None else dict.fromkeys(("full_attention", "sliding_attention"), flat)
    return {"rope_parameters": {kind: dict(parameters) for kind, parameters in (nested or {}).items()}}


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
        "position_encoding": "rotary",
        "norm_type": "layernorm",
        "norm_position": "pre",
        "mlp_type": "glu",
        "embedding_norm": True,
        "skip_first_norm": True,
        "add_pooling_layer": False,
        "task_head_transform": True,
    },
    fields={
        **same("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "initializer_range"),
        **same("max_position_embeddings", "norm_eps", "norm_bias", "attention_bias", "attention_dropout", "mlp_bias"),
        **same("cls_token_id", "sep_token_id"),
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
        ("rope_parameters",): Computed(_read_rope, _write_rope),
        ("sparse_prediction", "sparse_pred_ignore_index"): IRRELEVANT,  # which logits are kept where there are labels
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
