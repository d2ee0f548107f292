"""Compares outputs of two models in float64, on random tokens (one row of them padded) or random images."""

import math
from contextlib import contextmanager

import torch
from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import image_sides
from torch.overrides import TorchFunctionMode

from ..patches import write
from .conversion import auto_class_of
from .families import is_ours

# Outputs to compare, each under the names that transformers' classes give it.
OUTPUTS = (
    ("logits",),
    ("prediction_logits",),
    ("seq_relationship_logits", "sop_logits"),
    ("start_logits",),
    ("end_logits",),
    ("reconstruction",),
    ("last_hidden_state",),
    ("encoder_last_hidden_state",),
    ("pooler_output",),
)
CHOICES = 2
MASKS = ("attention_mask", "decoder_attention_mask")


def probe(ours, rows: int, tokens: int, seed: int, padded: bool = True) -> dict[str, torch.Tensor]:
    """Return inputs for a model of ours and its twin: input_ids and attention_mask (rows, tokens), and what heads need.

    A row has no more tokens than the model has positions. The last row is padded, on the left for decoders and on the
    right for others, unless `padded` is false. Without a pad token there is one row and no padding: a head that reads
    the last token of a row could not find it.
    """
    config, head = ours.config, auto_class_of(type(ours).__name__, ours.config)
    generator = torch.Generator().manual_seed(seed)
    family = FAMILIES[config.model_type]
    if family.of_images:
        return _images(config, head, rows, generator)
    tokens = min(tokens, config.max_position_embeddings)
    padding = tokens // 3 if padded and _pad_token(config) is not None else 0
    rows = 1 if _pad_token(config) is None else rows
    left = family.pretraining == "AutoModelForCausalLM"
    if head == "AutoModelForMultipleChoice":
        choices = [_texts(config, rows, tokens, padding, left, generator) for _ in range(CHOICES)]
        inputs = {name: torch.stack([choice[name] for choice in choices], dim=1) for name in choices[0]}
    else:
        inputs = _texts(config, rows, tokens, padding, left, generator)
    if family.has_decoder:
        if head == "AutoModelForSequenceClassification":  # reads the last token of a text, which must be an eos
            lengths = inputs["attention_mask"].sum(dim=1, keepdim=True)
            inputs["input_ids"].scatter_(1, lengths - 1, _first(config.eos_token_id))
        elif head != "AutoModelForTextEncoding":
            target = _texts(config, rows, tokens // 2 + 1, padding // 2, False, generator)
            inputs |= {f"decoder_{name}": tensor for name, tensor in target.items()}
    return inputs


def _images(config, head: str, rows: int, generator) -> dict[str, torch.Tensor]:
    height, width = image_sides(config)
    inputs = {"pixel_values": torch.randn(rows, config.num_channels, height, width, generator=generator)}
    if head == "AutoModelForMaskedImageModeling" and config.encoder_stride == config.patch_size:
        inputs["bool_masked_pos"] = torch.rand(rows, math.prod(config.grid), generator=generator) < 0.5
    return inputs


def _texts(config, rows, tokens, padding, left, generator) -> dict[str, torch.Tensor]:
    """Random tokens other than pad and eos, but for `padding` pad tokens in the last row."""
    ids = torch.randint(config.vocab_size, (rows, tokens), generator=generator)
    special = {_pad_token(config), _first(config.eos_token_id)} - {None}
    ordinary = next(token for token in range(config.vocab_size) if token not in special)
    for token in special:
        ids[ids == token] = ordinary
    mask = torch.ones_like(ids)
    if padding:
        where = slice(None, padding) if left else slice(-padding, None)
        ids[-1, where], mask[-1, where] = _pad_token(config), 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "type_vocab_size", 0) > 0:
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, (rows, tokens), generator=generator) * mask
    if config.has_global_tokens:
        # Always passed: some heads of transformers' classes have other defaults.
        inputs["global_attention_mask"] = (torch.arange(tokens) % 7 == 0).long() * mask
    return inputs


