"""Layers compiled by torch.compile (`training.torch_compile`): always, or where a probe says that it pays back.

Each layer is compiled by itself, in place: layers of one kind share what was compiled, so that a deep model takes as
long to compile as one layer, and names of weights stay as they are.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._pytree import tree_map
from transformers import TrainerCallback
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.trainer_callback import ExportableState

from ..errors import first_line
from ..recipes.schema import TrainingSection
from ..words import human_time
from .checkpoints.resume_settings import saved_attributes
from .checkpoints.run_folder import say
from .lora import plain

COMPILING = {"torch_compile_backend": "backend", "torch_compile_mode": "mode"}  # settings of Trainer, and torch's names
WARMING_UP, PROBED = 2, 6  # steps: those after the former, up to the latter, tell how long a step takes
WORTH_A_PROBE = 600.0  # seconds of the rest of the run; compiling alone takes up to two minutes on a CPU
TIMED_PASSES = 3
LEAST_GAIN = 0.97  # of an eager layer's time: less is within what the timing of three passes tells
# What was compiled for training is compiled again for an evaluation, and once more where the shapes of batches change.
COMPILED_AGAIN = 2


def compile_arguments(section: TrainingSection) -> dict:
    """The arguments of torch.compile that a recipe chooses."""
    return {ours: section.extra[name] for name, ours in COMPILING.items() if section.extra.get(name) is not None}


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a transformer, ours or native, with an adapter or without; none of a class without such layers."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@dataclass
class Probe:
    """What a trial of one layer has found, in seconds: a forward and backward pass eager and compiled, compiling."""

    eager: float
    compiled: float
    compiling: float

    def saves(self, passes: int) -> float:
        """Seconds that so many passes through a layer take less, above what compiling costs; negative: more."""
        if self.compiled > LEAST_GAIN * self.eager:
            return -self.compiling
        return passes * (self.eager - self.compiled) - COMPILED_AGAIN * self.compiling


class LayerInputs:
    """What a layer gets in its last forward pass before `close`, and in which precision it computes."""

    def __init__(self, layer: nn.Module):
        self.layer, self.call = layer, None
        self._hook = layer.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, layer, args, kwargs):
        device = next(layer.parameters()).device.type
        half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self.call = tree_map(_leaf, (args, kwargs)), device, half

    def close(self) -> None:
        self._hook.remove()

    def probe(self, **arguments) -> Probe:
        """Time a copy of the layer on these inputs, eager, then compiled. arguments: of torch.compile."""
        (args, kwargs), device, half = self.call
        layer = copy.deepcopy(self.layer)  # statistics that a forward pass leaves behind are not the run's
        wanted = [tensor for tensor in (*args, *kwargs.values(), *layer.parameters()) if _learns(tensor)]

        def seconds(passes: int) -> float:
            spent = []
            for _ in range(passes):
                started = time.perf_counter()
                with torch.autocast(device, dtype=half, enabled=half is not None):
                    out = layer(*args, **kwargs)
                out = out[0] if isinstance(out, tuple) else out
                torch.autograd.grad(out.float().sum(), wanted, allow_unused=True)
                if device != "cpu":
                    torch.accelerator.synchronize()
                spent.append(time.perf_counter() - started)
            return min(spent)

        devices = [] if device == "cpu" else [torch.accelerator.current_device_index()]
        with torch.random.fork_rng(devices, device_type="cuda" if device == "cpu" else device):
            eager = seconds(TIMED_PASSES)
            layer.compile(**arguments)
            compiling = seconds(1)
            return Probe(eager, seconds(TIMED_PASSES), compiling)


def _leaf(value):
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _learns(value) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


class CompiledLayers(TrainerCallback, ExportableState):
    """Compiles the layers at the beginning, or after a few steps where that pays back within the run.

    Under `auto` the first steps are timed; where WORTH_A_PROBE seconds or more are left, the first layer is compiled
    and timed, and all are compiled where the steps that are left save more than compiling costs. The choice is saved
    with each checkpoint: compiled layers round their sums differently, and a resumed run goes on as it was.

    Args:
        wanted: True, or "auto".
        arguments: of torch.compile.
        refused: auto: why layers stay eager here, such as "beside FSDP"; None: nothing speaks against it.
        paused: a block whose time is not training time (ThroughputLog.paused).
    """

    def __init__(self, wanted: bool | str, arguments: dict, refused: str | None, paused: Callable):
        self.wanted, self.arguments, self.refused, self.paused = wanted, arguments, refused, paused
        self.chosen: bool | None = None
        self.inputs: LayerInputs | None = None
        self.started = 0.0
        self.steps, self.compiled_steps = [], []  # seconds of the first steps, and of the first compiled ones

    def state(self) -> dict:
        """What a checkpoint holds of it."""
        return {"args": {}, "attributes": {"chosen": self.chosen}}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.steps, self.compiled_steps = [], []
        saved = saved_attributes(state, self)
        if self.wanted is True:
            self.chosen = True
        elif self.refused is not None:
            self._settle(state, False, f"left out {self.refused}")
        elif not layers_of(plain(model)):
            self._settle(
                state, False, f"left out, as {type(plain(model)).__name__} has no layers to compile one by one"
            )
        else:
            self.chosen = saved.get("chosen")
        if self.chosen:
            self._compile(model)

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if self.chosen is None and len(self.steps) + 1 == PROBED:
            self.inputs = LayerInputs(layers_of(plain(model))[0])
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, model=None, **kwargs):
        seconds = time.perf_counter() - self.started
        if self.chosen and len(self.compiled_steps) < 2:
            self.compiled_steps.append(seconds)
            if len(self.compiled_steps) == 2 and state.is_world_process_zero:
                first, second = self.compiled_steps
                say(f"torch.compile: the layers took {human_time(max(0.0, first - second))} to compile")
        elif self.chosen is None:
            self.steps.append(seconds)
            if len(self.steps) == PROBED:
                with self.paused():
                    self._probe(args, state, model)

    def _probe(self, args, state, model: nn.Module) -> None:
        from accelerate.utils import broadcast_object_list

        self.inputs.close()
        found = [self._choose(args, state, model) if state.is_world_process_zero else None]
        broadcast_object_list(found)  # processes that time the same layer may come to different ends
        self.inputs = None
        self._settle(state, *found[0])
        if self.chosen:
            self._compile(model)

    def _settle(self, state, chosen: bool, sentence: str) -> None:
        self.chosen = chosen
        if state.is_world_process_zero:
            say(f"torch.compile: {sentence}")

    def _compile(self, model: nn.Module) -> None:
        model = plain(model)
        for layer in layers_of(model) or [model]:
            layer.compile(**self.arguments)

    def _choose(self, args, state, model: nn.Module) -> tuple[bool, str]:
        """Whether to compile, and why."""
        from torch._dynamo.exc import TorchDynamoException  # imports what only a compiled model needs

        left = state.max_steps - state.global_step
        seconds = min(self.steps[WARMING_UP:-1]) * left
        if seconds < WORTH_A_PROBE:
            return False, f"left out, as {human_time(seconds)} of training are too short for it to pay back"
        try:
            probe = self.inputs.probe(**self.arguments)
        except TorchDynamoException as error:  # such as a machine without a C++ compiler
            return False, f"left out, as it fails here: {first_line(error)}"
        saved = probe.saves(left * len(layers_of(plain(model))) * args.gradient_accumulation_steps)
        share, spent = probe.compiled / probe.eager, human_time(probe.compiling)
        timed = f"a compiled layer takes {share:.2f} of an eager one's time, and {spent} to compile"
        if saved <= 0:
            return False, f"left out: {timed}"
        return True, f"{timed}; {human_time(saved)} of {human_time(seconds)} saved"


def compiled_layers(section: TrainingSection, trainer) -> CompiledLayers:
    """The callback of a trainer whose recipe asks for compiled layers."""
    beside = trainer.engine.uncompiled
    refused = None if beside is None else f"beside {beside}, where it was not measured"
    return CompiledLayers(section.torch_compile, compile_arguments(section), refused, trainer.throughput.paused)
