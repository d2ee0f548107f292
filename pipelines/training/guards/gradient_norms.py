"""Gradient norms of each layer during training (training.log_gradient_norms_per_layer), in gradients.jsonl."""

import math
import re

import torch

from ...reporting.run_log import GRADIENTS_FILE
from ..log.progress import MetricsFile

LAYER = re.compile(r"^(.*?\.\d+)\.")  # the layer in a parameter's name: model.layers.3, encoder.block.0


def layer_of(name: str) -> str:
    """The layer of a parameter, `model.layers.3`; outside layers its module, `model.norm`."""
    name = name.removeprefix("module.").replace("_orig_mod.", "")
    match = LAYER.match(name)
    return match[1] if match else name.rpartition(".")[0] or name


class GradientNorms(MetricsFile):
    """Writes the gradient norm of each layer into gradients.jsonl, one line per logged step.

    A line: {"step", "time", "layers": {`model.layers.0`: norm, `model.embed_tokens`: norm, ...}}. The norms are those
    before clipping, without the loss scale of fp16: their squares sum up to the square of the logged grad_norm.
    """

    name = GRADIENTS_FILE
    _layers: dict[str, float] = {}  # of the last step that will be logged

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        step = state.global_step + 1
        first = step == 1 and args.logging_first_step
        if not (first or step % max(1, state.logging_steps) == 0 or step >= state.max_steps):
            return
        grouped: dict[str, list[torch.Tensor]] = {}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                grouped.setdefault(layer_of(name), []).append(parameter.grad)
        norms = {layer: torch.nn.utils.get_total_norm(grads) for layer, grads in grouped.items()}
        if norms:
            values = torch.stack([norm.float() for norm in norms.values()]).tolist()  # waits for the device only once
            self._layers = dict(zip(norms, values))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not logs or "grad_norm" not in logs:
            return
        layers, self._layers = self._layers, {}
        total = math.hypot(*layers.values())
        if total > 0:
            scale = logs["grad_norm"] / total  # clipping and the loss scale of fp16 have multiplied all by one factor
            super().on_log(args, state, control, logs={"layers": {key: norm * scale for key, norm in layers.items()}})
