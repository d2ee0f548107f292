"""The bound of a benchmark: the matrix products of an arm, run again with nothing around them.

What an arm spends beside its products can be saved; the products themselves cannot, at equal model and batch. The ratio
of "products alone" is therefore the most that this machine allows for the arm whose products they are.
"""

from collections.abc import Callable

import method
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

ALONE = "products alone"
UNCOUNTED = (torch.ops.aten._grouped_mm,)  # products, too, but torch has no count of their operations


class Products(TorchDispatchMode):
    """The calls of matrix products, convolutions and attention: operations whose FLOPs torch counts, and UNCOUNTED."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        packet = function._overloadpacket
        in_place = getattr(torch.ops.aten, packet.__name__.removesuffix("_"), None)  # addmm_ counts as addmm
        if packet in flop_registry or in_place in flop_registry or packet in UNCOUNTED:
            self.calls.append((function, args, kwargs))
        return function(*args, **kwargs)


def products_alone(arm: Callable) -> Callable:
    """An arm that repeats the products of one call of `arm`, with the same tensors.

    The tensors are kept, so that each product reads other memory than the one before, as it does in the arm.
    """
    with Products() as recorded:
        arm()
    if not recorded.calls:
        raise SystemExit("the arm makes no matrix products")

    @torch.no_grad()
    def again() -> None:
        for function, args, kwargs in recorded.calls:
            function(*args, **kwargs)

    return again


def with_products(arms: dict[str, Callable]) -> dict[str, Callable]:
    """`arms`, and the products of "ours" alone, where that is among them."""
    return arms | {ALONE: products_alone(arms["ours"])} if "ours" in arms else arms


def print_bound(what: str, timings: dict, peers) -> None:
    """Rows of the products' ratio to each peer: the most that ours can reach."""
    for peer in peers if ALONE in timings else ():
        timing = method.relative_to(timings, peer, ALONE)
        print(method.row(what, ALONE, peer, timing, None, method.is_void(timings)), flush=True)
