"""A checkpoint of which each process of a mesh reads its own shares, and not the whole.

transformers reads those slices of a file that a process keeps. What the file lacks it would draw share by share; here
the processes draw such weights whole, one module after the other, so that they are those of one process.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate.utils import gather_object
from torch import nn
from torch.distributed.tensor import DTensor

from ...adapters import load_model
from ...patches import write
from ...transformers_logging import silent
from .late_weights import in_own_pages


def load_shares(auto_class, name: str, distributed: dict, **options) -> tuple:
    """A checkpoint's model; the names of the weights that the checkpoint lacks; those and the ones of other shapes.

    distributed: the arguments of from_pretrained that split the model while it is loaded; {}: it stays whole.
    """
    state = torch.get_rng_state()
    model, info = load_model(auto_class, name, output_loading_info=True, **options, **distributed)
    missing, others = {*info["missing_keys"]}, {key for key, *_ in info["mismatched_keys"]}
    if distributed:  # shapes are compared share by share, so another shape may show in some processes only
        others = set(gather_object(sorted(others)))
        torch.set_rng_state(state)
        with whole_on_cpu(model, missing | others) as owners:
            for owner in owners:
                write(owner, "_is_hf_initialized", False)
            model.initialize_weights()
    return model, missing, missing | others


@contextmanager
def whole_on_cpu(model, names: Iterable[str]) -> Iterator[list[nn.Module]]:
    """A block in which some weights of a split model are whole and not set; then each process keeps its shares.

    Gives the modules that own them, or [] for a model that is not split.
    """
    if not any(isinstance(weight, DTensor) for weight in model.parameters()):
        yield []
        return
    from transformers.distributed.sharding_utils import DtensorShardOperation

    places = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in sorted(names)]
    shares = {(owner, leaf): owner._parameters[leaf] for owner, leaf in places if leaf in owner._parameters}
    for (owner, leaf), share in shares.items():
        owner._parameters[leaf] = nn.Parameter(in_own_pages(share), share.requires_grad)
    yield [owner for owner, _ in places]
    for (owner, leaf), share in shares.items():
        drawn, owner._parameters[leaf] = owner._parameters[leaf].detach(), share
        if isinstance(share, DTensor):
            drawn, share = DtensorShardOperation(share).shard_tensor(drawn), share.to_local()
        share.detach().copy_(drawn)


def read_shares(model, folder: Path) -> None:
    """Give a split model the weights in a checkpoint's folder."""
    how = {"dtype": model.dtype, "distributed_config": model.config.distributed_config}
    with silent():
        read, info = type(model).from_pretrained(folder, output_loading_info=True, **how)
    if info["missing_keys"]:
        raise KeyError(f"{folder} lacks the weights {', '.join(sorted(info['missing_keys']))}")
    model.load_state_dict(read.state_dict())
