"""transformers' own causal models, whose losses need no logits of all tokens at once.

D hidden size, V vocabulary.
"""

import inspect
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from anyformer.modeling import lm_head
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..errors import first_line
from ..patches import write
from ..transformers_logging import errors_only
from ..twin import tiny_config, tiny_model
from .token_log_probs import OfTokens

# Fields of configs: what caps the logits, and what they are multiplied with or, as in Granite, divided by.
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
TOLERANCE = 2e-6  # of a twin's loss and of its largest gradient; both losses are computed in fp32


class Finish(NamedTuple):
    """What a class makes of the product of hidden states and head."""

    multiplier: float = 1.0
    softcap: float | None = None

    def __call__(self, logits):
        logits = logits if self.multiplier == 1 else logits * self.multiplier
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


@dataclass
class NativeWithoutLogits(lm_head.WithoutLogits):
    """The outputs of such a model. of_tokens: what an OfTokens has computed."""

    loss: torch.FloatTensor | None = None
    row_losses: torch.FloatTensor | None = None
    of_tokens: tuple[torch.Tensor, ...] | None = None


class NativeHead(lm_head.LanguageModelHead):
    """A linear layer that is a native model's head; the model scales and caps its logits."""

    def forward(self, hidden_states, labels=None, *options):
        if labels is None:
            return nn.Linear.forward(self, hidden_states)
        return super().forward(hidden_states, labels, *options)


class NativeCausal:
    """A causal class of transformers that takes what our own take: `return_logits`, and exact losses without logits."""

    finish, accepts_loss_kwargs, takes_label_smoothing = Finish(), True, True

    def loss_forward(
        self,
        *args,
        labels=None,
        shift_labels=None,
        return_logits: bool | None = None,
        of_tokens: OfTokens | None = None,
        num_items_in_batch=None,
        label_smoothing: float = 0.0,
        **kwargs,
    ):
        """As the class's own forward. of_tokens: in place of labels. label_smoothing: of a loss without logits."""
        if of_tokens is not None:
            return NativeWithoutLogits(of_tokens=self.values(of_tokens, *args, **kwargs))
        has_labels = labels is not None or shift_labels is not None
        if not has_labels or (not self.training if return_logits is None else return_logits):
            given = {"labels": labels, "shift_labels": shift_labels, "num_items_in_batch": num_items_in_batch}
            return super().forward(*args, **kwargs, **{name: x for name, x in given.items() if x is not None})
        labels = lm_head.shift_left(labels) if shift_labels is None else shift_labels
        options = (labels, num_items_in_batch, label_smoothing, self.finish)
        hidden = self.hidden(*args, **kwargs)
        loss, losses = lm_head.language_model_loss(self.get_output_embeddings(), hidden, *options)
        return NativeWithoutLogits(loss=loss, row_losses=losses.sum(-1))

    def hidden(self, *args, **kwargs):
        """(B, T, D), from the arguments of the class's forward; PEFT sets some to None that a base model lacks."""
        return self.base_model(*args, **{name: x for name, x in kwargs.items() if x is not None})[0]

    def values(self, of_tokens: OfTokens, *args, **kwargs) -> tuple[torch.Tensor, ...]:
        """The values of an OfTokens. A head that FSDP2 or ZeRO-3 gathers for one forward computes all logits."""
        head = self.get_output_embeddings()
        if hasattr(head, "unshard") or is_split(head):
            return of_tokens.values(lambda logits: logits, super().forward(*args, **kwargs).logits)
        return of_tokens.values(self.logits_of, self.hidden(*args, **kwargs))

    def logits_of(self, hidden):
        """Hidden states (..., D) -> logits (..., V)."""
        return self.finish(self.get_output_embeddings()(hidden))


