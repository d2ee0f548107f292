"""T5 (v1.0, and v1.1 with UL2 and Flan), mT5 and UMT5: pre-norm, relative positions, no biases."""

from dataclasses import replace

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, MustEqual, classifier_dropout
from ..heads import SEQ2SEQ_CLASSIFIER, Heads
from ..weights import Weights, renamed, tied

GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")


def _read_feed_forward(native) -> dict:
    # The config class takes "gated-gelu" as gelu_new, the tanh form; our fused kernel computes the same.
    act = "gelu_pytorch_tanh" if native.dense_act_fn == "gelu_new" else native.dense_act_fn
    return {"mlp_type": "glu" if native.is_gated_act else "mlp", "hidden_act": act}


def _write_feed_forward(ours) -> dict:
    if ours.mlp_type == "glu":
        names = {"gelu": "gelu_python"} | dict.fromkeys(GELU, "gelu")
        return {"feed_forward_proj": f"gated-{names.get(ours.hidden_act, ours.hidden_act)}"}
    return {"feed_forward_proj": ours.hidden_act}


def _read_scale(native) -> dict:
    """v1.0 ties head and embeddings and scales the logits; published configs have one field for both facts."""
    scaled = native.scale_decoder_outputs
    return {"logit_multiplier": native.d_model**-0.5 if scaled else 1.0, "tie_word_embeddings": scaled}


# The logits are multiplied by d_model^-0.5, and no field says so.
ALWAYS_SCALED = Computed(lambda native: {"logit_multiplier": native.d_model**-0.5}, lambda ours: {})
FIXED = {
    "position_encoding": "relative",
    "attention_multiplier": 1.0,  # scores are not scaled
}
FIELDS = {
    "d_model": "hidden_size",
    "d_kv": "head_dim",
    "d_ff": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "layer_norm_epsilon": "norm_eps",
    "decoder_start_token_id": "decoder_start_token_id",
    ("feed_forward_proj",): Computed(_read_feed_forward, _write_feed_forward),
    ("dropout_rate",): Computed(
        lambda native: {"hidden_dropout": native.dropout_rate, "attention_dropout": native.dropout_rate},
        lambda ours: {"dropout_rate": ours.hidden_dropout},
    ),
    **classifier_dropout("classifier_dropout"),
    "initializer_factor": IRRELEVANT,
    "is_decoder": MustEqual(False),
}


def _attention(native: str, ours: str) -> dict[str, Weights]:
    return {f"{native}.{name}": renamed(f"{ours}.{name}_proj") for name in "qkvo"}


def _stack(stack: str) -> dict[str, Weights]:
    """Rows of the encoder or the decoder; a decoder's blocks have cross-attention between their two other parts."""
    block, layer = f"{stack}.block.*.layer", f"{stack}.layers.*"
    feed_forward = f"{block}.{1 if stack == 'encoder' else 2}"
    return {
        f"{stack}.embed_tokens": tied("encoder.embed_tokens"),
        **_attention(f"{block}.0.SelfAttention", f"{layer}.self_attn"),
        f"{block}.0.layer_norm": renamed(f"{layer}.input_layernorm"),
        **_attention(f"{block}.1.EncDecAttention", f"{layer}.cross_attn"),
        f"{block}.1.layer_norm": renamed(f"{layer}.cross_attention_layernorm"),  # replaced below in encoders
        f"{feed_forward}.DenseReluDense.wi": renamed(f"{layer}.mlp.up_proj"),
        f"{feed_forward}.DenseReluDense.wi_0": renamed(f"{layer}.mlp.gate_proj"),
        f"{feed_forward}.DenseReluDense.wi_1": renamed(f"{layer}.mlp.up_proj"),
        f"{feed_forward}.DenseReluDense.wo": renamed(f"{layer}.mlp.down_proj"),
        f"{feed_forward}.layer_norm": renamed(f"{layer}.post_attention_layernorm"),
        f"{stack}.final_layer_norm": renamed(f"{stack}.norm"),
    }


STACKS = {"shared": renamed("encoder.embed_tokens"), **_stack("encoder"), **_stack("decoder")}
TABLE = "layer.0.SelfAttention.relative_attention_bias"
SHARED_TABLE = {
    f"{stack}.block.0.{TABLE}": renamed(f"{stack}.position_encoding.relative_attention_bias")
    for stack in ("encoder", "decoder")
}
TABLE_PER_LAYER = {
    f"{stack}.block.*.{TABLE}": renamed(f"{stack}.position_encoding.*.relative_attention_bias")
    for stack in ("encoder", "decoder")
}
HEADS: Heads = {
    "AutoModel": {},
    "AutoModelForSeq2SeqLM": {"lm_head": renamed("lm_head")},
    "AutoModelForSequenceClassification": SEQ2SEQ_CLASSIFIER,
    "AutoModelForTextEncoding": {},
}

T5 = ArchitectureMap(
    native="t5",
    family="seq2seq",
    fixed=FIXED,
    fields={
        **FIELDS,
        ("scale_decoder_outputs",): Computed(
            _read_scale, lambda ours: {"scale_decoder_outputs": ours.logit_multiplier != 1}
        ),
    },
    weights=STACKS | SHARED_TABLE,
    heads=HEADS,
    tied_by_weights=True,
)

UNTIED = {**FIXED, "tie_word_embeddings": False}  # published heads are untied, and no field records it
MT5 = replace(T5, native="mt5", fixed=UNTIED, fields=FIELDS)
UMT5 = replace(
    T5,
    native="umt5",
    fixed={**UNTIED, "relative_attention_shared": False},
    fields={**FIELDS, ("d_model",): ALWAYS_SCALED},  # as in transformers' class
    weights=STACKS | TABLE_PER_LAYER,
)
