"""Bytes that a training step holds beside weights, gradients and optimizer states, of any model that torch can trace.

There are no formulas for single models: their forward and backward passes run on torch's fake tensors, which have
shapes and no values, and each storage is counted from its creation until the last tensor that uses it is deleted.
"""

import copy
import inspect
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from anyformer.modeling.traits import image_sides
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..data.batch_keys import IGNORE_INDEX
from .gathers import Gathers, groups_of, keeps_gradients_as_made, shared_weights

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

    whole: the model on the meta device. build: config -> such a model of that config. batch: measured, and once more
    with twice its rows; other numbers of rows follow linearly. half: bf16 or fp16 autocast. on_cpu: whether operations
    for which GPUs have fused kernels are composed of others. gathered: whether what FSDP2 gathers counts with them.
    added: what `build` adds to the config.
    """

    whole: nn.Module
    build: Callable
    batch: Batch
    half: bool
    on_cpu: bool
    gathered: bool = False
    added: tuple[str, ...] = ()

    def of_rows(self, rows: int, checkpointing: bool) -> Activations:
        """checkpointing: layers keep only their input, and are computed again in the backward pass."""
        one = self.measured(self.batch, checkpointing)
        if rows == self.batch.rows:
            return one
        two = self.measured(replace(self.batch, rows=2 * self.batch.rows), checkpointing)
        return one.towards(two, rows / self.batch.rows - 1)

    def measured(self, batch: Batch, checkpointing: bool) -> Activations:
        """The activations of a batch, measured once per process: a sweep plans one model for many devices."""
        key = (self._key, batch, checkpointing)
        if key not in MEASURED:
            MEASURED[key] = self._measured(batch, checkpointing)
        return MEASURED[key]

    @cached_property
    def _key(self) -> tuple:
        size = sum(p.numel() for p in self.whole.parameters())  # of a whole model, or of a rank's part
        how = (self.half, self.on_cpu, self.gathered, self.added)
        return type(self.whole), self.whole.config.to_json_string(), size, *how

    @cached_property
    def _measured_model(self) -> tuple[nn.Module, int, int]:
        """(the model that is measured, how many more layers the whole has, the layers of a period)."""
        config = self.whole.config
        depth = getattr(config.get_text_config(), "num_hidden_layers", 0)
        shallow, period = depth_to_measure(self.whole, depth)
        return self.build(with_depth(config, shallow)), depth - shallow, period

    def _measured(self, batch: Batch, checkpointing: bool) -> Activations:
        """A deep model is extrapolated: each further period adds what the last one keeps, until its backward pass."""
        model, missing, period = self._measured_model
        how = checkpointing, self.half, self.on_cpu, self.gathered
        found, by_layer, peak_of_end = measured_step(model, batch, *how, period)
        added = 0
        if missing:
            added = sum(held[-1] - held[-1 - period] for held in by_layer) * missing // period
        return Activations(max(found.peak + added, peak_of_end), found.kept + added)


# ------------------------------------------------------------------------------------------------------- layers


def stacks_of(model, depth: int) -> list[nn.ModuleList]:
    """The lists of `depth` layers: of an encoder-decoder two."""
    return [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == depth]


def depth_to_measure(model, depth: int) -> tuple[int, int]:
    """(a number of layers, the period of the model's kinds of layers), the last layers being a whole period.

    (depth, 0) for a model that is too shallow for that and is measured whole.
    """
    text, stacks = model.config.get_text_config(), stacks_of(model, depth)
    lists = [*per_layer_lists(text, depth).values(), getattr(text, "attention_kinds", [])]
    kinds = [
        ([[p.shape for p in stack[i].parameters()] for stack in stacks], [values[i] for values in lists if values])
        for i in range(depth if stacks else 0)
    ]
    for period in range(1, len(kinds) // 3 + 1):
        first = next((i for i in range(depth - period, 0, -1) if kinds[i - 1] != kinds[i - 1 + period]), 0)
        shallow = first + 3 * period + (depth - first) % period
        if shallow < depth:
            return shallow, period
    return depth, 0


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


def measured_step(
    model, batch: Batch, checkpointing: bool, half: bool, on_cpu: bool, gathered: bool = False, period: int = 0
) -> tuple[Activations, list[list[int]], int]:
    """Measure one forward and backward pass. model: on the meta device, or measured before.

    Also returns the bytes held after each layer of each stack; and of the end of the backward pass, after the last
    `period` layers, the peak, which then is not that of the Activations. Gradients exist beforehand, as in every
    micro-batch but a step's first, so they do not count as activations; those of gathered weights count until they are
    reduced.
    """
    model.train()
    model.config.use_cache = False
    if model.supports_gradient_checkpointing:
        word = "enable" if checkpointing else "disable"
        # transformers < 5.23 has only the second name
        names = (f"{name}_checkpointing_{word}" for name in ("activation", "gradient"))
        next(getattr(model, name) for name in names if hasattr(model, name))()
    inputs, parameters = batch.inputs(model), list(model.parameters())
    if not batch.vocabulary:
        del inputs["labels"]
    if parameters[0].is_meta:
        make_fake(model, gathered and half)
        parameters = list(model.parameters())
    fake = parameters[0].fake_mode
    with fake:
        inputs |= {name: torch.empty_like(x, device="cpu") for name, x in inputs.items() if x.is_meta}
        for p in parameters:
            p.grad = torch.empty_like(p)
    groups = groups_of(model) if gathered else []
    as_made = gathered and keeps_gradients_as_made()
    for weight in (weight for group in groups for weight in group.weights):
        weight.grad = None
        if as_made:
            weight.grad_dtype = None
    kernels = nullcontext() if on_cpu else KernelsOfGpus()
    with HeldBytes(fake, [*parameters, *model.buffers()]) as held, kernels:
        gathers = Gathers(held, groups)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            with gathers.forward(), bytes_by_layer(model, held, period) as by_layer:
                outputs = model(**inputs)
            loss = outputs.get("loss")
            if loss is None:
                made = (x for x in tree_leaves(tuple(outputs.values())) if torch.is_tensor(x) and x.requires_grad)
                loss = sum(x.sum() for x in made)
        kept = held.now
        run_backward(loss)
        gathers.end()
    return Activations(held.peak_before_end or held.peak, kept), by_layer, held.peak


def make_fake(model, in_bf16: bool) -> None:
    """Give a model on the meta device fake weights. in_bf16: those that FSDP2 shares, which it gathers so."""
    if in_bf16:
        for _, weight in shared_weights(model):
            weight.data = weight.data.to(torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        model.tie_weights()


@contextmanager
def bytes_by_layer(model, held: "HeldBytes", period: int) -> Iterator[list[list[int]]]:
    """For each stack of layers a list of the bytes that are held after each of them in the block's forward pass.

    period: of layers; when the backward pass leaves the last ones of the first stack, its end begins.
    """
    stacks = stacks_of(model, getattr(model.config.get_text_config(), "num_hidden_layers", 0))
    found: list[list[int]] = [[] for _ in stacks]
    hooks = [
        layer.register_forward_hook(lambda *_, held_after=held_after: held_after.append(held.now))
        for stack, held_after in zip(stacks, found)
        for layer in stack
    ]
    if period:
        hooks.append(stacks[0][-1 - period].register_forward_hook(held.end_at_gradient))
    yield found
    for hook in hooks:
        hook.remove()


def run_backward(loss: torch.Tensor) -> None:
    """`loss.backward()` that stays in KernelsOfGpus for recomputed layers; torch's leaves the TorchFunctionMode."""
    engine, how = torch.autograd.Variable._execution_engine, {"allow_unreachable": True, "accumulate_grad": True}
    engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), **how)


