"""How many parameters a config describes, by arithmetic: nothing is built, nothing heavy is imported."""

import math

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import (
    ATTENTION_KINDS,
    MLP_TYPES,
    POSITION_SCHEMES,
    attention_kinds,
    has_experts,
    image_sides,
    mlp_kinds,
)


def count_active_parameters(config) -> int:
    """`count_parameters` without the experts that a token is not given to: the parameters at work on one token."""
    return count_parameters(config, active=True)


def count_parameters(config, active: bool = False) -> int:
    """Return the parameters of the model a family is known by, what is tied or shared counted once.

    Of a decoder that is ...ForCausalLM, of a sequence-to-sequence model ...ForConditionalGeneration, of an encoder or a
    vision transformer the base model with its pooler: published counts are of these. With `vocab_size=0` token
    embeddings and head are left out.

    `config` is one of ours, or a namespace of its fields, underived ones (None) included, and `model_type`.
    """
    parts, family = _Parts(config, active), FAMILIES[config.model_type]
    if family.of_images:
        return parts.vit()
    if family.has_decoder:
        return parts.seq2seq()
    return parts.encoder() if family.bidirectional else parts.decoder()


class _Parts:
    """The parts of a model as numbers, named as the modules of anyformer.modeling that have these parameters.

    D hidden size, E width of the embeddings, H query heads, G key/value heads, K head size, F feed-forward width;
    derived as in configuration.py where the config leaves them None.
    """

    def __init__(self, config, active: bool):
        c = self.c = config
        self.active = active
        self.D, self.H = c.hidden_size, c.num_attention_heads
        self.E = getattr(c, "embedding_size", None) or self.D
        self.G, self.K = c.num_key_value_heads or self.H, c.head_dim or self.D // self.H
        self.is_gated, self.scheme = MLP_TYPES[c.mlp_type].gated, POSITION_SCHEMES[c.position_encoding]
        self.F = c.intermediate_size or (-(-8 * self.D // (3 * 64)) * 64 if self.is_gated else 4 * self.D)
        self.key_bias = c.attention_bias if c.attention_key_bias is None else c.attention_key_bias
        self.out_bias = c.attention_bias if c.attention_out_bias is None else c.attention_out_bias

    def decoder(self) -> int:
        return self.c.vocab_size * self.D + self.stack(self.c.num_hidden_layers) + self.head()

    def seq2seq(self) -> int:
        encoder = self.stack(self.c.num_hidden_layers)
        decoder = self.stack(self.c.num_decoder_layers or self.c.num_hidden_layers, cross_attention=True)
        return self.c.vocab_size * self.D + encoder + decoder + self.head()

    def encoder(self) -> int:
        c, D, E = self.c, self.D, self.E
        tables = (c.vocab_size + c.type_vocab_size) * E
        if c.position_biased_input or c.mask_decoder_layers:
            tables += (c.max_position_embeddings + c.position_offset) * E
        projection = linear(E, D) if E != D else 0
        convolution = linear(D // c.conv_groups * c.conv_kernel_size, D) + self.norm(D) if c.conv_kernel_size else 0
        pooler = linear(D, D) if c.add_pooling_layer and c.pooler_act is not None else 0
        skipped_norm = self.norm(D) if c.skip_first_norm else 0
        groups = c.num_hidden_groups or c.num_hidden_layers
        stack = self.stack(groups, times=c.num_hidden_layers // groups)
        return tables + projection + stack + convolution + pooler - skipped_norm

    def vit(self) -> int:
        c, D = self.c, self.D
        front = self.tokens_with_positions() + c.num_register_tokens
        patches = linear(c.num_channels * c.patch_size**2, D) + front * D
        pooler = linear(D, c.pooler_output_size or D) if c.add_pooling_layer and c.pooler_act is not None else 0
        return patches + self.stack(c.num_hidden_layers) + pooler

    def tokens_with_positions(self) -> int:
        """Tokens in front of patches that have a learned position, too."""
        return (self.c.pooler_type == "cls") + self.c.use_distillation_token

    def stack(self, layers: int, cross_attention: bool = False, times: int = 1) -> int:
        """Layers, each of which runs `times` in a row, positions and the norms around them."""
        c, D = self.c, self.D
        norms = self.norm(D) * (3 if cross_attention else 2)
        attentions = self.attention() * (2 if cross_attention else 1)
        pattern = getattr(c, "mlp_pattern", None) or mlp_kinds(c)
        kinds = (pattern * layers)[:layers] if has_experts(c) else ["dense"] * layers
        feed_forwards = sum(self.experts() if kind == "sparse" else self.feed_forward(self.F) for kind in kinds)
        extra = sum(self.attention_extra(kind) for kind in (attention_kinds(c) * layers)[:layers])
        outer = self.norm(self.E) * c.embedding_norm + self.norm(D) * (c.norm_position == "pre")
        positions = self.scheme.parameters(self, layers * times)
        return layers * (norms + attentions) + feed_forwards + extra + outer + positions

    def attention(self) -> int:
        queries, keys = self.H * self.K, self.G * self.K
        projections = linear(self.D, queries, self.c.attention_bias) + linear(queries, self.D, self.out_bias)
        projections += linear(self.D, keys, self.key_bias) + linear(self.D, keys, self.c.attention_bias)
        return projections + (2 * self.norm(self.K) if self.c.qk_norm else 0)

    def attention_extra(self, kind: str) -> int:
        """What self-attention of this kind has beside the usual projections."""
        traits = ATTENTION_KINDS[kind]
        return traits.parameters(self) if traits.own_scores else self.scheme.attention_parameters(self)

    def feed_forward(self, width: int) -> int:
        gates = 2 if self.is_gated else 1
        return gates * linear(self.D, width, self.c.mlp_bias) + linear(width, self.D, self.c.mlp_bias)

    def experts(self) -> int:
        """The feed-forward of a sparse layer: experts, their router, the expert of all tokens and its gate."""
        c = self.c
        shared = self.feed_forward(c.shared_expert_intermediate_size) + self.D * c.shared_expert_gate
        number = c.num_experts_per_tok if self.active else c.num_experts
        router = linear(self.D, c.num_experts, bias=False)
        return number * self.feed_forward(c.moe_intermediate_size or self.F) + router + shared

    def learned_positions(self) -> int:
        """Vectors in a table of learned positions."""
        c = self.c
        if hasattr(c, "patch_size"):
            return self.tokens_with_positions() + math.prod(side // c.patch_size for side in image_sides(c))
        return c.max_position_embeddings + c.position_offset

    def head(self) -> int:
        c = self.c
        rows = getattr(c, "output_vocab_size", None) or c.vocab_size
        return rows * ((0 if c.tie_word_embeddings else self.D) + c.lm_head_bias)

    def norm(self, width: int) -> int:
        return width * (2 if self.c.norm_type == "layernorm" and self.c.norm_bias else 1)

    def linear(self, inputs: int, outputs: int, bias: bool = True) -> int:
        return linear(inputs, outputs, bias)


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Parameters of a linear layer."""
    return inputs * outputs + (outputs if bias else 0)
