"""Mixtral and Qwen3-MoE: LLaMA's block with experts, whose parameter names and layouts are ours."""

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed
from .llama import FIELDS, WINDOW, read_window

MIXTURE_FIELDS = {"output_router_logits": IRRELEVANT}  # transformers also adds the balance loss by it

MIXTRAL = ArchitectureMap(
    native="mixtral",
    family="moe",
    fixed={"mlp_pattern": ["sparse"]},
    fields={**FIELDS, **MIXTURE_FIELDS, "num_local_experts": "num_experts", "sliding_window": WINDOW},
)


def _read_sparse(native) -> dict:
    step, dense = native.decoder_sparse_step, native.mlp_only_layers
    layers = range(native.num_hidden_layers)
    return {"mlp_pattern": ["dense" if i in dense or (i + 1) % step else "sparse" for i in layers]}


def _write_sparse(ours) -> dict:
    kinds = ours.mlp_layer_types
    return {"decoder_sparse_step": 1, "mlp_only_layers": [i for i, kind in enumerate(kinds) if kind == "dense"]}


SPARSE_LAYERS = Computed(_read_sparse, _write_sparse)


def _write_switched_window(ours) -> dict:
    return {"use_sliding_window": ours.sliding_window is not None, "sliding_window": ours.sliding_window}


QWEN3_MOE = ArchitectureMap(
    native="qwen3_moe",
    family="moe",
    fixed={"qk_norm": True},
    fields={
        **FIELDS,
        **MIXTURE_FIELDS,
        "head_dim": "head_dim",
        ("mlp_only_layers", "decoder_sparse_step"): SPARSE_LAYERS,
        ("use_sliding_window", "sliding_window"): Computed(read_window, _write_switched_window),
    },
)
