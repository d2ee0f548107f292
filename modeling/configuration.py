"""Configs: the fields every family shares, and the families' own.

A config is checked once, before anything is derived; then each class fills in its None fields in `derive`.
"""

import dataclasses
import difflib
import warnings

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .legality import attention_kinds, cache_type, check_legal
from .legality_experts import mlp_kinds
from .parallel_plans import expert_parallel_plan, pipeline_parallel_plan, tensor_parallel_plan
from .traits import ATTENTION_KINDS, MLP_TYPES, own_fields


def warn_of_misspelt(config_class: type, names) -> None:
    """Warn of names beside the fields that are nearly one: transformers keeps any name, and nothing reads it."""
    fields = config_class.__dataclass_fields__
    for name in names:
        near = difflib.get_close_matches(name, fields, n=1, cutoff=0.85)
        if near and not hasattr(config_class, name) and name not in own_fields():
            warnings.warn(f"{config_class.__name__} has no field {name}; did you mean {near[0]}?", stacklevel=2)


@strict
class TransformerConfig(PreTrainedConfig):
    """Fields shared by all families, named as transformers names them.

    A block is: norm placement x attention x feed-forward. Fields left at None are derived: `num_key_value_heads` from
    `num_attention_heads` (fewer: grouped-query attention; 1: multi-query), `head_dim` from `hidden_size`,
    `intermediate_size` as 4 x `hidden_size` for an MLP and 8/3 x, rounded up to a multiple of 64, for a GLU (equal
    parameters; Shazeer 2020, section 2), `attention_out_bias` and `attention_key_bias` from `attention_bias`,
    `attention_multiplier` (the scale of the scores) as 1 / sqrt(head_dim).

    `attention_pattern` names kinds of attention and is repeated over the layers: ["full_attention"] (default),
    "sliding_attention" (the last `sliding_window` tokens; in an encoder so many to each side), "strided_attention"
    (the last `attention_stride` tokens and every `attention_stride`-th before them; Child et al. 2019, section 4.2),
    "local_global_attention" (`sliding_window` tokens to each side, and everywhere for tokens of the forward's
    `global_attention_mask`; Beltagy et al. 2020). `layer_types`, which transformers' caches read, follows from it; it
    may be given instead, one name per layer.

    `position_encoding` is "none", "learned" (`position_offset`: rows of the table before position 0, 2 in RoBERTa and
    BART), "sinusoidal", "rotary" (`rope_parameters`, flat or one dict per layer type), "alibi" (`alibi_bias_max`),
    "relative" (T5's: `relative_attention_num_buckets`, `..._max_distance`, one table for all layers or, with
    `relative_attention_shared=False`, one each) or, in an encoder, "disentangled" (DeBERTa's).

    New weights are normal with the standard deviation `initializer_range`; with `fan_in_init` instead 1 / sqrt(inputs),
    and embeddings 1 (T5). `scale_residual_init` divides that of what writes to the residual stream by sqrt(2 x layers).

    Raises:
        ValueError: an illegal value or combination, with one sentence that says what is legal (see legality.py).
    """

    is_causal = True  # class attribute, not a config field: fixed per family
    # Trainer does not gather these outputs over an evaluation.
    keys_to_ignore_at_inference = ["past_key_values", "aux_loss", "z_loss", "router_logits", "router_losses"]
    keys_to_ignore_at_inference += ["router_load", "router_entropy", "router_dropped"]

    hidden_size: int = 512  # channels of the hidden states
    intermediate_size: int | None = None  # channels of a feed-forward; null: 4 x hidden_size, of a glu 8/3 x
    num_hidden_layers: int = 8  # layers; of seq2seq those of the encoder
    num_attention_heads: int = 8  # heads of attention
    num_key_value_heads: int | None = None  # heads of keys and values (Ainslie et al. 2023); null: num_attention_heads
    head_dim: int | None = None  # channels of a head; null: hidden_size / num_attention_heads
    position_encoding: str = "rotary"  # how positions are told apart
    rope_parameters: dict | None = None  # rotary (Su et al. 2021): {rope_type: default, rope_theta: 10000}
    alibi_bias_max: int | float = 8.0  # alibi: the slopes are 2^-(this / heads), ... (Press et al. 2022)
    relative_attention_num_buckets: int = 32  # relative: biases that a head learns (Raffel et al. 2020)
    relative_attention_max_distance: int = 128  # relative: distances from here on share the last bias
    relative_attention_shared: bool = True  # relative: one table for all layers, or one for each
    position_offset: int = 0  # learned: rows of the table before position 0; 2 in RoBERTa and BART
    attention_pattern: list[str] | None = None  # kinds of attention, repeated over the layers; null: full_attention
    layer_types: list[str] | None = None  # a kind for each layer, in place of attention_pattern
    sliding_window: int | None = None  # sliding_, local_global_attention: tokens that a query sees
    attention_stride: int | None = None  # strided_attention: the n last tokens, each n-th before (Child et al. 2019)
    norm_type: str = "rmsnorm"  # what the norms compute (rmsnorm: Zhang and Sennrich 2019)
    norm_position: str = "pre"  # norms before attention and feed-forward, or behind the sums (Xiong et al. 2020)
    norm_eps: float = 1e-5  # added to the variance in a norm
    norm_bias: bool = True  # layernorm: norms have biases
    mlp_type: str = "glu"  # feed-forward: two matrices, or a third as gate (Shazeer 2020)
    hidden_act: str = "silu"  # activation of the feed-forward; with a glu, silu is SwiGLU
    attention_bias: bool = False  # biases of queries, keys and values
    attention_out_bias: bool | None = None  # bias of the projection behind attention; null: as attention_bias
    attention_key_bias: bool | None = None  # bias of the keys; null: as attention_bias
    mlp_bias: bool = False  # biases of the feed-forward; experts have none
    qk_norm: bool = False  # a norm over each head's queries and keys, before positions (Henry et al. 2020)
    attention_multiplier: int | float | None = None  # the scores are multiplied by it; null: 1 / sqrt(head_dim)
    embedding_multiplier: int | float = 1.0  # the embeddings are multiplied by it (Vaswani et al.: sqrt(hidden_size))
    embedding_norm: bool = False  # a norm behind the embeddings
    attn_logit_softcapping: int | float | None = None  # scores s become c x tanh(s / c) (Gemma 2); null: they stay
    hidden_dropout: int | float = 0.0  # dropout on embeddings and on what attention and feed-forward add
    attention_dropout: int | float = 0.0  # dropout on attention probabilities
    initializer_range: float = 0.02  # standard deviation of new weights
    scale_residual_init: bool = True  # smaller new weights, by sqrt(2 x layers), behind a block's branches (GPT-2)
    fan_in_init: bool = False  # new weights have the deviation 1 / sqrt(inputs), not initializer_range (T5)

    def __init_subclass__(cls, *args, **kwargs):
        cls.__eq__ = cls.same_fields
        super().__init_subclass__(*args, **kwargs)

    def same_fields(self, other) -> bool:
        """Equality, field by field. The one that dataclasses generate fails at a field that a config does not have."""
        if other.__class__ is not self.__class__:
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self)]
        return all(getattr(self, name, None) == getattr(other, name, None) for name in names)

    def __post_init__(self, **kwargs):
        for name in kwargs.keys() & (own_fields() | {"num_experts", "output_router_logits"}):
            setattr(self, name, kwargs[name])  # not a field of this family: legality.py checks it like one
        warn_of_misspelt(type(self), kwargs)
        check_legal(self)  # before deriving: a derived head_dim would hide heads that do not divide hidden_size
        # Old spellings of `rope_parameters`, which transformers turns into it below, are checked after that.
        self._just_checked = not kwargs.keys() & {"rope_scaling", "rope_theta"}
        self.derive()
        super().__post_init__(**kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class="AutoConfig"):
        """Nothing to do: a model enters its config's class with its own (base.py), and transformers would another."""

    def derive(self) -> None:
        """Fill in fields left at None. A family's own come first, where shared ones depend on them."""
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            gated = -(-8 * self.hidden_size // (3 * 64)) * 64
            self.intermediate_size = gated if MLP_TYPES[self.mlp_type].gated else 4 * self.hidden_size
        if self.attention_out_bias is None:
            self.attention_out_bias = self.attention_bias
        if self.attention_key_bias is None:
            self.attention_key_bias = self.attention_bias
        if self.layer_types is None:
            self.layer_types = [cache_type(kind) for kind in self.attention_kinds]
        self.set_parallel_plans()

    def set_parallel_plans(self):
        """Plans name the modules that this config builds; a native class has one architecture and one plan."""
        self.base_model_tp_plan, self.base_model_pp_plan = tensor_parallel_plan(self), pipeline_parallel_plan(self)

    def convert_rope_params_to_dict(self, **kwargs):
        """With one dict per layer type, theta's default belongs into each, not beside them."""  # transformers < 5.23
        nested = [self.rope_parameters[name] for name in set(self.layer_types) & set(self.rope_parameters or ())]
        if not nested or kwargs.get("rope_scaling"):
            return super().convert_rope_params_to_dict(**kwargs)
        theta = kwargs.pop("rope_theta", self.default_theta)
        for parameters in nested:
            parameters.setdefault("rope_theta", theta)
        self.standardize_rope_params()
        return kwargs

    def validate_architecture(self):
        """Called after construction, where __post_init__ has just checked, and before saving."""
        if not self.__dict__.pop("_just_checked", False):
            check_legal(self)

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
class RoutedConfig(TokenConfig):
    """Fields of the families whose layers may hold experts. (Libraries such as TRL recognise a mixture by them.)

    With `num_experts`, layers named "sparse" by `mlp_pattern` (repeated over the layers; None: all of them) have that
    many feed-forwards of `moe_intermediate_size` (None: `intermediate_size`), of which each token uses
    `num_experts_per_tok`, and one for all tokens beside them of `shared_expert_intermediate_size` (0: none; with
    `shared_expert_gate` it has a gate of its own). `mlp_layer_types` follows from the pattern, or is given instead.
    A router scores them by `router_scoring` ("softmax" or "sigmoid"), makes the weights of those chosen sum to 1
    (`norm_topk_prob`) and multiplies them by `routed_scaling_factor`; in training it sees its input times a random
    number of 1 +- `router_jitter_noise`. `expert_capacity` (None: no limit) is the most tokens of a row that an expert
    takes. `router_aux_loss_coef` and `router_z_loss_coef` weigh the losses of experts_losses.py, which are added in
    training only; `router_bias_update_rate` above 0 balances by a bias on the choice instead (see experts.py).
    `output_router_logits`: outputs hold the routers' logits and statistics in evaluation, too.
    """

    num_experts: int | None = None  # feed-forwards of a sparse layer; null: no layer is sparse
    num_experts_per_tok: int = 2  # experts that each token uses
    moe_intermediate_size: int | None = None  # channels within an expert; null: intermediate_size
    shared_expert_intermediate_size: int = 0  # channels of an expert for all tokens; 0: none (Dai et al. 2024)
    shared_expert_gate: bool = False  # the shared expert has a gate of its own
    mlp_pattern: list[str] | None = None  # sparse and dense, repeated over the layers; null: all are sparse
    mlp_layer_types: list[str] | None = None  # sparse or dense for each layer, in place of mlp_pattern
    router_scoring: str = "softmax"  # how a router scores experts
    norm_topk_prob: bool = True  # the weights of the chosen experts sum to 1
    routed_scaling_factor: int | float = 1.0  # the weights of the chosen experts are multiplied by it
    router_aux_loss_coef: int | float = 0.01  # weight of the loss that balances experts (Fedus et al. 2021)
    router_z_loss_coef: int | float = 0.0  # weight of the loss on large router logits (Zoph et al. 2022)
    router_bias_update_rate: int | float = 0.0  # step of a bias that balances without a loss (Wang et al. 2024)
    router_jitter_noise: int | float = 0.0  # a router's input times 1 +- up to this (Fedus et al. 2021)
    expert_capacity: int | None = None  # the most tokens of a row that an expert takes; null: no limit
    output_router_logits: bool = False  # outputs hold router logits and statistics in evaluation, too

    def derive(self):
        super().derive()
        if self.num_experts is not None and self.moe_intermediate_size is None:
            self.moe_intermediate_size = self.intermediate_size
        if self.num_experts is not None and self.mlp_layer_types is None:
            self.mlp_layer_types = self.mlp_kinds
        if self.num_experts is None:
            vars(self).pop("output_router_logits", None)


def _router_logits_asked_for(config) -> bool:
    if "output_router_logits" not in vars(config):
        raise AttributeError("output_router_logits: this config has no experts")
    return vars(config)["output_router_logits"]


# Libraries take a config with this attribute for that of a mixture; a class's default would be an attribute of all.
RoutedConfig.output_router_logits = property(
    _router_logits_asked_for, lambda config, value: vars(config).update(output_router_logits=value)
)


@strict
class AnyformerDecoderConfig(TokenConfig):
    """A causal decoder: GPT-2, LLaMA and everything between them, composed from the shared fields.

    Beside the shared kinds of attention it has three whose memory does not grow with the row: "linear_attention",
    "compressive_attention" (segments of `segment_length` tokens, and a matrix of all before them, written by
    `memory_update` "delta" or "linear") and "recurrent_attention" (such segments, and the `memory_length` tokens before
    each; with `memory_length` and no `attention_pattern` all layers are of this kind).

    The head predicts the first `output_vocab_size` tokens (None: all): those beyond, such as the start token of
    ImageGPT, are only read, and are no labels.
    """

    model_type = "anyformer_decoder"

    output_vocab_size: int | None = None  # the head predicts the first so many tokens; null: all (ImageGPT)
    segment_length: int | None = None  # compressive_, recurrent_attention: tokens of a segment
    memory_length: int | None = None  # recurrent_attention: tokens before a segment that it sees (Dai et al. 2019)
    memory_update: str = "delta"  # compressive_attention: how the memory is written (Munkhdalai et al. 2024)

    def validate_layer_type(self):
        """Nothing to do: legality.py has checked the names, and transformers' list lacks that of our own cache."""


@strict
class AnyformerMoeConfig(RoutedConfig):
    """A decoder with mixture-of-experts layers: Mixtral, Qwen3-MoE, DeepSeek's routing."""

    model_type = "anyformer_moe"

    num_experts: int | None = 8  # feed-forwards of a sparse layer


@strict
class AnyformerEncoderConfig(RoutedConfig):
    """A bidirectional encoder: BERT, RoBERTa, ALBERT, DeBERTa, Longformer, ModernBERT and mixtures of them.

    Embeddings: `type_vocab_size` segments (Devlin et al. 2019, section 3; 0: none); `embedding_size` below
    `hidden_size` factorises them and `num_hidden_groups` below `num_hidden_layers` shares layers (Lan et al. 2020,
    section 3.1); `skip_first_norm` leaves out the first layer's attention norm, as the embedding norm is just before
    it (Warner et al. 2024, section 2.1).

    Disentangled attention (He et al. 2021, eq. 4): `pos_att_type` (None: both) names "c2p" and "p2c" terms;
    `position_buckets` and `max_relative_positions` (None: `max_position_embeddings`) size the table,
    `relative_embedding_norm` normalises it,
    `share_att_key` projects it by the layers' own query and key weights. `position_biased_input` adds learned absolute
    positions to the input, `mask_decoder_layers` applies the last layer again, with absolute positions in its queries,
    before masked tokens are predicted (the same, section 3.2), `conv_kernel_size` adds a convolution beside layer 0.

    Heads: the masked-LM head is dense + `head_act` (None: `hidden_act`) + norm before the vocabulary; sequence heads
    read the first token or the mean of all (`pooler_type`) through a dense layer with `pooler_act` (None: no layer),
    and the bare model has it, too, with `add_pooling_layer`; with `task_head_transform` every task head has the
    masked-LM head's dense + act + norm instead (ModernBERT). `classifier_dropout`: None is `hidden_dropout`.
    """

    model_type = "anyformer_encoder"
    is_causal = False

    type_vocab_size: int = 0  # kinds of segments (Devlin et al. 2019); 0: none
    embedding_size: int | None = None  # channels of the embeddings (Lan et al. 2020); null: hidden_size
    num_hidden_groups: int | None = None  # groups of layers that share weights (Lan et al. 2020); null: none do
    skip_first_norm: bool = False  # no first norm (Warner et al. 2024); needs embedding_norm and norm_position: pre
    pos_att_type: list[str] | None = None  # disentangled: terms c2p and p2c (He et al. 2021); null: both
    share_att_key: bool = False  # disentangled: positions are projected by the layers' own query and key weights
    position_buckets: int | None = None  # disentangled: buckets of distances; null: each distance has its own
    max_relative_positions: int | None = None  # disentangled: the largest distance; null: max_position_embeddings
    relative_embedding_norm: bool = False  # disentangled: the table of distances is normalised
    position_biased_input: bool = False  # disentangled: learned absolute positions are added to the input
    mask_decoder_layers: int = 0  # disentangled: times that the last layer runs again before the masked-LM head
    conv_kernel_size: int = 0  # width of a convolution beside the first layer (DeBERTa-v2); 0: none
    conv_groups: int = 1  # groups of that convolution
    conv_act: str = "tanh"  # activation of that convolution
    head_act: str | None = None  # activation of the masked-LM head; null: hidden_act
    head_bias: bool = True  # the dense layer of the masked-LM head has a bias
    lm_head_bias: bool = True  # the vocabulary's head has a bias
    pooler_type: str = "cls"  # what heads of whole texts read: the first token, or the mean of all
    pooler_act: str | None = "tanh"  # activation of the pooler's dense layer; null: no layer
    add_pooling_layer: bool = True  # the model without a head has the pooler, too
    task_head_transform: bool = False  # task heads begin as the masked-LM head does (Warner et al. 2024)
    classifier_dropout: int | float | None = None  # dropout before a classifier; null: hidden_dropout
    sep_token_id: int | None = None  # token between texts; the tokenizer says it
    cls_token_id: int | None = None  # token before a text; the tokenizer says it
    mask_token_id: int | None = None  # token in place of a hidden one; the tokenizer says it
    use_cache: bool = False  # unused: an encoder generates nothing

    def derive(self):
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        if self.num_hidden_groups is None:
            self.num_hidden_groups = self.num_hidden_layers
        if self.pos_att_type is None:
            self.pos_att_type = ["c2p", "p2c"]
        super().derive()
