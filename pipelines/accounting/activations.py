"""Bytes that a training step holds beside weights, gradients and optimizer states, of any model that torch can trace.

There are no formulas for single models: their forward and backward passes run on torch's fake tensors, which have
shapes and no values, and each storage is counted from its creation until the last tensor that uses it is deleted.
"""

import copy
import inspect
import re
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from anyformer.modeling.traits import image_sides
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..data.batch_keys import IGNORE_INDEX

FP32, HALF = 4, 2
# Integer tensors of up to this many elements are really computed, as models read masks and positions on the host.
MOST_COMPUTED = 2**26
# The names of config fields that hold a number of layers.
DEPTH = re.compile(r"(num_|n_)?(hidden_|encoder_|decoder_)?(layers?|groups)")
MEASURED: dict[tuple, "Activations"] = {}  # of all models planned in this process
READS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@dataclass(frozen=True)
class Batch:
    """The sizes of a forward pass's inputs.

    tokens: per row, read by the model or its encoder. targets: per row, written by the decoder of an encoder-decoder.
    labelled: share of the positions that the head predicts. vocabulary: output size of that head; 0: there is no such
    head, and the cost of another one is negligible.
    """

    rows: int
    tokens: int
    targets: int = 0
    labelled: float = 1.0
    vocabulary: int = 0

    def inputs(self, model) -> dict[str, torch.Tensor]:
        """A batch for the model, with labels of the shape of its tokens."""
        config, length = model.config, self.targets or self.tokens
        labels = torch.zeros(self.rows, length, dtype=torch.long)
        labels[:, round(length * self.labelled) :] = IGNORE_INDEX
        if model.main_input_name == "pixel_values":
            pixels = torch.empty(self.rows, config.num_channels, *image_sides(config), device="meta")
            inputs = {"pixel_values": pixels, "labels": labels}
            if "bool_masked_pos" in inspect.signature(model.forward).parameters:
                patches = pixels[0, 0].numel() // config.patch_size**2
                inputs["bool_masked_pos"] = torch.ones(self.rows, patches, dtype=torch.bool)
            return inputs
        inputs = {"input_ids": torch.zeros(self.rows, self.tokens, dtype=torch.long), "labels": labels}
        if config.is_encoder_decoder:  # sources are padded, as in every real batch
            inputs["attention_mask"] = torch.ones(self.rows, self.tokens, dtype=torch.long)
            inputs["attention_mask"][:, -1] = 0
            inputs["decoder_input_ids"] = torch.zeros_like(labels)
        if type(model).__name__.endswith("ForMultipleChoice"):
            inputs["input_ids"] = inputs["input_ids"][:, None]
        return inputs


@dataclass(frozen=True)
class Activations:
    """Bytes. peak: the most at any time. kept: those that the forward pass leaves for the backward pass."""

    peak: int
    kept: int

    def towards(self, other: "Activations", share: float) -> "Activations":
        """Linear interpolation from these bytes (share 0) to the others (share 1)."""
        return Activations(
            round(self.peak + share * (other.peak - self.peak)), round(self.kept + share * (other.kept - self.kept))
        )


