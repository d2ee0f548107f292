"""How a bug is planted: a mixin in front of a native class, whose models it makes and whose copies keep it."""

import functools
import inspect
import re
from dataclasses import dataclass

import torch
from anyformer.pipelines.checks.made import subject_of_type
from anyformer.pipelines.checks.subject import Subject


@dataclass(frozen=True)
class Bug:
    """model: a type of transformers', or TYPE:KIND. law: the one that is expected to catch it. mixin: the patch."""

    model: str
    law: str
    mixin: type

    @property
    def name(self) -> str:
        """The words of the mixin's name."""
        return re.sub(r"(?<!^)([A-Z])", lambda letter: f" {letter[0].lower()}", self.mixin.__name__)

    def subject(self) -> Subject:
        """The twin with the bug."""
        clean = twin(self.model)
        model = clean.fresh()
        become(model, self.mixin)
        model.plant()
        return Subject(model, clean.kind, clean.made_by)


BUGS: list[Bug] = []


def bug(model: str, law: str, part: str | None = None):
    """Add a mixin to BUGS. Its methods stand before those of the native class; `plant` changes what lies within.

    part: the names of the modules that the mixin is put before, as a pattern, in place of the model.
    """

    def plant(self, mixin):
        for module in [each for name, each in self.named_modules() if re.fullmatch(part, name)]:
            become(module, mixin)

    def add(mixin: type) -> type:
        around = mixin if part is None else type(mixin.__name__, (), {"plant": lambda self: plant(self, mixin)})
        BUGS.append(Bug(model, law, around))
        return mixin

    return add


@functools.cache
def twin(model: str) -> Subject:
    """The model without a bug."""
    with torch.random.fork_rng():
        return subject_of_type(*model.split(":"))


def become(module: torch.nn.Module, mixin: type) -> None:
    """Put a mixin before the class of a module; what is made by that class later is planted with it."""
    native = type(module)
    members = {"__module__": native.__module__, "plant": getattr(mixin, "plant", lambda self: None)}
    if "forward" in vars(mixin):
        mixin.forward.__signature__ = inspect.signature(native.forward)  # Trainer and the laws read it

    def __init__(self, *args, **kwargs):
        native.__init__(self, *args, **kwargs)
        self.plant()

    module.__class__ = type(native.__name__, (mixin, native), members | {"__init__": __init__})


def cache_in(inputs: dict):
    """The cache that a forward pass gets, by either of its names; None without one, or where it is empty."""
    cache = inputs.get("cache", inputs.get("past_key_values"))
    return cache if cache is not None and cache.get_seq_length() > 0 else None
