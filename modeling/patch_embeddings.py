"""An image as a row of tokens: patches, the tokens in front of them, and where in the plane they are.

Shapes: B images, C channels, R x S grid of patches of P x P pixels, N = R * S, F tokens in front, T = F + N, D channels
of a token. Position schemes act where those of positions.py do (`place`); what they read is the grid (R, S).
"""

import torch
from torch import nn

from .positions import SinusoidalPositions


class PatchEmbeddings(nn.Module):
    """Patches through one linear layer (Dosovitskiy et al. 2021, eq. 1), behind the tokens that stand in front.

    The layer is a convolution of stride P, as a matrix product: a fourth of the time on a CPU in bf16. Its columns are
    the convolution's weights in their order.
    """

    def __init__(self, config, use_mask_token: bool = False):
        super().__init__()
        self.num_channels, self.patch_size = config.num_channels, config.patch_size
        self.projection = nn.Linear(config.num_channels * config.patch_size**2, config.hidden_size)
        self.front = {
            "cls_token": config.pooler_type == "cls",
            "distillation_token": config.use_distillation_token,
            "register_tokens": config.num_register_tokens,
        }
        for name, count in {**self.front, "mask_token": use_mask_token}.items():
            token = nn.Parameter(torch.zeros(1, int(count), config.hidden_size)) if count else None
            self.register_parameter(name, token)

    def forward(self, pixel_values, bool_masked_pos=None):
        """Images (B, C, R * P, S * P) -> (B, T, D); bool_masked_pos (B, N): whose patch the mask token replaces."""
        patches_BND = self.projection(self.cut(pixel_values.to(self.projection.weight.dtype)))
        if bool_masked_pos is not None:
            if self.mask_token is None:
                raise ValueError("bool_masked_pos needs a mask token; build the model with use_mask_token=True")
            masked_BN1 = bool_masked_pos.flatten(1).bool()[..., None]
            patches_BND = torch.where(masked_BN1, self.mask_token.to(patches_BND.dtype), patches_BND)
        front = [getattr(self, name) for name, count in self.front.items() if count]
        if not front:
            return patches_BND
        batch = patches_BND.shape[0]
        return torch.cat([x.to(patches_BND.dtype).expand(batch, -1, -1) for x in front] + [patches_BND], dim=1)

    def cut(self, pixel_values):
        """(B, C, R * P, S * P) -> (B, N, C * P * P), row by row."""
        batch, channels, height, width = pixel_values.shape
        size = self.patch_size
        if channels != self.num_channels:
            raise ValueError(f"the image has {channels} channels, but num_channels={self.num_channels}")
        if height % size or width % size:
            raise ValueError(f"an image of {height} x {width} pixels is not cut evenly by patch_size={size}")
        grid = pixel_values.reshape(batch, channels, height // size, size, width // size, size)
        return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def axis_places(count, trained: int, device) -> torch.Tensor:
    """Where `count` patches stand on an axis of `trained` ones: at 0, 1, ..., or, if counts differ, in between.

    As images are resized: the centres of the first and last patch keep their distance from the border.
    """
    places = torch.arange(count, dtype=torch.float, device=device)
    return places if isinstance(count, int) and count == trained else (places + 0.5) * (trained / count) - 0.5


class LearnedPatchPositions(nn.Module):
    """One trained vector per patch, and per class or distillation token (Dosovitskiy et al. 2021, section 3.1).

    For another grid than the trained one the table is resized as a picture (the same, section 3.2).
    """

    place = "embedding"

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


class RotaryPatchPositions(nn.Module):
    """Rotation of channel pairs, half of them by the row and half by the column of a patch (Heo et al. 2024, eq. 8).

    Tokens in front are not turned. No parameters and no buffers: the angles of a grid are quickly made.
    """

    place = "rotation"

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


PATCH_POSITION_SCHEMES = {
    "none": None,
    "learned": LearnedPatchPositions,
    "sinusoidal": SinusoidalPatchPositions,
    "rotary": RotaryPatchPositions,
}


def build_patch_positions(config) -> nn.Module | None:
    """The scheme that `config.position_encoding` names, or None for "none"."""
    scheme = PATCH_POSITION_SCHEMES[config.position_encoding]
    return None if scheme is None else scheme(config)
