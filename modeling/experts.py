"""Mixtures of experts: many feed-forward layers, of which a router chooses a few for each token.

B rows, T tokens of each, N = B T tokens, D hidden size, E experts, K experts per token, S = N K assignments (of a token
to one of its experts), I channels of an expert.
"""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.integrations.moe import use_experts_implementation

from .block import build_dense
from .experts_bias import watch
from .experts_grouped import loop_over_experts, up_bias, up_weight
from .traits import PARTS


class Routing(NamedTuple):
    """A router's decisions in one layer: logits (N, E) in fp32, index (N, K), kept (N, K) or None for all."""

    logits: torch.Tensor
    index: torch.Tensor
    kept: torch.Tensor | None


class TopKRouter(nn.Module):
    """Scores all experts for each token, and chooses the K best and the weights of their outputs.

    Scores are a softmax over experts (Shazeer et al. 2017, eq. 3-5) or sigmoids (DeepSeek-AI 2024, eq. 15), in fp32
    whatever the model's dtype, else experts of nearly equal scores are mixed up (Fedus et al. 2021, section 2.4).

    With `router_bias_update_rate` the experts are chosen by score + bias (experts_bias.py), while weights stay scores;
    with `n_group` within the best `topk_group` groups of experts (`within_groups`).
    """

    def __init__(self, config):
        super().__init__()
        self.top_k, self.num_experts = config.num_experts_per_tok, config.num_experts
        self.scoring, self.normalises = config.router_scoring, config.norm_topk_prob
        self.scaling, self.jitter = config.routed_scaling_factor, config.router_jitter_noise
        self.groups = None if config.n_group is None else (config.n_group, config.topk_group)
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.num_experts)) if config.router_bias else None
        self.bias_update_rate = config.router_bias_update_rate
        if self.bias_update_rate > 0:
            self.e_score_correction_bias = nn.Buffer(torch.zeros(config.num_experts))  # transformers' name
            # Assignments (E) since the last step. Not a buffer: DDP would copy the first process's to all others.
            self.load = None
            watch(self)

    def __setstate__(self, state):
        super().__setstate__(state)  # called for copies of a router
        if self.bias_update_rate > 0:
            watch(self)

    def init_own_weights(self, std: float, residual_std: float) -> None:
        init.normal_(self.weight, mean=0.0, std=std)
        if self.bias is not None:
            init.zeros_(self.bias)
        if self.bias_update_rate > 0:
            init.zeros_(self.e_score_correction_bias)

    def forward(self, x_ND):
        """(N, D) -> logits (N, E) in fp32, weights (N, K) and indices (N, K) of the chosen experts."""
        with torch.autocast(x_ND.device.type, enabled=False):
            x_ND = x_ND.float()
            if self.training and self.jitter > 0:  # Fedus et al. 2021, table 11
                x_ND = x_ND * torch.empty_like(x_ND).uniform_(1 - self.jitter, 1 + self.jitter)
            logits_NE = functional.linear(x_ND, self.weight.float(), None if self.bias is None else self.bias.float())
            scores_NE = scores_of(logits_NE, self.scoring)
            choice_NE = scores_NE.detach()
            if self.bias_update_rate > 0:
                choice_NE = choice_NE + self.e_score_correction_bias
            if self.groups is not None:
                choice_NE = within_groups(choice_NE, *self.groups, best=1 if self.scoring == "softmax" else 2)
            index_NK = choice_NE.topk(self.top_k, dim=-1).indices
            weights_NK = scores_NE.gather(1, index_NK)
            if self.normalises:
                weights_NK = weights_NK / (weights_NK.sum(dim=-1, keepdim=True) + 1e-20)  # sigmoids may all be 0
            return logits_NE, weights_NK * self.scaling, index_NK


def scores_of(logits: torch.Tensor, scoring: str) -> torch.Tensor:
    """Router logits (..., E) -> scores of the experts."""
    return logits.softmax(dim=-1) if scoring == "softmax" else logits.sigmoid()


def within_groups(choice_NE: torch.Tensor, groups: int, kept: int, best: int) -> torch.Tensor:
    """The scores (N, E) by which experts are chosen, -inf outside of the `kept` best of `groups` groups of equal size.

    A group's score is the sum of its `best` best experts': of one (DeepSeek-V2, section 2.2.2), or two (V3, 2.1.2).
    """
    of_groups = choice_NE.unflatten(-1, (groups, -1))
    index_NG = of_groups.topk(best, dim=-1).values.sum(dim=-1).topk(kept, dim=-1).indices
    hidden_NG = torch.ones_like(of_groups[..., 0], dtype=torch.bool).scatter(-1, index_NG, False)
    return of_groups.masked_fill(hidden_NG.unsqueeze(-1), -torch.inf).flatten(-2)


