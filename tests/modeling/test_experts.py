"""Laws of the parts: experts compute the same by every implementation; what a router may and may not do."""

import copy
from types import SimpleNamespace

import pytest
import torch
from anyformer.modeling.experts import TopKRouter, build_experts, within_capacity
from anyformer.modeling.experts_bias import update_biases
from anyformer.modeling.experts_grouped import IMPLEMENTATION
from anyformer.modeling.experts_losses import load_balancing_loss, router_z_loss
from anyformer.modeling.traits import PARTS
from family_variants import close
from hypothesis import given
from hypothesis import strategies as st

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}  # fp32, same maths in another order of operations
IMPLEMENTATIONS = ("grouped_mm", "batched_mm", IMPLEMENTATION)


def fields(**overrides):
    own = {"hidden_size": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    own |= {"intermediate_size": 24, "mlp_type": "glu", "hidden_act": "silu", "mlp_bias": False}
    own |= {"swiglu_limit": 0.5, "swiglu_alpha": 1.702, "router_bias": False}
    own |= {"router_scoring": "softmax", "norm_topk_prob": True, "routed_scaling_factor": 1.0, "expert_capacity": None}
    own |= {"router_jitter_noise": 0.0, "router_bias_update_rate": 0.0, "shared_expert_intermediate_size": 0}
    own |= {"n_group": None, "topk_group": None, "apply_router_weight_on_input": False}
    return SimpleNamespace(**(own | {"shared_expert_gate": False, "_experts_implementation": "eager"} | overrides))


def filled(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(std=0.3, generator=generator)
    return module


def computed(experts, implementation, x, index, weights) -> tuple:
    """(output, gradients of tokens, weights and parameters)."""
    experts.config._experts_implementation = implementation
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    y = experts(x, index, weights)
    probe = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return y.detach(), *torch.autograd.grad((y * probe).sum(), (x, weights, *experts.parameters()))


@given(
    kind=st.sampled_from(sorted(PARTS.mlp_type)),
    biases=st.booleans(),
    tokens=st.integers(1, 40),
    num_experts=st.integers(1, 9),
    channels=st.sampled_from([(16, 24), (8, 8), (6, 5)]),
    one_expert_gets_all=st.booleans(),
    data=st.data(),
)
def test_every_implementation_computes_what_the_loop_computes(
    kind, biases, tokens, num_experts, channels, one_expert_gets_all, data
):
    top_k = data.draw(st.integers(1, num_experts))
    sizes = {"hidden_size": channels[0], "moe_intermediate_size": channels[1], "num_experts": num_experts}
    experts = filled(build_experts(fields(mlp_type=kind, mlp_bias=biases, **sizes)))
    scores = torch.rand(tokens, num_experts, generator=torch.Generator().manual_seed(tokens))
    if one_expert_gets_all:
        scores[:, 0] += 10
    weights, index = scores.topk(top_k)
    x = torch.randn(tokens, channels[0], generator=torch.Generator().manual_seed(1))
    exact = experts.double()
    expected = computed(exact, "eager", x.double(), index, weights.double())
    for implementation in ("batched_mm", IMPLEMENTATION):
        for got, reference in zip(computed(exact, implementation, x.double(), index, weights.double()), expected):
            close(got, reference, 1e-9)
    aligned = not any(size % 8 for size in channels)
    for implementation in IMPLEMENTATIONS if aligned else ("batched_mm", IMPLEMENTATION):  # fp32 has kernels of its own
        for got, reference in zip(computed(experts.float(), implementation, x, index, weights), expected):
            close(got.double(), reference, 1e-5)


@pytest.mark.parametrize("implementation", ["eager", IMPLEMENTATION])
def test_experts_of_other_ranks_add_nothing(implementation):
    """transformers' expert parallelism marks them by the number of experts here, and their weight is 0."""
    experts, x = filled(build_experts(fields())), torch.randn(9, 16)
    index, weights = torch.randint(0, 6, (9, 2)), torch.rand(9, 2)
    elsewhere = torch.rand(9, 2) < 0.4
    expected = computed(experts, "eager", x, index, weights.masked_fill(elsewhere, 0))
    experts._is_expert_parallel = True
    got = computed(experts, implementation, x, index.masked_fill(elsewhere, 6), weights.masked_fill(elsewhere, 0))
    for i in (0, 1, 3, 4):  # but the gradient of such a weight, which its owner computes
        torch.testing.assert_close(got[i], expected[i], **TOLERANCE)


@given(
    scoring=st.sampled_from(["softmax", "sigmoid"]),
    normalises=st.booleans(),
    biased=st.booleans(),
    num_experts=st.integers(1, 12),
    scale=st.floats(0, 50),
    data=st.data(),
)
def test_a_router_chooses_distinct_experts_with_weights_that_are_their_scores(
    scoring, normalises, biased, num_experts, scale, data
):
    top_k = data.draw(st.integers(1, num_experts))
    config = fields(num_experts=num_experts, num_experts_per_tok=top_k, router_scoring=scoring)
    config.norm_topk_prob, config.routed_scaling_factor = normalises, 2.5
    config.router_bias_update_rate = 0.001 if biased else 0.0
    router = filled(TopKRouter(config))
    if biased:
        router.e_score_correction_bias.copy_(torch.randn(num_experts))
    logits, weights, index = router(torch.randn(11, 16) * scale)
    assert logits.shape == (11, num_experts) and logits.dtype == weights.dtype == torch.float32
    assert index.shape == weights.shape == (11, top_k)
    assert all(len(set(row)) == top_k for row in index.tolist()) and index.min() >= 0 and index.max() < num_experts
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    at_index = scores.gather(1, index)
    if normalises and (at_index.sum(-1) > 1e-6).all():
        torch.testing.assert_close(weights.sum(-1), torch.full((11,), 2.5))
    elif not normalises:
        torch.testing.assert_close(weights, 2.5 * at_index)
    if not biased:
        rest = scores.scatter(1, index, -1)
        assert (rest.max(-1).values <= at_index.min(-1).values).all()


def test_the_router_computes_in_fp32_whatever_the_model_does():
    router, x = filled(TopKRouter(fields())), torch.randn(9, 16)
    expected = router(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(router(x)[0], expected)
    half, x_half = copy.deepcopy(router).bfloat16(), x.bfloat16()
    assert torch.equal(half(x_half)[0], x_half.float() @ half.weight.float().T)


def test_jitter_moves_the_router_in_training_only_and_not_the_tokens():
    router, x = filled(TopKRouter(fields(router_jitter_noise=0.1))), torch.randn(9, 16)
    given_x, plain = x.clone(), router.eval()(x)[0]
    assert torch.equal(plain, x @ router.weight.T)
    noisy = router.train()(x)[0]
    assert not torch.equal(noisy, plain) and torch.equal(x, given_x)
    bound = 0.1 * (x.abs() @ router.weight.abs().T)
    assert ((noisy - plain).abs() <= bound + 1e-6).all()


@given(rows=st.integers(1, 4), length=st.integers(1, 9), top_k=st.integers(1, 3), capacity=st.integers(1, 8))
def test_no_expert_takes_more_of_a_row_than_its_capacity_and_first_choices_come_first(rows, length, top_k, capacity):
    index = torch.rand(rows * length, 4, generator=torch.Generator().manual_seed(length)).topk(top_k).indices
    kept = within_capacity(index, rows, 4, capacity).view(rows, length, top_k)
    index = index.view(rows, length, top_k)
    for row in range(rows):
        for expert in range(4):
            slots = [(k, t) for k in range(top_k) for t in range(length) if index[row, t, k] == expert]
            assert [bool(kept[row, t, k]) for k, t in slots] == [i < capacity for i in range(len(slots))]


def test_the_balance_loss_is_1_for_equal_use_and_grows_to_the_number_of_experts():
    real = torch.ones(1, 8)
    even = torch.arange(8).view(1, 8, 1) % 4
    uniform = torch.full((1, 8, 4), 0.25)
    assert load_balancing_loss(uniform, even, real).item() == pytest.approx(1.0)
    alone = torch.zeros(1, 8, 4)
    alone[..., 2] = 1
    assert load_balancing_loss(alone, torch.full((1, 8, 1), 2), real).item() == pytest.approx(4.0)


def test_padding_changes_no_loss_of_its_row():
    logits = torch.randn(3, 2, 9, 5)
    scores, real = logits.softmax(-1), torch.ones(2, 9)
    real[1, 6:] = 0
    index = scores.topk(2).indices
    short = load_balancing_loss(scores[:, 1:, :6], index[:, 1:, :6], real[1:, :6])
    torch.testing.assert_close(load_balancing_loss(scores, index, real)[:, 1:], short)
    torch.testing.assert_close(router_z_loss(logits, real)[:, 1:], router_z_loss(logits[:, 1:, :6], real[1:, :6]))


def test_the_z_loss_is_the_mean_square_of_the_log_of_the_softmax_denominator():
    logits = torch.randn(1, 2, 5, 4)
    expected = logits.exp().sum(-1).log().square().mean(-1)
    torch.testing.assert_close(router_z_loss(logits, torch.ones(2, 5)), expected)


def test_a_step_moves_each_bias_towards_equal_loads_once(monkeypatch):
    router = TopKRouter(fields(num_experts=4, router_bias_update_rate=0.01))
    copied = copy.deepcopy(router)
    router.load, optimizer = torch.tensor([6, 1, 3, 2]), torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    optimizer.step()
    expected = torch.tensor([-0.01, 0.01, 0.0, 0.01])
    assert torch.equal(router.e_score_correction_bias, expected) and router.load is None
    optimizer.step()  # nothing counted since
    assert torch.equal(router.e_score_correction_bias, expected)
    other = TopKRouter(fields(num_experts=6, router_bias_update_rate=0.02))  # of another model, beside it
    other.load = torch.tensor([9, 0, 3, 3, 3, 0])
    copied.load = torch.tensor([0, 4, 4, 4])  # a copy is watched, too, and is its own router
    update_biases()
    torch.testing.assert_close(other.e_score_correction_bias, torch.tensor([-0.02, 0.02, 0.0, 0.0, 0.0, 0.02]))
    assert copied.e_score_correction_bias[0] == 0.01 and torch.equal(router.e_score_correction_bias, expected)
