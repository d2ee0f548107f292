"""Disentangled attention: separate terms of the scores compare contents and relative positions.

He et al. 2021a (DeBERTa), section 3.1; buckets, shared projections and the norm of the table are DeBERTa-v2's and v3's.
Shapes as in attention.py, and P the distances or buckets that the table holds.
"""

import torch
from torch import nn

from .attention import Attention
from .block import build_norm


class DisentangledPositions(nn.Module):
    """A trained vector for each relative position (He et al. 2021a, eq. 3), the same table for all layers.

    A distance from -span to span - 1 (the query's index minus the key's) has the row distance + span; those beyond
    have the first and the last. span is `position_buckets`, or without buckets `max_relative_positions` (None:
    `max_position_embeddings`).
    """

    arguments = ("relative_table", "relative_index")

    def __init__(self, config):
        super().__init__()
        self.max_distance = config.max_relative_positions or config.max_position_embeddings
        self.num_buckets = config.position_buckets
        self.span = self.num_buckets or self.max_distance
        self.rel_embeddings = nn.Embedding(2 * self.span, config.hidden_size)
        self.norm = build_norm(config) if config.relative_embedding_norm else None

    def buckets(self, distances: torch.Tensor) -> torch.Tensor:
        """Distances (int64, any shape, either sign) to signed buckets; without buckets the distances themselves.

        Of N buckets on each side the first N/2 hold one distance each, the others grow logarithmically up to
        `max_distance`, as DeBERTa-v2 was released (microsoft/DeBERTa; the paper has plain distances). Beyond it they go
        on growing, and `forward` clamps them.
        """
        if self.num_buckets is None:
            return distances
        exact = self.num_buckets // 2
        # The original's order of operations: its fp32 rounding decides at the borders of buckets. Near distances are
        # kept out of the logarithm, which could be of 0.
        near = (distances < exact) & (distances > -exact)
        far = torch.where(near, exact - 1, distances.abs())
        growth = torch.log(torch.full((), (self.max_distance - 1) / exact, dtype=torch.float, device=distances.device))
        logarithmic = torch.ceil(torch.log(far / exact) / growth * (exact - 1)) + exact
        return torch.where(far <= exact, distances, (logarithmic * distances.sign()).to(distances.dtype))

    def forward(self, x_BTD) -> tuple:
        """Return (the rows of the table that T tokens can need (P, D), the row of each pair of tokens (T, T)).

        Both terms of query i and key j read the row of i - j. The paper's eq. 4 has that of j - i in the second; the
        released code, which all checkpoints are trained with, mirrors it.
        """
        length, span = x_BTD.shape[1], self.span
        exact = span if self.num_buckets is None else span // 2  # up to here a distance is its own bucket
        # Leave out rows that these tokens never read. An exported program cannot choose by the length.
        if not torch.compiler.is_exporting() and length <= exact:
            span = length
        index = torch.arange(length, device=x_BTD.device)
        # Call the module, do not index its weight: ZeRO-3 gathers weights for a module's forward only.
        table_PD = self.rel_embeddings(torch.arange(self.span - span, self.span + span, device=x_BTD.device))
        if self.norm is not None:
            table_PD = self.norm(table_PD)
        rows_TT = (self.buckets(index[:, None] - index[None, :]) + span).clamp(0, 2 * span - 1)
        return table_PD.to(x_BTD.dtype), rows_TT


class DisentangledAttention(Attention):
    """Attention whose scores add content-to-position and position-to-content (He et al. 2021a, eq. 4).

    (q_i k_j + q_i kr_ij + k_j qr_ij) / sqrt(K * n), with n the number of terms and kr, qr the row of the pair (i, j) of
    the table, projected by `pos_key_proj` and `pos_query_proj` or, with `share_att_key`, as keys and queries are.
    `pos_att_type` says which terms there are beside the content's: "c2p", "p2c". The positions' terms go to the backend
    as a score bias, which eager, sdpa and flex take and flash kernels do not.
    """

    reads_other_states = True  # under an enhanced mask decoder

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.terms, self.share_att_key = tuple(config.pos_att_type), config.share_att_key
        if config.attention_multiplier is None:
            self.scaling = (self.head_dim * (1 + len(self.terms))) ** -0.5
        if not self.share_att_key:
            queries, keys = self.q_proj.out_features, self.k_proj.out_features
            if "c2p" in self.terms:
                self.pos_key_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_key_bias)
            if "p2c" in self.terms:
                self.pos_query_proj = nn.Linear(config.hidden_size, queries)

    def score_bias(self, q_BHTK, k_BGSK, relative_table, relative_index, **kwargs) -> tuple:
        """The positions' terms (B, H, T, S), scaled as the scores are; see `Attention.score_bias`.

        relative_table, relative_index: (P, D) and (T, S), from `DisentangledPositions`.
        """
        # As in the original, each layer draws its own dropout.
        table_PD = nn.functional.dropout(relative_table, self.config.hidden_dropout, self.training)
        rows_BHTS = relative_index.expand(*q_BHTK.shape[:2], -1, -1)
        groups, bias_BHTS = self.num_key_value_groups, None
        if "c2p" in self.terms:
            keys_HPK = self.positions_as_keys(table_PD) * self.scaling
            keys_HPK = keys_HPK if groups == 1 else keys_HPK.repeat_interleave(groups, dim=0)
            bias_BHTS = torch.einsum("bhtk,hpk->bhtp", q_BHTK, keys_HPK).gather(3, rows_BHTS)
        if "p2c" in self.terms:
            queries_HPK = self.positions_as_queries(table_PD) * self.scaling
            k_BHSK = k_BGSK if groups == 1 else k_BGSK.repeat_interleave(groups, dim=1)
            # Positions before keys: the gather then reads along rows and needs no transposed copy.
            term_BHTS = torch.einsum("hpk,bhsk->bhps", queries_HPK, k_BHSK).gather(2, rows_BHTS)
            # In place: no gradient needs either addend, and a third tensor of this size would be the peak of memory.
            bias_BHTS = term_BHTS if bias_BHTS is None else bias_BHTS.add_(term_BHTS)
        return bias_BHTS, kwargs

    def positions_as_queries(self, table_PD):
        """(P, D) -> (H, P, K)."""
        if self.share_att_key:
            return self.queries(table_PD[None])[0]
        return self.pos_query_proj(table_PD).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)

    def positions_as_keys(self, table_PD):
        """(P, D) -> (G, P, K)."""
        projection, norm = (self.k_proj, self.k_norm) if self.share_att_key else (self.pos_key_proj, None)
        keys_PGK = projection(table_PD).unflatten(-1, (-1, self.head_dim))
        return (keys_PGK if norm is None else norm(keys_PGK)).transpose(0, 1)
