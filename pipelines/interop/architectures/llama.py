"""LLaMA 1 to 3.x, Mistral, Qwen2, Qwen3, Granite, SmolLM3 and DiffLlama: one block, whose parameter names are ours."""

from ..architecture_map import IRRELEVANT, ArchitectureMap, Computed, Converted
from ..rotary import ROTARY

MLP = ("gate_proj", "up_proj", "down_proj")
FIELDS = {"rms_norm_eps": "norm_eps", "rope_parameters": ROTARY}


# Its attention_bias applies to all four projections, as ours does by default.
LLAMA = ArchitectureMap(native="llama", fields={**FIELDS, "pretraining_tp": IRRELEVANT})


def read_window(native) -> dict:
    kind = "full_attention" if native.sliding_window is None else "sliding_attention"
    return {"attention_pattern": [kind], "sliding_window": native.sliding_window}


WINDOW = Computed(read_window)

MISTRAL = ArchitectureMap(native="mistral", fields={**FIELDS, "sliding_window": WINDOW})


def read_layers(native) -> dict:
    window = native.sliding_window if "sliding_attention" in native.layer_types else None
    return {"attention_pattern": list(native.layer_types), "sliding_window": window}


def _write_layers(ours) -> dict:
    sliding = {"use_sliding_window": True, "sliding_window": ours.sliding_window} if ours.sliding_window else {}
    return {"layer_types": list(ours.layer_types), **sliding}


WINDOWED_LAYERS = {("layer_types", "sliding_window"): Computed(read_layers)}
SWITCHED_LAYERS = Computed(read_layers, _write_layers)
QWEN_LAYERS = {("layer_types", "use_sliding_window", "sliding_window", "max_window_layers"): SWITCHED_LAYERS}

QWEN2 = ArchitectureMap(
    native="qwen2",
    fixed={"attention_bias": True, "attention_out_bias": False},
    fields={**FIELDS, **QWEN_LAYERS, "head_dim": "head_dim"},
)

QWEN3 = ArchitectureMap(native="qwen3", fixed={"qk_norm": True}, fields={**FIELDS, **QWEN_LAYERS})

GRANITE = ArchitectureMap(
    native="granite",
    fields={
        **FIELDS,
        "logits_scaling": Converted("logit_multiplier", lambda value: 1 / value, lambda value: 1 / value),
    },
)

UNROTATED_LAYERS = {
    ("no_rope_layers", "no_rope_layer_interval"): Computed(
        lambda native: {"no_rope_layers": None if all(native.no_rope_layers) else list(native.no_rope_layers)},
        lambda ours: {"no_rope_layers": list(ours.no_rope_layers or [1] * ours.num_hidden_layers)},
    )
}

SMOLLM3 = ArchitectureMap(
    native="smollm3",
    fields={
        **FIELDS,
        ("layer_types", "use_sliding_window", "sliding_window"): SWITCHED_LAYERS,
        **UNROTATED_LAYERS,
    },
)

DIFFLLAMA = ArchitectureMap(native="diffllama", fixed={"differential_attention": True}, fields=FIELDS)
