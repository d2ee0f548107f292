"""An image as a row of tokens: prefix tokens (class, distillation, registers) and patches.

Shapes: B images, C channels, R x S grid of patches of P x P pixels, N = R * S, F prefix tokens, T = F + N, D channels
of a token.
"""

import torch
from torch import nn
from transformers import initialization as init


class PatchEmbeddings(nn.Module):
    """Patches through one linear layer (Dosovitskiy et al. 2021, eq. 1), after the prefix tokens.

    The layer is a convolution of stride P, computed as a matrix product: a fourth of the time on a CPU in bf16. Its
    columns are the convolution's weights, in the same order.
    """

    def __init__(self, config, use_mask_token: bool = False):
        super().__init__()
        self.num_channels, self.patch_size = config.num_channels, config.patch_size
        self.projection = nn.Linear(config.num_channels * config.patch_size**2, config.hidden_size)
        self.prefix = {
            "cls_token": config.pooler_type == "cls",
            "distillation_token": config.use_distillation_token,
            "register_tokens": config.num_register_tokens,
        }
        for name, count in {**self.prefix, "mask_token": use_mask_token}.items():
            token = nn.Parameter(torch.zeros(1, int(count), config.hidden_size)) if count else None
            self.register_parameter(name, token)

    def init_own_weights(self, std: float, residual_std: float) -> None:
        for name, count in self.prefix.items():
            if count:
                init.trunc_normal_(getattr(self, name), mean=0.0, std=std)
        if self.mask_token is not None:
            init.zeros_(self.mask_token)

    def forward(self, pixel_values, bool_masked_pos=None):
        """Images (B, C, R * P, S * P) -> (B, T, D); bool_masked_pos (B, N): patches that the mask token replaces."""
        # The bias has the model's dtype, whatever dtype a quantised weight has.
        patches_BND = self.projection(self.cut(pixel_values.to(self.projection.bias.dtype)))
        if bool_masked_pos is not None:
            if self.mask_token is None:
                raise ValueError("bool_masked_pos needs a mask token; build the model with use_mask_token=True")
            masked_BN1 = bool_masked_pos.flatten(1).bool()[..., None]
            patches_BND = torch.where(masked_BN1, self.mask_token.to(patches_BND.dtype), patches_BND)
        prefix = [getattr(self, name) for name, count in self.prefix.items() if count]
        if not prefix:
            return patches_BND
        batch = patches_BND.shape[0]
        return torch.cat([x.to(patches_BND.dtype).expand(batch, -1, -1) for x in prefix] + [patches_BND], dim=1)

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
