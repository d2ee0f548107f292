"""The loss without logits equals the loss with logits."""

from types import SimpleNamespace

import pytest
import torch
from anyformer.modeling.lm_head import LanguageModelHead, language_model_loss, linear_cross_entropy
from anyformer.modeling.masked_head import HeadTransform, masked_language_model_loss
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode


def plain(x, w, labels, softcap=None, bias=None, **kwargs):
    logits = x @ w.T if bias is None else x @ w.T + bias
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return torch.nn.functional.cross_entropy(logits, labels, **kwargs)


def example(n, d, v, seed=0, ignored=0.3):
    g = torch.Generator().manual_seed(seed)
    x, w = torch.randn(n, d, generator=g), torch.randn(v, d, generator=g)
    labels = torch.randint(0, v, (n,), generator=g)
    labels[torch.rand(n, generator=g) < ignored] = -100
    labels[0] = 0
    return x, w, labels


def loss_and_gradients(loss, *inputs, dtype=torch.float32):
    """The loss of the inputs and its gradient for each of them; None stays None."""
    leaves = [x if x is None else x.to(dtype, copy=True).requires_grad_() for x in inputs]
    value = loss(*leaves)
    value.backward()
    return value.detach(), *(x.grad for x in leaves if x is not None)


def bias_of(v, seed=0):
    return torch.randn(v, generator=torch.Generator().manual_seed(seed))


@given(
    n=st.integers(1, 40),
    d=st.integers(1, 9),
    v=st.integers(2, 60),
    chunk=st.integers(1, 400),
    softcap=st.none() | st.floats(0.5, 30),
    biased=st.booleans(),
    smoothing=st.just(0.0) | st.floats(0, 1),
    num_items=st.none() | st.integers(1, 50),
    seed=st.integers(0, 99),
)
def test_loss_and_gradients_equal_plain_cross_entropy_for_every_chunk_size_cap_bias_and_smoothing(
    n, d, v, chunk, softcap, biased, smoothing, num_items, seed
):
    x, w, labels = example(n, d, v, seed)
    bias = bias_of(v, seed) if biased else None

    def expected_loss(a, b, c=None):
        total = plain(a, b, labels, softcap, c, label_smoothing=smoothing, reduction="sum")
        return total / ((labels != -100).sum() if num_items is None else num_items)

    def loss(a, b, c=None):
        return linear_cross_entropy(a, b, labels, num_items, chunk, softcap, c, smoothing)

    expected = loss_and_gradients(expected_loss, x, w, bias, dtype=torch.float64)
    got = loss_and_gradients(loss, x, w, bias)
    assert len(got) == len(expected) == 3 + biased
    for value, exact in zip(got, expected):
        torch.testing.assert_close(value.double(), exact, atol=2e-6, rtol=1e-5)


# Inductor's first program of a process takes half a minute, and all tests of it are slow ones.
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("softcap, smoothing", [(None, 0.0), (5.0, 0.1)])
def test_compiled_whole_with_several_chunks_it_is_equal(backend, softcap, smoothing):
    x, w, labels = example(24, 8, 50)
    bias = bias_of(50) if smoothing else None

    def expected_loss(a, b, c=None):
        return plain(a, b, labels, softcap, c, label_smoothing=smoothing)

    expected = loss_and_gradients(expected_loss, x, w, bias)
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, dynamic=False, backend=backend)
    got = loss_and_gradients(
        lambda a, b, c=None: compiled(
            a, b, labels, logits_per_chunk=500, softcap=softcap, bias=c, label_smoothing=smoothing
        ),
        x,
        w,
        bias,
    )
    for value, exact in zip(got, expected):
        torch.testing.assert_close(value, exact, atol=1e-6, rtol=1e-5)


def test_large_logits_neither_overflow_nor_lose_the_loss():
    x, w, labels = example(6, 4, 9, ignored=0)
    expected = loss_and_gradients(lambda a, b: plain(a, b, labels), 100 * x, 10 * w, dtype=torch.float64)
    got = loss_and_gradients(lambda a, b: linear_cross_entropy(a, b, labels), 100 * x, 10 * w)
    for value, exact in zip(got, expected):
        torch.testing.assert_close(value.double(), exact, atol=1e-3, rtol=1e-5)  # atol: logits are in the thousands


