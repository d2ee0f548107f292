"""Matrices that are split over processes (DTensor), for an optimizer that needs whole ones.

In one exchange among all processes each gets some of the matrices whole, and a second exchange splits them again, so
no process gathers or computes what another does, as in Liu et al. 2025 ("Muon is scalable for LLM training", section
2.3) and Dion's implementation of Muon.
"""

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from .mesh import local


@dataclass(frozen=True)
class Split:
    """How a stack of matrices is split over processes.

    Attributes:
        mesh: of the processes. placements: of a stack (N, rows, columns) on the mesh.
        experts: number of matrices, over all processes, of a parameter with three axes; None: parameters are matrices.
        parameter: id of a parameter with three axes, which is a stack by itself; None: several parameters are stacked.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    experts: int | None = None
    parameter: int | None = None

    def together(self, most: int, matrices: int) -> int:
        """How many of `matrices` are stacked at once, if a process works on `most` at a time."""
        return most * self.mesh.size() if self.experts is None else matrices

    def some_whole(self, parts: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """A stack of parts of matrices (N, r, c) -> the n whole matrices of this process (n, rows, columns)."""
        return self._exchanged(parts, shape, len(parts), self.placements, self._whole)

    def shares(self, some: torch.Tensor, shape: torch.Size, count: int) -> torch.Tensor:
        """The inverse: the whole matrices of this process -> its parts of all `count` matrices."""
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
    """How the matrices of a parameter with two or three axes are split; None if each process has its own ones whole."""
    if not isinstance(parameter, DTensor):
        return None
    is_stack, placements = parameter.ndim == 3, parameter.placements
    if all(getattr(placement, "dim", 0) == 0 for placement in placements) and is_stack:
        return None
    if is_stack:
        return Split(parameter.device_mesh, placements, len(parameter), id(parameter))
    return Split(parameter.device_mesh, tuple(map(_in_stack, placements)))


def _in_stack(placement: Placement) -> Placement:
    """The placement of a stack of matrices, which has one more axis, from that of a matrix."""
    if isinstance(placement, _StridedShard):
        return _StridedShard(placement.dim + 1, split_factor=placement.split_factor)
    return Shard(placement.dim + 1) if isinstance(placement, Shard) else placement


def matrices_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views (1, r, c) of this process's part of each matrix in a tensor; one (0, r, c) where it has none."""
    tensor = local(tensor)
    return (tensor[None],) if tensor.ndim == 2 else tensor.split(1)
