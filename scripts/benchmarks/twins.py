"""The same decoder twice: transformers' LLaMA and ours, with equal weights."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anyformer import AnyformerDecoderConfig, AnyformerDecoderForCausalLM


def twins(vocab: int, hidden: int, layers: int, heads: int, positions: int, intermediate: int | None = None) -> tuple:
    """(native, ours) in fp32, untied, on sdpa."""
    torch.manual_seed(0)
    intermediate = intermediate or -(-8 * hidden // (3 * 64)) * 64
    native = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=positions,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            attn_implementation="sdpa",
        )
    )
    ours = AnyformerDecoderForCausalLM(
        AnyformerDecoderConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=positions,
            norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=native.config.bos_token_id,  # generation with an end-of-text token does more for each token
            eos_token_id=native.config.eos_token_id,
        )
    )
    ours.load_state_dict(native.state_dict())
    return native, ours
