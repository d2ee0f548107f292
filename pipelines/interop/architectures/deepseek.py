"""DeepSeek-V3 and V2: latent attention, and experts chosen within groups beside a shared one."""

from dataclasses import replace

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, Converted, MustEqual, Same
from ..weights import renamed
from .llama import FIELDS, MLP
from .mixtral import MIXTURE_FIELDS

DEEPSEEK_WEIGHTS = {
    f"layers.*.mlp.shared_experts.{part}": renamed(f"layers.*.mlp.shared_expert.{part}") for part in MLP
}
LATENT = {"attention_pattern": ["latent_attention"]}


def _read_layers(native) -> dict:
    dense = min(native.first_k_dense_replace, native.num_hidden_layers)
    return {"mlp_pattern": ["dense"] * dense + ["sparse"] * (native.num_hidden_layers - dense)}


DEEPSEEK_FIELDS = {
    **FIELDS,
    **MIXTURE_FIELDS,
    "n_routed_experts": "num_experts",
    "num_key_value_heads": Same("num_attention_heads"),
    ("first_k_dense_replace",): Computed(
        _read_layers, lambda ours: {"first_k_dense_replace": ours.mlp_kinds.index("sparse")}
    ),
    ("n_shared_experts",): Computed(
        lambda native: {"shared_expert_intermediate_size": native.n_shared_experts * native.moe_intermediate_size},
        lambda ours: {"n_shared_experts": ours.shared_expert_intermediate_size // ours.moe_intermediate_size},
    ),
    "pretraining_tp": IRRELEVANT,
}

DEEPSEEK_V3 = ArchitectureMap(
    native="deepseek_v3",
    family="moe",
    fixed={**LATENT, "router_scoring": "sigmoid", "router_bias_update_rate": 0.001},
    fields={
        **DEEPSEEK_FIELDS,
        "n_group": Converted("n_group", lambda value: None if value == 1 else value, lambda value: value or 1),
        ("topk_group",): Computed(
            lambda native: {"topk_group": None if native.n_group == 1 else native.topk_group},
            lambda ours: {"topk_group": ours.topk_group or 1},
        ),
        "num_mtp_layers": IRRELEVANT,  # modules that transformers' class does not have
    },
    weights=DEEPSEEK_WEIGHTS,
)


def _read_groups(native) -> dict:
    grouped = native.topk_method == "group_limited_greedy"
    return {name: getattr(native, name) if grouped else None for name in ("n_group", "topk_group")}


def _write_groups(ours) -> dict:
    method = "greedy" if ours.n_group is None else "group_limited_greedy"
    return {"topk_method": method, "n_group": ours.n_group, "topk_group": ours.topk_group}


DEEPSEEK_V2 = replace(
    DEEPSEEK_V3,
    native="deepseek_v2",
    fixed={**LATENT, "norm_topk_prob": False},
    fields={
        **DEEPSEEK_FIELDS,
        ("topk_method", "n_group", "topk_group"): Computed(_read_groups, _write_groups),
        "norm_topk_prob": IRRELEVANT,  # its class does not read it
        "head_dim": IRRELEVANT,  # transformers < 5.24: a field, which the class overwrites
        "mlp_bias": MustEqual(False),
    },
)
