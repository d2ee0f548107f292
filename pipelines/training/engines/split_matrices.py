"""Matrices that processes share (DTensor), of which each makes some whole for an optimizer that needs them so.

By an exchange among all, and back in the same way: nobody gathers or computes what another does, as in Liu et al. 2025
("Muon is scalable for LLM training", section 2.3) and Dion's implementation of Muon.
"""

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from .mesh import local


@dataclass(frozen=True)
class Split:
    """How matrices lie on processes, the same for all that are stacked together.

    Attributes:
        mesh: of the processes. placements: on it, of a stack (N, rows, columns).
        experts: how many matrices a parameter of three axes has in all processes together; None: it is one matrix.
        parameter: id of such a parameter, whose stack is its own; None: matrices of several are stacked.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    experts: int | None = None
    parameter: int | None = None

    def together(self, most: int, matrices: int) -> int:
        """How many of so many matrices are stacked, where a process works on `most` at a time."""
        return most * self.mesh.size() if self.experts is None else matrices

    def some_whole(self, parts: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """A stack of parts of matrices (N, r, c) -> whole ones of this process (n, rows, columns)."""
        return self._exchanged(parts, shape, len(parts), self.placements, self._whole)

    def shares(self, some: torch.Tensor, shape: torch.Size, count: int) -> torch.Tensor:
        """The way back: from whole matrices of this process to its parts of all `count` of them."""
        return self._exchanged(some, shape, count, self._whole, self.placements)

    @property
    def _whole(self) -> tuple[Placement, ...]:
        return (Shard(0),) * self.mesh.ndim

    def _exchanged(self, here: torch.Tensor, shape: torch.Size, count: int, before, after) -> torch.Tensor:
        size = torch.Size((count if self.experts is None else self.experts, *shape))
        stride = (shape.numel(), shape[1], 1)
        stack = DTensor.from_local(here.contiguous(), self.mesh, before, run_check=False, shape=size, stride=stride)
        return stack.redistribute(placements=after).to_local()


def split_of(parameter: torch.Tensor) -> Split | None:
    """How the matrices of a parameter of two or three axes are split; None where this process has its own whole."""
    if not isinstance(parameter, DTensor):
        return None
    is_stack, placements = parameter.ndim == 3, parameter.placements
    if all(getattr(each, "dim", 0) == 0 for each in placements) and is_stack:
        return None
    if is_stack:
        return Split(parameter.device_mesh, placements, len(parameter), id(parameter))
    return Split(parameter.device_mesh, tuple(map(_in_stack, placements)))


def _in_stack(placement: Placement) -> Placement:
    """A matrix's placement as that of a stack, which has one axis more."""
    if isinstance(placement, _StridedShard):
        return _StridedShard(placement.dim + 1, split_factor=placement.split_factor)
    return Shard(placement.dim + 1) if isinstance(placement, Shard) else placement


def matrices_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views (1, r, c) of what this process has of each matrix in a tensor; where it has none, one (0, r, c)."""
    tensor = local(tensor)
    return (tensor[None],) if tensor.ndim == 2 else tensor.split(1)
