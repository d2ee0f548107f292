"""An optimizer step as an arm of a benchmark, on any device."""

import contextlib
import traceback
import warnings
from pathlib import Path

import method
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Autocast rounds each product to 8 bits; our head stays in fp32 on CPUs without bf16.
BF16_TOLERANCE = 5e-3


def autocast(batch: dict, bf16: bool):
    """bf16 by autocast on the device of the batch, or nothing."""
    device = next(x for x in batch.values() if torch.is_tensor(x)).device.type
    return torch.autocast(device, torch.bfloat16) if bf16 else contextlib.nullcontext()


class Step:
    """A model with its optimizer, on a fixed batch. Calling it takes a step and returns the loss."""

    def __init__(self, model, batch: dict, dtype: str, lr: float = 1e-4):
        self.model, self.batch, self.dtype = model.train(), batch, dtype
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    def forward_loss(self):
        return self.model(**self.batch).loss

    def loss(self, dtype: str | None = None):
        with autocast(self.batch, (dtype or self.dtype) == "bf16"):
            return self.forward_loss()

    def __call__(self):
        loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def require_equal_losses(steps: dict[str, Step]) -> None:
    """Compare losses in fp32, then in the dtype that is timed."""
    with torch.no_grad():
        method.require_equal({name: step.loss("fp32").item() for name, step in steps.items()})
        if next(iter(steps.values())).dtype == "bf16":
            method.require_equal({name: step.loss().item() for name, step in steps.items()}, BF16_TOLERANCE)


# --------------------------------------------------------------------------------------- waiting for the device


class _Reads(TorchDispatchMode):
    """Operations whose result or whose shape the host reads, by name: what would wait for a GPU."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().split("::")[-1].split(".")[0]
        if name in self.NAMES:
            frames = [f for f in traceback.extract_stack() if "/torch/" not in f.filename and f.filename != __file__]
            # Numbers for one_hot are checked on a CPU only; those of sample ids are on the host in any case.
            if not frames or not ("one_hot(" in frames[-1].line or frames[-1].filename.endswith("sample_ids.py")):
                self.found.append(f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {name}" if frames else name)
        return function(*args, **kwargs or {})


@contextlib.contextmanager
def counted_reads(device: str):
    """Yield a list which, in the end, names each time that the host waited: the driver's own count on CUDA.

    On a CPU nobody waits: counted are the operations that would.
    """
    found = []
    if device != "cuda":
        with _Reads() as reads:
            yield found
        found.extend(reads.found)
        return
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # The first call in a process also warns that the mode does not know all "synchronizing operations".
    found.extend(f"{Path(w.filename).name}:{w.lineno}" for w in caught if "called a synchronizing" in str(w.message))


def host_reads(step, device: str) -> list[str]:
    """Where the host waits for the device within one call of `step`."""
    with counted_reads(device) as found:
        step()
    return found
