"""Attention maps of any model, whatever backend it runs on: the weights of each layer, computed by the eager backend.

The weights of a layer are freed before the next layer computes its own, unless they are kept. Each model, ours or
transformers', says itself which of its modules return weights (`_can_record_outputs`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils.output_capturing import OutputRecorder

from ..errors import UserError
from ..patches import write

RECORDED = ("attentions", "cross_attentions", "encoder_attentions", "decoder_attentions")


@dataclass
class AttentionMap:
    """The attention of one layer.

    stack: encoder, decoder, or empty where a model has only one stack. layer: its number in the stack, from 0. kind:
    self or cross. weights: (B, H, T, S), each query's shares of the keys; None where the layer has none. note: what it
    has instead of weights or beside them, in words.
    """

    stack: str
    layer: int
    kind: str
    weights: torch.Tensor | None
    note: str = ""

    @property
    def name(self) -> str:
        """A name such as `decoder layer 3, cross`."""
        where = f"{self.stack} layer {self.layer}" if self.stack else f"layer {self.layer}"
        return where if self.kind == "self" else f"{where}, {self.kind}"


@torch.no_grad()
def attention_maps(
    model: torch.nn.Module, each: Callable[[AttentionMap], Any] | None = None, **inputs
) -> list[AttentionMap]:
    """The attention of every layer of a model on some inputs, in the order in which they run.

    Args:
        model: ours, or any of transformers whose modules return their weights; it may be adapted or compiled, and is
            left unchanged.
        each: called on each layer's map while the model runs; its results are returned instead of the maps, and what it
            does not keep is freed. None: the maps, on the CPU.
        inputs: of the model's forward, such as a tokenizer returns.

    Raises:
        UserError: the model has no layer that returns weights.
    """
    top = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    recorded = {} if top is None else recorded_modules(top)
    if not recorded:
        raise UserError(f"{type(model).__name__} has no attention layers that hand over their weights")
    counts, maps = Counter(), []

    def hook(module, args, output):
        stack, kind, index = recorded[module]
        weights = output[index] if isinstance(output, tuple) else None
        is_matrix = torch.is_tensor(weights) and weights.dim() == 4
        note = getattr(module, "instead_of_weights", "") or ("" if is_matrix else "this layer hands over no weights")
        counts[stack, kind] += 1
        layer = AttentionMap(stack, counts[stack, kind] - 1, kind, weights if is_matrix else None, note)
        if each is None and is_matrix:
            layer.weights = weights.cpu()
        maps.append(layer if each is None else each(layer))
        if is_matrix:
            place = index % len(output)
            return (*output[:place], None, *output[place + 1 :])

    with eager(top):
        handles = [module.register_forward_hook(hook) for module in recorded]
        try:
            getattr(model, "_orig_mod", model)(**inputs)
        finally:
            for handle in handles:
                handle.remove()
    return maps


def recorded_modules(model: PreTrainedModel) -> dict[torch.nn.Module, tuple[str, str, int]]:
    """{module: (its stack, self or cross, index of the weights in its output)}, as the model's parts specify."""
    modules, names = {}, {module: name for name, module in model.named_modules()}
    parts = [module for module in names if isinstance(module, PreTrainedModel)]
    stacks = ("encoder", "decoder") if getattr(model.config, "is_encoder_decoder", False) else ()
    for part in reversed(parts):  # the innermost part's specification counts
        for key in RECORDED:
            specs = (getattr(part, "_can_record_outputs", None) or {}).get(key, [])
            for spec in specs if isinstance(specs, list) else [specs]:
                spec = spec if isinstance(spec, OutputRecorder) else OutputRecorder(spec, index=1)
                for module in part.modules():
                    name = names[module]
                    if module in modules or not isinstance(module, spec.target_class):
                        continue
                    if spec.layer_name is not None and f".{spec.layer_name.strip('.')}." not in f".{name}.":
                        continue
                    is_cross = key == "cross_attentions" or getattr(module, "cross_attention", False) is True
                    stack = next((word for word in name.split(".") if word in stacks), "")
                    modules[module] = stack, "cross" if is_cross else "self", spec.index
    return modules


@contextmanager
def eager(model: PreTrainedModel) -> Iterator[None]:
    """In the `with` block the model evaluates on the eager backend, and layers that make weights on demand do so."""
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    configs = {id(part.config): part.config for part in parts}
    before = [(config, config._attn_implementation) for config in configs.values()]
    keeping = [module for module in model.modules() if hasattr(module, "keeps_row_weights")]
    training = [module for module in model.modules() if module.training]
    try:
        for part in parts:  # transformers < 5.23: a model does not reach the copies of its config that T5's stacks have
            part.set_attn_implementation("eager")
        model.eval()
        for module in keeping:
            module.keeps_row_weights = True
        yield
    finally:
        for config, name in before:
            write(config, "_attn_implementation", name)
        for module in keeping:
            module.keeps_row_weights = False
        for module in training:
            module.training = True
