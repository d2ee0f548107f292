"""Llama 4 (texts): chunked attention with rotary positions, full attention without; experts read weighted inputs."""

from ...errors import UserError
from ..architecture_map import ArchitectureMap, Computed
from ..weights import renamed
from .cohere import PAIRED
from .llama import FIELDS, MLP, UNROTATED_LAYERS
from .mixtral import MIXTURE_FIELDS


def _read_layers(native) -> dict:
    """Chunked attention and rotation are set separately for each layer; without chunks the size has no effect."""
    chunked = "chunked_attention" in native.layer_types
    size = native.attention_chunk_size if chunked else None
    return {"attention_pattern": list(native.layer_types), "attention_chunk_size": size}


def _read_temperature(native) -> dict:
    """Old configs have a number instead of true; it has no effect if all layers have a rotation."""
    return {"attn_temperature_tuning": bool(native.attn_temperature_tuning) and not all(native.no_rope_layers)}


def _read_sizes(native) -> dict:
    """One native size is that of a routed expert and of the shared one."""
    experts = native.intermediate_size
    return {"moe_intermediate_size": experts, "shared_expert_intermediate_size": experts}


def _read_experts(native) -> dict:
    if not native.moe_layers:
        raise UserError("llama4_text with moe_layers=[] has no anyformer twin; a list of layers with experts has one")
    kinds = ["sparse" if i in native.moe_layers else "dense" for i in range(native.num_hidden_layers)]
    return {"mlp_pattern": kinds}


LLAMA4 = ArchitectureMap(
    native="llama4_text",
    family="moe",
    fixed={
        "router_scoring": "sigmoid",
        "norm_topk_prob": False,
        "apply_router_weight_on_input": True,
    },
    fields={
        **FIELDS,
        **MIXTURE_FIELDS,
        "intermediate_size_mlp": "intermediate_size",
        "num_local_experts": "num_experts",
        "use_qk_norm": "qk_l2_norm",
        ("attn_temperature_tuning",): Computed(_read_temperature),
        ("intermediate_size",): Computed(_read_sizes, lambda ours: {"intermediate_size": ours.moe_intermediate_size}),
        ("moe_layers", "interleave_moe_layer_step"): Computed(
            _read_experts,
            lambda ours: {"moe_layers": [i for i, kind in enumerate(ours.mlp_layer_types) if kind == "sparse"]},
        ),
        ("layer_types", "attention_chunk_size"): Computed(_read_layers),
        **UNROTATED_LAYERS,
    },
    weights=PAIRED
    | {f"layers.*.feed_forward.{part}": renamed(f"layers.*.mlp.{part}") for part in MLP}
    | {f"layers.*.feed_forward.shared_expert.{part}": renamed(f"layers.*.mlp.shared_expert.{part}") for part in MLP}
    | {
        "layers.*.feed_forward.router": renamed("layers.*.mlp.gate"),
        "layers.*.feed_forward.experts.gate_up_proj": renamed("layers.*.mlp.experts.gate_up_proj", transposed=True),
        "layers.*.feed_forward.experts.down_proj": renamed("layers.*.mlp.experts.down_proj", transposed=True),
    },
)
