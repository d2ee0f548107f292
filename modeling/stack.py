"""Embeddings, positions and layers: what the models of all families run, whatever their tokens may see.

Shapes as in attention.py, and E the width of the embeddings.
"""

import torch
from torch import nn

from .attention_masks import (
    bidirectional_masks,
    causal_masks,
    document_ids_from_positions,
    flash_sequences,
    fold_into_bias,
)
from .attention_varlen import Unpadded, attends_documents_apart, document_lengths
from .block import TransformerBlock
from .experts_losses import router_fields
from .normalization import build_norm
from .positions import LearnedPositions, apply_positions, build_positions

# Documents shorter than this on average are masked within their row: calls for each would cost more than they save.
SHORT_DOCUMENT = 32


class TransformerStack:
    """A mixin for a PreTrainedModel: `build_stack` in its `__init__`, `run_stack` in its `forward`.

    `config.is_causal` says whether tokens see those after them. Packed rows: `position_ids` that restart at 0 for each
    document. Tokens then see their document only, whatever `use_cache` and `attention_mask` say. With a cache passed
    in, `position_ids` are positions only.
    """

    build_positions = staticmethod(build_positions)  # config -> position scheme or None

    def build_stack(self, config, cross_attention: bool = False) -> None:
        groups = getattr(config, "num_hidden_groups", None) or config.num_hidden_layers
        width = getattr(config, "embedding_size", None) or config.hidden_size
        self.position_encoding = self.build_positions(config)
        self.embedding_norm = build_norm(config, width) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.hidden_dropout)
        # One block for each layer, or for each group of layers that share it.
        self.layers_per_group = config.num_hidden_layers // groups
        self.layers = nn.ModuleList(
            [TransformerBlock(config, i * self.layers_per_group, cross_attention) for i in range(groups)]
        )
        # Post-norm blocks end in a norm of their own.
        self.norm = build_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.attention_kinds = config.attention_kinds
        self.layers_by_kind = {
            kind: (self.attention_kinds.index(kind), config.layer_types[self.attention_kinds.index(kind)])
            for kind in self.attention_kinds
        }
        self.gradient_checkpointing = False

    def run_stack(self, *args, **kwargs):
        """`run_routed` for a family without experts: hidden states (B, T, D) alone."""
        return self.run_routed(*args, **kwargs)[0]

    def run_routed(
        self,
        x_BTE,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        packs=True,
        added_BTE=None,
        global_attention_mask=None,
        places=None,
        output_router_logits=None,
        counted_mask=None,
        **kwargs,
    ) -> tuple:
        """Token embeddings (B, T, E) -> hidden states (B, T, D), and the fields of outputs.RouterFields, if any.

        past_key_values: a cache of self-attention. packs: whether `position_ids` tell documents apart. added_BTE:
        embeddings of another kind than tokens and positions. places: what the position scheme reads, where that is not
        `position_ids`. output_router_logits: None is what the config says. counted_mask: (B, T), tokens that
        count in the routers' losses and statistics; None: those that `attention_mask` has. kwargs go to the layers.
        """
        counted_mask = attention_mask if counted_mask is None else counted_mask
        if self.config.embedding_multiplier != 1:
            x_BTE = x_BTE * self.config.embedding_multiplier
        documents = None
        if packs and position_ids is not None and x_BTE.shape[1] > 1:
            documents = document_ids_from_positions(position_ids.expand(x_BTE.shape[0], -1))
        if documents is None and isinstance(self.position_encoding, LearnedPositions):
            self.position_encoding.check_length(x_BTE.shape[1])
        unpadded = None
        if attention_mask is not None and position_ids is None and self.can_unpad(x_BTE, attention_mask, kwargs):
            unpadded = Unpadded.of(attention_mask)
        if unpadded is not None:
            x_BTE, position_ids, attention_mask = unpadded.take(x_BTE), unpadded.position_ids, None
            added_BTE = None if added_BTE is None else unpadded.take(added_BTE)
        if position_ids is None:
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(x_BTE.shape[1], device=x_BTE.device) + past).unsqueeze(0)
        if unpadded is not None:
            masks, seen = dict.fromkeys(self.layers_by_kind), {"document_lengths": unpadded.lengths}
        else:
            masks, seen = self.what_is_seen(x_BTE, attention_mask, past_key_values, documents, global_attention_mask)
        places = position_ids if places is None else places
        x_BTE, per_layer = apply_positions(
            self.position_encoding,
            x_BTE,
            places,
            past_key_values,
            self.attention_kinds,
            self.layers_by_kind,
            self.config,
        )
        x_BTD = self.finish_embeddings(x_BTE if added_BTE is None else x_BTE + added_BTE, position_ids)
        per_layer = [{"attention_mask": masks[kind], **own} for kind, own in zip(self.attention_kinds, per_layer)]
        if self.config._attn_implementation == "sdpa":
            per_layer = self.folded(per_layer)
        kwargs |= seen | {"position_ids": position_ids, "past_key_values": past_key_values}
        kwargs |= self.context_of_family(x_BTD, attention_mask, documents, global_attention_mask)
        routed = []  # of each sparse layer, in the order they run: its router, and what the block returns beside
        x_BTD = self.norm(self.run_layers(x_BTD, per_layer, routed, **kwargs))
        fields = {}
        if routed:
            shown = self.config.output_router_logits if output_router_logits is None else output_router_logits
            fields = router_fields(routed, x_BTD.shape[:2], counted_mask, unpadded, self.training, shown)
        return (x_BTD if unpadded is None else unpadded.put_back(x_BTD)), fields

    def what_is_seen(self, x_BTE, attention_mask, past_key_values, documents, global_attention_mask) -> tuple:
        """({kind of attention: mask}, keyword arguments by which a backend sees the rest)."""
        seen = {}
        if documents is not None and self.config._attn_implementation.startswith("flash"):
            seen = flash_sequences(documents, attention_mask)
            if attention_mask is not None:  # layers that flash kernels do not compute still have to know padding
                documents = documents.masked_fill(attention_mask == 0, -1)
            attention_mask = None
        elif documents is not None and past_key_values is None and self.attends_packed_rows_apart(x_BTE):
            lengths = document_lengths(documents, attention_mask)
            if len(lengths) * SHORT_DOCUMENT <= x_BTE.shape[0] * x_BTE.shape[1]:
                return dict.fromkeys(self.layers_by_kind), {"document_lengths": lengths}
        kinds = self.layers_by_kind
        if self.config.is_causal:
            return causal_masks(self.config, x_BTE, attention_mask, past_key_values, documents, kinds), seen
        masks = bidirectional_masks(self.config, x_BTE, attention_mask, documents, kinds, global_attention_mask)
        return masks, seen

    def folded(self, per_layer: list[dict]) -> list[dict]:
        """Masks and score biases as one, made once for all layers that share them."""
        done, folded = {}, []
        for own in per_layer:
            if "position_bias" in own:
                mask, bias = own["attention_mask"], own["position_bias"]
                if (id(mask), id(bias)) not in done:
                    done[id(mask), id(bias)] = fold_into_bias(bias, mask, self.config.is_causal)
                own = {"attention_mask": done[id(mask), id(bias)]}
            folded.append(own)
        return folded

    def attends_apart(self, x_BTE) -> bool:
        """Whether packed documents are attended one by one, where sdpa would need a mask that keeps them apart.

        Score biases, and kinds of attention that are masks themselves, are made for whole rows.
        """
        place = None if self.position_encoding is None else self.position_encoding.place
        return (
            self.config._attn_implementation == "sdpa"
            and place in (None, "embedding", "rotation")
            and all(kind in ("full_attention", "sliding_attention") for kind in self.layers_by_kind)
            and attends_documents_apart(x_BTE, self.config.attention_dropout if self.training else 0.0)
        )

    def attends_packed_rows_apart(self, x_BTE) -> bool:
        """On a GPU packed rows keep their mask: lengths would have to be read on the host in every step."""
        return x_BTE.device.type == "cpu" and self.attends_apart(x_BTE)

    def can_unpad(self, x_BTE, attention_mask, kwargs) -> bool:
        """Whether rows of different lengths run as one row without padding. Decoders' rows are packed, not padded.

        What is captured per layer keeps its padding: its shape is promised.
        """
        captured = ("output_hidden_states", "output_attentions")
        return (
            not self.config.is_causal
            and attention_mask.dim() == 2
            and self.attends_apart(x_BTE)
            and getattr(self.config, "expert_capacity", None) is None  # counted row by row
            and not any(kwargs.get(name) or getattr(self.config, name, False) for name in captured)
        )

    def finish_embeddings(self, x_BTE, position_ids):
        """What becomes of embeddings before the first layer: norm and dropout. (B, T, E) -> (B, T, D)."""
        return self.dropout(x_BTE if self.embedding_norm is None else self.embedding_norm(x_BTE))

    def context_of_family(self, x_BTD, padding_mask, documents, global_attention_mask) -> dict:
        """Keyword arguments for the layers that a family has beside masks and positions."""
        return {}

    def each_layer(self):
        """The block of each layer, in order."""
        if self.layers_per_group == 1:
            return self.layers
        return [layer for layer in self.layers for _ in range(self.layers_per_group)]

    def run_layers(self, x_BTD, per_layer: list[dict], routed: list, **kwargs):
        for layer, own in zip(self.each_layer(), per_layer):
            x_BTD = run_layer(layer, x_BTD, routed, **own, **kwargs)
        return x_BTD


def run_layer(layer, x_BTD, routed: list, **kwargs):
    """(B, T, D) -> (B, T, D). What a layer with experts returns beside is added to `routed`."""
    x_BTD = layer(x_BTD, **kwargs)
    if isinstance(x_BTD, tuple):
        x_BTD, *routing = x_BTD
        routed.append((layer.mlp.gate, *routing))
    return x_BTD


def embeddings_of(embed_tokens, input_ids, inputs_embeds):
    """(B, T, E) of the tokens, or those given; raise ValueError unless exactly one of both is."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give exactly one of input_ids and inputs_embeds")
    return embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