def test_logits_far_below_the_largest_make_no_denormal_numbers():
    x, w, labels = example(8, 4, 30)
    x, w = (100 * x).requires_grad_(), w.requires_grad_()
    linear_cross_entropy(x, w, labels).backward()
    tiny = torch.finfo(torch.float32).tiny
    assert (w.grad == 0).any()  # nobody's word: e^-60 and less
    for grad in (x.grad, w.grad):
        assert not ((grad != 0) & (grad.abs() < tiny)).any()
    ours = [x.grad.clone(), w.grad.clone()]
    x.grad = w.grad = None
    plain(x, w, labels).backward()
    for grad, expected in zip(ours, (x.grad, w.grad)):
        torch.testing.assert_close(grad, expected, atol=1e-5, rtol=1e-5)


def test_only_what_requires_gradients_gets_one_and_a_second_backward_gives_the_same():
    x, w, labels = example(7, 4, 9)
    (expected,) = torch.autograd.grad(plain(x.requires_grad_(), w, labels), x)
    loss = linear_cross_entropy(x, w, labels, logits_per_chunk=18)
    for keep in (True, True, False):
        (got,) = torch.autograd.grad(2 * loss, x, retain_graph=keep)
        torch.testing.assert_close(got, 2 * expected, atol=1e-6, rtol=1e-5)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(2 * loss, x)


@pytest.mark.parametrize("logits_per_chunk", [None, 64], ids=["whole", "in chunks"])
@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_head_is_multiplied_once_and_no_gradient_is_made(grad_mode, logits_per_chunk):
    x, w, labels = example(16, 8, 40)
    w = torch.nn.Parameter(w)  # of a model in evaluation, whose parameters keep requires_grad
    with grad_mode(), FlopCounterMode(display=False) as counter:
        loss = linear_cross_entropy(x, w, labels, logits_per_chunk=logits_per_chunk, bias=torch.nn.Parameter(w[:, 0]))
    assert counter.get_total_flops() == 2 * 16 * 8 * 40
    torch.testing.assert_close(loss, plain(x, w.detach(), labels, bias=w[:, 0].detach()))


@pytest.mark.parametrize("biased, smoothing", [(False, 0.0), (True, 0.0), (True, 0.1)])
def test_under_autocast_gradients_reach_the_fp32_weight_in_fp32(biased, smoothing):
    x, w, labels = example(33, 16, 70)
    bias = bias_of(70) if biased else None

    def exact_loss(a, b, c=None):
        return plain(a, b, labels, bias=c, label_smoothing=smoothing)

    expected = loss_and_gradients(exact_loss, x, w, bias)

    def autocast(a, b, c=None):
        with torch.autocast("cpu", torch.bfloat16):
            return linear_cross_entropy(a, b, labels, logits_per_chunk=700, bias=c, label_smoothing=smoothing)

    got = loss_and_gradients(autocast, x, w, bias)
    for value, exact in zip(got, expected):
        assert value.dtype == torch.float32
        # bf16 has 8 bits: operands, logits and their gradients are rounded to 2^-8 each
        torch.testing.assert_close(value, exact, atol=2e-2, rtol=3e-2)


def test_backward_scales_the_gradients_in_their_own_memory():
    x, w, labels = example(64, 32, 300)
    w.requires_grad_()
    loss = linear_cross_entropy(x, w, labels)
    with Sizes() as sizes:
        loss.backward()
    assert max(sizes.of_new_tensors, default=0) < w.numel()


class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
    """Elements of every tensor made while it is on, without those that operators in place return."""

    def __init__(self):
        super().__init__()
        self.of_new_tensors = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = [a.data_ptr() for a in args if isinstance(a, torch.Tensor)]
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.data_ptr() not in given:
                self.of_new_tensors.append(t.numel())
        return out


