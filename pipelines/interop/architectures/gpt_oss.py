"""gpt-oss: attention with sinks, alternately in windows and full, and experts with biases and a clamped gate."""

from transformers import CONFIG_MAPPING

from ..architecture_map import IRRELEVANT, ArchitectureMap, MustEqual
from ..weights import Weights, renamed
from .llama import FIELDS, WINDOWED_LAYERS
from .mixtral import MIXTURE_FIELDS

EXPERTS = "layers.*.mlp.experts"
GATE_UP = {
    f"{EXPERTS}.gate_up_proj{kind}": Weights((f"{EXPERTS}.gate_up_proj{kind}",), interleaved=True)
    for kind in ("", "_bias")
}

DECLARED = CONFIG_MAPPING["gpt_oss"].__dataclass_fields__
CLAMP = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}  # constants of the class in transformers < 5.23

GPT_OSS = ArchitectureMap(
    native="gpt_oss",
    family="moe",
    fixed={
        "mlp_type": "clamped_glu",
        "attention_sinks": True,
        "mlp_bias": True,
        "router_bias": True,
        "mlp_pattern": ["sparse"],
    },
    fields={
        **FIELDS,
        **MIXTURE_FIELDS,
        **{name: MustEqual(value) for name, value in CLAMP.items() if name not in DECLARED},
        "hidden_act": IRRELEVANT,
        "num_local_experts": "num_experts",
        **WINDOWED_LAYERS,
    },
    weights={
        **GATE_UP,
        "layers.*.mlp.router": renamed("layers.*.mlp.gate"),
        f"{EXPERTS}.down_proj": renamed(f"{EXPERTS}.down_proj", transposed=True),
    },
)
