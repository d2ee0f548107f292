"""What the operations of a pass make, and what they read on the host, as torch dispatches them."""

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Records the operations that make a tensor of a kind, and those that read a value on the host.

    is_meant: (tensor, operation that made it) -> whether it is of that kind.
    """

    def __init__(self, is_meant: Callable = lambda tensor, operation: False):
        super().__init__()
        self.is_meant, self.made, self.reads = is_meant, [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal):
            self.reads.append(func.overloadpacket.__name__)
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, torch.Tensor) and self.is_meant(x, func):
                self.made.append(func.overloadpacket.__name__)
        return out


def square(length: int) -> Callable:
    """Tensors of all pairs of so many tokens."""
    return lambda tensor, operation: tensor.shape[-2:] == (length, length)