class Experts(nn.Module):
    """E feed-forward layers of one shape. Each weight, and with `mlp_bias` each bias, is one tensor for all experts.

    forward is the reference: one expert after the other. transformers' `@use_experts_implementation` sends calls to
    the implementation that the config names (`experts_implementation`, see `experts_grouped.py`).
    """

    def __init__(self, config):
        super().__init__()
        self.num_experts, self.hidden_dim = config.num_experts, config.hidden_size
        self.intermediate_dim = config.moe_intermediate_size
        self.act_fn = ACT2FN[config.hidden_act]
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, self.hidden_dim, self.intermediate_dim))
        self.down_proj_bias = self.new_bias(config, self.hidden_dim)

    def new_bias(self, config, size: int) -> nn.Parameter | None:
        return nn.Parameter(torch.empty(self.num_experts, size)) if config.mlp_bias else None

    def init_own_weights(self, std: float, residual_std: float) -> None:
        init.normal_(up_weight(self), mean=0.0, std=std)
        init.normal_(self.down_proj, mean=0.0, std=residual_std)
        for bias in (up_bias(self), self.down_proj_bias) if self.has_bias else ():
            init.zeros_(bias)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Tokens (N, D), their experts (N, K) and the weights of these (N, K) -> (N, D).

        An index of `num_experts` or more stands for an expert on another rank and adds nothing.
        """
        return loop_over_experts(self, hidden_states, top_k_index, top_k_weights)


@use_experts_implementation(has_gate=False)
class PlainExperts(Experts):
    """Each expert is a block.MLP."""

    def __init__(self, config):
        super().__init__(config)
        self.up_proj = nn.Parameter(torch.empty(self.num_experts, self.intermediate_dim, self.hidden_dim))
        self.up_proj_bias = self.new_bias(config, self.intermediate_dim)


@use_experts_implementation
class GatedExperts(Experts):
    """Each expert is a block.GatedMLP, its gate and up projections in one tensor."""

    def __init__(self, config):
        super().__init__(config)
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * self.intermediate_dim, self.hidden_dim))
        self.gate_up_proj_bias = self.new_bias(config, 2 * self.intermediate_dim)


def build_experts(config) -> Experts:
    """The experts of a layer."""
    experts = PARTS.mlp_type[config.mlp_type].experts.load()(config)
    experts.has_bias = config.mlp_bias  # read by transformers' implementations; its decorator says False
    return experts


class SparseMLP(nn.Module):
    """The feed-forward of a block with experts: router, experts and, with `shared_expert_intermediate_size`, one more
    that every token uses (Dai et al. 2024, section 3.2; its gate as in Qwen2-MoE)."""

    def __init__(self, config):
        super().__init__()
        self.gate = TopKRouter(config)
        self.experts = build_experts(config)
        self.capacity, self.weighs_inputs = config.expert_capacity, config.apply_router_weight_on_input
        shared = config.shared_expert_intermediate_size
        self.shared_expert = build_dense(config, shared) if shared else None
        self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False) if config.shared_expert_gate else None

    def forward(self, x_BTD) -> tuple:
        """(B, T, D) -> (B, T, D) and a Routing."""
        x_ND = x_BTD.flatten(0, -2)
        logits_NE, weights_NK, index_NK = self.gate(x_ND)
        kept_NK = None
        if self.capacity is not None:
            kept_NK = within_capacity(index_NK, x_BTD.shape[0], logits_NE.shape[-1], self.capacity)
            weights_NK = weights_NK * kept_NK
        weights_NK = weights_NK.to(x_ND.dtype)
        if self.weighs_inputs:
            x_SD = (x_ND[:, None] * weights_NK[..., None]).flatten(0, 1)
            out_SD = self.experts(x_SD, index_NK.view(-1, 1), torch.ones_like(weights_NK).view(-1, 1))
            out_ND = out_SD.unflatten(0, index_NK.shape).sum(1)
        else:
            out_ND = self.experts(x_ND, index_NK, weights_NK)
        if self.shared_expert is not None:
            shared_ND, _ = self.shared_expert(x_ND)
            if self.shared_expert_gate is not None:
                shared_ND = shared_ND * self.shared_expert_gate(x_ND).sigmoid()
            out_ND = out_ND + shared_ND
        return out_ND.view_as(x_BTD), Routing(logits_NE, index_NK, kept_NK)


def within_capacity(index_NK: torch.Tensor, rows: int, num_experts: int, capacity: int) -> torch.Tensor:
    """(N, K), True for the first `capacity` assignments to each expert in a row (Fedus et al. 2021, section 2.2).

    First choices of all tokens in the row come before second choices (Lepikhin et al. 2020, algorithm 1).
    """
    order_BS = index_NK.unflatten(0, (rows, -1)).transpose(1, 2).flatten(1)
    taken_BSE = functional.one_hot(order_BS, num_experts).cumsum(dim=1)
    place_BS = taken_BSE.gather(2, order_BS[..., None])[..., 0]
    return (place_BS <= capacity).unflatten(1, (index_NK.shape[1], -1)).transpose(1, 2).flatten(0, 1)
