"""The loss without logits equals the loss with logits."""

import torch
from anyformer.modeling.losses import linear_cross_entropy, shift_left
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40), d=st.integers(1, 9), v=st.integers(2, 60), chunk=st.integers(1, 400), seed=st.integers(0, 99)
)
def test_loss_and_gradients_equal_plain_cross_entropy_for_every_chunk_size(n, d, v, chunk, seed):
    g = torch.Generator().manual_seed(seed)
    x, w = torch.randn(n, d, generator=g), torch.randn(v, d, generator=g)
    labels = torch.randint(0, v, (n,), generator=g)
    labels[torch.rand(n, generator=g) < 0.3] = -100
    labels[0] = 0
    pairs = []
    for loss in (
        lambda a, b: torch.nn.functional.cross_entropy(a @ b.T, labels),
        lambda a, b: linear_cross_entropy(a, b, labels, logits_per_chunk=chunk),
    ):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        value = loss(a, b)
        value.backward()
        pairs.append((value, a.grad, b.grad))
    for expected, got in zip(*pairs):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def test_no_tensor_of_tokens_times_vocabulary_is_kept():
    n, d, v = 512, 8, 1000
    x, w = torch.randn(n, d, requires_grad=True), torch.randn(v, d, requires_grad=True)
    labels = torch.randint(0, v, (n,))
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    with Sizes():
        linear_cross_entropy(x, w, labels, logits_per_chunk=16 * v).backward()
    assert max(sizes) <= 16 * v < n * v


def test_num_items_divides_the_sum_as_int_and_as_tensor():
    x, w, labels = torch.randn(6, 4), torch.randn(9, 4), torch.tensor([1, 2, -100, 3, 4, 5])
    total = torch.nn.functional.cross_entropy(x @ w.T, labels, reduction="sum")
    for count in (7, torch.tensor(7)):
        torch.testing.assert_close(linear_cross_entropy(x, w, labels, count), total / 7)


def test_shifted_labels_line_up_with_predictions():
    assert shift_left(torch.tensor([[5, 6, 7]])).tolist() == [[6, 7, -100]]