class HeldBytes(TorchDispatchMode):
    """Counts the bytes of all live storages that operations have made inside a `with` block.

    parameters: with buffers; they are not counted, nor are autocast's copies of trained ones, which it keeps
    (TrainingStates.beside counts those). now, peak: bytes. peak_before_end: the peak up to a gradient that is told to
    it, after which `peak` is that of the rest.
    """

    def __init__(self, fake: FakeTensorMode, parameters: list[torch.Tensor]):
        super().__init__()
        self.fake, self.now, self.peak, self.peak_before_end = fake, 0, 0, 0
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

    def hold(self, size: int) -> None:
        """Count bytes that no tensor here has; a negative number: no longer."""
        self.now += size
        self.peak = max(self.peak, self.now)

    def end_at_gradient(self, module, inputs, output) -> None:
        """A hook of a forward pass: the gradient of its output is where the end begins."""
        made = next(x for x in tree_leaves(output) if torch.is_tensor(x))
        if made.requires_grad and not self.peak_before_end:
            made.register_hook(self.begin_end)

    def begin_end(self, gradient: torch.Tensor) -> None:
        self.peak_before_end, self.peak = self.peak, self.now

    def computed(self, func, args, kwargs):
        """The result: fake, but for integers that are computed from real integers alone."""
        if func.tags and READS_VALUES & set(func.tags):
            return func(*args, **kwargs)
        if any(isinstance(x, FakeTensor) for x in tree_leaves((args, kwargs))):
            return of_shapes(func, args, kwargs)
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


def of_shapes(func, args, kwargs):
    """The result of fake tensors, also where torch does not know its shapes."""  # torch < 2.15
    if func is torch.ops.aten._grouped_mm.default and args[0].dtype != torch.bfloat16:  # known of bf16 alone
        halves = (x.to(torch.bfloat16) for x in args[:2])
        return func(*halves, *args[2:], **kwargs).to(args[0].dtype)
    found = func(*args, **kwargs)
    if func is torch.ops.aten._scaled_dot_product_efficient_attention_backward.default:  # of grouped keys those of all
        key, value = args[2:4]
        return found[0], torch.empty_like(key), torch.empty_like(value), found[3]
    return found


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
    nn.functional.scaled_dot_product_attention: attention_kernel,
    nn.functional.rms_norm: norm_kernel,
    nn.functional.dropout: dropout_kernel,
}
