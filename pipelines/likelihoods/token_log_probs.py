"""Log-probabilities of tokens under a model; those of answers, texts, rows and positions are sums of them."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ..data.batch_keys import IGNORE_INDEX
from ..lazy import torch


class OfTokens(NamedTuple):
    """What is computed from the logits (N, V) at some places, a chunk of them at a time.

    compute: (logits (n, V), the n rows of each tensor in `beside`) -> tensors, which are concatenated over the chunks;
    it is called again in the backward pass. places: (B, T), True at the N places. beside: tensors (N, ...).
    """

    compute: "Callable[..., tuple[torch.Tensor, ...]]"
    places: "torch.Tensor"
    beside: "tuple[torch.Tensor, ...]"

    def values(self, logits_of: Callable, states) -> "tuple[torch.Tensor, ...]":
        """The tensors of all places. logits_of: states (n, any) -> logits (n, V). states: (B, T, any)."""
        from anyformer.modeling.lm_head import ROWS_PER_CHUNK
        from torch.utils.checkpoint import checkpoint

        def of_chunk(rows, *beside):
            return self.compute(logits_of(rows), *beside)

        chunks = zip(*(x.split(ROWS_PER_CHUNK) for x in (states[self.places], *self.beside)))
        parts = [checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks]
        return tuple(map(torch.cat, zip(*parts)))


def token_log_probs(model, inputs: dict[str, Any], tokens, at=None, dtype=None) -> "torch.Tensor":
    """The log-probability of each token after what the model reads, in the shape of `tokens`.

    B rows, T places of the logits, N tokens.

    Args:
        inputs: of the model's forward; tensors are moved to its device.
        tokens: (B, T), what each place predicts, or IGNORE_INDEX, for which 0 is returned; with `at` (N,).
        at: the rows (N,) and places (N,) of the logits that predict the tokens.
        dtype: that in which logarithms are taken; None: float64.
    """
    device = model.device
    inputs = {name: value.to(device) if torch.is_tensor(value) else value for name, value in inputs.items()}
    with torch.inference_mode():
        if at is None and "of_tokens" in inspect.signature(model.forward).parameters:
            tokens = tokens.to(device)
            asked = of_log_probs(tokens, dtype or torch.float64)
            return spread(model(**inputs, of_tokens=asked).of_tokens[0], tokens)
        outputs = model(**inputs)
        logits = outputs.get("prediction_logits", outputs.get("logits"))
        if at is not None:
            rows, places = at
            one_place = logits.shape[1] == 1  # the head has computed no others
            logits = logits[rows.to(device), 0 if one_place else places.to(device)]
        return log_probs(logits.to(dtype or torch.float64), tokens.to(device))


def log_probs(logits: "torch.Tensor", tokens: "torch.Tensor") -> "torch.Tensor":
    """Log-probabilities of tokens (...) by logits (..., V), with gradients; 0 for IGNORE_INDEX."""
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), tokens.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
    )
    return -losses.view(tokens.shape)


def of_log_probs(tokens: "torch.Tensor", dtype: "torch.dtype") -> OfTokens:
    """The log-probabilities of tokens (B, T) but for IGNORE_INDEX; dtype: that in which logarithms are taken."""
    places = tokens.ne(IGNORE_INDEX)
    return OfTokens(lambda logits, asked: (log_probs(logits.to(dtype), asked),), places, (tokens[places],))


def spread(values: "torch.Tensor", tokens: "torch.Tensor") -> "torch.Tensor":
    """(N,) values of the tokens that are not IGNORE_INDEX -> (B, T), 0 elsewhere."""
    return values.new_zeros(tokens.shape).masked_scatter(tokens.ne(IGNORE_INDEX), values)
