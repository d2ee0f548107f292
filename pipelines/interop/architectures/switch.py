"""Switch Transformers: T5 v1.0 with several experts in every n-th feed-forward; each token takes the best-scored."""

from ...errors import UserError
from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, Converted, MustEqual
from ..weights import Weights, renamed
from .t5 import ALWAYS_SCALED, FIELDS, FIXED, HEADS, SHARED_TABLE, STACKS

# Stands for no limit, for which the class has no value: no row is that long.
# transformers < 5.23 ignores the capacity: twins agree if no expert is given more tokens of a row.
UNLIMITED = 1 << 30


def _pattern(layers: int, step: int) -> list[str]:
    return ["sparse" if step == 1 or i % step == 1 else "dense" for i in range(layers)]


def _read_sparse(native) -> dict:
    encoder = _pattern(native.num_layers, native.encoder_sparse_step)
    decoder = _pattern(native.num_decoder_layers, native.decoder_sparse_step)
    longer, shorter = (encoder, decoder) if len(encoder) > len(decoder) else (decoder, encoder)
    if longer[: len(shorter)] != shorter:
        raise UserError(
            f"{native.model_type} with num_sparse_encoder_layers={native.num_sparse_encoder_layers} of "
            f"{native.num_layers} and num_sparse_decoder_layers={native.num_sparse_decoder_layers} of "
            f"{native.num_decoder_layers} layers has no anyformer twin; every n-th of both with one n has one"
        )
    pattern = ["sparse"] if all(kind == "sparse" for kind in longer) else longer
    return {"mlp_pattern": pattern}


def _write_sparse(ours) -> dict:
    """The numbers of sparse layers, from which the class computes the step between them."""
    layers = max(ours.num_hidden_layers, ours.num_decoder_layers)
    pattern = ours.mlp_pattern or ["sparse"]
    sparse = [i for i in range(layers) if pattern[i % len(pattern)] == "sparse"]
    step = 1 if sparse[:1] != [1] else sparse[1] - 1 if len(sparse) > 1 else layers
    return {
        "num_sparse_encoder_layers": max(1, ours.num_hidden_layers // step),
        "num_sparse_decoder_layers": max(1, ours.num_decoder_layers // step),
    }


def _experts(stack: str) -> dict[str, Weights]:
    """Rows of a stack's sparse feed-forwards, where each expert is two modules; ours are slices of two tensors."""
    block = f"{stack}.block.*.layer.{1 if stack == 'encoder' else 2}"
    native, ours = f"{block}.mlp", f"{stack}.layers.*.mlp"
    return {
        f"{native}.wi": renamed(f"{ours}.up_proj"),
        f"{native}.wo": renamed(f"{ours}.down_proj"),
        f"{native}.router.classifier": renamed(f"{ours}.gate"),
        f"{native}.experts.expert_#.wi.weight": renamed(f"{ours}.experts.up_proj[#]"),
        f"{native}.experts.expert_#.wo.weight": renamed(f"{ours}.experts.down_proj[#]"),
    }


SWITCH = ArchitectureMap(
    native="switch_transformers",
    family="seq2seq",
    fixed={
        **FIXED,
        "mlp_type": "mlp",
        "num_experts_per_tok": 1,
        "norm_topk_prob": False,
    },
    fields={
        **{name: row for name, row in FIELDS.items() if name not in (("feed_forward_proj",), ("classifier_dropout",))},
        ("num_sparse_encoder_layers", "num_sparse_decoder_layers"): Computed(_read_sparse, _write_sparse),
        "dense_act_fn": "hidden_act",
        ("d_model",): ALWAYS_SCALED,
        "tie_word_embeddings": MustEqual(True),  # untied, encoder, decoder and head would have three tables
        "expert_capacity": Converted(
            "expert_capacity",
            lambda number: None if number >= UNLIMITED else number,
            lambda number: number or UNLIMITED,
        ),
        "router_bias": MustEqual(False),
        "router_dtype": MustEqual("float32"),
        # Not read: decoders always have cross-attention, encoders never.
        ("router_ignore_padding_tokens", "add_router_probs", "add_cross_attention"): IRRELEVANT,
    },
    weights=STACKS | SHARED_TABLE | _experts("encoder") | _experts("decoder"),
    heads=HEADS,
)
