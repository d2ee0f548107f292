"""Which parts of a model engines for serving compute, asked of the refusals in modeling/rules/serving.py."""

from anyformer.modeling.families import DECODER
from anyformer.modeling.rules.serving import ENGINES, refusal
from anyformer.modeling.traits import ATTENTION_KINDS, POSITION_SCHEMES

from ..recipes import introspection

INTRODUCTION = """## What serves it

"yes": the engine computes what the model does, from its folder; a number: it would compute something else, for the
reason under the table, and the model refuses to be built there. vLLM 0.32 was run (by a slow test), of SGLang
the source of 0.5.23 was read, continuous batching is `model.generate_batch` of transformers. llama.cpp reads native
models only: `anyformer convert MODEL NATIVE` makes one where an architecture is named, for the fields that it has.
Classifiers are served by transformers alone; `convert` is their way out, too."""
DECODER_POSITIONS = [name for name, scheme in POSITION_SCHEMES.items() if not scheme.bidirectional]
DECODER_KINDS = [name for name, kind in ATTENTION_KINDS.items() if DECODER in kind.families]
# part -> (family, fields); all else is the family's default
PARTS = {
    **{f"positions {name}": ("decoder", {"position_encoding": name}) for name in DECODER_POSITIONS},
    **{name: ("decoder", {"attention_pattern": [name]} | ATTENTION_KINDS[name].companions) for name in DECODER_KINDS},
    "attn_logit_softcapping": ("decoder", {"attn_logit_softcapping": 50.0}),
    "attn_logit_softcapping below 1": ("decoder", {"attn_logit_softcapping": 0.5}),
    "value_residual": ("decoder", {"value_residual": True}),
    "differential_attention": ("decoder", {"differential_attention": True}),
    "attention_sinks": ("decoder", {"attention_sinks": True}),
    "final_logit_softcapping": ("decoder", {"final_logit_softcapping": 30.0}),
    "logit_multiplier": ("decoder", {"logit_multiplier": 0.5}),
    "logit_multiplier and a soft cap": ("decoder", {"logit_multiplier": 0.5, "final_logit_softcapping": 30.0}),
    "lm_head_bias": ("decoder", {"lm_head_bias": True}),
    "dynamic rope": ("decoder", {"rope_parameters": {"rope_type": "dynamic"}}),
    "experts, gated silu": ("moe", {}),
    "experts, others": ("moe", {"mlp_type": "mlp", "hidden_act": "gelu"}),
    "expert_capacity": ("moe", {"expert_capacity": 64}),
    "encoder (embeddings)": ("encoder", {}),
    "encoder with windows": ("encoder", {"attention_pattern": ["sliding_attention"], "sliding_window": 64}),
    "encoder with shared layers": ("encoder", {"num_hidden_groups": 1}),
    "encoder, disentangled": ("encoder", {"position_encoding": "disentangled"}),
    "seq2seq": ("seq2seq", {}),
    "vit": ("vit", {}),
}
# part -> the native architecture that llama.cpp reads
NATIVE = {"positions learned": "gpt2", "positions rotary": "llama", "positions alibi": "bloom"}
NATIVE |= {"full_attention": "llama", "sliding_attention": "mistral", "experts, gated silu": "mixtral"}
NATIVE |= {"encoder (embeddings)": "bert", "seq2seq": "t5"}


def serving_markdown() -> str:
    """One row for each part, and the reasons under the table."""
    reasons: list[str] = []
    lines = [f"| | {' | '.join(ENGINES)} | llama.cpp |", "|---" * (len(ENGINES) + 2) + "|"]
    for part, (family, fields) in PARTS.items():
        config = introspection.family_config(family, fields)
        cells = []
        for engine in ENGINES:
            sentence = refusal(config, engine)
            if sentence is not None and sentence not in reasons:
                reasons.append(sentence)
            cells.append("yes" if sentence is None else str(reasons.index(sentence) + 1))
        cells.append(f"convert ({NATIVE[part]})" if part in NATIVE else "no")
        lines.append(f"| {part} | {' | '.join(cells)} |")
    notes = "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
    return "\n\n".join([INTRODUCTION, "\n".join(lines), notes])
