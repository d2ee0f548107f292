"""Position schemes of images: a patch has a row and a column. Shapes as in patch_embeddings.py.

They act where the schemes of positions.py do, but read the grid (R, S) in place of position_ids.
"""

import torch
from torch import nn
from transformers import initialization as init

from .positions_absolute import SinusoidalPositions


def axis_positions(count, trained: int, device) -> torch.Tensor:
    """Coordinates of `count` patches on an axis of `trained` patches: 0, 1, ..., or, if counts differ, in between.

    As when images are resized, the centres of the first and last patch are half a patch from the border.
    """
    positions = torch.arange(count, dtype=torch.float, device=device)
    return positions if isinstance(count, int) and count == trained else (positions + 0.5) * (trained / count) - 0.5


class LearnedPatchPositions(nn.Module):
    """One trained vector per patch, and per class or distillation token (Dosovitskiy et al. 2021, section 3.1).

    For another grid than the trained one the table is resized as a picture (the same, section 3.2).
    """

    def __init__(self, config):
        super().__init__()
        self.grid, self.registers = config.grid, config.num_register_tokens
        self.table_prefix = config.num_prefix_tokens - self.registers
        rows, columns = self.grid
        self.weight = nn.Parameter(torch.zeros(1, self.table_prefix + rows * columns, config.hidden_size))

    def init_own_weights(self, std: float, residual_std: float) -> None:
        init.trunc_normal_(self.weight, mean=0.0, std=std)

    def forward(self, x_BTD, grid):
        table_1TD = self.weight
        # An exported program serves all grids.
        if torch.compiler.is_exporting() or tuple(grid) != self.grid:
            prefix, plane = table_1TD.split([self.table_prefix, self.grid[0] * self.grid[1]], dim=1)
            plane = plane.unflatten(1, self.grid).permute(0, 3, 1, 2)
            plane = nn.functional.interpolate(plane, size=tuple(grid), mode="bicubic", align_corners=False)
            table_1TD = torch.cat((prefix, plane.flatten(2).transpose(1, 2)), dim=1)
        if self.registers:
            prefix, plane = table_1TD.tensor_split([self.table_prefix], dim=1)
            table_1TD = torch.cat((prefix, prefix.new_zeros(1, self.registers, prefix.shape[-1]), plane), dim=1)
        return table_1TD.to(x_BTD.dtype)


class SinusoidalPatchPositions(SinusoidalPositions):
    """Sines and cosines of the column in the first half of the channels, of the row in the second. No parameters.

    He et al. 2022 (MAE), as released; nothing is added to the prefix tokens.
    """

    def __init__(self, config):
        super().__init__(config)
        self.hidden_size //= 2
        self.grid, self.prefix = config.grid, config.num_prefix_tokens

    def forward(self, x_BTD, grid):
        encode = super().forward
        rows, columns = (encode(x_BTD, axis_positions(n, m, x_BTD.device)) for n, m in zip(grid, self.grid))
        plane_RSD = torch.cat((columns.expand(grid[0], -1, -1), rows[:, None].expand(-1, grid[1], -1)), dim=-1)
        return nn.functional.pad(plane_RSD.flatten(0, 1), (0, 0, self.prefix, 0))[None]


class RotaryPatchPositions(nn.Module):
    """Rotation of channel pairs, half of them by the row and half by the column of a patch (Heo et al. 2024, eq. 8).

    Prefix tokens are not rotated. No parameters and no buffers: the angles of a grid are quickly made.
    """

    def __init__(self, config):
        super().__init__()
        self.grid, self.prefix = config.grid, config.num_prefix_tokens
        self.theta = config.rope_parameters["rope_theta"]
        self.pairs = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0)) // 4

    @torch.no_grad()
    def forward(self, x_BTD, grid):
        exponents = torch.arange(self.pairs, dtype=torch.float, device=x_BTD.device) / self.pairs
        rows, columns = (
            axis_positions(n, m, x_BTD.device)[:, None] * self.theta**-exponents for n, m in zip(grid, self.grid)
        )
        plane = torch.cat((rows[:, None].expand(-1, grid[1], -1), columns.expand(grid[0], -1, -1)), dim=-1)
        angles = nn.functional.pad(plane.flatten(0, 1), (0, 0, self.prefix, 0))
        # cos(-a) = cos(a) and sin(-a) = -sin(a): the layout `rotate` reads
        angles = torch.cat((-angles, angles), dim=-1)[None]
        return angles.cos().to(x_BTD.dtype), angles.sin().to(x_BTD.dtype)
