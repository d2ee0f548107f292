"""Averages of the weights: a moving average over the optimizer steps, and the mean of the newest checkpoints.

After step n: average = decay_n * average + (1 - decay_n) * weights (Polyak and Juditsky 1992, in exponential form).
With warm-up decay_n = min(decay, (1 + n) / (10 + n)), as in diffusers' EMAModel, so that early weights fade quickly.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback

from ...accounting.lora import is_adapted
from ...adapters import ADAPTER_WEIGHTS
from ...errors import UserError
from .stored_weights import stored_weights

AVERAGE_FILE = "weight_average.safetensors"  # in each checkpoint, beside the weights from which training resumes


class WeightAverage(TrainerCallback):
    """The moving average of a model's trained parameters, as a callback of Trainer; each process keeps the same one.

    Frozen parameters and buffers are not averaged, as in torch's AveragedModel. The average has the dtype and device of
    the parameters and takes as much memory.

    decay: share of the average that stays in each step, from 0 to below 1; with 0 the average equals the weights.
    warmup: whether the first steps have a smaller decay.
    """

    def __init__(self, decay: float, warmup: bool = True):
        self.decay, self.warmup = decay, warmup
        self.weights: dict[str, torch.Tensor] = {}  # by the name of the parameter
        self._start: Path | None = None

    def begin(self, checkpoint: str | Path | None) -> None:
        """Set the start of the next training: the average in a checkpoint, or the model's weights."""
        self._start = None if checkpoint is None else Path(checkpoint)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.weights = {name: p.detach().clone() for name, p in trained(model).items()}
        if self._start is not None:
            self.load(self._start)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.update(model, state.global_step)

    @torch.no_grad()
    def update(self, model: torch.nn.Module, step: int) -> None:
        """Update the average with the weights after optimizer step `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step)) if self.warmup else self.decay
        get_ema_multi_avg_fn(decay)(list(self.weights.values()), list(trained(model).values()), step)

    @contextmanager
    @torch.no_grad()
    def swapped_in(self, model: torch.nn.Module) -> Iterator[None]:
        """In the block the model has the average; afterwards exactly its own weights again."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: torch.nn.Module) -> None:
        for name, parameter in trained(model).items():  # one at a time, to avoid a third copy of all weights
            weights = parameter.clone()
            parameter.copy_(self.weights[name])
            self.weights[name].copy_(weights)

    @torch.no_grad()
    def settle(self, model: torch.nn.Module) -> None:
        """Replace the model's weights by the average and drop the average."""
        for name, parameter in trained(model).items():
            parameter.copy_(self.weights[name])
        self.weights = {}

    def save(self, checkpoint: Path) -> None:
        """Write the average into the folder of a checkpoint."""
        save_file({name: x.contiguous() for name, x in self.weights.items()}, str(checkpoint / AVERAGE_FILE))

    @torch.no_grad()
    def load(self, checkpoint: str | Path) -> None:
        """Load the average from a checkpoint. Raises UserError if it does not hold one of this model's weights."""
        path = Path(checkpoint) / AVERAGE_FILE
        average = load_file(path) if path.is_file() else {}
        if average.keys() != self.weights.keys():
            raise UserError(
                f"{path} does not hold the average of this model's weights; delete {checkpoint} to go on from the one "
                f"before it, or start over in another training.output_dir"
            )
        for name, x in self.weights.items():
            x.copy_(average[name])


def trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """{name: parameter} of the parameters that are trained."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def load_average(model: torch.nn.Module, found: list[Path]):
    """Load the mean of the weights of some checkpoints into a model; integer buffers are those of the last one.

    Returns the result of load_state_dict; None for an adapter, whose weights are all loaded.
    """
    total: dict[str, torch.Tensor] = {}
    for checkpoint in found:
        stored = load_file(checkpoint / ADAPTER_WEIGHTS) if is_adapted(model) else stored_weights(model, checkpoint)
        for name, tensor in stored.items():
            total[name] = total[name] + tensor if name in total and tensor.is_floating_point() else tensor
    average = {name: x / len(found) if x.is_floating_point() else x for name, x in total.items()}
    if is_adapted(model):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, average)
        return None
    return model.load_state_dict(average, strict=False)
