"""Position schemes of images: a patch has a row and a column. Shapes as in patch_embeddings.py.

They act where the schemes of positions.py do; what they read is the grid (R, S).
"""

import torch
from torch import nn

from .positions import SinusoidalPositions
from .traits import implements


def axis_places(count, trained: int, device) -> torch.Tensor:
    """Where `count` patches stand on an axis of `trained` ones: at 0, 1, ..., or, if counts differ, in between.

    As images are resized: the centres of the first and last patch keep their distance from the border.
    """
    places = torch.arange(count, dtype=torch.float, device=device)
    return places if isinstance(count, int) and count == trained else (places + 0.5) * (trained / count) - 0.5


@implements("patch position", "learned")
class LearnedPatchPositions(nn.Module):
    """One trained vector per patch, and per class or distillation token (Dosovitskiy et al. 2021, section 3.1).

    For another grid than the trained one the table is resized as a picture (the same, section 3.2).
    """

    def __init__(self, config):
        super().__init__()
        self.grid, self.registers = config.grid, config.num_register_tokens
        self.read_in_front = config.num_front_tokens - self.registers
        rows, columns = self.grid
        self.weight = nn.Parameter(torch.zeros(1, self.read_in_front + rows * columns, config.hidden_size))

    def forward(self, x_BTD, grid):
        table_1TD = self.weight
        # An exported program serves all grids.
        if torch.compiler.is_exporting() or tuple(grid) != self.grid:
            front, plane = table_1TD.split([self.read_in_front, self.grid[0] * self.grid[1]], dim=1)
            plane = plane.unflatten(1, self.grid).permute(0, 3, 1, 2)
            plane = nn.functional.interpolate(plane, size=tuple(grid), mode="bicubic", align_corners=False)
            table_1TD = torch.cat((front, plane.flatten(2).transpose(1, 2)), dim=1)
        if self.registers:
            front, plane = table_1TD.tensor_split([self.read_in_front], dim=1)
            table_1TD = torch.cat((front, front.new_zeros(1, self.registers, front.shape[-1]), plane), dim=1)
        return table_1TD.to(x_BTD.dtype)


@implements("patch position", "sinusoidal")
class SinusoidalPatchPositions(SinusoidalPositions):
    """Sines and cosines of the column in the first half of the channels, of the row in the second. No parameters.

    He et al. 2022 (MAE), as released; nothing is added to the tokens in front.
    """

    def __init__(self, config):
        super().__init__(config)
        self.hidden_size //= 2
        self.grid, self.front = config.grid, config.num_front_tokens

    def forward(self, x_BTD, grid):
        encode = super().forward
        rows, columns = (encode(x_BTD, axis_places(n, m, x_BTD.device)) for n, m in zip(grid, self.grid))
        plane_RSD = torch.cat((columns.expand(grid[0], -1, -1), rows[:, None].expand(-1, grid[1], -1)), dim=-1)
        return nn.functional.pad(plane_RSD.flatten(0, 1), (0, 0, self.front, 0))[None]


@implements("patch position", "rotary")
class RotaryPatchPositions(nn.Module):
    """Rotation of channel pairs, half of them by the row and half by the column of a patch (Heo et al. 2024, eq. 8).

    Tokens in front are not turned. No parameters and no buffers: the angles of a grid are quickly made.
    """

    def __init__(self, config):
        super().__init__()
        self.grid, self.front = config.grid, config.num_front_tokens
        self.theta = config.rope_parameters["rope_theta"]
        self.pairs = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0)) // 4

    @torch.no_grad()
    def forward(self, x_BTD, grid):
        exponents = torch.arange(self.pairs, dtype=torch.float, device=x_BTD.device) / self.pairs
        rows, columns = (
            axis_places(n, m, x_BTD.device)[:, None] * self.theta**-exponents for n, m in zip(grid, self.grid)
        )
        plane = torch.cat((rows[:, None].expand(-1, grid[1], -1), columns.expand(grid[0], -1, -1)), dim=-1)
        angles = nn.functional.pad(plane.flatten(0, 1), (0, 0, self.front, 0))
        # cos(-a) = cos(a) and sin(-a) = -sin(a): the layout `rotate` reads
        angles = torch.cat((-angles, angles), dim=-1)[None]
        return angles.cos().to(x_BTD.dtype), angles.sin().to(x_BTD.dtype)
