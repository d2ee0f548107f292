"""FLOPs of training batches, and peak FLOP/s of devices; their ratio is the model FLOPs utilization (MFU).

Convention: PaLM (Chowdhery et al. 2022, appendix B). A trained token costs 6 x the weights it is multiplied with
(output head included, embedding look-ups not) + 12 x layers x heads x head size x context for the attention scores,
whether or not a mask halves them. A head that runs on labelled positions, or once per row, counts for those alone.
"""

import re
import time

import torch

from ..data.batch_keys import IGNORE_INDEX
from .devices import CARDS, card_of


def rows_and_length(inputs: dict, config) -> tuple[int, int]:
    """(rows, tokens per row) of a batch; an image has a token per patch and per prefix, or is one token.

    In a multiple-choice batch (rows, choices, tokens) each choice counts as a row.
    """
    if "input_ids" in inputs:
        ids = inputs["input_ids"]
        return ids.numel() // ids.shape[-1], ids.shape[-1]
    rows, _, height, width = inputs["pixel_values"].shape
    if (patch := getattr(config, "patch_size", None)) is None:  # convolutions, whose work is not counted
        return rows, 1
    patch = (patch, patch) if isinstance(patch, int) else patch
    return rows, (height // patch[0]) * (width // patch[1]) + getattr(config, "num_prefix_tokens", 1)


def count_tokens(inputs: dict, config):
    """Tokens of a batch without padding, of source and target; a tensor if they are counted on the device."""
    mask = inputs.get("attention_mask")
    rows, length = rows_and_length(inputs, config)
    tokens = rows * length if mask is None else mask.sum()
    return tokens + inputs["labels"].ne(IGNORE_INDEX).sum() if config.is_encoder_decoder else tokens


# What PEFT puts after a layer's name: the layer itself, its adapter's matrices, and the copy of one trained whole.
OF_ADAPTER = re.compile(r"\.(base_layer|lora_[AB]\.\w+|modules_to_save\.\w+)(?=\.|$)")


def weights_in(parameter: torch.Tensor) -> int:
    """The number of weights in a parameter: all of one that ZeRO-3 has split and emptied, or packed into 4 bits."""
    packed = getattr(parameter, "quant_state", None)
    return getattr(parameter, "ds_numel", parameter.numel()) if packed is None else packed.shape.numel()


def linear_weights(model: torch.nn.Module) -> dict[str, float]:
    """Number of weights that a token is multiplied with in each linear layer, by the layer's name; tied heads included.

    A token uses few of a layer's experts: their weights count by the share of experts in use.
    """
    share = active_share(model.config)
    weights = {}
    for name, module in model.named_modules():
        if ".original_module" in name:  # an adapter trains a copy of the whole module, and that copy is in use
            continue
        name = OF_ADAPTER.sub("", name)
        # A frozen layer computes no gradient of its weights, a third of the work (2 forward, 2 for each gradient).
        frozen = 1 if all(p.requires_grad for p in module.parameters(recurse=False)) else 2 / 3
        sizes = [weights_in(p) for p in module.parameters(recurse=False)]
        dims = [len(getattr(p, "ds_shape", p.shape)) for p in module.parameters(recurse=False)]
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D":  # Conv1D: GPT-2's Linear
            weights[name] = weights.get(name, 0) + sizes[0] * frozen * (share if ".experts." in name else 1)
        elif type(module).__name__.endswith("Router"):
            weights[name] = sum(size for size, dim in zip(sizes, dims) if dim == 2) * frozen
        elif hasattr(module, "num_experts"):  # one tensor holds all experts
            weights[name] = sum(size for size, dim in zip(sizes, dims) if dim == 3) * frozen * share
    return weights


def active_share(config) -> float:
    """The share of a layer's experts that one token is routed to; 1 for models without experts."""
    config = config.get_text_config()
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    return getattr(config, "num_experts_per_tok", 1) / experts if experts else 1.0


def active_parameters(model: torch.nn.Module) -> int:
    """Parameters that one token uses: all but those of experts that it is not routed to."""
    share = active_share(model.config)
    sizes = ((name, weights_in(p)) for name, p in model.named_parameters())
    return round(sum(size * (share if ".experts." in name else 1) for name, size in sizes))


class FlopCount:
    """Training FLOPs (forward and backward) of a model's batches.

    Linear layers are classified by name. Layers of the base model process every token. The others are the head, which
    processes every position, only labelled ones (our masked language model), or one vector per row (classification). In
    an encoder-decoder, decoder layers process target tokens, but keys and values of cross-attention source tokens.
    """

    ROW_HEADS = ("Classification", "ForMultipleChoice", "ForNextSentencePrediction")
    CROSS = re.compile(r"(cross_attn|encoder_attn|EncDecAttention)\.(k|v)(_proj)?$")

    def __init__(self, model: torch.nn.Module):
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", 0)  # state-space models have none
        size = heads and (getattr(config, "head_dim", None) or config.hidden_size // heads)
        if getattr(config, "kv_lora_rank", None):  # latent attention: a value is not as long as a query
            size = (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim) / 2
        self.width = int(heads * size)
        self.layers = getattr(config, "num_hidden_layers", 0)
        # Multi-token prediction: each module has one layer more, and the head runs once more after it.
        self.ahead = len(getattr(getattr(model, "mtp", None), "layers", ()))
        self.decoder_layers = next(
            (n for n in (getattr(config, name, None) for name in ("num_decoder_layers", "decoder_layers")) if n),
            self.layers,
        )
        name = type(model).__name__
        self.head_on_labels = name.startswith("Anyformer") and name.endswith(("ForMaskedLM", "ForPreTraining"))
        self.head_on_rows = name.endswith(self.ROW_HEADS) and not name.endswith("ForTokenClassification")
        self.config = config
        self.token = self.target = self.cross = self.head = self.row = 0
        groups = getattr(config, "num_hidden_groups", None) or self.layers or 1
        shared = (self.layers or 1) / groups  # how often ALBERT applies each group of layers
        base = model.base_model_prefix if model.base_model is not model else None
        # The last feed-forward part may run on some tokens only: num_kept_tokens of each row, or those with labels.
        self.num_kept_tokens = getattr(model, "num_kept_tokens", None)
        self.keeps_labelled = getattr(model, "keeps_labelled_tokens", False)
        self.last_mlp = f".layers.{groups - 1}.mlp."
        for name, weights in linear_weights(model).items():
            self._assign(name, weights, base, shared)

    def _assign(self, name: str, weights: int, base: str | None, shared: float) -> None:
        parts = name.split(".")
        inside = parts[0] == base if base else parts[0] in ("encoder", "decoder")
        if {"pooler", "seq_relationship"} & {*parts} or (not inside and self.head_on_rows):
            self.row += weights
        elif self.num_kept_tokens is not None and self.last_mlp in f".{name}.":
            self.row += weights * self.num_kept_tokens
        elif self.keeps_labelled and self.last_mlp in f".{name}.":
            self.head += weights
            self.token += weights * (shared - 1)
        elif not inside:
            self.head += weights * (1 + self.ahead * (name == "lm_head"))
        elif self.CROSS.search(name):
            self.cross += weights
        elif self.is_encoder_decoder and "decoder" in parts:
            self.target += weights
        else:
            self.token += weights * (shared if len(parts) > 2 else 1)

    def of_batch(self, inputs: dict):
        """FLOPs of one training step on this batch, padding included; a tensor if the device counts labels."""
        rows, length = rows_and_length(inputs, self.config)
        tokens = rows * length
        scores = 12 * self.width
        total = 6 * (self.token * tokens + self.row * rows) + scores * (self.layers + self.ahead) * length * tokens
        if self.is_encoder_decoder:
            target_length = inputs["labels"].shape[-1] if inputs["labels"].dim() > 1 else length
            targets = rows * target_length
            total += 6 * (self.target * targets + self.cross * tokens)
            total += scores * self.decoder_layers * (target_length + length) * targets
            return total + 6 * self.head * targets
        if not self.head_on_labels:
            return total + 6 * self.head * tokens
        labelled = inputs["labels"].ne(IGNORE_INDEX).sum()
        # The sum over a whole run would stop growing in float32.
        return total + 6 * self.head * (labelled if labelled.device.type == "mps" else labelled.double())


def peak_flops(device: torch.device, dtype: torch.dtype, again: bool = False) -> tuple[float, str]:
    """(peak FLOP/s of one device, source of the number: a data sheet, or a matrix product timed here).

    again: time it once more, because the machine was busy the first time; the higher rate counts.
    """
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        name = torch.cuda.get_device_name(device)
        if (card := card_of(name)) is not None:
            return CARDS[card].bf16, f"data sheet, {card}"
    key = (str(device), dtype, torch.get_num_threads())
    if again or key not in _measured:
        _measured[key] = max(measured_flops(device, dtype), _measured.get(key, 0.0))
    return _measured[key], f"measured {dtype} matrix product"


_measured: dict[tuple[str, torch.dtype, int], float] = {}  # once per process: it takes half a second


def measured_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.5, size: int | None = None) -> float:
    """Best rate of square matrix products repeated for `seconds`, in FLOP/s; other processes may slow the rest down."""
    size = size or (8192 if device.type == "cuda" else 1024)
    # A separate generator: numbers taken from the global one would change the dropout of the current run.
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn(size, size, device=device, generator=generator).to(dtype)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
