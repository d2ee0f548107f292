"""The zoo: models of every family and composition, what they read, and what their laws (test_laws.py) share."""

from dataclasses import dataclass, field

import pytest
import torch
from anyformer.modeling.families import FAMILIES

THETA, YARN = {"rope_type": "default", "rope_theta": 100.0}, {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
PRE = {"norm_position": "pre", "embedding_norm": False}
# Routers' losses are means over rows: of documents packed into one they are others than of the documents.
NO_LOSS = {"router_aux_loss_coef": 0.0, "mlp_bias": False}
DISENTANGLED = {"position_encoding": "disentangled", "type_vocab_size": 0, "max_relative_positions": 32}

TINY = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "norm_type": "layernorm",
    "norm_position": "post",
    "mlp_type": "mlp",
    "attention_bias": True,
    "mlp_bias": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TINY_DECODER = {name: TINY[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
TINY_DECODER |= {name: TINY[name] for name in TINY if name.endswith("token_id")}
TINY_DECODER |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
# family -> the fields of its tiny config: LLaMA-like decoders, BERT, the original Transformer, images of 3 x 4 patches
TINY_FIELDS = {
    "decoder": TINY_DECODER,
    "moe": TINY_DECODER | {"num_experts": 4, "intermediate_size": 48},
    "encoder": TINY
    | {"position_encoding": "learned", "embedding_norm": True, "type_vocab_size": 2, "hidden_act": "gelu"}
    | {"cls_token_id": 1, "sep_token_id": 2, "mask_token_id": 3},
    "seq2seq": TINY
    | {"position_encoding": "sinusoidal", "embedding_multiplier": 32**0.5, "hidden_act": "relu"}
    | {"decoder_start_token_id": 1},
    "vit": {name: TINY[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    | {"intermediate_size": 48, "image_size": [12, 16], "patch_size": 4, "num_labels": 5},
}

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 2.1, 2.2, 2.3],
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 10000.0,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 500000.0,
    },
}
LINEAR = {"attention_pattern": ["linear_attention"]}
WINDOW = {"attention_pattern": ["sliding_attention"], "sliding_window": 4}
WINDOWS = {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 4}
HEADS_OF_STATES = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 16}
LATENT = {"kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10}
LATENT |= {"num_key_value_heads": None}
COMPRESSIVE = {"attention_pattern": ["compressive_attention"], "segment_length": 5}
DECODERS = {
    "rotary": {},
    "none": {"position_encoding": "none"},
    "learned": {"position_encoding": "learned", "norm_type": "layernorm", "mlp_type": "mlp", "hidden_act": "gelu"},
    "post": {"norm_position": "post"},
    "mqa": {"num_key_value_heads": 1},
    "mha-bias": {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "untied-layernorm-nobias": {"tie_word_embeddings": False, "norm_type": "layernorm", "norm_bias": False},
    "llama3-rope": {"rope_parameters": ROPES["llama3"]},
    "yarn": {"rope_parameters": ROPES["yarn"]},
    "sinusoidal": {"position_encoding": "sinusoidal", "embedding_multiplier": 5.5, "embedding_norm": True},
    "alibi": {"position_encoding": "alibi", "num_attention_heads": 4},
    "alibi-six-heads": {"position_encoding": "alibi", "num_attention_heads": 6, "head_dim": 8},
    "relative": {"position_encoding": "relative", "relative_attention_num_buckets": 8},
    "relative-sliding": WINDOWS | {"position_encoding": "relative"},
    "sliding": WINDOW,
    "sliding-and-full-own-theta": WINDOWS
    | {"rope_parameters": {"sliding_attention": ROPES["default"], "full_attention": ROPES["yarn"]}},
    "strided": {"attention_pattern": ["strided_attention", "full_attention"], "attention_stride": 3},
    "alibi-strided-sliding": {
        "position_encoding": "alibi",
        "attention_pattern": ["strided_attention", "sliding_attention"],
        "attention_stride": 4,
        "sliding_window": 4,
    },
    "chunked": {"attention_pattern": ["chunked_attention", "full_attention"], "attention_chunk_size": 5},
    "alibi-chunked": {
        "position_encoding": "alibi",
        "attention_pattern": ["chunked_attention"],
        "attention_chunk_size": 4,
    },
    "blocks": {"attention_pattern": ["block_sparse_attention"], "block_size": 3, "num_local_blocks": 1},
    "blocks-random-full": {
        "attention_pattern": ["block_sparse_attention", "full_attention"],
        "block_size": 2,
        "num_random_blocks": 2,
        "num_sink_blocks": 0,
    },
    "alibi-blocks-strided": {
        "position_encoding": "alibi",
        "attention_pattern": ["block_sparse_attention"],
        "block_size": 2,
        "block_stride": 3,
        "num_local_blocks": 1,
    },
    "learned-at-layers": {"position_encoding": "learned", "position_at": "layers", "embedding_norm": True},
    "sinusoidal-at-layers-linear": {
        "position_encoding": "sinusoidal",
        "position_at": "layers",
        "attention_pattern": ["linear_attention", "full_attention"],
    },
    "learned-of-queries-and-keys": {"position_encoding": "learned", "position_at": "queries_keys", "qk_norm": True},
    "sinusoidal-of-queries-and-keys-sliding": WINDOWS
    | {"position_encoding": "sinusoidal", "position_at": "queries_keys", "attention_gate": "channel"},
    "tempered-none": {"position_encoding": "none", "attn_temperature_tuning": True, "floor_scale": 3},
    "llama4": {
        "attention_pattern": ["chunked_attention", "full_attention"],
        "attention_chunk_size": 5,
        "rope_parameters": {"chunked_attention": ROPES["default"], "full_attention": None},
        "qk_l2_norm": True,
        "attn_temperature_tuning": True,
        "floor_scale": 4,
        "attn_scale": 0.5,
    },
    "qk-norm-partial-rotary": {
        "qk_norm": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "scaled-and-capped": {"attention_multiplier": 1.0, "final_logit_softcapping": 3.0, "attention_out_bias": True},
    "parallel": {"block": "parallel"},
    "parallel-two-norms": {"block": "parallel", "parallel_norms": 2, "norm_type": "layernorm", "mlp_type": "mlp"},
    "sandwich": {"norm_position": "both", "norm_type": "rmsnorm_zero_centered", "qk_norm": True},
    "inside-scaled": {"norm_position": "inside", "residual_multiplier": 0.5, "qk_norm": True, "qk_norm_width": True},
    "no-rope-layers": {"no_rope_layers": [1, 0]},
    "no-rope-full": WINDOWS | {"rope_parameters": {"sliding_attention": ROPES["default"], "full_attention": None}},
    "gated": {"attention_gate": "channel", "attention_bias": True},
    "tokens-ahead": {"num_nextn_predict_layers": 2},
    "cross-attention-alone": {"add_cross_attention": True},
    "gated-heads-sliding": WINDOW | {"attention_gate": "head"},
    "sinks": {"attention_sinks": True},
    "value-residual": {"value_residual": True, "norm_position": "both", "num_hidden_layers": 3},
    "value-residual-parallel": {"value_residual": True, "block": "parallel", "attention_sinks": True},
    "differential": {"differential_attention": True},
    "differential-sliding": WINDOWS
    | {
        "differential_attention": True,
        "value_residual": True,
        "position_encoding": "relative",
        "attention_gate": "head",
    },
    "sinks-sliding-alibi": WINDOWS | {"attention_sinks": True, "position_encoding": "alibi", "attention_gate": "head"},
    "latent": LATENT | {"q_lora_rank": 9},
    "latent-full-yarn": LATENT
    | {"attention_pattern": ["latent_attention", "full_attention"], "rope_interleave": False}
    | {"rope_parameters": ROPES["yarn"] | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "linear": LINEAR,
    "linear-none": LINEAR | {"position_encoding": "none"},
    "linear-learned-mqa": LINEAR | {"position_encoding": "learned", "num_key_value_heads": 1, "qk_norm": True},
    "linear-full": {"attention_pattern": ["linear_attention"] * 2 + ["full_attention"], "num_hidden_layers": 3},
    "linear-sliding": WINDOW | {"attention_pattern": ["linear_attention", "sliding_attention"]},
    "delta": {"attention_pattern": ["gated_delta_attention"], "position_encoding": "none"},
    "delta-full": HEADS_OF_STATES | {"attention_pattern": ["gated_delta_attention", "full_attention"]},
    "kimi-delta": {"attention_pattern": ["kimi_delta_attention"], "position_encoding": "none"},
    "kimi-delta-full": HEADS_OF_STATES
    | {"attention_pattern": ["kimi_delta_attention", "full_attention"], "linear_allow_neg_eigval": True},
    "mamba2": {"attention_pattern": ["mamba2_attention"], "position_encoding": "none"},
    "mamba2-full": HEADS_OF_STATES | {"attention_pattern": ["mamba2_attention", "full_attention"]},
    "delta-pre-full-inside": {
        "attention_pattern": ["gated_delta_attention", "full_attention"],
        "norm_position": {"gated_delta_attention": "pre", "full_attention": "inside"},
        "linear_allow_neg_eigval": True,
    },
    "compressive": COMPRESSIVE,
    "compressive-alibi": COMPRESSIVE | {"position_encoding": "alibi"},
    "compressive-learned": COMPRESSIVE | {"position_encoding": "learned", "num_key_value_heads": 4},
    "compressive-full": {"attention_pattern": ["compressive_attention", "full_attention"], "segment_length": 5},
    "compressive-sliding-relative": {
        "attention_pattern": ["compressive_attention", "sliding_attention"],
        "segment_length": 4,
        "sliding_window": 3,
        "position_encoding": "relative",
        "relative_attention_shared": False,
    },
    "recurrent": {"segment_length": 5, "memory_length": 7},
    "recurrent-alibi": {"segment_length": 4, "memory_length": 3, "position_encoding": "alibi"},
    "recurrent-relative": {"segment_length": 4, "memory_length": 4, "position_encoding": "relative"},
    "recurrent-full-linear": {
        "attention_pattern": ["recurrent_attention", "full_attention", "linear_attention"],
        "segment_length": 6,
        "memory_length": 2,
        "num_hidden_layers": 3,
        "position_encoding": "none",
    },
}
MIXTURES = {
    "mixtral": {},
    "qwen3": {"num_experts": 6, "num_experts_per_tok": 3, "mlp_pattern": ["dense", "sparse"], "qk_norm": True},
    "deepseek": {
        "router_scoring": "sigmoid",
        "routed_scaling_factor": 2.5,
        "router_bias_update_rate": 0.01,
        "shared_expert_intermediate_size": 16,
        "shared_expert_gate": True,
        "moe_intermediate_size": 24,
    },
    "deepseek_v3": LATENT
    | {"num_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "router_scoring": "sigmoid"}
    | {"router_bias_update_rate": 0.01, "shared_expert_intermediate_size": 16, "mlp_pattern": ["dense", "sparse"]},
    "llama4": {
        "router_scoring": "sigmoid",
        "norm_topk_prob": False,
        "apply_router_weight_on_input": True,
        "shared_expert_intermediate_size": 16,
    },
    "switch": {"mlp_type": "mlp", "hidden_act": "relu", "num_experts_per_tok": 1, "norm_topk_prob": False},
    "gpt_oss": WINDOWS
    | {
        "attention_sinks": True,
        "mlp_type": "clamped_glu",
        "swiglu_limit": 0.5,
        "value_residual": True,
        "attention_bias": True,
        "mlp_bias": True,
        "router_bias": True,
    },
    "switch_biases": {"mlp_type": "mlp", "hidden_act": "relu", "mlp_bias": True, "shared_expert_intermediate_size": 16},
    "linear": LINEAR,
    "recurrent_and_compressive": {
        "attention_pattern": ["recurrent_attention", "compressive_attention"],
        "segment_length": 5,
        "memory_length": 4,
        "position_encoding": "alibi",
    },
    "odd_sizes": {"moe_intermediate_size": 21, "position_encoding": "alibi", "norm_position": "post"},
}
# Fields beside those of conftest.tiny_encoder_config.
ENCODERS = {
    "bert": {},
    "roberta": {"position_offset": 2, "type_vocab_size": 1},
    "albert": {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "hidden_act": "gelu_new"},
    "deberta": DISENTANGLED | {"attention_key_bias": False, "position_biased_input": True},
    "deberta_v3": DISENTANGLED | {"position_buckets": 8, "share_att_key": True, "relative_embedding_norm": True},
    "deberta_conv": DISENTANGLED | {"position_buckets": 8, "conv_kernel_size": 3, "conv_groups": 2},
    "deberta_mask_decoder": DISENTANGLED | {"mask_decoder_layers": 2, "pos_att_type": ["c2p"]},
    "deberta_sliding": DISENTANGLED | WINDOWS | {"num_key_value_heads": 2},
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
    "albert_at_layers": {"position_at": "layers", "num_hidden_layers": 4, "num_hidden_groups": 2},
    "queries_and_keys": {"position_encoding": "sinusoidal", "position_at": "queries_keys"},
    "none": {"position_encoding": "none", "type_vocab_size": 0, "embedding_norm": False},
    "strided": PRE
    | {"position_encoding": "rotary", "attention_pattern": ["strided_attention", "full_attention"]}
    | {"attention_stride": 3},
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
    "universal": {"position_at": "layers"},
    "alibi": {"position_encoding": "alibi", "num_decoder_layers": 1, "num_key_value_heads": 1},
    "switch": T5
    | NO_LOSS
    | {"num_experts": 4, "num_experts_per_tok": 1, "norm_topk_prob": False, "mlp_pattern": ["dense", "sparse"]}
    | {"router_jitter_noise": 0.0, "num_decoder_layers": 3, "logit_multiplier": 32**-0.5},
    "t5_windows": T5 | WINDOWS,
    "rotary_windows": WINDOW | {"position_encoding": "rotary", "norm_position": "pre", "num_decoder_layers": 3},
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
    "sinusoidal_at_layers": {"position_encoding": "sinusoidal", "position_at": "layers"},
}
# Schemes by which a token is known from others by its distance only: what is before the row does not matter.
DISTANCES_ONLY = ("none", "rotary", "alibi", "relative", "disentangled")


def a_share(rows, share: int) -> list:
    """Rows of pytest's parameters, tuples where they are several: one of so many by default, the others slow."""
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*row, marks=pytest.mark.slow if number % share else ()) for number, row in enumerate(rows)]


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


def labelled_row(name: str, config, seed: int) -> dict:
    """One row with all the labels of a head's class."""
    drawn, most = torch.Generator().manual_seed(seed), 97 if "LM" in name or "Generation" in name else 2
    if name.startswith("AnyformerViT"):
        pixels = {"pixel_values": torch.randn(3, *config.image_size, generator=drawn)}
        kept = (
            {"bool_masked_pos": torch.arange(12) % 3 == 0} if "Masked" in name else {"labels": torch.tensor(seed % 2)}
        )
        return pixels | kept
    row = {"input_ids": torch.randint(4, 97, (8,), generator=drawn)}
    row["attention_mask"] = (torch.arange(8) < 8 - seed).long()
    if "QuestionAnswering" in name:
        return row | {"start_positions": torch.tensor(seed), "end_positions": torch.tensor(3)}
    if "MultipleChoice" in name:
        return {key: torch.stack([x, x]) for key, x in row.items()} | {"labels": torch.tensor(seed % 2)}
    if "SequenceClassification" in name or "ImageClassification" in name:
        return row | {"labels": torch.tensor(seed % 2)}
    row["labels"] = (row["input_ids"] % most).masked_fill(row["attention_mask"] == 0, -100)
    return row | ({"next_sentence_label": torch.tensor(seed % 2)} if "PreTraining" in name else {})


def labelled_batch(name: str, config, rows: int = 2) -> dict:
    """Rows of `labelled_row` as one batch."""
    each = [labelled_row(name, config, seed) for seed in range(rows)]
    return {key: torch.stack([row[key] for row in each]) for key in each[0]}


def positions_of(lengths) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])[None]


def close(got, expected, tolerance: float) -> None:
    """Equal up to `tolerance`, in units of the largest value where that is above 1: fp32 has seven digits."""
    assert got.shape == expected.shape
    error, scale = (got - expected).abs().max().item(), max(1.0, expected.abs().max().item())
    assert error <= tolerance * scale, f"{error / scale:.2e} of the largest value, {scale:.1f}"


EXACT = 1e-9  # in fp64, of the largest value: nothing but rounding may differ, on any machine
# What models compute in fp32 whatever their type: losses, rotary angles, routers, and sums of linear attention. These
# differ in the eighth digit of the largest value.
FP32 = 1e-5


def exactness(model) -> float:
    """How far apart outputs of the model may be that are equal in mathematics."""
    config = model.config
    sums = {"linear_attention", "compressive_attention"} & set(getattr(config, "attention_kinds", None) or ())
    return FP32 if sums or getattr(config, "num_experts", None) or model.dtype == torch.float32 else EXACT


def gradients_of(model, run) -> dict:
    model.zero_grad()
    run().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# ------------------------------------------------------------------------------------------------------- the zoo

HEADS = {row.module: row.heads[row.pretraining] for row in FAMILIES.values()}


def config_class(family: str):
    row = FAMILIES[f"anyformer_{family}"]
    return row.load(row.config)


def tiny(family: str, **own):
    """A config of a few thousand parameters: the family's tiny fields, and `own` over them."""
    return config_class(family)(**(TINY_FIELDS[family] | own))


@dataclass(frozen=True)
class Variant:
    """One model of the zoo: its family and the fields beside those of the family's tiny config."""

    family: str
    name: str
    fields: dict = field(hash=False)

    def __str__(self) -> str:
        return f"{self.family}-{self.name}"

    @property
    def reads_text(self) -> bool:
        return self.family != "vit"

    @property
    def generates(self) -> bool:
        return self.family in ("decoder", "moe", "seq2seq")

    def model_class(self):
        import anyformer

        return getattr(anyformer, HEADS[self.family])

    def config(self, **more):
        return tiny(self.family, **self.fields | more)

    def model(self, dtype=torch.float64, **more):
        """In fp64, where equal mathematics is equal to 1e-9 on every machine; every parameter and bias is random."""
        from native_models import randomise

        model = randomise(self.model_class()(self.config(**more)))
        generator = torch.Generator().manual_seed(1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.uniform_(generator=generator)
        return model.to(dtype).eval()

    def inputs(self, model, length=24, batch=2, seed=0) -> dict:
        """What a forward pass reads: of two rows of tokens the second is shorter by a quarter."""
        config = model.config
        if self.family == "vit":
            drawn = torch.Generator().manual_seed(seed)
            return {
                "pixel_values": torch.randn(batch, config.num_channels, *config.image_size, generator=drawn).double()
            }
        if self.family == "encoder":
            return encoder_row(config, length, seed, batch)
        row = {"input_ids": tokens(batch, length, config.vocab_size, seed)}
        if self.family == "seq2seq":
            row["decoder_input_ids"] = tokens(batch, max(1, 3 * length // 4), config.vocab_size, seed + 100)
        return row


ZOO = [
    Variant(family, name, fields)
    for family, variants in (
        ("decoder", DECODERS),
        ("moe", MIXTURES),
        ("encoder", ENCODERS),
        ("seq2seq", SEQ2SEQS),
        ("vit", VITS),
    )
    for name, fields in variants.items()
]
