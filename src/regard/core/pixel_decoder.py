"""The decoder of masked autoencoders: pixels of all patches from the visible ones (MAE)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.linear import Linear, normal
from regard.core.patch_embedding import PatchShape, VisiblePatches
from regard.core.positional_encoding import FixedPosition
from regard.core.stack import Stack

_VARIANCE_EPS = 1e-6  # the authors' code: a patch of one colour has no variance


class PixelDecoder(nn.Module):
    """A small Transformer from the hidden states of visible patches to the pixels of all patches.

    Pixels of a patch are in the order row, column, channel (He et al. 2022).
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        stack: Stack,
        shape: PatchShape,
        *,
        extras: int,
        normalized: bool,
    ) -> None:
        super().__init__()
        self.project = Linear(inputs, width)
        self.mask_token = nn.Parameter(normal(1, width)[0])
        self.position = FixedPosition.grid(width, shape.side, extras)
        self.stack = stack
        self.output = Linear(width, shape.channels * shape.patch**2)
        self.channels = shape.channels
        self.extras = extras
        self.normalized = normalized

    def forward(self, hidden: Tensor, restore: Tensor) -> Tensor:
        """hidden [B, extras + K, D], `restore` of `VisiblePatches` → pixels [B, N, P]."""
        x = self.project(hidden)
        extras, visible = x.split([self.extras, x.shape[1] - self.extras], dim=1)
        count = restore.shape[1]
        masked = self.mask_token.to(x.dtype).expand(len(x), count - visible.shape[1], -1)
        shuffled = torch.cat([visible, masked], dim=1)  # [B, N, width]
        patches = shuffled.gather(1, restore[..., None].expand(-1, -1, x.shape[2]))
        x = torch.cat([extras, patches], dim=1)
        x = x + self.position.rows(x.shape[1])
        return self.output(self.stack(x)[:, self.extras :])

    def targets(self, patches: Tensor) -> Tensor:
        """What the loss compares with: pixels [B, N, P] of unfolded patches, normalized or not."""
        # A patch is unfolded as channel, row, column.
        pixels = patches.unflatten(-1, (self.channels, -1)).mT.flatten(-2)
        if not self.normalized:
            return pixels
        variance, mean = torch.var_mean(pixels, dim=-1, keepdim=True)
        return (pixels - mean) / (variance + _VARIANCE_EPS).sqrt()

    def error(self, predicted: Tensor, patches: Tensor, order: VisiblePatches) -> Tensor:
        """The mean squared error of the pixels of each masked patch, 0 at visible ones: [B, N]."""
        squares = (predicted - self.targets(patches)).square().mean(dim=-1)
        return squares * order.masked
