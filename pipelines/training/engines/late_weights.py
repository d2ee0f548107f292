"""Fresh models on the meta device, whose weights are drawn later, one module at a time.

The weights equal those of a model that is built the usual way: each module's are drawn in transformers' order
(`_init_weights`) and dropped, but the generator's state before them is kept, so that they can be drawn again.
"""

import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from ...patches import replaced, write

ONE_AT_A_TIME = threading.Lock()  # transformers loads weights in threads, which share one generator


class WeightsOfConstructor(Exception):
    """A module has a weight that its constructor sets and `_init_weights` does not."""


def in_own_pages(placeholder: torch.Tensor) -> torch.Tensor:
    """CPU memory for a tensor on the meta device, which returns to the system at once when it is freed.

    malloc would keep it, up to the size of the whole model, because the generators' states are allocated in between.
    """
    size = placeholder.numel() * placeholder.element_size()
    if size == 0:
        return torch.empty_like(placeholder, device="cpu")
    return torch.frombuffer(mmap.mmap(-1, size), dtype=placeholder.dtype).view(placeholder.shape)


class Draw:
    """Draws the weights of one module on demand, from the generator's state at the time this object was made.

    Args:
        model: its `_init_weights` draws them.
        module: its own parameters are on the meta device.
    """

    def __init__(self, model: PreTrainedModel, module: nn.Module):
        self.model, self.module, self.state = model, module, torch.get_rng_state()
        self.placeholders = {name: p for name, p in module._parameters.items() if p is not None and p.is_meta}
        for placeholder in self.placeholders.values():
            placeholder.draw = self

    def make(self) -> dict[nn.Parameter, nn.Parameter]:
        """{parameter on the meta device: drawn parameter on the CPU}, from the generator's current state."""
        drawn = {
            name: nn.Parameter(in_own_pages(p).fill_(float("nan")), p.requires_grad)
            for name, p in self.placeholders.items()
        }
        before = dict(self.module._parameters)
        self.module._parameters.update(drawn)
        try:
            with torch.no_grad():
                self.model._init_weights(self.module)
        finally:
            self.module._parameters.update(before)
        for name, parameter in drawn.items():
            parameter.data *= getattr(self.placeholders[name], "drawn_times", 1.0)  # training.transfer
        return {self.placeholders[name]: parameter for name, parameter in drawn.items()}

    def again(self) -> dict[nn.Parameter, nn.Parameter]:
        """Draw the same weights as `make` did the first time; the generator's state does not change."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            return self.make()


class Sliced:
    """A lazy weight for transformers' loading: it has a shape, and is drawn when a slice of it is taken."""

    def __init__(self, weight: torch.Tensor):
        self.weight = weight

    def get_shape(self) -> list[int]:
        return list(self.weight.shape)

    def __getitem__(self, part) -> torch.Tensor:
        with ONE_AT_A_TIME:
            whole = self.weight.draw.again()[self.weight] if self.weight.is_meta else self.weight
            return whole.detach()[part].clone()  # a view would keep the whole weight in memory


class DrawsOfMeta(TorchDispatchMode):
    """Random numbers that constructors draw into tensors on the meta device are drawn on the CPU and dropped."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        is_draw = torch.Tag.nondeterministic_seeded in function.tags and function._schema.is_mutable
        if is_draw and args[0].is_meta:
            function(in_own_pages(args[0]), *args[1:], **(kwargs or {}))
            return args[0]
        return function(*args, **(kwargs or {}))


@contextmanager
def on_meta_device() -> Iterator[None]:
    """In the block models get parameters on the meta device, each with the Draw that makes it; buffers are real."""

    def emptied(module, name, parameter):
        if parameter is None or parameter.is_meta:
            return parameter
        return nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    def recorded(model, module, is_custom_code=False):
        if not getattr(module, "_is_hf_initialized", False):
            made = Draw(model, module).make()
            if any(parameter.isnan().any() for parameter in made.values()):
                raise WeightsOfConstructor
            write(module, "_is_hf_initialized", True)

    hook = register_module_parameter_registration_hook(emptied)
    try:
        with replaced(PreTrainedModel, _initialize_weights=recorded), DrawsOfMeta():
            yield
    finally:
        hook.remove()


def built_late(build: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """Call `build` so that the weights are drawn later; at once if a module's constructor sets weights itself."""
    state = torch.get_rng_state()
    try:
        with on_meta_device():
            model = build()
        if all(hasattr(parameter, "draw") for parameter in model.parameters()):
            return model
    except WeightsOfConstructor:
        pass
    torch.set_rng_state(state)
    return build()


def is_late(model: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())


def fill(model: nn.Module, keep: Callable[[list[nn.Parameter]], object] = lambda made: None) -> None:
    """Draw the weights of a model, module by module; tied weights stay one parameter.

    keep: called with the weights of a module before the next ones are drawn, for example to split them in place.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if parameter not in made:
                new = parameter.draw.again()
                made |= new
                keep(list(new.values()))
            module._parameters[name] = made[parameter]