def test_no_tensor_of_tokens_times_vocabulary_is_kept():
    n, d, v = 512, 8, 1000
    x, w = torch.randn(n, d, requires_grad=True), torch.randn(v, d, requires_grad=True)
    labels = torch.randint(0, v, (n,))
    with Sizes() as sizes:
        linear_cross_entropy(x, w, labels, logits_per_chunk=16 * v).backward()
    assert max(sizes.of_new_tensors) <= 16 * v < n * v


def head_config(**fields):
    facts = {"hidden_size": 8, "embedding_size": 6, "vocab_size": 30, "lm_head_bias": True, "logit_multiplier": 0.5}
    facts |= {"final_logit_softcapping": 3.0, "norm_type": "layernorm", "norm_eps": 1e-5, "norm_bias": True}
    facts |= {"hidden_act": "gelu", "head_act": None, "head_bias": True}
    return SimpleNamespace(**facts | fields)


def head_and_transform(**fields):
    torch.manual_seed(0)
    config = head_config(**fields)
    return LanguageModelHead(config), HeadTransform(config)


def masked_batch(share=0.3):
    g = torch.Generator().manual_seed(1)
    hidden, labels = torch.randn(3, 11, 8, generator=g), torch.randint(0, 30, (3, 11), generator=g)
    return hidden, labels.masked_fill(torch.rand(3, 11, generator=g) >= share, -100)


def gradients_of(loss, *modules):
    parameters = [p for module in modules for p in module.parameters()]
    return torch.autograd.grad(loss, parameters)


@pytest.mark.parametrize("num_items", [None, 7])
@pytest.mark.parametrize("hooked", [False, True], ids=["own head", "head that gives logits only"])
def test_the_loss_of_a_head_is_that_of_its_logits_with_smoothing_too(hooked, num_items):
    head, _ = head_and_transform()
    head._is_hooked = hooked
    hidden, labels = torch.randn(3, 11, 6), masked_batch()[1]
    logits = head(hidden).flatten(0, 1)
    exact = plain(logits, torch.eye(30), labels.flatten(), label_smoothing=0.1, reduction="sum")
    exact = exact / ((labels != -100).sum() if num_items is None else num_items)
    got, losses = language_model_loss(head, hidden, labels, num_items, label_smoothing=0.1)
    each = plain(logits.detach(), torch.eye(30), labels.flatten(), reduction="none").view(3, 11)
    torch.testing.assert_close(losses, each, atol=1e-6, rtol=1e-5)
    assert not losses.requires_grad
    torch.testing.assert_close(got, exact, atol=1e-6, rtol=1e-5)
    for ours, theirs in zip(gradients_of(got, head), gradients_of(exact, head)):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_head_and_transform_run_on_labelled_positions_only():
    head, transform = head_and_transform()
    hidden, labels = masked_batch()
    rows = []
    for module in (head, transform):
        module.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    masked_language_model_loss(head, transform, hidden, labels)
    assert rows == [(labels != -100).sum()] * 2


@pytest.mark.parametrize("num_items", [None, 9])
@pytest.mark.parametrize("hooked", [False, True], ids=["own head", "head that gives logits only"])
@pytest.mark.parametrize("compiled", [False, True])
def test_without_labelled_positions_the_masked_loss_and_every_gradient_are_zero(compiled, hooked, num_items):
    head, transform = head_and_transform()
    head._is_hooked = hooked
    hidden, labels = masked_batch(share=0)
    hidden.requires_grad_()
    loss = masked_language_model_loss
    if compiled:
        torch.compiler.reset()
        loss = torch.compile(loss, fullgraph=True, dynamic=False, backend="eager")
    got, of_rows = loss(head, transform, hidden, labels, num_items)
    assert got == 0 and not of_rows.any()
    for gradient in torch.autograd.grad(got, [hidden, *head.parameters(), *transform.parameters()]):
        assert not gradient.any()


def test_without_a_transform_the_head_reads_the_hidden_states_themselves():
    head, _ = head_and_transform(embedding_size=8)
    hidden, labels = masked_batch()
    got, of_rows = masked_language_model_loss(head, None, hidden, labels)
    loss, losses = language_model_loss(head, hidden, labels)
    torch.testing.assert_close((got, of_rows), (loss, losses.sum(-1)), atol=1e-6, rtol=1e-5)
