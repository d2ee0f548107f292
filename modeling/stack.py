"""Embeddings, positions and layers: the part that the models of all families share.

Shapes as in attention.py, and E the width of the embeddings.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers.utils.generic import is_flash_attention_requested

from .attention import Attention, build_attention
from .attention_masks import (
    document_ids_from_positions,
    documents_of_borders,
    flash_sequences,
    layer_kinds,
    make_masks,
    takes_no_mask,
)
from .block import build_block, build_norm
from .positions import (
    RotaryEmbedding,
    RotaryEmbeddingPerLayerType,
    apply_positions,
    build_positions,
)
from .traits import FOLDED_MASKS, POSITION_SCHEMES, SCORE_BIASES, adjustments, block_forms

ROTARY = (RotaryEmbedding, RotaryEmbeddingPerLayerType)


@dataclass
class Batch:
    """Positions, documents, padding and cache of the tokens in one forward pass.

    attention_mask: None, a (B, S) padding mask, or ready masks. position_ids: (B or 1, T). token_positions: what the
    position scheme reads, `position_ids` or the grid of an image. past_key_values: a cache of self-attention, or None.
    documents: None, or (B, T) ids of packed documents, which do not see each other. seen_by_all: None or (B, P), not 0
    at global tokens, or in causal models at a prefix. loss_mask: (B, T), 0 at tokens that do not count in the routers'
    losses and statistics; None: all count. unpadded: None, or how padded rows became one row (unpadding.py). distances:
    None, or with a paged cache {kind of attention: (T, S)}, the positions of queries minus those of keys.
    """

    attention_mask: torch.Tensor | dict | None
    position_ids: torch.Tensor
    token_positions: torch.Tensor | tuple
    past_key_values: object = None
    documents: torch.Tensor | None = None
    seen_by_all: torch.Tensor | None = None
    loss_mask: torch.Tensor | None = None
    unpadded: object = None
    distances: dict | None = None


class TransformerStack:
    """A mixin for a PreTrainedModel: call `build_stack` in `__init__`, and `read_batch`, then `run_stack` in `forward`.

    `config.is_causal` says whether tokens see those after them. Packed rows: `position_ids` that restart at 0 for each
    document, or `cu_seq_lens_q` as flash kernels take them. Tokens then see their document only, whatever `use_cache`
    and `attention_mask` say. With a cache passed in, `position_ids` are positions only.
    """

    of_patches = False  # whether positions are those of the patches of an image

    def build_stack(self, config, cross_attention: bool = False) -> None:
        groups = getattr(config, "num_hidden_groups", None) or config.num_hidden_layers
        width = getattr(config, "embedding_size", None) or config.hidden_size
        positions = build_positions(config, self.of_patches)
        # Libraries look for a rotary module under this name; weights of the other schemes are saved under ours.
        self.positions_name = "rotary_emb" if isinstance(positions, ROTARY) else "position_encoding"
        setattr(self, self.positions_name, positions)
        biased = POSITION_SCHEMES[config.position_encoding].acts_on == "scores"
        self.score_biases, self.fold_masks = (SCORE_BIASES.load(), FOLDED_MASKS.load()) if biased else (None, None)
        self.embedding_norm = build_norm(config, width) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.hidden_dropout)
        # One block for each layer, or for each group of layers that share it.
        self.layers_per_group = config.num_hidden_layers // groups
        self.layers = nn.ModuleList()
        for i in range(0, config.num_hidden_layers, self.layers_per_group):
            attentions = [build_attention(config, i)]
            if cross_attention:
                attentions.append(Attention(config, i, cross_attention=True))
            self.layers.append(build_block(config, i, *attentions))
        self.shared = [row.shared.load() for row in adjustments(config) if row.shared is not None]
        # A post-norm block already ends in a norm.
        self.norm = nn.Identity() if block_forms(config)[-1] == "post" else build_norm(config)
        self.attention_kinds = config.attention_kinds
        self.layer_kinds = layer_kinds(config)
        self.has_experts = "sparse" in config.mlp_kinds
        self.gradient_checkpointing = False

    @property
    def positions(self) -> nn.Module | None:
        """The module of the position scheme: `rotary_emb`, or of any other scheme `position_encoding`."""
        return getattr(self, self.positions_name)

    def read_batch(
        self, x_BTE, attention_mask=None, position_ids=None, past_key_values=None, packs=True, paged=False, **given
    ) -> Batch:
        """Make a Batch from token embeddings and a forward's other arguments.

        packs: whether `position_ids` or `cu_seq_lens_q` tell documents apart. paged: whether the row holds texts whose
            keys are in a paged cache. given: forward's further arguments; `cu_seq_lens_q` is read.
        """
        documents = None
        if packs and given.get("cu_seq_lens_q") is not None:
            documents, positions = documents_of_borders(given["cu_seq_lens_q"], x_BTE.shape[:2])
            position_ids = positions if position_ids is None else position_ids
        elif packs and position_ids is not None and x_BTE.shape[1] > 1:
            documents = document_ids_from_positions(position_ids.expand(x_BTE.shape[0], -1))
        can_read = documents is not None and documents.device.type == "cpu" and not torch.compiler.is_compiling()
        if can_read and torch.equal(documents[:, 0], documents[:, -1]):  # one document per row: nothing to hide
            documents = None
        if documents is None and not paged and hasattr(self.positions, "check_length"):
            self.positions.check_length(x_BTE.shape[1])
        if position_ids is None:
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(x_BTE.shape[1], device=x_BTE.device) + past).unsqueeze(0)
        return Batch(
            attention_mask,
            position_ids,
            token_positions=position_ids,
            past_key_values=getattr(past_key_values, "self_attention_cache", past_key_values),
            documents=documents,
            loss_mask=attention_mask,
        )

    def run_stack(
        self, x_BTE, batch: Batch, added_BTE=None, output_router_logits=None, kept_tokens=None, **context
    ) -> tuple:
        """Token embeddings (B, T, E) -> hidden states (B, T, D), and the fields of lm_head.RouterFields, if any.

        added_BTE: embeddings to add to those of tokens and positions. output_router_logits: None: the config's value.
        kept_tokens: those for which the last layer computes its feed-forward part (see TransformerBlock); None: all.
        context: keyword arguments for the layers.
        """
        x_BTD, per_layer, common = self.enter(x_BTE, batch, added_BTE)
        if kept_tokens is not None:
            per_layer[-1] = per_layer[-1] | {"kept_tokens": kept_tokens}
        x_BTD, routed = self.run_layers(x_BTD, per_layer, **context | common)
        x_BTD, fields = self.norm(x_BTD), {}
        if routed:
            fields = self.router_fields(routed, x_BTE.shape[:2], batch.unpadded, batch.loss_mask, output_router_logits)
        return x_BTD, fields

    def enter(self, x_BTE, batch: Batch, added_BTE=None) -> tuple:
        """Return (hidden states before layer 0 (B, T, D), keyword arguments per layer, those for all layers)."""
        if self.config.embedding_multiplier != 1:
            x_BTE = x_BTE * self.config.embedding_multiplier
        masks, seen = self.build_masks(x_BTE, batch)
        names = self.attention_kinds
        x_BTE, per_layer = apply_positions(
            self.positions, x_BTE, batch, names, self.layer_kinds, self.config, self.score_biases
        )
        x_BTD = self.project_embeddings(x_BTE if added_BTE is None else x_BTE + added_BTE, batch.position_ids)
        per_layer = [{"attention_mask": masks[kind], **arguments} for kind, arguments in zip(names, per_layer)]
        # transformers' attention over paged caches drops a score bias that comes beside a mask.  # transformers < 5.23
        folds = self.fold_masks is not None
        if folds and (takes_no_mask(self.config) or self.config._attn_implementation == "paged|sdpa"):
            per_layer = self.fold_masks(per_layer, self.config.is_causal)
        seen |= {"position_ids": batch.position_ids, "past_key_values": batch.past_key_values}
        return x_BTD, per_layer, seen

    def build_masks(self, x_BTE, batch: Batch) -> tuple:
        """({kind of attention: mask}, further keyword arguments for all layers, such as the borders of documents)."""
        attention_mask, documents, seen = batch.attention_mask, batch.documents, {}
        if documents is not None and is_flash_attention_requested(self.config):
            seen = flash_sequences(documents, attention_mask)
            if attention_mask is not None:  # layers without flash kernels still need to know what is padding
                documents = documents.masked_fill(attention_mask == 0, -1)
            attention_mask = None
        caches, tokens = batch.past_key_values, batch.seen_by_all
        return make_masks(self.config, x_BTE, attention_mask, caches, documents, self.layer_kinds, tokens), seen

    def project_embeddings(self, x_BTE, position_ids):
        """Norm and dropout of the embeddings before the first layer. (B, T, E) -> (B, T, D)."""
        return self.dropout(x_BTE if self.embedding_norm is None else self.embedding_norm(x_BTE))

    def each_layer(self):
        """The block of each layer, in order."""
        if self.layers_per_group == 1:
            return self.layers
        return [layer for layer in self.layers for _ in range(self.layers_per_group)]

    def run_layers(self, x_BTD, per_layer: list[dict], **context) -> tuple:
        """Hidden states (B, T, D) after the last layer, and per sparse layer: (router, logits, index, kept)."""
        routed = []
        for make in self.shared:
            context["shared"] = make()
        for layer, arguments in zip(self.each_layer(), per_layer):
            x_BTD = run_layer(layer, x_BTD, routed, **arguments, **context)
        return x_BTD, routed


def run_layer(layer, x_BTD, routed: list, **context):
    """Run a layer, (B, T, D) -> (B, T, D). Appends the experts' routing to `routed`."""
    if "positions_of_layers" in context:
        x_BTD = x_BTD + context.pop("positions_of_layers")
    trained = []
    if getattr(layer, "gradient_checkpointing", False) and layer.training:
        # Passed by position: as keyword arguments, each layer's backward pass would run back to their origin.
        trained = [name for name, value in context.items() if torch.is_tensor(value) and value.requires_grad]
        context["trained_names"] = tuple(trained)
        trained = [context.pop(name) for name in trained]
    if not getattr(layer, "is_sparse", False):  # a pipeline's stand-ins for other ranks' layers have no such attribute
        return layer(x_BTD, *trained, **context)
    x_BTD, logits_NE, index_NK, kept_NK = layer(x_BTD, *trained, **context)
    routed.append((layer.mlp.gate, logits_NE, index_NK, kept_NK))
    return x_BTD


def check_one_is_given(input_ids, inputs_embeds, prefix: str = "") -> None:
    """Raise ValueError unless exactly one is given. prefix: put before both names."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(f"give exactly one of {prefix}input_ids and {prefix}inputs_embeds")


def embeddings_of(embed_tokens, input_ids, inputs_embeds):
    """Embeddings (B, T, E), looked up or as passed in; raise ValueError unless exactly one of both is given."""
    check_one_is_given(input_ids, inputs_embeds)
    return embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
