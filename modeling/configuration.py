"""Configs: the fields every family shares, and the families' own."""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .legality import check_legal


@strict
class TransformerConfig(PreTrainedConfig):
    """Fields shared by all families, named as transformers names them.

    A block is: norm placement x attention x feed-forward. Fields left at None are derived: `num_key_value_heads` from
    `num_attention_heads` (fewer: grouped-query attention; 1: multi-query), `head_dim` from `hidden_size`,
    `intermediate_size` as 4 x `hidden_size` for an MLP and 8/3 x, rounded up to a multiple of 64, for a GLU (equal
    parameters; Shazeer 2020, section 2), `layer_types` as full attention everywhere.

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
    layer_types: list[str] | None = None
    norm_type: str = "rmsnorm"
    norm_position: str = "pre"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    mlp_type: str = "glu"
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
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
        if self.layer_types is None:
            self.layer_types = ["full_attention"] * self.num_hidden_layers
        super().__post_init__(**kwargs)

    def validate_architecture(self):
        check_legal(self)


@strict
class AnyformerDecoderConfig(TransformerConfig):
    """A causal decoder: GPT-2, LLaMA and everything between them, composed from the shared fields."""

    model_type = "anyformer_decoder"
    keys_to_ignore_at_inference = ["past_key_values"]


AnyformerDecoderConfig.register_for_auto_class()
