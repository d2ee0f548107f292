"""The ledger of a step: bytes that are alive, by what they are; collectives; FLOPs; seen where torch dispatches.

Each storage is counted from its creation until the last tensor that uses it is deleted, also if it is resized, as FSDP2
does with gathered weights.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from weakref import finalize

import torch
from torch._guards import active_fake_mode
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..accounting.activations import HALF, HeldBytes, KernelsOfGpus, run_backward
from ..accounting.devices import Devices
from ..patches import replaced

# What bytes are, as people read it.
WEIGHTS, GRADIENTS, STATES, OTHER = "weights", "gradients", "optimizer states", "other"
GATHERED, CAST, REDUCED = "gathered weights", "weights cast to half precision", "gradients to be reduced"
ACTIVATIONS, LOGITS, UPDATES = "activations", "logits", "the optimizer's temporary values"
FORWARD, BACKWARD, OPTIMIZER, AGAIN = "forward", "backward", "optimizer", "recomputed"
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "gather", "scatter", "reduce")
# What the tensors of some operations are: {operation: {place or name of the argument: kind}}.
TELLING = {
    "fsdp::all_gather_copy_in": {1: GATHERED},
    "fsdp::split_with_sizes_copy": {"out": GATHERED},
    "fsdp::chunk_cat_mixed_dtype": {"out": REDUCED},
    "c10d::_reduce_scatter_base_": {0: GRADIENTS, 1: REDUCED},
}
# Operations that return the tensor they get, of which torch's versions for tensors without values make another one.
ALIASES = ("_c10d_functional::_wrap_tensor_autograd", "_c10d_functional::wait_tensor")


class Ledger(HeldBytes):
    """Counts what the operations inside a block do; entered again, it goes on.

    Args:
        fake: of the model's weights; None: the tensors are real.
        devices: their rates give `seconds`.

    Attributes: peak_alive {kind of bytes: bytes} at the peak, which came in `peak_in`. flops {phase: number}. seconds
    {"products" or "memory", whichever bounds an operation: s}. calls and sizes {(kind, dimension, ranks): number of
    collectives, their bytes: those that a rank has when all is gathered, or before anything is scattered}.
    To be set: times, how often what happens happens in a step; dimensions {name of a process group: of the mesh's
    dimension}; vocabulary, the last sizes of the logits; recomputes, whether layers are computed again.
    """

    def __init__(self, fake: FakeTensorMode | None, devices: Devices):
        super().__init__(fake, [])
        self.devices, self.dimensions, self.vocabulary, self.recomputes = devices, {}, (), False
        self.entries: dict[int, list] = {}  # address of a storage -> [kind, bytes]
        self.alive, self.peak_alive, self.peak_in = Counter(), {}, ""
        self.flops, self.seconds, self.calls, self.sizes = Counter(), Counter(), Counter(), Counter()
        self.phase, self.place, self.times = FORWARD, "", 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A block in which this counts; also storages that are resized, which no operation does."""
        resize = torch.UntypedStorage.resize_

        def resized(storage, size):
            resize(storage, size)
            if storage._cdata in self.entries:
                self.change(storage._cdata, storage.nbytes())

        with replaced(torch.UntypedStorage, resize_=resized), self:
            yield

    def begin(self, kinds: Mapping[str, list[torch.Tensor]], times: int) -> None:
        """Begin to count a step: what is alive is of these kinds, and what is not named is other bytes."""
        self.rename({*self.alive}, OTHER)
        for kind, tensors in kinds.items():
            self.tell(tensors, kind)
        self.peak, self.peak_alive, self.peak_in, self.times = self.now, dict(self.alive), FORWARD, times

    def rename(self, kinds: Collection[str], kind: str) -> None:
        """Say that the bytes of some kinds are of another."""
        for entry in self.entries.values():
            if entry[0] in kinds:
                self._move(entry, kind)

    def _move(self, entry: list, kind: str) -> None:
        self.alive[entry[0]] -= entry[1]
        self.alive[kind] += entry[1]
        entry[0] = kind

    def tell(self, tensors, kind: str) -> None:
        """Say of which kind the bytes of tensors are, whatever was thought before."""
        for x in tree_leaves(tensors):
            if isinstance(x, torch.Tensor):
                self._move(self.add(x.untyped_storage(), kind), kind)

    # ---- an operation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(each, (DTensor, AsyncCollectiveTensor)) for each in types):
            return NotImplemented  # these take their operations apart first: into local ones, and collectives
        kwargs, is_collective = kwargs or {}, func in collective_ops
        if active_fake_mode() is not None or isinstance(func, HigherOrderOperator):  # DTensor asks for shapes
            return func(*args, **kwargs)
        if self.fake is not None and func._schema.name in ALIASES:
            func, kwargs, is_collective = torch.ops.aten.alias.default, {}, False
            args = args[:1]
        out = func(*args, **kwargs) if self.fake is None or is_collective else self.computed(func, args, kwargs)
        if is_collective and func not in sync_ops:
            self.count_collective(func, args, out)
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.device.type != "meta":  # of which transformers asks for shapes
                self.add(x.untyped_storage(), self.kind_of(func, args, x))
        for place, kind in TELLING.get(func._schema.name, {}).items():
            self.tell(args[place] if isinstance(place, int) else kwargs.get(place, args[-1:]), kind)
        if self.times:
            self.count_work(func, args, kwargs, out)
        if self.now > self.peak:
            self.peak, self.peak_alive = self.now, dict(self.alive)
            self.peak_in = f"{self.phase} {self.place}".strip()
        return out

    def kind_of(self, func, args, out: torch.Tensor) -> str:
        if self.phase == OPTIMIZER:
            return UPDATES
        if func is torch.ops.aten._to_copy.default:
            source = self.entries.get(args[0].untyped_storage()._cdata, (OTHER,))[0]
            return CAST if source in (WEIGHTS, GATHERED) else ACTIVATIONS
        is_logits = out.is_floating_point() and out.ndim > 1 and out.shape[-1] in self.vocabulary
        return LOGITS if is_logits else ACTIVATIONS

    def count_collective(self, func, args, out) -> None:
        name, group = func._schema.name.replace("_", ""), CollectiveOp.get_process_group(func, args)
        kind = next((kind for kind in KINDS if kind.replace("_", "") in name), name)
        ranks = tuple(torch.distributed.get_process_group_ranks(group))
        key = kind, self.dimensions.get(group.group_name, "world"), ranks
        self.calls[key] += self.times
        self.sizes[key] += self.times * max(bytes_of(x) for x in (*args, out))

    def count_work(self, func, args, kwargs, out) -> None:
        formula, devices = flop_registry.get(func._overloadpacket), self.devices
        flops = 0 if formula is None else formula(*args, **kwargs, out_val=out)
        again = self.recomputes and self.phase == BACKWARD and torch.is_grad_enabled()
        self.flops[AGAIN if again else self.phase] += self.times * flops
        if devices.bandwidth is None or func.is_view or func in collective_ops:
            return
        given = next((x for x in tree_leaves(args) if isinstance(x, torch.Tensor)), None)
        products = flops / (devices.bf16 if given is not None and given.element_size() == HALF else devices.fp32)
        memory = bytes_of((args, kwargs, out)) / devices.bandwidth
        self.seconds["products" if products > memory else "memory"] += self.times * max(products, memory)

    # ---- storages

    def add(self, storage: torch.UntypedStorage, kind: str) -> list:
        key = storage._cdata
        if key not in self.entries:
            self.entries[key] = [kind, 0]
            self.change(key, storage.nbytes())
            finalize(storage, self.remove, key).atexit = False
        return self.entries[key]

    def change(self, key: int, size: int) -> None:
        entry = self.entries[key]
        self.alive[entry[0]] += size - entry[1]
        self.now += size - entry[1]
        entry[1] = size

    def remove(self, key: int) -> None:
        self.change(key, 0)
        del self.entries[key]


class StepFunctions(KernelsOfGpus):
    """Tells a ledger where the backward pass is, in which recomputed layers stay in this mode.

    of_gpus: whether operations that are one kernel on GPUs are one here.
    """

    def __init__(self, ledger: Ledger, of_gpus: bool):
        super().__init__()
        self.ledger, self.of_gpus = ledger, of_gpus

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.backward:
            self.ledger.phase = BACKWARD
            with self:
                run_backward(args[0])
            self.ledger.phase = FORWARD
            return None
        return super().__torch_function__(func, types, args, kwargs) if self.of_gpus else func(*args, **(kwargs or {}))


def bytes_of(tree) -> int:
    return sum(x.numel() * x.element_size() for x in tree_leaves(tree) if isinstance(x, torch.Tensor))
