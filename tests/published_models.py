"""The published models that presets stand for: parameter counts, and what their config.json say."""

from dataclasses import dataclass

from transformers import CONFIG_MAPPING


@dataclass(frozen=True)
class Published:
    """A published model.

    count: parameters, a tied head counted once; of a decoder or sequence-to-sequence model with its head, of an encoder
        without. Buffers do not count: Marian's sines, and the bias of Marian's and BART's heads.
    source: where that count stands. "Hub" is the count of stored tensors that the Hub shows beside a checkpoint of
        safetensors (less the head where a tied one is stored all the same); "card" is the model card.
    model_type, fields: transformers' class, and the fields of config.json that differ from its defaults. Token ids are
        the tokenizer's business, and of no preset. model_type None: never published as a checkpoint.
    active: parameters at work on one token, of a mixture of experts.
    """

    count: int
    source: str
    model_type: str | None = None
    fields: dict | None = None
    active: int | None = None

    def config(self):
        """The native config."""
        return CONFIG_MAPPING[self.model_type](**(self.fields or {}))


LLAMA3_ROPE = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_ROPE |= {"original_max_position_embeddings": 8192}
LLAMA3 = {"vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
LLAMA3 |= {"max_position_embeddings": 131072, "rope_theta": 500000.0, "bos_token_id": None, "eos_token_id": None}
QWEN2 = {"max_position_embeddings": 131072, "rope_theta": 1000000.0, "use_sliding_window": False}
QWEN2 |= {"sliding_window": 131072}
QWEN3 = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000.0}
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
ALBERT = {"embedding_size": 128, "num_hidden_groups": 1}
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
DEBERTA2 = DEBERTA | {"position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
DEBERTA3 = DEBERTA2 | {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
MODERNBERT = {"classifier_pooling": "mean"}
MARIAN = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
MARIAN |= {"encoder_attention_heads": 8, "decoder_attention_heads": 8, "scale_embedding": True}
MARIAN |= {"max_position_embeddings": 512}
T5_BASE = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12}
T5_LARGE = {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_decoder_layers": 24, "num_heads": 16}
T5_V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
BART_BASE = {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072}
BART_BASE |= {"decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12}

PUBLISHED = {
    # ------------------------------------------------------------------------------------------------- decoders
    "gpt2": Published(124_439_808, "Hub: openai-community/gpt2 and its siblings, less stored causal masks", "gpt2"),
    "gpt2_medium": Published(354_823_168, "Hub", "gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2_large": Published(774_030_080, "Hub; card: 774M", "gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2_xl": Published(1_557_611_200, "Hub; card: 1.5B", "gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "gpt_neo_125m": Published(
        125_198_592,
        "Hub: EleutherAI/gpt-neo-125m, without masks",
        "gpt_neo",
        {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]]},
    ),
    "gpt_neo_1_3b": Published(1_315_575_808, "Hub: EleutherAI/gpt-neo-1.3B, without masks", "gpt_neo"),
    "imagegpt_small": Published(76_682_240, "Chen et al. 2020, section 3.2: 76M; exact by arithmetic", "imagegpt"),
    "imagegpt_medium": Published(
        455_489_536, "the same: 455M; exact by arithmetic", "imagegpt", {"n_embd": 1024, "n_layer": 36}
    ),
    "imagegpt_large": Published(
        1_362_914_304, "the same: 1.4B; exact by arithmetic", "imagegpt", {"n_embd": 1536, "n_layer": 48, "n_head": 16}
    ),
    "gpt3_small": Published(125_226_240, "Brown et al. 2020, table 2.1: 125M; exact by arithmetic"),
    "gpt3_175b": Published(174_604_259_328, "the same: 175.0B; exact by arithmetic"),
    "llama": Published(
        6_738_415_616,
        "Hub: meta-llama/Llama-2-7b-hf",
        "llama",
        {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    ),
    "llama2_70b": Published(
        68_976_648_192,
        "Hub: meta-llama/Llama-2-70b-hf",
        "llama",
        {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
        | {"num_key_value_heads": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    ),
    "llama_1b": Published(
        1_235_814_400,
        "Hub: meta-llama/Llama-3.2-1B; card: 1.23B",
        "llama",
        LLAMA3
        | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True}
        | {"rope_scaling": LLAMA3_ROPE | {"factor": 32.0}},
    ),
    "llama3_8b": Published(
        8_030_261_248,
        "Hub: meta-llama/Llama-3.1-8B",
        "llama",
        LLAMA3
        | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"rope_scaling": LLAMA3_ROPE | {"factor": 8.0}},
    ),
    "mistral_7b": Published(
        7_241_732_096,
        "Hub: mistralai/Mistral-7B-v0.1; Jiang et al. 2023: 7.3B",
        "mistral",
        {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 10000.0},
    ),
    "qwen2_0_5b": Published(
        494_032_768,
        "Hub: Qwen/Qwen2-0.5B; card: 0.49B",
        "qwen2",
        QWEN2
        | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
        | {"num_key_value_heads": 2, "tie_word_embeddings": True, "max_window_layers": 24},
    ),
    "qwen2_7b": Published(
        7_615_616_512,
        "Hub: Qwen/Qwen2-7B; card: 7.61B",
        "qwen2",
        QWEN2
        | {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
        | {"num_attention_heads": 28, "num_key_value_heads": 4, "max_window_layers": 28},
    ),
    "qwen3_0_6b": Published(
        596_049_920,
        "Hub: Qwen/Qwen3-0.6B, 751,632,384 with the stored head; card: 0.6B",
        "qwen3",
        QWEN3
        | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
        | {"tie_word_embeddings": True},
    ),
    "qwen3_8b": Published(
        8_190_735_360,
        "Hub: Qwen/Qwen3-8B; card: 8.2B, 6.95B of them not embeddings",
        "qwen3",
        QWEN3 | {"intermediate_size": 12288, "num_hidden_layers": 36},
    ),
    "bloom_560m": Published(
        559_214_592, "card of bigscience/bloom-560m", "bloom", {"n_embed": 1024, "n_layer": 24, "n_head": 16}
    ),
    "bloom_7b1": Published(
        7_069_016_064, "card of bigscience/bloom-7b1", "bloom", {"n_embed": 4096, "n_layer": 30, "n_head": 32}
    ),
    "mpt_7b": Published(
        6_649_286_656,
        "Hub: mosaicml/mpt-7b; card: 6.7B",
        "mpt",
        {"d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432, "no_bias": True},
    ),
    "pythia_160m": Published(
        162_322_944,
        "Hub: EleutherAI/pythia-160m, without masks; Biderman et al. 2023, table 1",
        "gpt_neox",
        {"vocab_size": 50304, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
        | {"num_attention_heads": 12, "rotary_pct": 0.25},
    ),
    "gemma3_1b": Published(
        999_885_952,
        "Hub: google/gemma-3-1b-pt",
        "gemma3_text",
        {"vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4}
        | {"num_key_value_heads": 1, "sliding_window": 512, "max_position_embeddings": 32768},
    ),
    "olmo2_1b": Published(
        1_484_916_736,
        "Hub: allenai/OLMo-2-0425-1B",
        "olmo2",
        {"vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        | {"num_attention_heads": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    ),
    "palm_8b": Published(8_632_012_800, "Chowdhery et al. 2022, table 1: 8.63B; exact by arithmetic"),
    "palm_540b": Published(540_356_474_880, "the same: 540.35B; exact by arithmetic"),
    # ------------------------------------------------------------------------------------------ mixtures of experts
    "mixtral_8x7b": Published(
        46_702_792_704,
        "Hub: mistralai/Mixtral-8x7B-v0.1; Jiang et al. 2024: 47B, 13B of them active",
        "mixtral",
        {"max_position_embeddings": 32768, "router_aux_loss_coef": 0.02},
        active=12_879_925_248,
    ),
    "qwen3_moe_30b_a3b": Published(
        30_532_122_624,
        "Hub: Qwen/Qwen3-30B-A3B; card: 30.5B, 3.3B of them active",
        "qwen3_moe",
        QWEN3
        | {"num_key_value_heads": 4, "num_hidden_layers": 48, "norm_topk_prob": True, "mlp_only_layers": []}
        | {"tie_word_embeddings": False},
        active=3_353_032_704,
    ),
    "gpt_oss_20b": Published(
        20_914_757_184,
        "Hub: openai/gpt-oss-20b; card: 21B, 3.6B of them active without the embeddings",
        "gpt_oss",
        {"num_hidden_layers": 24, "num_local_experts": 32},
        active=4_187_440_704,
    ),
    # ------------------------------------------------------------------------------------------------- encoders
    "bert_base": Published(109_482_240, "Devlin et al. 2019: 110M", "bert"),
    "bert_large": Published(335_141_888, "Devlin et al. 2019: 340M", "bert", LARGE),
    "roberta_base": Published(124_645_632, "Liu et al. 2019: 125M", "roberta", ROBERTA),
    "roberta_large": Published(355_359_744, "Liu et al. 2019: 355M", "roberta", ROBERTA | LARGE),
    "albert_base": Published(
        11_683_584,
        "Lan et al. 2020, table 1: 12M",
        "albert",
        ALBERT | {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
    ),
    "albert_large": Published(17_683_968, "Lan et al. 2020, table 1: 18M", "albert", ALBERT | LARGE),
    "deberta_base": Published(138_601_728, "card of microsoft/deberta-base: 140M", "deberta", DEBERTA),
    "deberta_v3_small": Published(
        141_304_320,
        "card of microsoft/deberta-v3-small: 44M, and 98M of embeddings",
        "deberta-v2",
        DEBERTA3 | {"num_hidden_layers": 6},
    ),
    "deberta_v3_base": Published(
        183_831_552,
        "card of microsoft/deberta-v3-base: 86M, and 98M of embeddings",
        "deberta-v2",
        DEBERTA3 | {"num_hidden_layers": 12},
    ),
    "deberta_v2_xlarge": Published(
        884_593_152,
        "card of microsoft/deberta-v2-xlarge: 900M",
        "deberta-v2",
        DEBERTA2 | {"conv_kernel_size": 3, "conv_act": "gelu"},
    ),
    "longformer_base": Published(
        148_659_456,
        "Hub: allenai/longformer-base-4096",
        "longformer",
        ROBERTA | {"max_position_embeddings": 4098, "attention_window": [512] * 12},
    ),
    "modernbert_base": Published(149_014_272, "Warner et al. 2024: 149M", "modernbert", MODERNBERT),
    "modernbert_large": Published(
        394_781_696,
        "Warner et al. 2024: 395M",
        "modernbert",
        MODERNBERT
        | {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16},
    ),
    # --------------------------------------------------------------------------------------------------- vision
    # With the pooler of transformers' base model; test_interop_vit.py counts with the classifiers of 1,000 classes.
    "vit_base_patch16_224": Published(
        86_389_248, "Hub: google/vit-base-patch16-224-in21k; Dosovitskiy et al. 2021, table 1: 86M", "vit"
    ),
    "vit_large_patch16_224": Published(
        304_351_232, "Hub: google/vit-large-patch16-224-in21k; Dosovitskiy et al. 2021, table 1: 307M", "vit", LARGE
    ),
    "vit_huge_patch14_224": Published(
        632_404_480,
        "Hub: google/vit-huge-patch14-224-in21k; Dosovitskiy et al. 2021, table 1: 632M",
        "vit",
        {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16}
        | {"patch_size": 14, "encoder_stride": 14},
    ),
    "deit_tiny_distilled_patch16_224": Published(
        5_561_856,
        "Hub: facebook/deit-tiny-distilled-patch16-224, its classifiers left out and a pooler added; card: 6M",
        "deit",
        {"hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 3},
    ),
    "deit_small_distilled_patch16_224": Published(
        21_814_272,
        "Hub: facebook/deit-small-distilled-patch16-224, likewise; card: 22M",
        "deit",
        {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6},
    ),
    "deit_base_distilled_patch16_224": Published(
        86_390_784, "Hub: facebook/deit-base-distilled-patch16-224, likewise; card: 87M", "deit"
    ),
    # ------------------------------------------------------------------------------------- sequence to sequence
    # Exact by arithmetic: 37,000 is the paper's "about 37000 tokens".
    "transformer_base": Published(63_082_496, "Vaswani et al. 2017, table 3: 65M"),
    "transformer_big": Published(214_245_376, "Vaswani et al. 2017, table 3: 213M"),
    "marian_en_de": Published(
        73_886_208,
        "Hub: Helsinki-NLP/opus-mt-en-de, 74,410,496 with two tables of 512 x 512 sines",
        "marian",
        MARIAN | {"activation_function": "swish"},
    ),
    "t5_small": Published(60_506_624, "Hub: google-t5/t5-small; Raffel et al. 2020: 60M", "t5"),
    "t5_base": Published(222_903_552, "Hub: google-t5/t5-base; Raffel et al. 2020: 220M", "t5", T5_BASE),
    "t5_large": Published(737_668_096, "Hub: google-t5/t5-large; Raffel et al. 2020: 770M", "t5", T5_LARGE),
    "t5_v1_1_small": Published(
        76_961_152,
        "Hub: google/t5-v1_1-small, google/flan-t5-small",
        "t5",
        T5_V1_1 | {"d_ff": 1024, "num_layers": 8, "num_decoder_layers": 8, "num_heads": 6},
    ),
    "t5_v1_1_base": Published(
        247_577_856, "Hub: google/t5-v1_1-base, google/flan-t5-base", "t5", T5_V1_1 | T5_BASE | {"d_ff": 2048}
    ),
    "mt5_small": Published(
        300_176_768, "Hub: google/mt5-small; Xue et al. 2021: 300M", "mt5", {"tie_word_embeddings": False}
    ),
    "ul2": Published(
        19_591_209_984,
        "Tay et al. 2022: 20B",
        "t5",
        {"d_model": 4096, "d_ff": 16384, "d_kv": 256, "num_layers": 32, "num_decoder_layers": 32, "num_heads": 16}
        | {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False},
    ),
    # Fedus et al. 2022 report sizes of models with 32 experts and more; counted is what the config.json describes.
    "switch_base_8": Published(
        619_339_008,
        "config.json of google/switch-base-8 in transformers' class",
        "switch_transformers",
        {"d_ff": 3072, "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6},
        active=222_977_280,
    ),
    "bart_base": Published(139_420_416, "Hub: facebook/bart-base; card: 140M", "bart", BART_BASE),
    "bart_large": Published(406_291_456, "Hub: facebook/bart-large; card: 400M", "bart"),
}
