"""The least and greatest value of each number of a config. Standard library only.

The greatest are far beyond any published model: a slip of the finger should be a sentence, not a list of 10**12 layers
that fills the memory, or a loss that counts 10**30 times.
"""

WIDTH, LENGTH, TOKENS = 2**20, 2**40, 2**28  # channels, positions, entries of a vocabulary

GREATEST = {
    **dict.fromkeys(("num_hidden_layers", "num_decoder_layers", "mask_decoder_layers", "conv_kernel_size"), 10_000),
    **dict.fromkeys(("hidden_size", "embedding_size", "head_dim", "num_attention_heads", "pooler_output_size"), WIDTH),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 2**24),
    **dict.fromkeys(("max_position_embeddings", "sliding_window", "attention_stride", "segment_length"), LENGTH),
    **dict.fromkeys(("attention_chunk_size", "floor_scale", "block_size", "block_stride"), LENGTH),
    "attn_scale": 1e6,
    **dict.fromkeys(("num_local_blocks", "num_sink_blocks"), LENGTH),
    "num_random_blocks": 1000,
    "block_seed": 2**31 - 1,
    **dict.fromkeys(("memory_length", "expert_capacity"), LENGTH),
    **dict.fromkeys(("relative_attention_max_distance", "max_relative_positions"), LENGTH),
    **dict.fromkeys(("relative_attention_num_buckets", "position_buckets"), WIDTH),
    **dict.fromkeys(("vocab_size", "output_vocab_size", "type_vocab_size", "position_offset"), TOKENS),
    **dict.fromkeys(("image_size", "patch_size", "encoder_stride", "num_channels", "num_register_tokens"), 2**16),
    **dict.fromkeys(("attention_multiplier", "embedding_multiplier", "logit_multiplier", "alibi_bias_max"), 1e6),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "routed_scaling_factor"), 1e6),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), WIDTH),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), WIDTH),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), WIDTH),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), WIDTH),
    "linear_conv_kernel_dim": 10_000,
    "num_nextn_predict_layers": 10_000,
    "mtp_loss_coef": 100,
    "residual_multiplier": 1e6,
    **dict.fromkeys(("swiglu_limit", "swiglu_alpha"), 1e6),
    "lambda_std_dev": 100,
    **dict.fromkeys(("router_aux_loss_coef", "router_z_loss_coef", "router_bias_update_rate"), 100),
    "router_jitter_noise": 100,
    **dict.fromkeys(("num_experts", "num_experts_per_tok", "n_group", "topk_group"), 2**16),
    **dict.fromkeys(("norm_eps", "linear_norm_eps"), 1),
    "initializer_range": 100,
}
# Of those that the tables of legality.py do not look at from below.
LEAST = {
    "relative_attention_num_buckets": 1,
    "relative_attention_max_distance": 1,
    **dict.fromkeys(("norm_eps", "linear_norm_eps"), 0),
    # Less leaves nothing to learn from: all weights, scores or logits are as good as equal.
    "initializer_range": 1e-12,  # transformers' own tests draw weights that are as good as 0
    **dict.fromkeys(("routed_scaling_factor", "embedding_multiplier", "logit_multiplier"), 1e-6),
    "residual_multiplier": 1e-6,
    **dict.fromkeys(("swiglu_limit", "swiglu_alpha"), 1e-6),
    "lambda_std_dev": 0,
    "linear_conv_kernel_dim": 1,
    "floor_scale": 1,
    "attn_scale": 0,
    "block_seed": 0,
    "mtp_loss_coef": 0,
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention_multiplier"), 1e-6),
}


def _numbers(value) -> list:
    numbers = value if isinstance(value, list | tuple) else [value]
    return [number for number in numbers if isinstance(number, int | float)]


def bound_faults(c):
    """One sentence for each number of a config outside its bounds."""
    for name, greatest in GREATEST.items():
        value = getattr(c, name, None)
        if not all(number <= greatest for number in _numbers(value)):  # also where it is NaN
            yield f"{name}={value} must be at most {greatest}"
        if name in LEAST and not all(number >= LEAST[name] for number in _numbers(value)):
            yield f"{name}={value} must be at least {LEAST[name]}"
