"""BERT, RoBERTa and Longformer: post-norm, learned absolute positions, a pooled first token."""

from dataclasses import replace

from ...errors import UserError
from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, Converted, MustEqual
from ..heads import BERT_HEADS, ROBERTA_HEADS
from ..weights import Weights, renamed

# Shared by the encoders derived from BERT's code.
BERT_FIXED = {
    "norm_type": "layernorm",
    "norm_position": "post",
    "mlp_type": "mlp",
    "attention_bias": True,
    "mlp_bias": True,
    "embedding_norm": True,
}
BERT_SIZES = {
    "hidden_dropout_prob": "hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_eps",
}
# transformers no longer reads this field, so a model that was trained with other positions is wrong there.
ABSOLUTE_ONLY = {"position_embedding_type": MustEqual("absolute")}
NO_DECODER = {"is_decoder": MustEqual(False), "add_cross_attention": MustEqual(False)}


# At least one, as transformers' classes always look up a segment.
SEGMENTS = {"type_vocab_size": Converted("type_vocab_size", write=lambda number: max(1, number))}

EMBEDDINGS = {
    "embeddings.word_embeddings": renamed("embed_tokens"),
    "embeddings.position_embeddings": renamed("position_encoding"),
    "embeddings.token_type_embeddings": renamed("token_type_embeddings"),
    "embeddings.LayerNorm": renamed("embedding_norm"),
}
LAYER = "encoder.layer.*"


def bert_layers(**projections: Weights) -> dict[str, Weights]:
    """Rows of BERT's layer; `projections` are those within its `attention.self`."""
    return {f"{LAYER}.attention.self.{name}": row for name, row in projections.items()} | {
        f"{LAYER}.attention.output.dense": renamed("layers.*.self_attn.o_proj"),
        f"{LAYER}.attention.output.LayerNorm": renamed("layers.*.input_layernorm"),
        f"{LAYER}.intermediate.dense": renamed("layers.*.mlp.up_proj"),
        f"{LAYER}.output.dense": renamed("layers.*.mlp.down_proj"),
        f"{LAYER}.output.LayerNorm": renamed("layers.*.post_attention_layernorm"),
    }


PROJECTIONS = ("query", "key", "value")
QUERY_KEY_VALUE = {name: renamed(f"layers.*.self_attn.{name[0]}_proj") for name in PROJECTIONS}

BERT = ArchitectureMap(
    native="bert",
    family="encoder",
    fixed={"position_encoding": "learned", **BERT_FIXED},
    fields=BERT_SIZES | SEGMENTS | NO_DECODER | ABSOLUTE_ONLY,
    weights=EMBEDDINGS | bert_layers(**QUERY_KEY_VALUE),
    heads=BERT_HEADS,
)


def _read_positions(native) -> dict:
    """Positions are counted from pad_token_id + 1; the table's rows before that are not used."""
    if native.pad_token_id is None or native.pad_token_id < 0:
        raise UserError(
            f"{native.model_type} with pad_token_id={native.pad_token_id} has no anyformer twin: its positions are "
            f"counted from the padding token's number; 1 has one"
        )
    offset = native.pad_token_id + 1
    return {"position_offset": offset, "max_position_embeddings": native.max_position_embeddings - offset}


POSITIONS_AFTER_PADDING = {
    ("max_position_embeddings",): Computed(
        _read_positions,
        lambda ours: {"max_position_embeddings": ours.max_position_embeddings + ours.position_offset},
    )
}

ROBERTA = replace(
    BERT,
    native="roberta",
    fixed={**BERT.fixed, "head_act": "gelu"},
    fields={**BERT.fields, **POSITIONS_AFTER_PADDING},
    heads=ROBERTA_HEADS,
)


def _read_windows(native) -> dict:
    windows = native.attention_window
    windows = {windows} if isinstance(windows, int) else set(windows)
    if len(windows) != 1:
        raise UserError(
            f"longformer with attention_window={native.attention_window!r} has no anyformer twin; one size for all "
            f"layers has one"
        )
    return {"attention_pattern": ["local_global_attention"], "sliding_window": windows.pop() // 2}


def _write_windows(ours) -> dict:
    return {} if ours.sliding_window is None else {"attention_window": 2 * ours.sliding_window}


GLOBAL = {f"{name}_global": renamed(f"layers.*.self_attn.global_{name[0]}_proj") for name in PROJECTIONS}

LONGFORMER = replace(
    ROBERTA,
    native="longformer",
    fields={
        **BERT_SIZES,
        **SEGMENTS,
        **POSITIONS_AFTER_PADDING,
        ("attention_window",): Computed(_read_windows, _write_windows),
        "onnx_export": IRRELEVANT,
    },
    weights=EMBEDDINGS | bert_layers(**QUERY_KEY_VALUE, **GLOBAL),
)