@dataclass
class StepActivations:
    """The activations of a model's step, by its rows.

    build: config -> the model on the meta device. config: of the whole model. batch: measured, and once more with twice
    its rows; other numbers of rows follow linearly. half: bf16 or fp16 autocast. on_cpu: whether operations for which
    GPUs have fused kernels are composed of others. trained: what `build` adds to models of equal configs.
    """

    build: Callable
    config: object
    batch: Batch
    half: bool
    on_cpu: bool
    trained: str = ""
    _known: dict[bool, tuple[Activations, Activations]] = field(default_factory=dict)

    def of_rows(self, rows: int, checkpointing: bool) -> Activations:
        """checkpointing: layers keep only their input, and are computed again in the backward pass."""
        if checkpointing not in self._known:
            twice = replace(self.batch, rows=2 * self.batch.rows)
            self._known[checkpointing] = self.measured(self.batch, checkpointing), self.measured(twice, checkpointing)
        one, two = self._known[checkpointing]
        return one.towards(two, rows / self.batch.rows - 1)

    def measured(self, batch: Batch, checkpointing: bool) -> Activations:
        """The activations of a batch, measured once per process: a sweep plans one model for many devices."""
        whole = self._whole
        backends = [getattr(whole.config, f"_{part}_implementation", None) for part in ("attn", "experts")]
        model = (type(whole), whole.config.to_json_string(), self.trained, *backends)
        key = (model, batch, self.half, self.on_cpu, checkpointing)
        if key not in MEASURED:
            MEASURED[key] = self._measured(batch, checkpointing)
        return MEASURED[key]

    @cached_property
    def _whole(self):
        """The whole model; only its config and kinds of layers are read."""
        return self.build(self.config)

    def _measured(self, batch: Batch, checkpointing: bool) -> Activations:
        """A deep model is extrapolated from two models of few layers, which differ by one period of its layers.

        Each further layer adds the bytes that it keeps; the rest of the peak is that of the deeper of the two.
        """
        depth = getattr(self.config.get_text_config(), "num_hidden_layers", 0)
        few, more = depths_to_measure(self._whole, depth)
        how = (batch, self.half, self.on_cpu, checkpointing)
        deeper = measured_step(self.build(with_depth(self.config, more)), *how)
        if more == depth:
            return deeper
        per_layer = (deeper.kept - measured_step(self.build(with_depth(self.config, few)), *how).kept) / (more - few)
        added = round(per_layer * (depth - more))
        return Activations(deeper.peak + added, deeper.kept + added)


# ------------------------------------------------------------------------------------------------------- layers


def depths_to_measure(model, depth: int) -> tuple[int, int]:
    """Two numbers of layers that differ by one period of the model's kinds of layers.

    (depth, depth) for a model that is too shallow for that and is measured whole.
    """
    text = model.config.get_text_config()
    stacks = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == depth]
    lists = [*per_layer_lists(text, depth).values(), getattr(text, "attention_kinds", [])]
    kinds = [
        ([[p.shape for p in stack[i].parameters()] for stack in stacks], [values[i] for values in lists if values])
        for i in range(depth if stacks else 0)
    ]
    for period in range(1, len(kinds) // 3 + 1):
        first = next((i for i in range(depth - period, 0, -1) if kinds[i - 1] != kinds[i - 1 + period]), 0)
        few = first + 2 * period + (depth - first) % period
        if few + period < depth:
            return few, few + period
    return depth, depth


def per_layer_lists(config, depth: int) -> dict[str, list]:
    """The fields of a config that are lists with one value for each layer."""
    return {name: values for name, values in vars(config).items() if isinstance(values, list) and len(values) == depth}


def with_depth(config, depth: int):
    """The config with only the first `depth` layers, in both stacks of an encoder-decoder."""
    shallow = copy.deepcopy(config)
    text = shallow.get_text_config()
    whole = getattr(text, "num_hidden_layers", 0)
    for name, values in per_layer_lists(text, whole).items():
        setattr(text, name, values[:depth])
    for name, number in list(vars(text).items()):
        if number == whole and DEPTH.fullmatch(name):
            setattr(text, name, depth)
    return shallow


# ---------------------------------------------------------------------------------------------------- measuring


def measured_step(model, batch: Batch, half: bool, on_cpu: bool, checkpointing: bool) -> Activations:
    """Measure one forward and backward pass. model: on the meta device; its weights become fake.

    Gradients exist beforehand, as in every micro-batch but a step's first, so they do not count as activations.
    """
    model.train()
    model.config.use_cache = False
    if checkpointing and model.supports_gradient_checkpointing:
        # transformers < 5.23 has only the second name
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    inputs, fake = batch.inputs(model), FakeTensorMode(allow_non_fake_inputs=True)
    if not batch.vocabulary:
        del inputs["labels"]
    with fake:
        model.to_empty(device="cpu")
        model.tie_weights()
        inputs |= {name: torch.empty_like(x, device="cpu") for name, x in inputs.items() if x.is_meta}
        for p in model.parameters():
            p.grad = torch.empty_like(p)
    kernels = nullcontext() if on_cpu else KernelsOfGpus()
    with HeldBytes(fake, [*model.parameters(), *model.buffers()]) as held, kernels:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            outputs = model(**inputs)
            loss = outputs.get("loss")
            if loss is None:
                made = (x for x in tree_leaves(tuple(outputs.values())) if torch.is_tensor(x) and x.requires_grad)
                loss = sum(x.sum() for x in made)
        kept = held.now
        run_backward(loss)
    return Activations(held.peak, kept)


def run_backward(loss: torch.Tensor) -> None:
    """`loss.backward()` that stays in KernelsOfGpus for recomputed layers; torch's leaves the TorchFunctionMode."""
    engine, how = torch.autograd.Variable._execution_engine, {"allow_unreachable": True, "accumulate_grad": True}
    engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), **how)


