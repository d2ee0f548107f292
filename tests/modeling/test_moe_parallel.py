"""Mixtures of experts on several processes: whole experts on each rank, every expert split, or sharded parameters."""

import re

import pytest
from family_variants import SEQ2SEQS
from test_parallel import RECENT, check_split_equals_whole

from anyformer import AnyformerMoeForCausalLM

SIZES = {"num_experts": 4, "intermediate_size": 48, "router_aux_loss_coef": 0.1}
VARIANTS = {
    "mixtral": SIZES,
    "shared-sigmoid-dense-first": SIZES
    | {"num_experts_per_tok": 3, "router_scoring": "sigmoid", "routed_scaling_factor": 2.5, "num_hidden_layers": 3}
    | {"mlp_pattern": ["dense", "sparse", "sparse"], "moe_intermediate_size": 32}
    | {"shared_expert_intermediate_size": 16, "shared_expert_gate": True},
    "plain-experts": SIZES | {"mlp_type": "mlp", "hidden_act": "gelu", "router_z_loss_coef": 0.1, "qk_norm": True},
}
SWITCH = {"num_experts": 4, "num_experts_per_tok": 1, "norm_topk_prob": False, "mlp_pattern": ["dense", "sparse"]}
SWITCH |= SEQ2SEQS["t5"] | {"intermediate_size": 48, "expert_capacity": 5}
FEW = {"mixtral": VARIANTS["mixtral"]}


@pytest.fixture
def mixture_config(tiny_config):
    """Factory of tiny mixtures; keyword arguments override."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    names += ("max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")
    fields = {name: getattr(tiny_config(), name) for name in names}

    def make(**overrides):
        return AnyformerMoeForCausalLM.config_class(**(fields | overrides))

    return make


needs_experts = pytest.mark.skipif(not RECENT, reason="transformers 5.17 splits experts by plans of other names")


@pytest.mark.slow
@needs_experts
def test_ranks_that_share_experts_have_the_logits_losses_gradients_and_tokens_of_one_process(mixture_config, tmp_path):
    check_split_equals_whole(mixture_config, tmp_path, "ep", VARIANTS, kind="moe")


@needs_experts
def test_ranks_that_share_experts_and_the_batch_equal_one_process(mixture_config, tmp_path):
    check_split_equals_whole(mixture_config, tmp_path, "ep-of-one-batch", FEW, kind="moe")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tp", "fsdp"])
def test_two_processes_have_the_logits_losses_gradients_and_tokens_of_one(mixture_config, tmp_path, mode):
    check_split_equals_whole(mixture_config, tmp_path, mode, VARIANTS if mode == "tp" else FEW, kind="moe")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tp", "fsdp", pytest.param("ep", marks=needs_experts)])
def test_a_split_switch_transformer_equals_one_process(tiny_seq2seq_config, tmp_path, mode):
    check_split_equals_whole(tiny_seq2seq_config, tmp_path, mode, {"switch": SWITCH}, kind="seq2seq")


@pytest.mark.parametrize("name", VARIANTS)
def test_plans_name_modules_that_exist(mixture_config, name):
    model = AnyformerMoeForCausalLM(mixture_config(**VARIANTS[name]))
    parts = [*(n for n, _ in model.named_modules()), *(n for n, _ in model.named_parameters())]
    parts = {re.sub(r"\.\d+", ".*", part) for part in parts}
    assert model.tp_plan.keys() <= parts
    split = {p for p in parts if re.search(r"mlp\.(experts\.|shared_expert\.)?[a-z_]+_proj$", p)}
    assert split <= model.tp_plan.keys()
    if RECENT:
        assert model.ep_plan.keys() <= parts and {key.rsplit(".", 1)[1] for key in model.ep_plan} >= {"experts"}
