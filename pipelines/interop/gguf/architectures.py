"""Native architectures that llama.cpp computes: what a GGUF file holds of a config, and how it names weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ...errors import UserError

# Parts of names of fields that change nothing of what a finished model computes, or follow from others.
NO_EFFECT = ("initializer_range", "use_cache", "pretraining_tp", "router_", "dropout", "pdrop", "summary_", "_token_id")
NO_EFFECT += ("reorder_and_upcast_attn", "layer_types", "max_window_layers", "no_rope_layer_interval", "is_decoder")
NO_EFFECT += ("_sliding_window_pattern", "use_sliding_window", "tie_word_embeddings", "rope_parameters", "original_max")
# Kinds of rotary positions, with the parameters that a file holds; the others are as llama.cpp computes them.
ROPES = {"default": (), "linear": ("factor",), "yarn": ("factor", "original_max_position_embeddings")}
ROPES["llama3"] = (*ROPES["yarn"], "low_freq_factor", "high_freq_factor")
COMPUTED = {"beta_fast": 32, "beta_slow": 1, "truncate": True, "partial_rotary_factor": 1.0}

Change = Callable[[Any, str, torch.Tensor], torch.Tensor]
Values = Callable[[Any], tuple]  # of a config: the values of one of its fields that llama.cpp computes


def width_of_head(config) -> int:
    return config.hidden_size // config.num_attention_heads


def head_size(config) -> int:
    return getattr(config, "head_dim", None) or width_of_head(config)


def unused_window(config) -> tuple:
    """No window, or one that no text is longer than: llama.cpp has no sliding attention there."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return (None,) if window is not None and window < config.max_position_embeddings else (window, None)


def pairs_beside(config, name: str, weight: torch.Tensor) -> torch.Tensor:
    """Queries and keys with the two channels of each rotation beside each other; transformers has them in halves."""
    heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
    is_rotated = ".q_proj." in name or ".k_proj." in name
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape) if is_rotated else weight


def transposed(config, name: str, weight: torch.Tensor) -> torch.Tensor:
    """GPT-2's Conv1D as a linear layer."""
    return weight.t() if weight.dim() == 2 and ".h." in name else weight


def one_more(config, name: str, weight: torch.Tensor) -> torch.Tensor:
    """Gemma's norms, which multiply by 1 + weight."""
    return weight + 1 if name.endswith("norm.weight") else weight


@dataclass(frozen=True)
class GgufArchitecture:
    """What a file holds of a native model.

    name: llama.cpp's. holds: {field: the key that GGUFWriter.add_KEY writes}. fixed: {field: the values that llama.cpp
    computes}. ropes: kinds of rotary positions. change: a weight as llama.cpp reads it. writes_tied: a tied head is
    written once more. embeds: it gives hidden states, not logits. tolerance: of outputs in fp32, of the largest.
    """

    name: str
    holds: dict[str, str]
    fixed: dict[str, tuple | Values]
    ropes: tuple[str, ...] = ("default", "linear", "yarn")
    change: Change = lambda config, name, weight: weight
    writes_tied: bool = False
    embeds: bool = False
    tolerance: float = 1e-3


