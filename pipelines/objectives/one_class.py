"""Plug-ins that write an objective as one class: methods of a part that stand in the row's class go to the part.

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
    """Give a plug-in's row classes of parts that have the methods of parts which the plug-in has written in the row."""
    written = {name: value for name, value in vars(cls).items() if isinstance(value, FunctionType)}
    row = next(base for base in cls.__mro__[1:] if base.__module__.startswith("anyformer."))
    for kind in PARTS:
        part = vars(cls).get(kind) or getattr(row, kind)
        if isinstance(part, type):  # a property chooses among several classes
            chosen = {name for name in written if hasattr(part, name) and not hasattr(row, name)}
            if chosen:
                made = type(f"{cls.__name__}{kind}", (part,), {"__module__": cls.__module__, "__doc__": part.__doc__})
                for name in chosen:
                    setattr(made, name, _of_part(written[name], made, part))
                setattr(cls, kind, made)


def _of_part(method: FunctionType, made: type, part: type) -> Callable:
    """The method as one of the class `made`, to whose base `part` its super() then leads.

    Where the part's method gets the Data first and the plug-in's does not, `self` has its tokenizer.
    """
    cells = dict(zip(method.__code__.co_freevars, method.__closure__ or ()))
    closure = tuple(CellType(made) if name == "__class__" else cell for name, cell in cells.items())
    bound = FunctionType(method.__code__, method.__globals__, method.__name__, method.__defaults__, closure)
    bound.__kwdefaults__, bound.__doc__ = method.__kwdefaults__, method.__doc__
    takes = [list(inspect.signature(one).parameters)[1:2] for one in (getattr(part, method.__name__), method)]
    if takes[0] != ["data"] or takes[1] == ["data"]:
        return bound

    @functools.wraps(bound)
    def with_tokenizer(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        knows = copy.copy(self)
        knows.data, knows.tokenizer = data, data.tokenizer
        return bound(knows, *args, **kwargs)

    return with_tokenizer
