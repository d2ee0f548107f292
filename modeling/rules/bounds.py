"""The least and greatest value of each number of a config. Standard library only.

The greatest are far beyond any published model: a typing error should give a sentence, not a list of 10**12 layers that
fills the memory, or a loss that counts 10**30 times.
"""

LAYERS, WIDTH, LENGTH, TOKENS = 10_000, 2**20, 2**40, 2**28  # and channels, positions, entries of a vocabulary
FACTOR = (1e-6, 1e6)  # smaller ones leave nothing to learn from: all weights, scores or logits are nearly equal

# {field: (least, greatest)}
BOUNDS = {
    **dict.fromkeys(("num_hidden_layers", "num_decoder_layers", "num_hidden_groups"), (1, LAYERS)),
    **dict.fromkeys(("mask_decoder_layers", "num_nextn_predict_layers", "conv_kernel_size"), (0, LAYERS)),
    **dict.fromkeys(("hidden_size", "embedding_size", "head_dim", "pooler_output_size"), (1, WIDTH)),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "conv_groups"), (1, WIDTH)),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), (1, WIDTH)),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), (1, WIDTH)),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), (1, WIDTH)),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), (1, WIDTH)),
    **dict.fromkeys(("relative_attention_num_buckets", "position_buckets"), (1, WIDTH)),
    "linear_conv_kernel_dim": (1, LAYERS),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), (1, 2**24)),
    "shared_expert_intermediate_size": (0, 2**24),
    **dict.fromkeys(("max_position_embeddings", "sliding_window", "attention_stride", "segment_length"), (1, LENGTH)),
    **dict.fromkeys(("floor_scale", "block_size", "block_stride"), (1, LENGTH)),
    "attention_chunk_size": (2, LENGTH),  # a chunk of 1 would see all tokens of transformers' cache; kinds.py: a window
    **dict.fromkeys(("memory_length", "expert_capacity", "num_local_blocks"), (1, LENGTH)),
    **dict.fromkeys(("relative_attention_max_distance", "max_relative_positions"), (1, LENGTH)),
    "num_sink_blocks": (0, LENGTH),
    "num_random_blocks": (0, 1000),
    "block_seed": (0, 2**31 - 1),
    **dict.fromkeys(("vocab_size", "output_vocab_size"), (1, TOKENS)),
    **dict.fromkeys(("type_vocab_size", "position_offset"), (0, TOKENS)),
    **dict.fromkeys(("image_size", "patch_size", "encoder_stride", "num_channels"), (1, 2**16)),
    "num_register_tokens": (0, 2**16),
    **dict.fromkeys(("num_experts", "num_experts_per_tok", "n_group", "topk_group"), (1, 2**16)),
    **dict.fromkeys(("attention_multiplier", "embedding_multiplier", "logit_multiplier"), FACTOR),
    **dict.fromkeys(("residual_multiplier", "alibi_bias_max", "swiglu_limit", "swiglu_alpha"), FACTOR),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "routed_scaling_factor"), FACTOR),
    "attn_scale": (0, 1e6),
    **dict.fromkeys(("mtp_loss_coef", "lambda_std_dev"), (0, 100)),
    **dict.fromkeys(("router_aux_loss_coef", "router_z_loss_coef", "router_bias_update_rate"), (0, 100)),
    **dict.fromkeys(("norm_eps", "linear_norm_eps"), (0, 1)),
    "initializer_range": (1e-12, 100),  # transformers' own tests draw weights that are as good as 0
}
# At least 0 and below 1. A jitter above 1 could turn the sign of a router's input.
SHARES = ("hidden_dropout", "attention_dropout", "classifier_dropout", "router_jitter_noise")


def bound_faults(c):
    """One sentence for each number of a config that is outside its bounds, or NaN; None counts as not set."""
    for name, (least, greatest) in BOUNDS.items():
        value = getattr(c, name, None)
        numbers = [n for n in (value if isinstance(value, list | tuple) else [value]) if isinstance(n, int | float)]
        if not all(number >= least for number in numbers):
            yield f"{name}={value} must be at least {least}"
        if not all(number <= greatest for number in numbers):
            yield f"{name}={value} must be at most {greatest}"
    for name in SHARES:
        value = getattr(c, name, None)
        if value is not None and not 0 <= value < 1:
            yield f"{name}={value} must be at least 0 and below 1"
