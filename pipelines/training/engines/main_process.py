"""What one process of a run finds out for all."""

from collections.abc import Callable
from typing import Any

from ...errors import UserError


def broadcast_from_main(main: bool, look: Callable[[], Any]) -> Any:
    """What `look` returns, called by the main process alone and told to all; its UserError is raised by all."""
    from accelerate.utils import broadcast_object_list

    found: list = [None, None]
    if main:
        try:
            found[0] = look()
        except UserError as error:
            found[1] = str(error)  # all processes must stop, not one while the others wait
    broadcast_object_list(found)
    if found[1] is not None:
        raise UserError(found[1])
    return found[0]
