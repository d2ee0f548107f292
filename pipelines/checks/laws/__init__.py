"""The laws. A law is a row of LAWS and a module (such as packing_law.py) with `ask` and, if needed, three more names:

`ask(subject) -> Iterator[Finding]`: the comparisons, one finding each. It gets models by `subject.fresh`.
NEEDS: arguments of the forward pass; a class without one of them does not promise the law.
`unclaimed(subject) -> str`: another reason why the class does not promise the law; empty if it does.
MUST_RUN = True: an error raised by the model is a failure; otherwise the law counts as not asked.
"""

import importlib
from collections.abc import Iterable

from ...errors import UserError, did_you_mean

# Name -> what a model promises by it.
LAWS = {
    "packing": "documents of a packed row do not see each other",
    "padding": "padding changes no output, and a row of nothing but padding is no nan",
    "batches": "a row has the same outputs alone and in a batch",
    "causality": "no output of a causal model depends on a later token",
    "cache": "generation with every cache gives the logits of full forward passes",
    "labels": "the loss is that of the logits: labels shifted once, -100 counts nowhere",
    "evaluation": "Trainer's evaluate and predict return loss, logits and labels",
    "randomness": "evaluation draws nothing; dropout is drawn in training",
    "accumulation": "micro-batches have the gradients of the whole batch",
    "processes": "two processes have the gradients of one",
    "checkpointing": "gradient checkpointing changes no gradient and keeps fewer tensors",
    "resume": "a killed run of plain Trainer ends as one that was not",
    "backends": "every implementation of attention and experts computes what eager does",
    "device": "an accelerator computes what the CPU computes",
    "compiled": "a compiled step and an exported model compute what the eager ones do",
    "dtypes": "half precision stays close, and what is kept in fp32 stays in it",
    "saving": "a saved model is loaded bit by bit, and no key is missing",
    "resizing": "more tokens change no output, and what was tied stays tied",
    "adapters": "LoRA on every linear layer: merged and unmerged are equal",
    "initialisation": "weights that a checkpoint lacks are drawn as the config says",
    "config": "a config comes back from its file with every field",
}


def law(name: str):
    return importlib.import_module(f".{name}_law", __name__)


def laws_named(names: Iterable[str] | None) -> list[str]:
    """Names of laws, in the order of LAWS; None: all. Raises UserError for an unknown name."""
    chosen = list(LAWS) if names is None else [name.strip() for name in names]
    for name in chosen:
        if name not in LAWS:
            raise UserError(f"laws: {name!r} is none{did_you_mean(name, LAWS)}")
    return [name for name in LAWS if name in chosen]
