"""The model under check and its inputs: rows of tokens or images, packed, padded and labelled."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import first_line
from .findings import Finding, Verdict, difference, of_difference
from .inputs import batch

# Largest allowed difference of mathematically equal results, relative to the largest value. A leak, a shift or a
# wrong mask changes a twin's outputs by 1e-3 or more; two kernels differ by 1e-6.
TOLERANCE = 1e-4
TOLERANCE_OF_REAL = 1e-3
TOLERANCE_OF_FP32 = 1e-5  # for results that are fp32 whatever the model's dtype: losses, logits of generate
SMALL_GRADIENT = 1e-3  # of the largest gradient: the smallest scale that differences of gradients are divided by


class Subject:
    """One model. kind: causal, masked, seq2seq or image (twin.KINDS). made_by: the lines of Python that make it.

    is_twin: whether its weights are random (twin.py), so that every parameter affects the outputs.
    """

    def __init__(self, model, kind: str, made_by: Sequence[str] = (), is_twin: bool = True):
        self.what = "a tiny twin" if is_twin else "its own weights"
        self._model, self._listed, self.made_by, self.config = model, kind, tuple(made_by), model.config
        # transformers lists some decoder-only speech models among the encoder-decoders.
        self.kind = "causal" if kind == "seq2seq" and not model.config.is_encoder_decoder else kind
        self.tolerance = TOLERANCE if is_twin else TOLERANCE_OF_REAL
        self.fp32_tolerance = max(self.tolerance, TOLERANCE_OF_FP32)
        self.prefixes = ("", "decoder_") if self.kind == "seq2seq" else ("",)
        self.class_name = type(model).__name__
        self._taken = set(inspect.signature(type(model).forward).parameters)

    def fresh(
        self,
        attn: str | None = None,
        dtype: torch.dtype | None = None,
        training: bool = False,
        keeps_cache: bool = False,
    ):
        """A copy of the model with a backend, in eval mode unless `training`, without a cache unless `keeps_cache`."""
        model = copy.deepcopy(self._model)
        if dtype is not None:
            model = model.to(dtype)
        if attn is not None:
            model.set_attn_implementation(attn)
        if not keeps_cache:
            without_cache(model)
        return model.train(training)

    @property
    def backends(self) -> list[str]:
        """The attention implementations that the model claims to support and this device can run."""
        names = ["eager"]
        if getattr(self._model, "_supports_sdpa", False):
            names.append("sdpa")
        if self.device.type == "cuda" and getattr(self._model, "_supports_flex_attn", False):
            names.append("flex_attention")  # on a CPU it has no gradients and takes a minute to compile
        return names

    @property
    def device(self) -> torch.device:
        return self._model.device

    def takes(self, *names: str) -> bool:
        """Whether `forward` has parameters of all these names."""
        return self._taken.issuperset(names)

    def lacks(self, *names: str) -> str:
        """Why the class does not promise a law that needs these arguments; empty if `forward` takes them."""
        if "input_ids" in names and not self.reads_text:
            return "it reads no tokens"
        return next((f"its forward takes no {name}" for name in names if not self.takes(name)), "")

    @property
    def reads_text(self) -> bool:
        return self.kind != "image" and "input_ids" in self.rows(1, 4)

    @property
    def text_config(self):
        return self.config.get_text_config()

    def rows(self, rows: int = 2, tokens: int = 12, seed: int = 0) -> dict[str, torch.Tensor]:
        """The inputs of a forward pass, without labels: input_ids (rows, tokens), or pixel_values."""
        inputs = batch(self.config, self._listed, rows, tokens, seed)
        return {name: self._moved(x) for name, x in inputs.items() if isinstance(x, torch.Tensor)}

    def _moved(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self._model.device, self._model.dtype if x.is_floating_point() else None)

    def labelled(self, rows: int = 2, tokens: int = 12, seed: int = 0) -> dict[str, torch.Tensor]:
        """Inputs and labels: of tokens, some 30% of them -100; of images, class indices."""
        row = self.rows(rows, tokens, seed)
        if self.kind == "image":
            return row | {"labels": torch.arange(rows, device=self._model.device) % self.config.num_labels}
        predicted = row.pop("decoder_input_ids", row.get("input_ids"))
        drawn = torch.rand(predicted.shape, generator=torch.Generator().manual_seed(9 + seed)).to(predicted.device)
        return row | {"labels": predicted.masked_fill(drawn < 0.3, -100)}

    def predicted(self, labels: torch.Tensor) -> torch.Tensor:
        """The labels that count in the loss; a causal model does not predict the first token of a row."""
        labels = labels[:, 1:] if self.kind == "causal" else labels
        return labels if self.kind == "image" else labels[labels != -100]

    def documents(self, lengths: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """The inputs of documents of these lengths, each a batch of one row."""
        return [self.rows(1, length, seed) for seed, length in enumerate(lengths)]

    def packed(self, documents: Sequence[dict]) -> dict[str, torch.Tensor]:
        """Documents packed into one row; position_ids restart at 0 with each document."""
        row = {name: torch.cat([document[name] for document in documents], dim=1) for name in documents[0]}
        for prefix in self.prefixes:
            lengths = [document[f"{prefix}input_ids"].shape[1] for document in documents]
            row[f"{prefix}position_ids"] = torch.cat([torch.arange(n) for n in lengths])[None].to(self._model.device)
        return row

    def padded(self, documents: Sequence[dict], side: str = "right") -> dict[str, torch.Tensor]:
        """Documents as a padded batch with attention masks; decoder inputs are always padded on the right."""
        batch: dict[str, torch.Tensor] = {}
        padding = getattr(self.text_config, "pad_token_id", None) or 0
        for prefix in self.prefixes:
            names = [name for name in documents[0] if name.startswith("decoder_") == bool(prefix)]
            longest = max(document[f"{prefix}input_ids"].shape[1] for document in documents)
            for name in (*names, f"{prefix}attention_mask"):
                parts = []
                for document in documents:
                    ids = document[f"{prefix}input_ids"]
                    x, missing = document.get(name, torch.ones_like(ids)), longest - ids.shape[1]
                    widths = (0, missing) if prefix or side == "right" else (missing, 0)
                    filler = padding if name.endswith("input_ids") else 0
                    parts.append(torch.nn.functional.pad(x, widths, value=filler))
                batch[name] = torch.cat(parts)
        return batch

    def full_and_padded(self) -> dict[str, dict]:
        """{name: batch}: rows of equal length and, if the class takes attention masks, padded rows."""
        batches = {"rows": self.rows()}
        if self.reads_text and self.takes("attention_mask"):
            batches["padded rows"] = self.padded(self.documents((7, 3, 11)))
        return batches

    def real(self, batch: dict) -> torch.Tensor:
        """(B, T), True where a padded batch holds tokens, not padding."""
        return batch[f"{self.prefixes[-1]}attention_mask"].bool()

    def compared(self, what: str, got: torch.Tensor, expected: torch.Tensor, **fields: Any) -> Finding:
        """Compare two tensors that should be mathematically equal. scale: see `difference`; tolerance: by default the
        subject's; the other fields are those of a Finding that fails."""
        apart = difference(got, expected, fields.pop("scale", None))
        return of_difference(what, apart, fields.pop("tolerance", self.tolerance), **fields)

    def steps_on(self, backend: str, steps: Sequence[str]) -> tuple[str, ...]:
        """A reproducer's steps with an attention implementation; the first step sets it if the model has another."""
        if not steps or backend == self.config._attn_implementation:
            return tuple(steps)
        return (f"model.set_attn_implementation({backend!r}); {steps[0]}", *steps[1:])

    def tried(self, what: str, ask: Callable[[], Finding]) -> Finding:
        """The finding of `ask`, or a NOT_ASKED finding if the model raises an error."""
        try:
            return ask()
        except Exception as error:  # an unknown model may raise any error
            return Finding(what, Verdict.NOT_ASKED, why=f"{type(error).__name__}: {first_line(error)}")

    def compared_gradients(self, what: str, got: dict, expected: dict, **fields: Any) -> Finding:
        """Compare the gradients of all weights, each relative to its largest entry, but at least to SMALL_GRADIENT
        of the largest entry of all. They are as precise as the loss, which is computed in fp32."""
        tolerance = fields.pop("tolerance", self.fp32_tolerance)
        if got.keys() != expected.keys():
            fields["why"] = f"gradients for other weights: {', '.join(sorted(got.keys() ^ expected.keys())[:3])}"
            return of_difference(what, float("inf"), tolerance, **fields)
        floor = max((x.abs().max().item() for x in expected.values()), default=1.0) * SMALL_GRADIENT
        apart = {
            name: difference(x, expected[name], max(expected[name].abs().max().item(), floor))
            for name, x in got.items()
        }
        worst = max(apart, key=apart.get, default="")
        return of_difference(f"{what} ({worst})" if worst else what, apart.get(worst, 0.0), tolerance, **fields)


def without_cache(model) -> None:
    """Set use_cache to False in the config of a model and in those of its parts."""
    for config in {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}.values():
        if getattr(config, "use_cache", None):
            config.use_cache = False


def gradients_of(model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """{name: gradient} of the weights that a loss depends on."""
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