def _pad_token(config) -> int | None:
    return config.pad_token_id if (config.pad_token_id or 0) >= 0 else None  # old LLaMAs have -1, which is not a token


def _first(token: int | list[int] | None) -> int | None:
    return token[0] if isinstance(token, list) else token


def scale_and_difference(model, twin, inputs: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return the largest number in `model`'s output and its largest difference from `twin`'s, both run in float64.

    Both are of the output with the largest relative difference. For base models, hidden states are compared. Padding
    positions are excluded: their outputs are undefined. Models keep their dtypes.
    """
    ours, theirs = _outputs(model, inputs), _outputs(twin, inputs)
    pairs = [
        (one.abs().max().item(), (one - other).abs().max().item()) for one, other in zip(ours, theirs, strict=True)
    ]
    return max(pairs, key=lambda pair: pair[1] / max(pair[0], 1e-30))


@torch.no_grad()
def _outputs(model, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    with _in_float64(model), _by_its_mask(model):
        double = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
        out = model(**{name: tensor.to(model.device) for name, tensor in double.items()})
    outputs = [next((out[name].cpu() for name in names if name in out), None) for names in OUTPUTS]
    return [_of_real_tokens(tensor, inputs) for tensor in outputs if tensor is not None]


@contextmanager
def _by_its_mask(model):
    """Inside, native models run eager attention, which applies their mask: on sdpa UMT5 drops it and forgets that its
    decoder is causal. GPT-2's attention in fp32, which refuses float64, is off."""  # transformers < 5.23
    configs = {} if is_ours(model.config) else {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    backends = {key: config._attn_implementation for key, config in configs.items()}
    for config in configs.values():
        write(config, "_attn_implementation", "eager")
    upcasting = [module for module in model.modules() if getattr(module, "reorder_and_upcast_attn", False)]
    for module in upcasting:
        module.reorder_and_upcast_attn = False
    try:
        yield
    finally:
        for key, config in configs.items():
            write(config, "_attn_implementation", backends[key])
        for module in upcasting:
            module.reorder_and_upcast_attn = True


@contextmanager
def _in_float64(model):
    """Inside, a model runs in eval mode and in float64 throughout; afterwards its tensors are bit-equal to before."""
    training = model.training
    parameters = {name: parameter.dtype for name, parameter in model.named_parameters()}
    buffers = [(module, name, tensor) for module in model.modules() for name, tensor in module._buffers.items()]
    try:
        model.double().eval()
        with Float64Mode():
            for module in model.modules():
                if _has_only_tables(module):
                    model._init_weights(module)
            yield
    finally:
        model.train(training)
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(parameters[name])  # exact: the values came from this dtype
        for module, name, tensor in buffers:
            module._buffers[name] = tensor


class Float64Mode(TorchFunctionMode):
    """Computes in float64 what a model's code asks to compute in fp32: norms, softmax, routers, rotary angles.

    Otherwise the rounding of these steps would be the limit of the comparison, whatever the dtype of the parameters.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        if func is getattr(torch, "_grouped_mm", None):  # torch has no kernel for float64
            return torch.ops.transformers.grouped_mm_fallback(*args[:2], kwargs["offs"])
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        kwargs = {name: torch.float64 if arg is torch.float32 else arg for name, arg in (kwargs or {}).items()}
        return func(*args, **kwargs)


def _has_only_tables(module) -> bool:
    """Whether all that a module holds is computed from the config, such as rotary frequencies.

    Two formulas for the same frequencies differ by the rounding of fp32, so both are evaluated again in float64.
    """
    tables = module._non_persistent_buffers_set
    return bool(tables) and tables == set(module._buffers) and not module._parameters


def _of_real_tokens(tensor: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """An output without its padding positions; unchanged if it has one row per text, as a classifier's."""
    for name in MASKS:
        if name in inputs and tensor.shape[:2] == inputs[name].shape:
            return tensor[inputs[name].bool()]
    return tensor
