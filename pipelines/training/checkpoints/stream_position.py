"""The position in a stream: tracked during training, saved in checkpoints, and restored by a resumed run."""

import json
from pathlib import Path

import torch

from ...data.endless import BEGINNING, EndlessStream, decoded
from ...storage.atomic import write_atomically

FILE = "stream.json"


class StreamPosition:
    """Tracks the position of the training in an endless stream.

    Args:
        rows: the training rows; if they are no EndlessStream, nothing is tracked.
    """

    def __init__(self, rows):
        self.stream = rows if isinstance(rows, EndlessStream) else None
        self._begin, self._latest = BEGINNING, None  # _latest: encoded position of the last row of this process

    def begin(self, checkpoint: str | Path | None) -> None:
        """Called when training begins: move the stream to the checkpoint's position, or to its beginning."""
        if self.stream is None:
            return
        file = None if checkpoint is None else Path(checkpoint) / FILE
        self._begin, self._latest = BEGINNING if file is None else json.loads(file.read_text(encoding="utf-8")), None
        self.stream.load_state_dict(self._begin)

    def trained(self, positions: torch.Tensor | None) -> None:
        """Called for each batch with its encoded positions (B, bytes), which are decoded only when needed."""
        if positions is not None:
            self._latest = positions[-1]

    @property
    def passes(self) -> int:
        """The number of complete passes over the stream; waits for the device."""
        return (self._begin if self._latest is None else decoded(self._latest))["pass"]

    def save(self, folder: Path, accelerator) -> None:
        """Write the position into a checkpoint's folder; all processes must call this."""
        if self._latest is None:
            return
        latest = accelerator.gather(self._latest[None])[-1]  # the last process has the last rows of a batch
        if accelerator.is_main_process:
            write_atomically(folder / FILE, json.dumps(decoded(latest)))
