"""The ledger of a step: bytes that are alive, by what they are; collectives; FLOPs; seen where torch dispatches.

Each storage is counted from its creation until the last tensor that uses it is deleted, also if it is resized, as FSDP2
does with gathered weights.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._guards import active_fake_mode
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..accounting.activations import HeldBytes, KernelsOfGpus, run_backward
from ..patches import replaced

# What bytes are, as people read it.
WEIGHTS, GRADIENTS, STATES, OTHER = "weights", "gradients", "optimizer states", "other"
GATHERED, CAST, REDUCED = "gathered weights", "weights cast to half precision", "gradients to be reduced"
ACTIVATIONS, LOGITS, UPDATES = "activations", "logits", "the optimizer's temporary values"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "gather", "scatter", "reduce")
# Operations of FSDP2 -> what the storages of their tensors are: {name: {place in the arguments, or name: kind}}.
TELLING = {
    "fsdp::all_gather_copy_in": {1: GATHERED},
    "fsdp::split_with_sizes_copy": {"out": GATHERED},
    "fsdp::chunk_cat": {"out": REDUCED},
    "fsdp::chunk_cat_mixed_dtype": {"out": REDUCED},
    "c10d::_reduce_scatter_base_": {0: GRADIENTS, 1: REDUCED},
}


@dataclass(frozen=True)
class Rates:
    """What a device does in a second. half, single: FLOPs in 16 and in 32 bits. memory: bytes read and written."""

    half: float
    single: float
    memory: float


class Ledger(HeldBytes):
    """Counts what the operations inside a `with` block do; entered again, it goes on.

    Args:
        fake: of the model's weights; None: the tensors are real.
        rates: of the device, for `seconds`; None: no times are reckoned.

    Attributes: alive {kind of bytes: bytes} now, and peak_alive at the peak, which came in `peak_in`. flops and seconds
    {phase: number}; calls and sizes {(kind, dimension, members): number of collectives, their bytes: those that a rank
    has when all is gathered, or before anything is scattered}. times: how often what happens now happens in a step.
    dimensions: {name of a process group: of the mesh's dimension that it is}. vocabulary: the last sizes of the logits.
    """

    def __init__(self, fake: FakeTensorMode | None, rates: Rates | None):
        super().__init__(fake, [])
        self.rates, self.dimensions = rates, {}
        self.entries: dict[int, list] = {}  # address of a storage -> [kind, bytes]
        self.alive, self.peak_alive, self.peak_in = Counter(), {}, ""
        self.flops, self.seconds, self.calls, self.sizes = Counter(), Counter(), Counter(), Counter()
        self.phase, self.place, self.times, self.vocabulary = FORWARD, "", 0, ()

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

    def begin(self, kinds: Mapping[str, list[torch.Tensor]]) -> None:
        """Begin to count a step: what is alive is of these kinds, and what is not named is other bytes."""
        for entry in self.entries.values():
            entry[0] = OTHER
        for kind, tensors in kinds.items():
            self.tell(tensors, kind)
        self.alive = Counter()
        for kind, size in self.entries.values():
            self.alive[kind] += size
        self.now = self.peak = sum(self.alive.values())
        self.peak_alive, self.peak_in = dict(self.alive), FORWARD
        for counter in (self.flops, self.seconds, self.calls, self.sizes):
            counter.clear()

    def tell(self, tensors, kind: str) -> None:
        """Say of which kind the bytes of tensors are, whatever was thought before."""
        for x in tree_leaves(tensors):
            if isinstance(x, torch.Tensor):
                self.add(x.untyped_storage(), kind)
                entry = self.entries[x.untyped_storage()._cdata]
                self.alive[entry[0]] -= entry[1]
                self.alive[kind] += entry[1]
                entry[0] = kind

    # ---- an operation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(each, (DTensor, AsyncCollectiveTensor)) for each in types):
            return NotImplemented  # these take their operations apart first: into local ones, and collectives
        kwargs = kwargs or {}
        if active_fake_mode() is not None or isinstance(func, HigherOrderOperator):  # DTensor asks for shapes
            return func(*args, **kwargs)
        is_collective = func in collective_ops
        out = func(*args, **kwargs) if self.fake is None or is_collective else self.computed(func, args, kwargs)
        if is_collective and func not in sync_ops:
            self.count_collective(func, args, out)
        kind = self.kind_of(func, args)
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                is_logits = x.is_floating_point() and x.ndim > 1 and x.shape[-1] in self.vocabulary
                self.add(x.untyped_storage(), LOGITS if is_logits and kind == ACTIVATIONS else kind)
        for place, told in TELLING.get(func._schema.name, {}).items():
            self.tell(kwargs.get(place, args[-1]) if isinstance(place, str) else args[place], told)
        self.count_work(func, args, kwargs, out)
        if self.now > self.peak:
            self.peak, self.peak_alive = self.now, dict(self.alive)
            self.peak_in = f"{self.phase} {self.place}".strip()
        return out

    def kind_of(self, func, args) -> str:
        if self.phase == OPTIMIZER:
            return UPDATES
        if func is torch.ops.aten._to_copy.default:
            source = self.entries.get(args[0].untyped_storage()._cdata, (OTHER,))[0]
            return CAST if source in (WEIGHTS, GATHERED) else ACTIVATIONS
        return ACTIVATIONS

    def count_collective(self, func, args, out) -> None:
        name = func._schema.name.split("::")[1].replace("_", "")
        kind = next((kind for kind in KINDS if kind.replace("_", "") in name), name)
        group = CollectiveOp.get_process_group(func, args)
        key = (
            kind,
            self.dimensions.get(group.group_name, "world"),
            tuple(torch.distributed.get_process_group_ranks(group)),
        )
        self.calls[key] += self.times
        self.sizes[key] += self.times * max(bytes_of(x) for x in (*args, out))

    def count_work(self, func, args, kwargs, out) -> None:
        """FLOPs, and the time of the operation: of its products, or of its memory where that takes longer."""
        formula = flop_registry.get(func._overloadpacket)
        flops = 0 if formula is None else formula(*args, **kwargs, out_val=out)
        again = self.phase == BACKWARD and torch.is_grad_enabled()  # what checkpointing left out is computed again
        phase = "recomputed" if again else self.phase
        self.flops[phase] += self.times * flops
        if self.rates is None or func.is_view or func in collective_ops:
            return
        given = next((x for x in tree_leaves(args) if isinstance(x, torch.Tensor)), None)
        rate = self.rates.half if given is not None and given.element_size() == 2 else self.rates.single
        moved = bytes_of((args, kwargs, out)) / self.rates.memory
        self.seconds["products" if flops / rate > moved else "memory"] += self.times * max(flops / rate, moved)

    # ---- storages

    def add(self, storage: torch.UntypedStorage, kind: str) -> None:
        key = storage._cdata
        if key not in self.entries:
            self.entries[key] = [kind, 0]
            self.change(key, storage.nbytes())
            torch.utils.weak.weakref.finalize(storage, self.remove, key).atexit = False

    def change(self, key: int, size: int) -> None:
        entry = self.entries[key]
        self.alive[entry[0]] += size - entry[1]
        self.now += size - entry[1]
        entry[1] = size

    def remove(self, key: int) -> None:
        self.change(key, 0)
        del self.entries[key]


class StepFunctions(KernelsOfGpus):
    """Tells a ledger where the backward pass is, and lets recomputed layers stay in this mode.

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
