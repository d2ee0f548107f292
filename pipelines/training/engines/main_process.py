"""A result that one process of a run computes for all."""

from collections.abc import Callable
from typing import Any

from ...errors import UserError


def broadcast_from_main(main: bool, look: Callable[[], Any]) -> Any:
    """Call `look` in the main process only; all processes return its result, or raise its UserError."""
    from accelerate.utils import broadcast_object_list

    result: list = [None, None]
    if main:
        try:
            result[0] = look()
        except UserError as error:
            result[1] = str(error)  # all processes must raise it, or the others would wait for this one
    broadcast_object_list(result)
    if result[1] is not None:
        raise UserError(result[1])
    return result[0]
