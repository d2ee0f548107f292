"""The config of the mixture-of-experts family, and the fields of experts that other families share."""

from huggingface_hub.dataclasses import strict

from .configuration import CausalConfig, TokenConfig


@strict
class RoutedConfig(TokenConfig):
    """Fields of the families whose layers may hold experts. (Libraries such as TRL recognise a mixture by these.)

    In a layer named "sparse" a router chooses each token's experts (experts.py). The weights of the losses of
    experts_losses.py count in training only; `router_bias_update_rate` above 0 balances by a bias instead.
    """

    num_experts: int | None = None  # feed-forwards of a sparse layer; null: no layer is sparse
    num_experts_per_tok: int = 2  # experts that each token uses
    moe_intermediate_size: int | None = None  # channels within an expert; null: intermediate_size
    shared_expert_intermediate_size: int = 0  # channels of an expert for all tokens; 0: none (Dai et al. 2024)
    shared_expert_gate: bool = False  # the shared expert has a gate of its own
    mlp_pattern: list[str] | None = None  # sparse and dense, repeated over the layers; null: all are sparse
    mlp_layer_types: list[str] | None = None  # sparse or dense for each layer, in place of mlp_pattern
    router_scoring: str = "softmax"  # how a router scores experts
    router_bias: bool = False  # a router's scores have a bias that is learned
    norm_topk_prob: bool = True  # the weights of the chosen experts sum to 1
    routed_scaling_factor: int | float = 1.0  # the weights of the chosen experts are multiplied by it
    n_group: int | None = None  # groups of experts, as many as divide num_experts; null: one (DeepSeek-AI 2024)
    topk_group: int | None = None  # n_group: groups from which a token's experts are chosen
    apply_router_weight_on_input: bool = False  # the weights multiply an expert's input, not its output (Llama 4)
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


# Libraries take a config with this attribute for a mixture's, and a default in the class would give it to all configs.
RoutedConfig.output_router_logits = property(
    _router_logits_asked_for, lambda config, value: vars(config).update(output_router_logits=value)
)


@strict
class AnyformerMoeConfig(RoutedConfig, CausalConfig):
    """A decoder with mixture-of-experts layers: Mixtral, Qwen3-MoE, DeepSeek's routing."""

    model_type = "anyformer_moe"

    num_experts: int | None = 8  # feed-forwards of a sparse layer
