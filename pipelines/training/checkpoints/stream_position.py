"""The position in a stream: kept while training, saved in each checkpoint, and where a resumed run begins."""

import json
from pathlib import Path

import torch

from ...data.endless import BEGINNING, EndlessStream, decoded
from ...storage.atomic import write_atomically

FILE = "stream.json"


class StreamPosition:
    """Where in an endless stream the training is; of other training rows nothing is kept.

    Args:
        rows: the training rows.
    """

    def __init__(self, rows):
        self.stream = rows if isinstance(rows, EndlessStream) else None
        self._begin, self._latest = BEGINNING, None  # the latter as bytes, of the last row that this process trained

    def begin(self, checkpoint: str | Path | None) -> None:
        """Training begins: at the stream's beginning, or where the checkpoint's ended."""
        if self.stream is None:
            return
        file = None if checkpoint is None else Path(checkpoint) / FILE
        self._begin, self._latest = BEGINNING if file is None else json.loads(file.read_text(encoding="utf-8")), None
        self.stream.load_state_dict(self._begin)

    def trained(self, positions: torch.Tensor | None) -> None:
        """Rows with these positions, (B, bytes), are being trained; their place is not read until it is needed."""
        if positions is not None:
            self._latest = positions[-1]

    @property
    def passes(self) -> int:
        """Whole passes over the stream; waits for the device."""
        return (self._begin if self._latest is None else decoded(self._latest))["pass"]

    def save(self, folder: Path, accelerator) -> None:
        """Write the position into a checkpoint's folder; all processes call this."""
        if self._latest is None:
            return
        latest = accelerator.gather(self._latest[None])[-1]  # the last process has the last rows of a batch
        if accelerator.is_main_process:
            write_atomically(folder / FILE, json.dumps(decoded(latest)))
