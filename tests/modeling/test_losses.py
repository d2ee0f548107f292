"""The loss without logits equals the loss with logits."""

import pytest
import torch
from anyformer.modeling import losses
from anyformer.modeling.losses import linear_cross_entropy, shift_left
from hypothesis import given, settings
from hypothesis import strategies as st


def plain(x, w, labels, softcap=None, **kwargs):
    logits = x @ w.T
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


def loss_and_gradients(loss, x, w, dtype=torch.float32):
    a, b = x.to(dtype, copy=True).requires_grad_(), w.to(dtype, copy=True).requires_grad_()
    value = loss(a, b)
    value.backward()
    return value.detach(), a.grad, b.grad


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 9),
    v=st.integers(2, 60),
    chunk=st.integers(1, 400),
    softcap=st.none() | st.floats(0.5, 30),
    seed=st.integers(0, 99),
)
def test_loss_and_gradients_equal_plain_cross_entropy_for_every_chunk_size_and_cap(n, d, v, chunk, softcap, seed):
    x, w, labels = example(n, d, v, seed)
    expected = loss_and_gradients(lambda a, b: plain(a, b, labels, softcap), x, w, torch.float64)
    got = loss_and_gradients(
        lambda a, b: linear_cross_entropy(a, b, labels, logits_per_chunk=chunk, softcap=softcap), x, w
    )
    for value, exact in zip(got, expected):
        torch.testing.assert_close(value.double(), exact, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("backend, softcap", [("inductor", None), ("aot_eager", 5.0)])
def test_compiled_whole_with_several_chunks_it_is_equal(backend, softcap):
    x, w, labels = example(24, 8, 50)
    expected = loss_and_gradients(lambda a, b: plain(a, b, labels, softcap), x, w)
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, dynamic=False, backend=backend)
    got = loss_and_gradients(lambda a, b: compiled(a, b, labels, logits_per_chunk=500, softcap=softcap), x, w)
    for value, exact in zip(got, expected):
        torch.testing.assert_close(value, exact, atol=1e-6, rtol=1e-5)


def test_large_logits_neither_overflow_nor_lose_the_loss():
    x, w, labels = example(6, 4, 9, ignored=0)
    expected = loss_and_gradients(lambda a, b: plain(a, b, labels), 100 * x, 10 * w, torch.float64)
    got = loss_and_gradients(lambda a, b: linear_cross_entropy(a, b, labels), 100 * x, 10 * w)
    for value, exact in zip(got, expected):
        torch.testing.assert_close(value.double(), exact, atol=1e-3, rtol=1e-5)  # atol: logits are in the thousands


def test_only_what_requires_gradients_gets_one_and_a_second_backward_gives_the_same():
    x, w, labels = example(7, 4, 9)
    (expected,) = torch.autograd.grad(plain(x.requires_grad_(), w, labels), x)
    loss = linear_cross_entropy(x, w, labels, logits_per_chunk=18)
    for keep in (True, True, False):
        (got,) = torch.autograd.grad(2 * loss, x, retain_graph=keep)
        torch.testing.assert_close(got, 2 * expected, atol=1e-6, rtol=1e-5)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(2 * loss, x)


@pytest.mark.parametrize("fast", [True, False], ids=["products in bf16", "cpu without bf16"])
def test_under_autocast_gradients_reach_the_fp32_weight_in_fp32(fast, monkeypatch):
    monkeypatch.setattr(losses, "SLOW_ON_CPU", frozenset() if fast else frozenset([torch.bfloat16]))
    x, w, labels = example(33, 16, 70)
    expected = loss_and_gradients(lambda a, b: plain(a, b, labels), x, w)

    def autocast(a, b):
        with torch.autocast("cpu", torch.bfloat16):
            return linear_cross_entropy(a, b, labels, logits_per_chunk=700)

    got = loss_and_gradients(autocast, x, w)
    for value, exact in zip(got, expected):
        assert value.dtype == torch.float32
        # bf16 has 8 bits: operands, logits and their gradients are rounded to 2^-8 each
        torch.testing.assert_close(
            value, exact, **({"atol": 2e-2, "rtol": 3e-2} if fast else {"atol": 1e-6, "rtol": 1e-5})
        )


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


def test_chunks_take_an_eighth_of_the_logits_of_a_large_vocabulary_and_all_of_a_small_one():
    for half, softcap in ((torch.float32, None), (torch.bfloat16, None), (torch.float32, 30.0), (torch.bfloat16, 30.0)):
        tokens, vocabulary = 2048, 128_000
        rows = losses._rows_per_chunk(tokens, vocabulary, half, None, softcap)
        held = 4 + (2 if half is torch.bfloat16 else 0) + (4 if softcap else 0)
        assert rows * vocabulary * held <= tokens * vocabulary * 4 / 8 < 2 * (rows + 1) * vocabulary * held
    assert losses._rows_per_chunk(1024, 2048, torch.float32, None, None) >= 1024


def test_num_items_divides_the_sum_as_int_and_as_tensor():
    x, w, labels = torch.randn(6, 4), torch.randn(9, 4), torch.tensor([1, 2, -100, 3, 4, 5])
    total = torch.nn.functional.cross_entropy(x @ w.T, labels, reduction="sum")
    for count in (7, torch.tensor(7)):
        torch.testing.assert_close(linear_cross_entropy(x, w, labels, count), total / 7)


def test_shifted_labels_line_up_with_predictions():
    assert shift_left(torch.tensor([[5, 6, 7]])).tolist() == [[6, 7, -100]]
