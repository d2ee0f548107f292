"""Tiny native models of every architecture, random in every parameter: a default of 0 or 1 would hide a mistake."""

import pytest
import torch
import transformers
from anyformer.pipelines.interop import matching
from anyformer.pipelines.interop.families import is_ours, native_class_names, native_classes
from anyformer.pipelines.interop.verify import MASKS, probe, scale_and_difference
from anyformer.pipelines.recipes.introspection import family_row
from packaging.version import Version
from transformers import CONFIG_MAPPING

CAUSAL_UMT5 = Version(transformers.__version__) >= Version("5.23")

TOKENS = {"vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
NEO = {"hidden_size": 32, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 64, "window_size": 6}
NEOX = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
NEOX |= {"max_position_embeddings": 64}
BLOOM = {"hidden_size": 48, "n_layer": 2}
MPT = {"d_model": 48, "n_layers": 2, "max_seq_len": 64, "use_cache": True}

FALCON = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64}
GEMMA = LLAMA | {"hidden_size": 64, "head_dim": 16}  # the factor of its embeddings is of fp32: 8 is exact
HYBRID = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 6}
HYBRID |= {"head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
GROUPS = 2 if Version(transformers.__version__) >= Version("5.23") else 1  # 5.17 norms all groups as one
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": GROUPS, "mamba_d_state": 6, "mamba_d_conv": 3}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
UNTIED = {"tie_word_embeddings": False}

LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0}
LLAMA3_ROPE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}