class HeldBytes(TorchDispatchMode):
    """Counts the bytes of all live storages that operations have made inside a `with` block.

    parameters: with buffers; they are not counted, nor are autocast's copies of trained ones, which it keeps
    (TrainingStates.beside counts those). now, peak: bytes.
    """

    def __init__(self, fake: FakeTensorMode, parameters: list[torch.Tensor]):
        super().__init__()
        self.fake, self.now, self.peak = fake, 0, 0
        self.weights = {x.untyped_storage()._cdata for x in parameters if x.requires_grad}
        self.known = {x.untyped_storage()._cdata for p in parameters for x in (p, p.grad) if x is not None}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = self.computed(func, args, kwargs or {})
        of_weight = func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in self.weights
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self.add(x.untyped_storage(), of_weight)
        self.peak = max(self.peak, self.now)
        return out

    def computed(self, func, args, kwargs):
        """The result: fake, but for integers that are computed from real integers alone."""
        if func.tags and READS_VALUES & set(func.tags):
            return func(*args, **kwargs)
        if any(isinstance(x, FakeTensor) for x in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        with self.fake:
            shapes = func(*args, **kwargs)
        made = [x for x in tree_leaves(shapes) if isinstance(x, torch.Tensor)]
        if any(x.is_floating_point() or x.numel() > MOST_COMPUTED for x in made):
            return shapes
        return func(*args, **kwargs)

    def add(self, storage: torch.UntypedStorage, of_weight: bool) -> None:
        if storage._cdata not in self.known:
            size = 0 if of_weight else storage.nbytes()
            self.known.add(storage._cdata)
            self.now += size
            weakref.finalize(storage, self.remove, storage._cdata, size).atexit = False

    def remove(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


class KernelsOfGpus(TorchFunctionMode):
    """Runs operations that are one kernel on GPUs, but several on CPUs, as one: only what it keeps is then counted."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kernel = KERNELS.get(func)
        return func(*args, **(kwargs or {})) if kernel is None else kernel(*args, **(kwargs or {}))


def attention_kernel(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    how = (attn_mask, True, dropout_p, is_causal)
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, *how, scale=scale)[0]


def norm_kernel(input, normalized_shape, weight=None, eps=None):
    return torch.native_layer_norm(input, normalized_shape, weight, None, eps or 0)[0]


def dropout_kernel(input, p=0.5, training=True, inplace=False):
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


KERNELS = {
    torch.nn.functional.scaled_dot_product_attention: attention_kernel,
    torch.nn.functional.rms_norm: norm_kernel,
    torch.nn.functional.dropout: dropout_kernel,
}
