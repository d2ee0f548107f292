"""The commands that put finished models to work."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def pipeline_command(task: str, folder: Path, example: Any, options: Mapping[str, Any] | None = None) -> str:
    """A shell command that puts a saved model to work through transformers.pipeline, called with `options`.

    The folder's code need not run, since anyformer is imported; unless told so, transformers asks whether it may when
    it looks for a video processor beside an image processor.
    """
    more = "".join(f", {name}={value!r}" for name, value in (options or {}).items())
    call = f"transformers.pipeline('{task}', '{folder}', trust_remote_code=False)({example!r}{more})"
    return f'python -c "import anyformer, transformers; print({call})"'