# name -> (model_type, fields): the least for each field that an architecture map translates.
DECODERS = {
    "gpt2": ("gpt2", GPT2),
    "gpt2_unscaled_untied": (
        "gpt2",
        GPT2
        | {"scale_attn_weights": False, "n_inner": 40, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "gpt2_cross_attention": ("gpt2", GPT2 | {"add_cross_attention": True}),
    "gpt_neo": ("gpt_neo", NEO | {"attention_types": [[["global", "local"], 2]]}),
    "gpt_neo_uneven": (
        "gpt_neo",
        NEO | {"attention_types": [[["local"], 3], [["global"], 1]], "intermediate_size": 40},
    ),
    "gpt_neox": ("gpt_neox", NEOX),
    "gpt_neox_sequential": ("gpt_neox", NEOX | {"use_parallel_residual": False}),
    "gptj": ("gptj", GPT2 | {"rotary_dim": 4}),
    "phi": ("phi", LLAMA),
    "phi_qk_norm": ("phi", LLAMA | {"qk_layernorm": True, "partial_rotary_factor": 0.25}),
    "falcon": ("falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_one_norm": (
        "falcon",
        FALCON | {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "bias": True},
    ),
    "cohere": ("cohere", LLAMA | {"logit_scale": 0.5}),
    "cohere2": ("cohere2", LLAMA | {"sliding_window": 6, "layer_types": SLIDING}),
    "granite": (
        "granite",
        LLAMA | {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0},
    ),
    "diffllama": ("diffllama", LLAMA | {"head_dim": 16}),
    "smollm3": ("smollm3", LLAMA | {"no_rope_layers": [1, 0, 1]}),
    "gemma": ("gemma", GEMMA),
    "gemma2": ("gemma2", GEMMA | {"query_pre_attn_scalar": 9, "sliding_window": 6}),
    "gemma3": ("gemma3_text", GEMMA | {"query_pre_attn_scalar": 9, "sliding_window": 6, "layer_types": SLIDING}),
    "olmo2": ("olmo2", LLAMA),
    "qwen3_5": ("qwen3_5_text", LLAMA | HYBRID),
    "bamba": ("bamba", LLAMA | MAMBA2 | {"attn_layer_indices": [1]}),
    "bamba_biases": (
        "bamba",
        LLAMA | MAMBA2 | {"attention_bias": True, "mlp_bias": True, "mamba_n_groups": 1, "attn_layer_indices": [1]},
    ),
    "granite_hybrid": (
        "granitemoehybrid",
        LLAMA
        | MAMBA2
        | {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_local_experts": 0}
        | {"shared_intermediate_size": 40, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}
        | {"logits_scaling": 4.0, "attention_multiplier": 0.5, "tie_word_embeddings": True},
    ),
    "granite_hybrid_rotary": (
        "granitemoehybrid",
        LLAMA
        | MAMBA2
        | {"layer_types": ["full_attention"] + ["linear_attention"] * 2, "num_local_experts": 0}
        | {"position_embedding_type": "rope"},
    ),
    "olmo_hybrid": (
        "olmo_hybrid",
        LLAMA | {name: HYBRID[name] for name in HYBRID if name != "head_dim"} | {"rms_norm_eps": 1e-3},
    ),
    "olmo_hybrid_rotary": (
        "olmo_hybrid",
        LLAMA
        | {"layer_types": ["linear_attention", "full_attention"] * 2, "num_hidden_layers": 4}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "linear_allow_neg_eigval": False},
    ),
    "olmo3": ("olmo3", LLAMA | {"sliding_window": 6, "layer_types": SLIDING}),
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


ENCODER = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
ENCODER |= {"max_position_embeddings": 64}
ROBERTA = ENCODER | {"pad_token_id": 1, "bos_token_id": 0}  # positions are counted from the padding token's number
DEBERTA = ENCODER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
MODERNBERT = ENCODER | {"local_attention": 12, "cls_token_id": 1, "sep_token_id": 2}

ENCODERS = {
    "bert": ("bert", ENCODER),
    "bert_one_segment": ("bert", ENCODER | {"type_vocab_size": 1, "hidden_act": "relu"}),
    "roberta": ("roberta", ROBERTA),
    "roberta_relu": ("roberta", ROBERTA | {"hidden_act": "relu", "type_vocab_size": 1}),
    "albert": ("albert", ENCODER | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2}),
    "albert_one_group": ("albert", ENCODER | {"embedding_size": 48, "hidden_act": "relu"}),
    "deberta": ("deberta", DEBERTA),
    "deberta_biased": (
        "deberta",
        DEBERTA
        | {"position_biased_input": True, "type_vocab_size": 2, "pos_att_type": ["c2p"], "max_relative_positions": 8},
    ),
    "deberta_queries_of_positions": ("deberta", DEBERTA | {"pos_att_type": ["p2c"], "max_relative_positions": 20}),
    "deberta_v2": ("deberta-v2", DEBERTA | {"max_relative_positions": 12, "type_vocab_size": 2}),
    "deberta_v3": (
        "deberta-v2",
        DEBERTA
        | {"share_att_key": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p"},
    ),
    "deberta_v2_shared": ("deberta-v2", DEBERTA | {"share_att_key": True, "max_relative_positions": 12}),
    "deberta_v2_convolution": (
        "deberta-v2",
        DEBERTA | {"position_biased_input": True, "conv_kernel_size": 3, "conv_act": "gelu", "conv_groups": 2},
    ),
    "longformer": ("longformer", ROBERTA | {"attention_window": 8, "sep_token_id": 2}),
    "longformer_window_per_layer": ("longformer", ROBERTA | {"attention_window": [12, 12, 12], "hidden_act": "relu"}),
    "modernbert": ("modernbert", MODERNBERT),
    "modernbert_all_biases": (
        "modernbert",
        MODERNBERT
        | dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
        | {"decoder_bias": False, "hidden_activation": "relu", "classifier_activation": "silu"}
        | {"classifier_pooling": "mean", "layer_types": ["full_attention"] * 3},
    ),
}

BART = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
BART |= {"decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
BART |= {"max_position_embeddings": 64, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
MARIAN = BART | {"decoder_start_token_id": 0}
# The decoder not deeper: transformers' T5 makes its cache as long as the encoder.
T5 = {"d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0}

SEQ2SEQ = {
    "t5": ("t5", T5),
    "t5_v1_1": ("t5", T5 | {"feed_forward_proj": "gated-gelu"} | UNTIED),
    "t5_gated_silu": ("t5", T5 | {"feed_forward_proj": "gated-silu", "num_decoder_layers": None}),
    "mt5": ("mt5", T5),
    "umt5": ("umt5", T5),
    "bart": ("bart", BART),
    "bart_scaled": ("bart", BART | {"scale_embedding": True, "activation_function": "relu"}),
    "marian": ("marian", MARIAN | {"scale_embedding": True}),
    "marian_unscaled": ("marian", MARIAN | {"activation_function": "swish"}),
}
MIXTRAL = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3_MOE = LLAMA | {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
LLAMA4 = LLAMA | {"head_dim": 16, "intermediate_size_mlp": 40, "num_local_experts": 4, "num_experts_per_tok": 2}
MIXTURES = {
    "mixtral": ("mixtral", MIXTRAL),
    "mixtral_sliding": ("mixtral", MIXTRAL | {"sliding_window": 6, "head_dim": 16, "num_local_experts": 3}),
    "qwen3_moe": ("qwen3_moe", QWEN3_MOE | {"norm_topk_prob": True, "decoder_sparse_step": 2}),
    "qwen3_next": ("qwen3_next", QWEN3_MOE | HYBRID | {"shared_expert_intermediate_size": 24, "mlp_only_layers": [1]}),
    "llama4": ("llama4_text", LLAMA4 | {"no_rope_layers": [1, 0, 1], "attention_chunk_size": 6, "floor_scale": 5}),
    "qwen3_moe_unnormalised": (
        "qwen3_moe",
        QWEN3_MOE | {"mlp_only_layers": [0], "attention_bias": True, "use_sliding_window": True, "sliding_window": 6},
    ),
}
UNCHUNKED = {"interleave_moe_layer_step": 2, "use_qk_norm": False, "attention_chunk_size": None}
if "chunked_attention" not in CONFIG_MAPPING["llama4_text"](**UNCHUNKED).layer_types:  # 5.17 cannot run these
    MIXTURES["llama4_dense_first"] = ("llama4_text", LLAMA4 | UNCHUNKED)
GPT_OSS = MIXTRAL | {
    "head_dim": 16,
    "sliding_window": 6,
    "layer_types": SLIDING,
    "rope_parameters": YARN | {"truncate": False},
}
MIXTURES["gpt_oss"] = ("gpt_oss", GPT_OSS | {"attention_bias": False})
if "swiglu_limit" in CONFIG_MAPPING["gpt_oss"].__dataclass_fields__:  # not in transformers < 5.23
    MIXTURES["gpt_oss_clamped"] = ("gpt_oss", GPT_OSS | {"swiglu_limit": 0.5, "swiglu_alpha": 2.0})
LATENT = LLAMA | {"num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6}
LATENT |= {"qk_rope_head_dim": 8, "v_head_dim": 7, "n_routed_experts": 8, "moe_intermediate_size": 24}
LATENT |= {"num_experts_per_tok": 3, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "n_shared_experts": 2}
MSCALE = {"mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1}
MIXTURES |= {
    "deepseek_v3": ("deepseek_v3", LATENT),
    "deepseek_v3_yarn": (
        "deepseek_v3",
        LATENT
        | {"rope_parameters": YARN | MSCALE, "rope_interleave": False, "q_lora_rank": None, "attention_bias": True}
        | {"n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-3},
    ),
    "deepseek_v2": ("deepseek_v2", LATENT | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0}),
    "kimi_linear": (
        "kimi_linear",
        {name: value for name, value in LATENT.items() if name not in ("first_k_dense_replace", "n_routed_experts")}
        | {"num_local_experts": 8, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"mlp_layer_types": ["dense", "sparse", "sparse"], "linear_num_heads": 4, "linear_head_dim": 6},
    ),
    "deepseek_v2_greedy": ("deepseek_v2", LATENT | {"topk_method": "greedy", "rope_parameters": YARN | MSCALE}),
}
SWITCH = T5 | {"num_layers": 4, "num_decoder_layers": 4, "num_experts": 4, "relative_attention_max_distance": 20}
SWITCHES = {
    "switch": ("switch_transformers", SWITCH | {"num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2}),
    "switch_all_sparse": (
        "switch_transformers",
        SWITCH
        | {"num_sparse_encoder_layers": 4, "num_sparse_decoder_layers": 3, "num_decoder_layers": 3}
        | {"dense_act_fn": "gelu", "layer_norm_epsilon": 1e-4},
    ),
}
# transformers < 5.23: ImageGPT divides scores by the integer part of the root of a head's size; of 16 it is the root.
IMAGEGPT = {"vocab_size": 17, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 2}
VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
VIT |= {"image_size": 24, "patch_size": 8, "encoder_stride": 8}
GREY_WITHOUT_BIASES = {"num_channels": 1, "qkv_bias": False, "hidden_act": "relu", "layer_norm_eps": 1e-3}
SMALL_POOLER = {"pooler_output_size": 12, "pooler_act": "relu", "patch_size": 4, "encoder_stride": 4}
IMAGES = {
    "imagegpt": ("imagegpt", IMAGEGPT),
    "imagegpt_narrow": (
        "imagegpt",
        IMAGEGPT | {"n_inner": 40, "activation_function": "relu", "scale_attn_weights": False},
    ),
    "vit": ("vit", VIT),
    "vit_grey_without_biases": ("vit", VIT | GREY_WITHOUT_BIASES),
    "vit_small_pooler": ("vit", VIT | SMALL_POOLER),
    "deit": ("deit", VIT),
    "deit_grey_without_biases": ("deit", VIT | GREY_WITHOUT_BIASES),
    "deit_small_pooler": ("deit", VIT | SMALL_POOLER),
}
NATIVE = DECODERS | ENCODERS | SEQ2SEQ | MIXTURES | SWITCHES | IMAGES
LABELS = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}


def heads_of(name: str) -> list[str]:
    """The Auto classes that an architecture's map, transformers and our family have."""
    architecture = matching.ARCHITECTURES[NATIVE[name][0]]
    natives = native_class_names(architecture.native)
    return [auto for auto in family_row(architecture.family).heads if auto in natives and auto in architecture.heads]


def twin_cases() -> list[tuple[str, str, str]]:
    """(name, Auto class, transformers' class): every head of the first model of each architecture, and of all models
    with experts or images; of the others the head of pretraining and a classifier."""
    seen, found = set(), []
    for name, (model_type, _) in NATIVE.items():
        two = (family_row(matching.ARCHITECTURES[model_type].family).pretraining, "AutoModelForSequenceClassification")
        every = model_type not in seen or name in MIXTURES | SWITCHES | IMAGES
        heads = [head for head in heads_of(name) if every or head in two]
        found += [(name, head, cls) for head in heads for cls in native_classes(model_type, head)]
        seen.add(model_type)
    # transformers < 5.23: UMT5 forgets on sdpa that its decoder is causal; generation gives it a mask.
    return [case for case in found if case[:2] != ("umt5", "AutoModelForSequenceClassification") or CAUSAL_UMT5]


def marked_twin_cases() -> list:
    """All of them as pytest's rows: by default every head once in a family, each of another architecture; the rest is
    slow."""
    by_kind = {}
    for case in twin_cases():
        by_kind.setdefault((matching.ARCHITECTURES[NATIVE[case[0]][0]].family, case[1]), []).append(case)
    fast = [cases[5 * turn % len(cases)] for turn, cases in enumerate(by_kind.values())]
    return [pytest.param(*case, marks=() if case in fast else pytest.mark.slow) for case in twin_cases()]


def native_config(name: str, **fields):
    model_type, own = NATIVE[name]
    return CONFIG_MAPPING[model_type](**({} if name in IMAGES else TOKENS) | own | fields)


def with_random_weights(module):
    """Every parameter drawn anew, the same in every call: a default of 0 or 1 would hide a mistake."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.25, generator=generator)
    return module.eval()


def randomise(model, seed: int = 0):
    """Draw every parameter anew, norms and biases included, large enough that each one moves the logits."""
    generator = torch.Generator().manual_seed(seed)
    # T5 does not scale its scores: what is large here saturates its softmax, and rounding grows from layer to layer.
    size = 0.15 if model.config.model_type in ("t5", "mt5", "umt5", "switch_transformers") else 0.25
    own = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]  # no table of sines
    own += [
        (name, tensor)
        for name, tensor in model.named_buffers()
        if name.endswith(("final_logits_bias", "e_score_correction_bias"))
    ]
    with torch.no_grad():
        for name, tensor in own:
            noise = torch.randn(tensor.shape, generator=generator)
            is_norm = tensor.ndim == 1 and name.endswith("weight")
            tensor.copy_(1 + 0.3 * noise if is_norm else size * noise)
    return model.eval()


def native_model(name: str, head: str = "AutoModelForCausalLM", **fields):
    """A model with random parameters; `head` is an Auto class or one of transformers' own."""
    config = native_config(name, **fields)
    # transformers < 5.23: UMT5 forgets on sdpa that its decoder is causal.
    backend = {"attn_implementation": "eager"} if config.model_type == "umt5" else {}
    build = getattr(transformers, head)
    model = (build.from_config if head.startswith("Auto") else build._from_config)(config, **backend)
    if name == "t5_v1_1" and hasattr(model, "lm_head"):  # tied by the class, and not in any published checkpoint
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return randomise(model)


def assert_same_logits(model, twin, padded: bool = True):
    """Outputs agree on a padded batch, or on one without padding, which is then given no mask at all."""
    inputs = probe(twin if is_ours(twin.config) else model, rows=3, tokens=40, seed=1, padded=padded)
    if (
        not padded and "input_ids" in inputs and inputs["input_ids"].ndim == 2
    ):  # ModernBERT's mean of choices needs a mask
        inputs = {name: tensor for name, tensor in inputs.items() if name not in MASKS}
    scale, difference = scale_and_difference(model, twin, inputs)
    native = twin if is_ours(model.config) else model
    tolerance = matching.architecture_of(native.config).tolerance
    assert scale > 0.1 and difference <= tolerance * scale, (difference / scale, padded)


def assert_same_weights(model, other):
    here, there = model.state_dict(), other.state_dict()
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        assert tensor.dtype == there[name].dtype and torch.equal(tensor, there[name]), name
