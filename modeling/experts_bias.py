"""Balance without a loss: a bias on the choice of experts, moved after every optimizer step (Wang et al. 2024).

Routers count the tokens of a step's forward passes. After an optimizer step each bias moves by
`router_bias_update_rate` towards equal loads, summed over all processes: up for an expert with fewer tokens than the
mean, down for one with more (algorithm 1). Once a router with a bias exists, torch calls `update_biases` after each
step of any optimizer, in every training loop.
"""

import weakref

import torch
from torch import distributed
from torch.optim.optimizer import register_optimizer_step_post_hook

# In the order in which they were built, which all processes share.
_watched: list[weakref.ref] = []
_hook = None  # torch's, for every optimizer of this process; None until a router with a bias exists


def watch(router) -> None:
    """Register a router whose bias is moved from now on, until the router is deleted."""
    global _hook
    if _hook is None:
        _hook = register_optimizer_step_post_hook(update_biases)
    _watched[:] = [ref for ref in _watched if ref() is not None]
    _watched.append(weakref.ref(router))


def count(router, assignments_E: torch.Tensor) -> None:
    """Add a forward pass's assignments (E) to the router's count since the last step."""
    router.load = assignments_E if router.load is None else router.load + assignments_E


def forget_counts() -> None:
    """Reset the counts of all routers, so that forward passes since the last step move no bias."""
    for ref in _watched:
        if (router := ref()) is not None:
            router.load = None


@torch.no_grad()
def update_biases(*_) -> None:
    """Move the bias of every router that has counted tokens, and reset its count."""
    routers = [router for ref in _watched if (router := ref()) is not None and router.load is not None]
    if not routers:
        return
    loads = torch.cat([router.load.to(routers[0].load.device) for router in routers]).float()
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(loads)
    for router, load in zip(routers, loads.split([router.load.numel() for router in routers])):
        bias = router.e_score_correction_bias
        bias += (router.bias_update_rate * (load.mean() - load).sign()).to(bias)
        router.load = None
