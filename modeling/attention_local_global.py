"""Attention to a window of neighbours, and everywhere for a few tokens: Longformer (Beltagy et al. 2020, section 3).

Shapes as in attention.py, and N the global tokens of a row.
"""

import torch
from torch import nn
from transformers.masking_utils import create_bidirectional_mask

from .attention import Attention
from .positions import rotate


class LocalGlobalAttention(Attention):
    """A window for most tokens; global tokens see all and are seen by all (Beltagy et al. 2020, sections 3.1 and 3.2).

    The mask makes the window: it shows a query the keys `sliding_window` tokens to each side and all global keys, which
    have the same projections as the others. A global token's own output is then computed again, over all tokens, with
    `global_q_proj`, `global_k_proj` and `global_v_proj`. Positions have to be in the embeddings or rotations: score
    biases, which a stack may fold into the mask, would be missing for the queries of global tokens.
    """

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        queries, keys = self.q_proj.out_features, self.k_proj.out_features
        self.global_q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.global_k_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_key_bias)
        self.global_v_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)

    def forward(
        self, hidden_states, attention_mask=None, position_embeddings=None, global_context=None, **kwargs
    ) -> tuple:
        """As `Attention.forward`, by the local part's mask; global_context: None, or of `global_attention_context`."""
        out_BTD, weights = super().forward(hidden_states, attention_mask, position_embeddings, **kwargs)
        if global_context is None:
            return out_BTD, weights
        index_BN, is_global_BN, global_mask = global_context
        x_BND = take_rows(hidden_states, index_BN, dim=1)
        q_BHNK = self.heads(self.global_q_proj(x_BND), self.q_norm)
        k_BGSK = self.heads(self.global_k_proj(hidden_states), self.k_norm)
        v_BGSK = self.heads(self.global_v_proj(hidden_states))
        if position_embeddings is not None:
            of_queries = (take_rows(x, index_BN, dim=2) for x in position_embeddings)
            q_BHNK, k_BGSK = rotate(q_BHNK, *of_queries), rotate(k_BGSK, *position_embeddings)
        out_BNHK, global_weights = self.attend(q_BHNK, k_BGSK, v_BGSK, global_mask, **kwargs)
        out_BND = self.o_proj(out_BNHK.flatten(2))
        if weights is not None:
            weights = put_rows(weights, global_weights, index_BN, is_global_BN, dim=2)
        return put_rows(out_BTD, out_BND, index_BN, is_global_BN, dim=1), weights


def global_attention_context(config, x_BTD, global_attention_mask, attention_mask=None, document_ids=None):
    """Index, mask and validity of a batch's global tokens, made once per forward pass; None where there are none.

    Args:
        x_BTD: the layers' input; only its shape, dtype and device are read.
        global_attention_mask: None, or (B, T), nonzero at global tokens. Padding is never global.
        attention_mask: None, a (B, T) padding mask, or a ready (B, 1, T, T), of which global tokens get their rows.
        document_ids: None, or (B, T): global tokens, too, see only tokens with the same id.

    Returns:
        (index (B, N) of the tokens that attend again, whether each is global (B, N), mask of these queries as the
        backend wants it). N is the largest number of global tokens in a row, the only value read on the host; rows with
        fewer are filled up with other tokens. A graph of fixed shapes, compiled or exported, has N = T.
    """
    if global_attention_mask is None:
        return None
    is_global_BT = global_attention_mask != 0
    if attention_mask is not None and attention_mask.ndim == 2:
        is_global_BT = is_global_BT & (attention_mask != 0)
    if torch.compiler.is_compiling():
        most = x_BTD.shape[1]
    else:
        most = int(is_global_BT.sum(-1).max())
        if most == 0:
            return None
    # Stable: global tokens in their order, then others. No token comes twice, so putting rows back is exact.
    index_BN = torch.argsort(is_global_BT.logical_not().to(torch.uint8), dim=-1, stable=True)[:, :most]
    if attention_mask is not None and attention_mask.ndim == 4:
        return index_BN, is_global_BT.gather(1, index_BN), take_rows(attention_mask, index_BN, dim=2)
    same_document = None
    if document_ids is not None:
        own_ids_BN = document_ids.gather(1, index_BN)

        def same_document(batch_idx, head_idx, q_idx, kv_idx):
            return own_ids_BN[batch_idx, q_idx] == document_ids[batch_idx, kv_idx]

    mask = create_bidirectional_mask(
        config=config,
        inputs_embeds=x_BTD[:, :most],
        encoder_hidden_states=x_BTD,
        attention_mask=attention_mask,
        and_mask_function=same_document,
        # To find out that nothing is padded would cost a second read on the host.
        allow_is_bidirectional_skip=attention_mask is None,
    )
    return index_BN, is_global_BT.gather(1, index_BN), mask


def take_rows(x, index_BN, dim: int):
    """The entries `index_BN` of the axis `dim` of x (B or 1, ..., T, ...)."""
    x = x.expand(index_BN.shape[0], *x.shape[1:])
    return x.gather(dim, _spread(index_BN, x, dim))


def put_rows(x, rows, index_BN, valid_BN, dim: int):
    """x with `rows` in place of its entries `index_BN` of the axis `dim`, where they are valid."""
    index, valid = (_spread(tensor, rows, dim) for tensor in (index_BN, valid_BN))
    return x.scatter(dim, index, torch.where(valid, rows, x.gather(dim, index)))


def _spread(index_BN, x, dim: int):
    """(B, N) as an index along `dim` into x: the other axes as long as those of x."""
    shape = [index_BN.shape[0]] + [1] * (x.ndim - 1)
    shape[dim] = index_BN.shape[1]
    return index_BN.view(shape).expand(*x.shape[:dim], -1, *x.shape[dim + 1 :])
