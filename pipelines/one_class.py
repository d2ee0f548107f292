"""Plug-ins that write an objective as one class: what stands in the row's class and belongs to a part goes to the part.

So a small plug-in needs no class for each part that it changes: a `collator` in a subclass of TextObjective becomes the
collator of its Reads, a `config_fields` that of its Learns.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

PARTS = ("Reads", "Learns", "Scores", "Answers")


def with_parts(cls: Any) -> None:
    """Give a plug-in's row classes of parts that have what the plug-in has written in the row for them.

    What neither the row's base nor a part has is for the plug-in's own methods, and goes to each part that is made.
    """
    base = next(one for one in cls.__mro__[1:] if one.__module__.startswith("anyformer."))
    own = {name: value for name, value in vars(cls).items() if not hasattr(base, name)}
    # A property, which chooses among several classes, is left as it is.
    parts = {kind: part for kind in PARTS if isinstance(part := getattr(cls, kind, None), type)}
    shared = {name for name in own if not any(hasattr(part, name) for part in parts.values())}
    for kind, part in parts.items():
        if any(hasattr(part, name) for name in own):
            made = CellType()  # where super() finds its class, filled once there is one
            body = {name: _of_part(own[name], part, made) for name in own if name in shared or hasattr(part, name)}
            body |= {"__module__": cls.__module__, "__doc__": part.__doc__}
            made.cell_contents = type(f"{cls.__name__}{kind}", (part,), body)
            setattr(cls, kind, made.cell_contents)


def _of_part(value: Any, part: type, made: CellType) -> Any:
    """A method whose super() leads to `part`, the base of the class in `made`; other values as they are.

    Where the part's method gets the Data first and the plug-in's does not, `self` has its tokenizer.
    """
    if not isinstance(value, FunctionType):
        return value
    code, cells = value.__code__, value.__closure__ or ()
    closure = tuple(made if name == "__class__" else cell for name, cell in zip(code.co_freevars, cells))
    method = FunctionType(code, value.__globals__, value.__name__, value.__defaults__, closure)
    method.__kwdefaults__, method.__doc__ = value.__kwdefaults__, value.__doc__
    if _takes_data(method) or not _takes_data(getattr(part, value.__name__, method)):
        return method

    @functools.wraps(method)
    def with_tokenizer(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        knows = copy.copy(self)
        knows.data, knows.tokenizer = data, data.tokenizer
        return method(knows, *args, **kwargs)

    return with_tokenizer


def _takes_data(method: Callable) -> bool:
    return list(inspect.signature(method).parameters)[1:2] == ["data"]
