"""Exceptions to the rules of twin.py: fields of tiny configs, one row for each model type that needs them."""

from collections.abc import Callable
from typing import Any

Row = dict[str, Any] | Callable[[dict, dict], dict]


def unset(**fields: Any) -> Row:
    """Fields that the class needs, where the config has None: some classes cannot be built from their defaults."""
    return lambda given, _: {name: value for name, value in fields.items() if given.get(name) is None}


def gpt_neo(given: dict, _: dict) -> dict:
    kinds = [kind for kinds, times in given["attention_types"] for kind in kinds * times]
    first_two = [kind for i, kind in enumerate(kinds) if kinds[:i].count(kind) < 2]
    return {"attention_types": [[first_two, 1]], "num_layers": len(first_two)}


def qwen4_exp(given: dict, _: dict) -> dict:
    indexer = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4}
    hashes = {"ngram_vocab_size_base": 97, "split_ngram_parts": 1, "ple_layer_ids": [2] * bool(given["ple_layer_ids"])}
    return indexer | hashes | {"indexer_compress_ratio": 2}


def dbrx(_: dict, small: dict) -> dict:
    attention = small["attn_config"]
    return {"attn_config": {"rope_theta": 10000.0} | attention | {"clip_qkv": attention["clip_qkv"] or 8}}


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
HEADS_OF_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
MIXED = ["linear_attention", "full_attention"] * 2
WINDOWS = {"image_size": 128, "window_size": 4}  # the last stage must be as large as a window

# model type -> fields of its tiny config, or a function of (fields of the full config, small fields)
ROWS: dict[str, Row] = {
    "bamba": lambda given, _: (
        HEADS_OF_MAMBA | ({} if given["attn_layer_indices"] else {"num_hidden_layers": 4, "attn_layer_indices": [1, 3]})
    ),
    "big_bird": {"block_size": 1},  # attention is sparse from nine blocks on
    "bigbird_pegasus": {"block_size": 1},
    "cohere_compass_text": lambda given, small: {
        "rope_parameters": small["rope_parameters"] or dict.fromkeys(small["layer_types"], ROPE)
    },
    "cvt": {"depth": [1, 2, 3]},
    "dbrx": dbrx,
    "deepseek_v2": unset(num_experts_per_tok=2),
    "deepseek_v4": {
        "head_dim": 16,
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
    },
    "donut-swin": WINDOWS,
    "dots1": unset(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1),
    "dots3_note_text": {"head_dim": 24},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 1.0, "hidden_dim": 320}
    | dict.fromkeys(("in_channels", "out_channels"), [32] * 7),
    "esm": unset(vocab_size=97, pad_token_id=1, mask_token_id=32),
    "falcon_h1": HEADS_OF_MAMBA | {"mamba_d_ssm": 64},
    "gpt_neo": gpt_neo,
    "granitemoehybrid": lambda given, _: (
        HEADS_OF_MAMBA
        | ({} if "full_attention" in given["layer_types"] else {"num_hidden_layers": 4, "layer_types": MIXED})
    ),
    "hgnet_v2": {
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 16, 24, 32],
        "stage_mid_channels": [8, 8, 8, 8],
        "stage_out_channels": [16, 24, 32, 32],
    },
    "hrm_text": lambda given, _: {
        "num_layers_per_stack": 2,
        "num_hidden_layers": 2 * given["H_cycles"] * (given["L_cycles"] + 1),
    },
    "hunyuan_v1_dense": unset(head_dim=8),
    "hunyuan_v1_moe": unset(head_dim=8),
    "inkling2_text": {"n_layers_per_attn_res_block": 2},
    "inkling2_loop_text": {
        "num_hidden_layers": 6,
        "layer_types": ["hybrid_sliding", "hybrid"] * 3,
        "n_layers_per_attn_res_block": 2,
        "loop_layer_index_start": 2,
        "loop_layer_index_end": 4,
    },
    "lfm2_moe": unset(layer_types=["conv", "conv", "full_attention", "full_attention"]),
    "mamba2": {"num_heads": 8},
    "ministral": unset(head_dim=8),
    "mobilenet_v1": {"depth_multiplier": 0.25, "image_size": 64},
    "mobilenet_v2": {"depth_multiplier": 0.25, "image_size": 64},
    "mobilevit": {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32], "image_size": 64},
    "mobilevitv2": {"base_attn_unit_dims": [16, 24, 32], "width_multiplier": 0.25, "image_size": 64},
    "nemotron": unset(num_key_value_heads=2),
    "neomme": {"head_dim": 16},
    "perceiver": {"max_position_embeddings": 12},
    "pp_lcnet": {"scale": 0.25},
    "qwen4_exp_text": qwen4_exp,
    "recurrent_gemma": {"num_hidden_layers": 4, "block_types": ["recurrent", "attention"]},
    "reformer": {  # axial positions need rows of one length in training
        "axial_pos_embds": False,
        "hash_seed": 0,
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
    },
    "swin": WINDOWS,
    "swinv2": WINDOWS,
    "textnet": {"stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 24, 32]},
    "vibevoice_asr": lambda given, _: {"acoustic_tokenizer_chunk_size": given["acoustic_tokenizer_chunk_size"]},
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 1},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "chunk_size": 64},  # it trains rows of one chunk only
    "xmod": unset(default_language="en_XX"),
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16, "mamba_headdim": 16},
}

# (kind, model type) -> why its class cannot be checked
NOT_ASKED: dict[tuple[str, str], str] = {
    ("causal", "gemma3n"): "needs the package timm",
    ("causal", "gemma4_assistant"): "continues the hidden states of another model",
    ("causal", "gemma4_unified_assistant"): "continues the hidden states of another model",
    ("causal", "musicgen"): "its class reads the config of its decoder only",
    ("causal", "musicgen_melody"): "its class reads the config of its decoder only",
    ("image", "dinat"): "needs the package natten",
    ("image", "pp_lcnet"): "its class returns no loss",
    ("image", "shieldgemma2"): "classifies by the tokens of a prompt",
    ("image", "timm_wrapper"): "needs the package timm",
}
