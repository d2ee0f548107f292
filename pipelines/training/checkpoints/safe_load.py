"""Checkpoints are read only as tensors and plain data: files with anything else are refused before they can run code.

Trainer already reads like this. DeepSpeed asks torch for whole pickles, which an environment variable forbids.
"""

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from accelerate.utils import patch_environment
from transformers.trainer_pt_utils import safe_globals

from ...errors import UserError
from ...manifest import MANIFEST, read_manifest

FORCED = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}  # overrides the caller (torch/serialization.py)
PICKLES = ("*.pt", "*.pth")


def of_deepspeed() -> list[type]:
    """The classes of DeepSpeed that its checkpoints hold; creating their objects runs no other code."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


# {module: names} of the table of contents of torch's distributed checkpoints, which says where each tensor is.
OF_SHARDS = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "BytesStorageMetadata"),
        *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("PosixPath", "WindowsPath"),
    "torch": ("Size", "float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool"),
}


class ContentsOfShards(pickle.Unpickler):
    """Unpickles a table of contents of shards, and refuses everything else."""

    def find_class(self, module, name):
        if name not in OF_SHARDS.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a table of contents")
        return super().find_class(module, name)


@contextmanager
def plain_shards_alone(folder: Path) -> Iterator[None]:
    """In the block torch reads the shards of a folder only as tensors and plain data.

    Raises UserError if their table of contents, which torch unpickles without restrictions, holds anything else.
    """
    try:
        with open(folder / ".metadata", "rb") as file:
            ContentsOfShards(file).load()
    except (pickle.UnpicklingError, EOFError, OSError) as error:
        raise UserError(
            f"{folder / '.metadata'} is no table of contents of shards ({error}), so it was not read; delete this "
            f"checkpoint to go on from the one before it"
        ) from error
    with patch_environment(**FORCED):
        yield


@contextmanager
def plain_data_alone(deepspeed: bool) -> Iterator[None]:
    """In the block DeepSpeed can read only tensors, plain data and its own classes; `deepspeed` False: no change."""
    if not deepspeed:
        yield
        return
    with patch_environment(**FORCED), torch.serialization.safe_globals(of_deepspeed()):
        yield


@contextmanager
def forged_files_named(checkpoint: Path | None, deepspeed: bool) -> Iterator[None]:
    """If the block fails because a checkpoint holds more than plain data, raise UserError with the file's name."""
    try:
        yield
    except pickle.UnpicklingError as error:
        name = None if checkpoint is None else first_with_more(checkpoint, deepspeed)
        if name is None:
            raise
        raise UserError(
            f"{checkpoint}: {name} holds more than tensors and plain data, and reading that could run code, so it was "
            f"not read; delete this checkpoint to go on from the one before it"
        ) from error


def first_with_more(checkpoint: Path, deepspeed: bool) -> str | None:
    """The name of the first file of a checkpoint that torch cannot read as plain data."""
    with safe_globals(), torch.serialization.safe_globals(of_deepspeed()) if deepspeed else nullcontext():
        for file in sorted(file for pattern in PICKLES for file in checkpoint.rglob(pattern)):
            try:
                torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:  # a file may also be damaged, which is not the mistake that is looked for
                if isinstance(error, pickle.UnpicklingError):
                    return str(file.relative_to(checkpoint))
    return None


def find_foreign(checkpoint: Path) -> str | None:
    """A path of a verified checkpoint that is a link, another user's or not in the manifest, in words; None: none."""
    listed = read_manifest(checkpoint)
    for path in (checkpoint.parent, checkpoint, *sorted(checkpoint.rglob("*"))):
        name = "the folder" if path in (checkpoint, checkpoint.parent) else str(path.relative_to(checkpoint))
        if path.is_symlink():
            return f"{name} is a link"
        if hasattr(os, "geteuid") and path.stat().st_uid != os.geteuid():
            return f"{name} belongs to another user (number {path.stat().st_uid})"
        if path.is_file() and name != MANIFEST and name not in listed:
            return f"{name} is not in its manifest"
    return None
