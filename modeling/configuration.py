"""Configs: the fields every family shares, and the families' own."""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .legality import ATTENTION_KINDS, attention_kinds, check_legal


def tensor_parallel_plan(config) -> dict[str, str]:
    """transformers' style for each module that is split over ranks: attention by heads, MLPs by channels."""
    gate = {"layers.*.mlp.gate_proj": "colwise"} if config.mlp_type == "glu" else {}
    plan = {**gate, "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise"}
    if config.position_encoding in ("alibi", "relative"):
        return plan  # one score bias holds all heads, so every rank keeps them all
    plan |= {f"layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"}
    if config.qk_norm:  # a rank's gradient covers its own heads only
        plan |= {f"layers.*.self_attn.{name}_norm": "replicated_with_grad_allreduce" for name in "qk"}
    return plan | {"layers.*.self_attn.o_proj": "rowwise"}


def pipeline_parallel_plan(config) -> dict[str, tuple[list[str], list[str]]] | None:
    """(Inputs, outputs) of each part of a pipeline, or None.

    Later stages receive the hidden states as `inputs_embeds`, so nothing may act on embeddings before the layers.
    """
    if (
        config.position_encoding in ("learned", "sinusoidal")
        or config.embedding_norm
        or config.embedding_multiplier != 1
    ):
        return None
    return {
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }


@strict
class TransformerConfig(PreTrainedConfig):
    """Fields shared by all families, named as transformers names them.

    A block is: norm placement x attention x feed-forward. Fields left at None are derived: `num_key_value_heads` from
    `num_attention_heads` (fewer: grouped-query attention; 1: multi-query), `head_dim` from `hidden_size`,
    `intermediate_size` as 4 x `hidden_size` for an MLP and 8/3 x, rounded up to a multiple of 64, for a GLU (equal
    parameters; Shazeer 2020, section 2), `attention_out_bias` from `attention_bias`, `attention_multiplier` (the scale
    of the scores) as 1 / sqrt(head_dim).

    `attention_pattern` names kinds of attention and is repeated over the layers: ["full_attention"] (default),
    "sliding_attention" (the last `sliding_window` tokens), "strided_attention" (the last `attention_stride` tokens and
    every `attention_stride`-th before them; Child et al. 2019, section 4.2). `layer_types`, which transformers' caches
    read, follows from it; it may be given instead, one name per layer.

    `position_encoding` is "none", "learned", "sinusoidal", "rotary" (`rope_parameters`, flat or one dict per layer
    type), "alibi" (`alibi_bias_max`) or "relative" (T5's: `relative_attention_num_buckets`, `..._max_distance`).

    Raises:
        ValueError: an illegal value or combination, with one sentence that says what is legal (see legality.py).
    """

    vocab_size: int = 32000
    hidden_size: int = 512
    intermediate_size: int | None = None
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    position_encoding: str = "rotary"
    rope_parameters: dict | None = None
    alibi_bias_max: int | float = 8.0
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    attention_pattern: list[str] | None = None
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    attention_stride: int | None = None
    norm_type: str = "rmsnorm"
    norm_position: str = "pre"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    mlp_type: str = "glu"
    hidden_act: str = "silu"
    attention_bias: bool = False
    attention_out_bias: bool | None = None
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_multiplier: int | float | None = None
    embedding_multiplier: int | float = 1.0
    embedding_norm: bool = False
    attn_logit_softcapping: int | float | None = None
    final_logit_softcapping: int | float | None = None
    hidden_dropout: int | float = 0.0
    attention_dropout: int | float = 0.0
    initializer_range: float = 0.02
    scale_residual_init: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs):
        check_legal(self)  # before deriving: a derived head_dim would hide heads that do not divide hidden_size
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            gated = -(-8 * self.hidden_size // (3 * 64)) * 64
            self.intermediate_size = gated if self.mlp_type == "glu" else 4 * self.hidden_size
        if self.attention_out_bias is None:
            self.attention_out_bias = self.attention_bias
        if self.layer_types is None:
            self.layer_types = [ATTENTION_KINDS[kind] for kind in self.attention_kinds]
        # A native class has one architecture and one plan; ours lists the modules that this config builds.
        self.base_model_tp_plan, self.base_model_pp_plan = tensor_parallel_plan(self), pipeline_parallel_plan(self)
        super().__post_init__(**kwargs)

    def convert_rope_params_to_dict(self, **kwargs):
        """As transformers 5.23: with one dict per layer type, theta's default belongs into each, not beside them."""
        nested = [self.rope_parameters[name] for name in set(self.layer_types) & set(self.rope_parameters or ())]
        if not nested or kwargs.get("rope_scaling"):
            return super().convert_rope_params_to_dict(**kwargs)
        theta = kwargs.pop("rope_theta", self.default_theta)
        for parameters in nested:
            parameters.setdefault("rope_theta", theta)
        self.standardize_rope_params()
        return kwargs

    def validate_architecture(self):
        check_legal(self)

    @property
    def attention_kinds(self) -> list[str]:
        """The kind of attention of each layer."""
        return attention_kinds(self)


@strict
class AnyformerDecoderConfig(TransformerConfig):
    """A causal decoder: GPT-2, LLaMA and everything between them, composed from the shared fields."""

    model_type = "anyformer_decoder"
    keys_to_ignore_at_inference = ["past_key_values"]


AnyformerDecoderConfig.register_for_auto_class()
