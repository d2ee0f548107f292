"""Encoders and sequence-to-sequence models of every composition, what they read, and what their laws share."""

import torch
from torch.utils._device import _device_constructors

THETA, YARN = {"rope_type": "default", "rope_theta": 100.0}, {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
PRE = {"norm_position": "pre", "embedding_norm": False}
# Routers' losses are means over rows: of documents packed into one they are others than of the documents.
NO_LOSS = {"router_aux_loss_coef": 0.0, "mlp_bias": False}
DISENTANGLED = {"position_encoding": "disentangled", "type_vocab_size": 0, "max_relative_positions": 32}

# Fields beside those of conftest.tiny_encoder_config.
ENCODERS = {
    "bert": {},
    "roberta": {"position_offset": 2, "type_vocab_size": 1},
    "albert": {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "hidden_act": "gelu_new"},
    "deberta": DISENTANGLED | {"attention_key_bias": False, "position_biased_input": True},
    "deberta_v3": DISENTANGLED | {"position_buckets": 8, "share_att_key": True, "relative_embedding_norm": True},
    "deberta_conv": DISENTANGLED | {"position_buckets": 8, "conv_kernel_size": 3, "conv_groups": 2},
    "deberta_mask_decoder": DISENTANGLED | {"mask_decoder_layers": 2, "pos_att_type": ["c2p"]},
    "deberta_sliding": DISENTANGLED
    | {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 4, "num_key_value_heads": 2},
    "longformer": {"attention_pattern": ["local_global_attention"], "sliding_window": 3, "position_offset": 2},
    "modernbert": {
        "position_encoding": "rotary",
        "attention_pattern": ["full_attention", "sliding_attention"],
        "sliding_window": 4,
        "rope_parameters": {"full_attention": YARN | {"original_max_position_embeddings": 16}}
        | {"sliding_attention": THETA},
        "num_hidden_layers": 3,
        "norm_position": "pre",
        "norm_bias": False,
        "skip_first_norm": True,
        "mlp_type": "glu",
        "attention_bias": False,
        "mlp_bias": False,
        "head_bias": False,
        "type_vocab_size": 0,
        "pooler_type": "mean",
        "pooler_act": None,
        "task_head_transform": True,
    },
    "relative": PRE | {"position_encoding": "relative", "relative_attention_num_buckets": 8, "norm_type": "rmsnorm"},
    "alibi": PRE | {"position_encoding": "alibi", "num_key_value_heads": 2},
    "rotary": PRE | {"position_encoding": "rotary", "qk_norm": True, "tie_word_embeddings": False},
    "sinusoidal": {"position_encoding": "sinusoidal", "embedding_size": 16},
    "none": {"position_encoding": "none", "type_vocab_size": 0, "embedding_norm": False},
    "experts": NO_LOSS | {"num_experts": 4, "mlp_pattern": ["sparse", "dense"], "shared_expert_intermediate_size": 16},
    "deberta_experts": DISENTANGLED
    | NO_LOSS
    | {"num_experts": 3, "router_scoring": "sigmoid", "mask_decoder_layers": 2, "mlp_type": "glu"},
}
T5 = {"norm_position": "pre", "norm_type": "rmsnorm", "position_encoding": "relative", "attention_multiplier": 1.0}
T5 |= {"attention_bias": False, "mlp_bias": False, "embedding_multiplier": 1.0, "relative_attention_num_buckets": 8}
T5 |= {"decoder_start_token_id": 0}

# Fields beside those of conftest.tiny_seq2seq_config.
SEQ2SEQS = {
    "original": {},
    "t5": T5 | {"logit_multiplier": 32**-0.5},
    "umt5": T5 | {"relative_attention_shared": False, "mlp_type": "glu", "tie_word_embeddings": False},
    "bart": {
        "position_encoding": "learned",
        "position_offset": 2,
        "embedding_norm": True,
        "embedding_multiplier": 1.0,
        "hidden_act": "gelu",
        "decoder_start_token_id": 2,
        "lm_head_bias": True,
    },
    "rotary": {"position_encoding": "rotary", "norm_position": "pre", "num_key_value_heads": 2, "qk_norm": True},
    "alibi": {"position_encoding": "alibi", "num_decoder_layers": 1, "num_key_value_heads": 1},
    "switch": T5
    | NO_LOSS
    | {"num_experts": 4, "num_experts_per_tok": 1, "norm_topk_prob": False, "mlp_pattern": ["dense", "sparse"]}
    | {"router_jitter_noise": 0.0, "num_decoder_layers": 3},
    "deep_decoder": T5 | {"num_decoder_layers": 3, "relative_attention_shared": False},
}
# Fields beside those of conftest.tiny_vit_config.
VITS = {
    "vit": {},
    "deit": {"use_distillation_token": True, "distillation_head": True},
    "mae": {"position_encoding": "sinusoidal", "hidden_act": "gelu_new"},
    "rotary": {
        "position_encoding": "rotary",
        "num_register_tokens": 3,
        "norm_type": "rmsnorm",
        "mlp_type": "glu",
        "qk_norm": True,
        "num_key_value_heads": 2,
    },
    "half_rotary": {"position_encoding": "rotary", "rope_parameters": {"partial_rotary_factor": 0.5}},
    "mean": {"pooler_type": "mean", "num_channels": 1, "embedding_norm": True},
    "mean_with_registers": {"pooler_type": "mean", "num_register_tokens": 2, "norm_position": "post"},
    "none": {"position_encoding": "none", "attention_bias": False, "attn_logit_softcapping": 5.0},
}
# Schemes by which a token is known from others by its distance only: what is before the row does not matter.
DISTANCES_ONLY = ("none", "rotary", "alibi", "relative", "disentangled")


def tokens(batch=2, length=24, vocab=97, seed=0):
    return torch.randint(4, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def encoder_row(config, length, seed=0, batch=1) -> dict:
    """Inputs (batch, length) of all the kinds that the config's model reads."""
    row = {"input_ids": tokens(batch, length, config.vocab_size, seed)}
    if config.type_vocab_size:
        row["token_type_ids"] = row["input_ids"] % config.type_vocab_size
    if "local_global_attention" in config.attention_kinds:
        row["global_attention_mask"] = (row["input_ids"] % 5 == 0).long()
        row["global_attention_mask"][:, 0] = 1
    return row


def padded(rows: list[dict], side: str) -> dict:
    """Rows (1, T) of different lengths as one batch with its attention_mask."""
    longest = max(row["input_ids"].shape[1] for row in rows)
    batch = {}
    for name in (*rows[0], "attention_mask"):
        parts = []
        for row in rows:
            x = torch.ones_like(row["input_ids"]) if name == "attention_mask" else row[name]
            missing = longest - x.shape[1]
            parts.append(torch.nn.functional.pad(x, (0, missing) if side == "right" else (missing, 0)))
        batch[name] = torch.cat(parts)
    return batch


def packed(rows: list[dict]) -> dict:
    """Rows (1, T) as documents of one row."""
    return {name: torch.cat([row[name] for row in rows], dim=1) for name in rows[0]}


def positions_of(lengths) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])[None]


def close(got, expected, tolerance: float) -> None:
    """Equal up to `tolerance`, in units of the largest value where that is above 1: fp32 has seven digits."""
    assert got.shape == expected.shape
    error, scale = (got - expected).abs().max().item(), max(1.0, expected.abs().max().item())
    assert error <= tolerance * scale, f"{error / scale:.2e} of the largest value, {scale:.1f}"


def gradients_of(model, run) -> dict:
    model.zero_grad()
    run().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def poison_empty_memory(monkeypatch):
    """Fill whatever transformers allocates without writing to it, so that a forgotten buffer shows."""
    # torch caches which functions `with torch.device("meta")` catches. Were the first call to fall into this test, the
    # cache would hold the functions below instead of the real ones, and later tests would allocate for real.
    _device_constructors()
    for name in ("empty", "empty_like"):
        original = getattr(torch, name)

        def poisoned(*args, original=original, **kwargs):
            out = original(*args, **kwargs)
            if out.is_floating_point() and out.device.type == "cpu":
                out.fill_(float("nan"))
            return out

        monkeypatch.setattr(torch, name, poisoned)