@cache
def with_loss(native: type) -> type:
    """The subclass of a causal class or of a linear layer, with its name and, as generate reads them, parameters.

    Of the added ones those with "label" in their names are left out, which Trainer would take for labels.
    """
    if issubclass(native, nn.Linear):
        return type(native.__name__, (NativeHead, native), {"__module__": native.__module__})

    def forward(self, *args, **kwargs):
        return NativeCausal.loss_forward(self, *args, **kwargs)

    own, added = (inspect.signature(each).parameters for each in (native.forward, NativeCausal.loss_forward))
    parameters = [x for x in own.values() if x.kind != x.VAR_KEYWORD]
    shown = ("return_logits", "of_tokens", "num_items_in_batch", "kwargs")
    parameters += [added[name] for name in shown if name == "kwargs" or name not in own]
    forward.__signature__ = inspect.Signature(parameters)
    return type(native.__name__, (NativeCausal, native), {"forward": forward, "__module__": native.__module__})


def without_logits(model) -> str | None:
    """Let a causal model of transformers give losses and values of tokens without the logits of all tokens.

    Returns in words why it keeps its own loss; None where it does not, and for models of other kinds.
    """
    name = type(model).__name__.removeprefix("FSDP")
    if isinstance(model, NativeCausal) or name != MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model.config.model_type):
        return None
    head, words = model.get_output_embeddings(), f"{name} makes all logits"
    if "forward" in vars(model) or (is_split(head) and not is_linear(head)):
        return f"{words}: its forward pass is replaced, or its head adapted and split"
    finish = finish_of(model.config, name)
    if isinstance(finish, str):
        return f"{words}, as its loss is not that of its hidden states and head: {finish}"
    give_loss(model, finish)
    return None


def give_loss(model, finish: Finish) -> None:
    """Make a model, and its head where that is a plain linear layer, give the loss."""
    model.finish, head = finish, model.get_output_embeddings()
    for module in (model, head) if is_linear(head) else (model,):
        if not isinstance(module, NativeCausal | NativeHead):
            write(module, "__class__", with_loss(type(module)))
    head.multiplier, head.softcap = finish


def is_linear(head) -> bool:
    """Whether a head is a plain linear layer: no quantised one, and none that PEFT wraps."""
    return isinstance(head, nn.Linear) and type(head).__name__ in ("Linear", "FSDPLinear")


def is_split(head) -> bool:
    """Whether this process holds only a part of a head's weights."""
    return any(hasattr(weight, "ds_shape") or hasattr(weight, "device_mesh") for weight in head.parameters())


def finish_of(config, name: str) -> Finish | str:
    """How a class makes logits, found on a tiny twin, whose own loss and gradients must be equal; else why it is not.

    name: of the class.
    """
    fields = config.get_text_config()
    softcap = next((cap for field in SOFTCAPS if (cap := getattr(fields, field, None))), None)
    scales = [scale for field in SCALES if (scale := getattr(fields, field, None))] or [1.0]
    try:
        with torch.device("cpu"), errors_only():
            twin = tiny_model(tiny_config(config, "causal"), "causal").train()
            if type(twin).__name__ != name:
                return f"its tiny twin is a {type(twin).__name__}"
            twin.get_output_embeddings().weight.data.mul_(20)  # for a cap and a scale to show
            ids = torch.arange(24).view(2, 12) * 5 % twin.config.get_text_config().vocab_size
            batch = {"input_ids": ids, "labels": ids.masked_fill(ids % 3 == 0, -100), "use_cache": False}
            expected = loss_and_gradients(twin, batch)
            for finish in (Finish(scale, softcap) for each in scales for scale in (each, 1 / each)):
                give_loss(twin, finish)
                pairs = zip(loss_and_gradients(twin, batch), expected)
                apart = max(((got - own).abs().max() / own.abs().max()).item() for got, own in pairs)
                if apart <= TOLERANCE:
                    return finish
            return f"loss or gradients of its tiny twin differ by {apart:.1e}"
    except Exception as error:  # a class that nobody has tried may raise any error
        return f"its tiny twin does not run ({type(error).__name__}: {first_line(error)})"


def loss_and_gradients(model, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss (), and the gradients of all weights in one vector."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of dropout
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
    gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in model.parameters()]
    return loss.detach(), torch.cat([gradient.flatten() for gradient in gradients])
