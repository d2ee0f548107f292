"""Configs: the fields that all families share, and those of decoders.

Where the package is installed, its rules/ check a config once, before anything is derived; then each class fills in its
None fields in `derive`.
"""

import dataclasses

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .parallel_plans import expert_parallel_plan, pipeline_parallel_plan, tensor_parallel_plan
from .traits import (
    ATTENTION_KINDS,
    PARTS,
    RULES,
    STATE_LAYER_TYPE,
    attention_kinds,
    cache_type,
    fields_of_others,
    mlp_kinds,
    own_fields,
)


@strict
class TransformerConfig(PreTrainedConfig):
    """Fields shared by all families, named as transformers names them.

    Fields left at None are derived as their comments say; a GLU's 8/3, rounded up to a multiple of 64, gives it as many
    parameters as an MLP (Shazeer 2020, section 2). `layer_types`, from which transformers chooses caches, follows from
    `attention_pattern`; or give it, one name a layer. `rope_parameters` are flat, or one dict per layer type.

    Raises:
        ValueError: an illegal value or combination, or an unknown field, with one sentence that says what is legal.
    """

    is_causal = True  # class attribute, not a config field: fixed per family
    # Trainer does not gather these outputs over an evaluation.
    keys_to_ignore_at_inference = ["cache", "past_key_values", "aux_loss", "z_loss", "router_logits", "router_losses"]
    keys_to_ignore_at_inference += ["router_load", "router_entropy", "router_dropped"]

    hidden_size: int = 512  # channels of the hidden states
    intermediate_size: int | None = None  # channels of a feed-forward; null: 4 x hidden_size, of a glu 8/3 x
    num_hidden_layers: int = 8  # layers; of seq2seq those of the encoder
    num_attention_heads: int = 8  # heads of attention
    num_key_value_heads: int | None = None  # heads of keys and values (Ainslie et al. 2023); null: num_attention_heads
    head_dim: int | None = None  # channels of a head; null: qk_rope_head_dim, or hidden_size / num_attention_heads
    position_encoding: str = "rotary"  # how positions are told apart
    rope_parameters: dict | None = None  # rotary (Su et al. 2021): {rope_type: default, rope_theta: 10000}
    no_rope_layers: list[int] | None = None  # rotary: for each layer 1, or 0: no positions there (Yang et al. 2025)
    alibi_bias_max: int | float = 8.0  # alibi: the slopes are 2^-(this / heads), ... (Press et al. 2022)
    relative_attention_num_buckets: int = 32  # relative: biases that a head learns (Raffel et al. 2020)
    relative_attention_max_distance: int = 128  # relative: distances from here on share the last bias
    relative_attention_shared: bool = True  # relative: one table for all layers, or one for each
    position_at: str = "embeddings"  # learned, sinusoidal: added there, to the input of all layers, or to queries_keys
    position_offset: int = 0  # learned: rows of the table before position 0; 2 in RoBERTa and BART
    attention_pattern: list[str] | None = None  # kinds of attention, repeated over the layers; null: full_attention
    layer_types: list[str] | None = None  # a kind for each layer, in place of attention_pattern
    sliding_window: int | None = None  # sliding_, local_global_attention: tokens that a query sees
    attention_stride: int | None = None  # strided_attention: the n last tokens, each n-th before (Child et al. 2019)
    norm_type: str = "rmsnorm"  # what the norms compute (rmsnorm: Zhang and Sennrich 2019)
    norm_position: str | dict[str, str] = "pre"  # pre, post (Xiong 2020), both, inside; or {kind of attention: one}
    block: str = "sequential"  # feed-forward behind attention, or parallel to it (Chowdhery et al. 2022)
    parallel_norms: int = 1  # block: parallel: one norm for both (PaLM, GPT-J), or 2, one for each (GPT-NeoX)
    residual_multiplier: int | float = 1.0  # what attention and feed-forward add is multiplied by it (Granite)
    norm_eps: float = 1e-5  # added to the variance in a norm
    norm_bias: bool = True  # layernorm: norms have biases
    mlp_type: str = "glu"  # feed-forward: two matrices, or a third as gate (Shazeer 2020)
    hidden_act: str = "silu"  # activation of the feed-forward; with a glu, silu is SwiGLU
    attention_bias: bool = False  # biases of queries, keys and values
    attention_out_bias: bool | None = None  # bias of the projection behind attention; null: as attention_bias
    attention_key_bias: bool | None = None  # bias of the keys; null: as attention_bias
    swiglu_limit: int | float = 7.0  # clamped_glu: gate and up are clamped at it (gpt-oss)
    swiglu_alpha: int | float = 1.702  # clamped_glu: the gate's sigmoid reads this times the gate
    mlp_bias: bool = False  # biases of the feed-forward, and of experts
    qk_norm: bool = False  # a norm over each head's queries and keys, before positions (Henry et al. 2020)
    qk_norm_width: bool = False  # qk_norm is over all heads at once (OLMo 2)
    attention_gate: str | None = None  # a gate on attention's output, for each head or channel (Qiu et al. 2025)
    attention_sinks: bool = False  # each head learns a score beside those of the tokens, of no value (gpt-oss)
    attention_multiplier: int | float | None = None  # the scores are multiplied by it; null: 1 / sqrt(head_dim)
    embedding_multiplier: int | float = 1.0  # the embeddings are multiplied by it (Vaswani et al.: sqrt(hidden_size))
    embedding_norm: bool = False  # a norm behind the embeddings
    attn_logit_softcapping: int | float | None = None  # scores s become c x tanh(s / c) (Gemma 2); null: they stay
    hidden_dropout: int | float = 0.0  # dropout on embeddings and on what attention and feed-forward add
    attention_dropout: int | float = 0.0  # dropout on attention probabilities
    initializer_range: float = 0.02  # standard deviation of new weights
    scale_residual_init: bool = True  # smaller new weights, by sqrt(2 x layers), behind a block's branches (GPT-2)
    fan_in_init: bool = False  # new weights have the deviation 1 / sqrt(inputs), embeddings 1 (T5)

    def __init_subclass__(cls, *args, **kwargs):
        cls.__eq__ = cls.same_fields
        super().__init_subclass__(*args, **kwargs)

    def same_fields(self, other) -> bool:
        """Compare field by field; the `__eq__` that dataclasses generate fails on a config that lacks a field."""
        if other.__class__ is not self.__class__:
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self)]
        return all(getattr(self, name, None) == getattr(other, name, None) for name in names)

    def __post_init__(self, **kwargs):
        for name in kwargs.keys() & (own_fields() | {"num_experts", "output_router_logits"}):
            setattr(self, name, kwargs[name])  # no field of this family, but the rules read it
        self.check()  # before deriving: a derived head_dim would hide heads that do not divide hidden_size
        if "check_names" in RULES:
            RULES["check_names"](self, kwargs)
        # transformers turns old spellings of `rope_parameters` into it below; the rules then check the config again.
        self._just_checked = not kwargs.keys() & {"rope_scaling", "rope_theta"}
        self.derive()
        super().__post_init__(**kwargs)

    def check(self) -> None:
        """Raise ValueError if a rule of the installed package refuses this config; saved code has no rules."""
        if "check_legal" in RULES:
            RULES["check_legal"](self)

    @classmethod
    def register_for_auto_class(cls, auto_class="AutoConfig"):
        """Does nothing: models write their config's `auto_map` entry (base.py); transformers would write another."""

    def derive(self) -> None:
        """Fill in fields left at None. A family derives its own fields first if shared ones depend on them."""
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = getattr(self, "qk_rope_head_dim", None) or self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            gated = -(-8 * self.hidden_size // (3 * 64)) * 64
            self.intermediate_size = gated if PARTS.mlp_type[self.mlp_type].gated else 4 * self.hidden_size
        if self.attention_out_bias is None:
            self.attention_out_bias = self.attention_bias
        if self.attention_key_bias is None:
            self.attention_key_bias = self.attention_bias
        for name, source in (pair for kind in self.attention_kinds for pair in ATTENTION_KINDS[kind].sizes.items()):
            if getattr(self, name) is None:
                setattr(self, name, getattr(self, source))
        if self.layer_types is None:
            self.layer_types = [cache_type(kind) for kind in self.attention_kinds]
        self.name_layers_without_rope()
        self.set_parallel_plans()

    def name_layers_without_rope(self):
        """Enter layers whose type has null `rope_parameters` as 0 in `no_rope_layers`."""
        unrotated = {name for name in self.layer_types if (self.rope_parameters or {}).get(name, 0) is None}
        if not unrotated:
            return
        self.no_rope_layers = [int(name not in unrotated) for name in self.layer_types]
        rotated = {name: value for name, value in self.rope_parameters.items() if value is not None}
        first = next((value for value in rotated.values() if isinstance(value, dict)), {})
        self.rope_parameters = rotated | {name: dict(first) for name in unrotated}  # read by no layer

    def to_dict(self):
        """The fields, without `layer_types` that only this package knows: a plain config, which Trainer reads when it
        resumes a run, refuses them. Loading derives them again."""
        fields = super().to_dict()
        if STATE_LAYER_TYPE in (fields.get("layer_types") or ()):
            fields["layer_types"] = None
        return fields

    def to_diff_dict(self):
        """What config.json holds: fields that the model's parts read, but for those with a default of null, false, 0 or
        1, which says that something is off. Loading gives fields that are not there their defaults."""
        fields, unread = super().to_diff_dict(), fields_of_others(self)
        for field in dataclasses.fields(self):
            is_off = field.default is None or (field.default in (False, 1) and field.default is not True)
            if is_off and fields.get(field.name) == field.default:
                unread.add(field.name)
        return {name: value for name, value in fields.items() if name not in unread}

    def set_parallel_plans(self):
        """Plans for the modules that this config builds: classes of transformers have one plan per architecture."""
        self.base_model_tp_plan, self.base_model_pp_plan = tensor_parallel_plan(self), pipeline_parallel_plan(self)

    def convert_rope_params_to_dict(self, **kwargs):
        """With one dict per layer type, theta's default goes into each dict, not beside them."""  # transformers < 5.23
        nested = [self.rope_parameters[name] for name in set(self.layer_types) & set(self.rope_parameters or ())]
        if not nested or kwargs.get("rope_scaling"):
            return super().convert_rope_params_to_dict(**kwargs)
        theta = kwargs.pop("rope_theta", self.default_theta)
        for parameters in nested:
            parameters.setdefault("rope_theta", theta)
        self.standardize_rope_params()
        return kwargs

    def validate_architecture(self):
        """Called after construction, when __post_init__ has just checked the config, and before saving."""
        if not self.__dict__.pop("_just_checked", False):
            self.check()

    @property
    def base_model_ep_plan(self) -> dict[str, str] | None:
        """A property, unlike the other plans: transformers would write an attribute into config.json."""
        return expert_parallel_plan(self)

    @property
    def attention_kinds(self) -> list[str]:
        """The kind of attention of each layer."""
        return attention_kinds(self)

    @property
    def has_global_tokens(self) -> bool:
        """Whether some layers read `global_attention_mask`."""
        return any(ATTENTION_KINDS[kind].global_tokens for kind in self.attention_kinds)

    @property
    def mlp_kinds(self) -> list[str]:
        """The kind of feed-forward of each layer, "dense" or "sparse"."""
        return mlp_kinds(self)


@strict
class TokenConfig(TransformerConfig):
    """Fields of all families that read tokens of a vocabulary."""

    attribute_map = {"logit_scale": "logit_multiplier"}  # the name by which serving engines read it

    vocab_size: int = 32000  # entries of the vocabulary; in a recipe the tokenizer says it
    max_position_embeddings: int = 2048  # the longest row; of learned positions the size of their table
    final_logit_softcapping: int | float | None = None  # logits l become c x tanh(l / c) (Gemma 2); null: they stay
    lm_head_bias: bool = False  # the vocabulary's head has a bias
    logit_multiplier: int | float = 1.0  # the logits are multiplied by it
    tie_word_embeddings: bool = True  # the head's matrix is that of the embeddings (Press and Wolf 2017)
    use_cache: bool = True  # generation keeps keys and values
    bos_token_id: int | None = None  # token at the beginning; the tokenizer says it
    eos_token_id: int | list[int] | None = None  # token or tokens at the end; the tokenizer says it
    pad_token_id: int | None = None  # token that fills rows up; the tokenizer says it


@strict
class CausalConfig(TokenConfig):
    """Fields of the decoder families. Those of delta nets (such as "gated_delta_attention") are named as Qwen3-Next's,
    those of "latent_attention" as DeepSeek-V3's; `kv_lora_rank` without `attention_pattern` makes all layers latent."""

    is_decoder = True  # class attribute, not a config field: transformers' encoder-decoder models ask for it
    add_cross_attention: bool = False  # layers attend to the tokens of an encoder that a forward is given, too

    value_residual: bool = False  # the first layer's values are mixed into all others' (Zhou et al. 2024)
    differential_attention: bool = False  # the difference of two softmaxes (Ye et al. 2024)
    lambda_std_dev: int | float = 0.1  # differential_attention: deviation of new weights of its difference
    block_size: int | None = None  # block_sparse_attention: tokens of a block (Zaheer et al. 2020, BigBird)
    num_local_blocks: int = 2  # block_sparse_attention: a query's own block and those just before it
    num_sink_blocks: int = 1  # block_sparse_attention: the first blocks, which all see
    num_random_blocks: int = 0  # block_sparse_attention: drawn for each block, of those before it
    block_stride: int | None = None  # block_sparse_attention: each n-th block before a query's own; null: none
    block_seed: int = 0  # block_sparse_attention: of the blocks that are drawn
    attn_temperature_tuning: bool = False  # queries of layers without positions grow with the position (Nakanishi 2025)
    floor_scale: int = 8192  # attn_temperature_tuning: tokens after which they grow
    attn_scale: int | float = 0.1  # attn_temperature_tuning: queries are multiplied by 1 + this x log(1 + steps)
    qk_l2_norm: bool = False  # rotated queries and keys are divided by the root of their mean square (Llama 4)
    attention_chunk_size: int | None = None  # chunked_attention: tokens of a chunk, which alone a query sees (Llama 4)
    prefix_lm: bool = False  # the tokens of a prompt see each other in both directions (Raffel et al. 2020)
    mask_token_id: int | None = None  # token in place of a hidden one, in a decoder that fills masks, too
    segment_length: int | None = None  # compressive_, recurrent_attention: tokens of a segment
    memory_length: int | None = None  # recurrent_attention: tokens before a segment that it sees (Dai et al. 2019)
    linear_num_key_heads: int | None = None  # delta nets: heads of queries and keys; null: num_attention_heads
    linear_num_value_heads: int | None = None  # delta nets: heads of values; null: linear_num_key_heads
    linear_key_head_dim: int | None = None  # delta nets: channels of a query or key; null: head_dim
    linear_value_head_dim: int | None = None  # delta nets: channels of a value; null: linear_key_head_dim
    linear_conv_kernel_dim: int = 4  # delta nets: tokens that the convolution before it sees
    linear_norm_eps: float | None = None  # delta nets: norm_eps of the norm of their output; null: norm_eps
    linear_allow_neg_eigval: bool = False  # delta nets: writes up to 2, so that states can flip (Grazzi et al. 2025)
    kv_lora_rank: int | None = None  # latent_attention: channels of which a token's keys and values are made
    q_lora_rank: int | None = None  # latent_: channels of which a token's queries are made; null: the hidden states
    qk_nope_head_dim: int | None = None  # latent_: channels of a query or key without positions
    qk_rope_head_dim: int | None = None  # latent_: channels with positions, in keys one set for all heads
    v_head_dim: int | None = None  # latent_: channels of a value
    rope_interleave: bool = True  # latent_: rotated channels lie in pairs (0, 1), (2, 3), ..

    @property
    def qk_head_dim(self) -> int | None:
        """Channels of a query in latent_attention; by this name transformers recognises such caches."""
        return self.qk_rope_head_dim and self.qk_nope_head_dim + self.qk_rope_head_dim

    def validate_layer_type(self):
        """Does nothing: the rules have checked the names, and transformers' list lacks the name of our cache."""


@strict
class AnyformerDecoderConfig(CausalConfig):
    """A causal decoder: GPT-2, LLaMA and everything between them, composed from the shared fields.

    Some of its kinds of attention have a memory that does not grow with the row: "linear_attention", delta nets,
    "compressive_attention" and "recurrent_attention", which `memory_length` without `attention_pattern` makes of all
    layers.
    """

    model_type = "anyformer_decoder"

    num_nextn_predict_layers: int = 0  # modules that predict tokens further ahead (DeepSeek-AI 2024, section 2.2)
    mtp_loss_coef: int | float = 0.3  # weight of their loss in training
    output_vocab_size: int | None = None  # the head predicts the first so many tokens; null: all (ImageGPT)
