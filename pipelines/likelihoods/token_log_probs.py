"""Log-probabilities of tokens under a model; those of answers, texts, rows and positions are sums of them."""

from typing import Any

from ..data.batch_keys import IGNORE_INDEX
from ..lazy import torch


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
