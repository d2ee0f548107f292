"""Tiny native models of every lineage, random in every parameter: a default of 0 or 1 would hide a mistake."""

import torch
import transformers
from transformers import CONFIG_MAPPING

TOKENS = {"vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
NEO = {"hidden_size": 32, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 64, "window_size": 6}
NEOX = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
NEOX |= {"max_position_embeddings": 64, "use_parallel_residual": False}
BLOOM = {"hidden_size": 48, "n_layer": 2}
MPT = {"d_model": 48, "n_layers": 2, "max_seq_len": 64, "use_cache": True}

LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0}
LLAMA3_ROPE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}

# name -> (model_type, fields): the least for each field that a lineage translates.
NATIVE = {
    "gpt2": ("gpt2", GPT2),
    "gpt2_unscaled_untied": (
        "gpt2",
        GPT2
        | {"scale_attn_weights": False, "n_inner": 40, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "gpt_neo": ("gpt_neo", NEO | {"attention_types": [[["global", "local"], 2]]}),
    "gpt_neo_uneven": (
        "gpt_neo",
        NEO | {"attention_types": [[["local"], 3], [["global"], 1]], "intermediate_size": 40},
    ),
    "gpt_neox": ("gpt_neox", NEOX),
    "gpt_neox_whole_rotation": ("gpt_neox", NEOX | {"rotary_pct": 1.0, "attention_bias": False}),
    "llama2": ("llama", LLAMA | {"num_key_value_heads": None, "rms_norm_eps": 1e-3}),
    "llama3_tied": ("llama", LLAMA | {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "llama_biases": ("llama", LLAMA | {"attention_bias": True, "mlp_bias": True, "head_dim": 16, "hidden_act": "gelu"}),
    "llama_yarn": ("llama", LLAMA | {"rope_parameters": YARN, "num_key_value_heads": 1}),
    "mistral": ("mistral", LLAMA | {"sliding_window": 6}),
    "mistral_without_window": ("mistral", LLAMA | {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("qwen2", LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2_upper_layers_slide": (
        "qwen2",
        LLAMA | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", LLAMA | {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_biases": ("qwen3", LLAMA | {"head_dim": 16, "attention_bias": True}),
    "bloom": ("bloom", BLOOM | {"n_head": 4}),
    "bloom_six_heads": ("bloom", BLOOM | {"n_head": 6}),
    "mpt": ("mpt", MPT | {"n_heads": 4}),
    "mpt_six_heads": ("mpt", MPT | {"n_heads": 6, "attn_config": {"softmax_scale": 0.5}}),
}


def native_config(name: str, **fields):
    model_type, own = NATIVE[name]
    return CONFIG_MAPPING[model_type](**(TOKENS | own | fields))


def randomise(model, seed: int = 0):
    """Draw every parameter anew, norms and biases included, large enough that each one moves the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:  # a table of sines
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_norm else 0.25 * noise)
    return model.eval()


def native_model(name: str, auto_class: str = "AutoModelForCausalLM", **fields):
    return randomise(getattr(transformers, auto_class).from_config(native_config(name, **fields)))