SIZES = {"max_position_embeddings": "context_length", "hidden_size": "embedding_length", "vocab_size": "vocab_size"}
SIZES |= {"num_hidden_layers": "block_count", "num_attention_heads": "head_count"}
SIZES |= {"intermediate_size": "feed_forward_length"}
BLOCK = SIZES | {"num_key_value_heads": "head_count_kv", "rms_norm_eps": "layer_norm_rms_eps", "head_dim": "key_length"}
EXPERTS = BLOCK | {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
QWEN3_MOE = EXPERTS | {"moe_intermediate_size": "expert_feed_forward_length"}
GEMMA = BLOCK | {"sliding_window": "sliding_window", "layer_types": "sliding_window_pattern"}
GEMMA |= {name: name for name in ("final_logit_softcapping", "attn_logit_softcapping")}
GPT2 = {"n_positions": "context_length", "n_embd": "embedding_length", "n_layer": "block_count", "n_head": "head_count"}
GPT2 |= {"vocab_size": "vocab_size", "n_inner": "feed_forward_length", "layer_norm_epsilon": "layer_norm_eps"}
BERT = SIZES | {"layer_norm_eps": "layer_norm_eps", "type_vocab_size": "token_type_count"}

NO, TANH = (False, None), ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
BIASED = {"hidden_act": ("silu",), "attention_bias": (False, True), "mlp_bias": (False, True)}
PLAIN = BIASED | {"sliding_window": unused_window, "attention_bias": NO, "mlp_bias": NO}
NARROW = PLAIN | {"head_dim": lambda c: (None, width_of_head(c))}
EVERY_FOURTH = {"no_rope_layers": lambda c: ([int((i + 1) % 4 > 0) for i in range(c.num_hidden_layers)],)}
EVERY_LAYER = {"decoder_sparse_step": (1,), "mlp_only_layers": ([], None), "norm_topk_prob": (True,)}
GEMMA2 = {"hidden_activation": TANH, "attention_bias": NO, "use_bidirectional_attention": NO}
# Scores are divided by the root of a head's size, but in Gemma's models of 46 and 62 layers by that of its width.
GEMMA2 |= {"query_pre_attn_scalar": lambda c: (width_of_head(c) if c.num_hidden_layers in (46, 62) else c.head_dim,)}
GEMMA3 = GEMMA2 | {"attn_logit_softcapping": (None,)}
GEMMA2 |= {"tie_word_embeddings": (True,)}
OF_GPT2 = {"activation_function": TANH, "scale_attn_weights": (True,), "add_cross_attention": NO}
OF_GPT2 |= {"scale_attn_by_inverse_layer_idx": NO}
OF_BERT = {
    "hidden_act": ("gelu",),
    "is_decoder": NO,
    "add_cross_attention": NO,
}  # computed by tanh: hence its tolerance
FIRST_TWO, EVERY = ("default", "linear"), tuple(ROPES)  # llama3's factors are read in llama.cpp's `llama` alone
# model_type -> what is written.
GGUF_ARCHITECTURES = {
    "llama": GgufArchitecture("llama", BLOCK, BIASED, EVERY, pairs_beside),
    "mistral": GgufArchitecture("llama", BLOCK, PLAIN, EVERY, pairs_beside),
    "mixtral": GgufArchitecture("llama", EXPERTS, PLAIN, EVERY, pairs_beside),
    "smollm3": GgufArchitecture("smollm3", BLOCK, PLAIN | EVERY_FOURTH, change=pairs_beside),
    "qwen2": GgufArchitecture("qwen2", BLOCK, NARROW),
    "qwen3": GgufArchitecture("qwen3", BLOCK, PLAIN),
    "qwen3_moe": GgufArchitecture("qwen3moe", QWEN3_MOE, PLAIN | EVERY_LAYER),
    "olmo2": GgufArchitecture("olmo2", BLOCK, NARROW, writes_tied=True),
    "phi3": GgufArchitecture("phi3", BLOCK, NARROW, ("default",)),
    "gemma2": GgufArchitecture("gemma2", GEMMA, GEMMA2, FIRST_TWO, one_more),
    "gemma3_text": GgufArchitecture("gemma3", GEMMA, GEMMA3, FIRST_TWO, one_more),
    "gpt2": GgufArchitecture("gpt2", GPT2, OF_GPT2, (), transposed),
    "bert": GgufArchitecture("bert", BERT, OF_BERT, (), embeds=True, tolerance=1e-2),
}


def gguf_architecture(config, class_name: str) -> GgufArchitecture:
    """The architecture of a native config and class.

    Raises UserError for one that no file is made of, and for a field whose value a file cannot hold.
    """
    if config.model_type not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise UserError(f"--to gguf: no file is made of a {config.model_type}; it is made of {known}")
    architecture = GGUF_ARCHITECTURES[config.model_type]
    ends = ("Model", "ForMaskedLM", "ForPreTraining") if architecture.embeds else ("ForCausalLM", "LMHeadModel")
    if not class_name.endswith(ends):
        what = "hidden states" if architecture.embeds else "a model that writes text"
        raise UserError(f"--to gguf: a file of {architecture.name} gives {what}, not a {class_name}; take --to onnx")
    fixed = {name: each(config) if callable(each) else each for name, each in architecture.fixed.items()}
    known = {*architecture.holds, *fixed, *PreTrainedConfig().to_dict()}
    for name, value in type(config)().to_dict().items():
        if name not in known and not any(part in name for part in NO_EFFECT):  # of a newer transformers
            fixed[name] = (value,)
    for name, values in fixed.items():
        _check(name, getattr(config, name, values[0]), values, architecture)
    for kind, rope in _ropes(config).items() if architecture.ropes else ():
        rope_type = rope["rope_type"]
        _check(
            "rope_type", rope_type, ("default",) if kind == "sliding_attention" else architecture.ropes, architecture
        )
        held = {
            "rope_theta",
            "rope_type",
            *ROPES[rope_type],
            *["partial_rotary_factor"] * (architecture.name == "phi3"),
        }
        for name in rope.keys() - held:
            _check(f"rope_parameters.{name}", rope[name], (COMPUTED.get(name), None), architecture)
    return architecture


def _check(name: str, value: Any, values: tuple, architecture: GgufArchitecture) -> None:
    if value not in values:
        raise UserError(
            f"--to gguf: {name}={value!r} is not what llama.cpp computes, whose {architecture.name} has "
            f"{' or '.join(map(repr, values))}; anyformer serve takes the model as it is"
        )


def _ropes(config) -> dict[str, dict]:
    """{kind of layers: parameters of rotary positions}; only Gemma 3 has several."""
    ropes = config.rope_parameters
    return ropes if "full_attention" in ropes else {"full_attention": ropes}


def write_fields(writer, config, architecture: GgufArchitecture) -> None:
    """Add a checked config to a gguf.GGUFWriter."""
    from gguf import RopeScalingType

    for name, key in architecture.holds.items():
        value = getattr(config, name, None)
        if name == "layer_types":
            value = [kind == "sliding_attention" for kind in value]
        if name == "n_inner" and value is None:
            value = 4 * config.n_embd
        if value is not None:
            getattr(writer, f"add_{key}")(head_size(config) if name == "head_dim" else value)
    if not architecture.ropes:
        return
    size, rope = head_size(config), _ropes(config)["full_attention"]
    writer.add_value_length(size)
    writer.add_rope_dimension_count(int(size * (rope.get("partial_rotary_factor") or 1)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "sliding_attention" in _ropes(config):
        writer.add_rope_freq_base_swa(_ropes(config)["sliding_attention"]["rope_theta"])


def file_weights(config, architecture: GgufArchitecture, state: dict) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, weight) pairs of a file, of a native model's state; also of tensors on the device `meta`.

    Raises UserError for a weight that llama.cpp's architecture has no place for.
    """
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    number = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}[architecture.name]
    names = get_tensor_name_map(number, config.num_hidden_layers)
    left_out = ("cls.", "pooler.") if architecture.embeds else ()
    if config.tie_word_embeddings and not architecture.writes_tied:
        left_out += ("lm_head.",)
    for key, weight in state.items():
        name = key.removeprefix("bert.")
        if name.startswith(left_out):
            continue
        if ".experts." in name:
            layer, parts = name.split(".")[2], name.rpartition(".")[2].removesuffix("_proj").split("_")
            for part, each in zip(parts, weight.chunk(len(parts), dim=1), strict=True):
                yield f"blk.{layer}.ffn_{part}_exps.weight", each
            continue
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if place is None:
            raise UserError(f"--to gguf: llama.cpp's {architecture.name} has no place for the weight {name}")
        yield place, architecture.change(config, name, weight)
    rope = _ropes(config)["full_attention"] if state and architecture.ropes else {}
    if rope.get("rope_type") == "llama3":
        plain = rope["rope_theta"] ** -(torch.arange(0, head_size(config), 2) / head_size(config))
        yield "rope_freqs.weight", plain / ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]
