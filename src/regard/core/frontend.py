"""What stands before a stack. A front end maps its inputs to [B, T, D], and `places` tells which of the T positions are real
when `real` tells it of the inputs. Tokens have theirs in `embed`; here are images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.embed import Embedding
from regard.core.linear import Linear, normal
from regard.core.norm import Norm
from regard.core.position import Learned
from regard.errors import DataError


class Patches(nn.Module):
    """Squares of pixels, each mapped to a vector, behind trained vectors of no place (Dosovitskiy et al. 2021).

    A convolution whose stride is its kernel is a linear map of the pixels of each square, so it is one here.
    """

    def __init__(
        self,
        d_model: int,
        *,
        size: int,
        patch: int,
        channels: int,
        extras: int,
        bias: bool,
        norm: Norm | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.size, self.patch, self.channels = size, patch, channels
        self.side = size // patch
        self.project = Linear(channels * patch * patch, d_model, bias=bias)
        self.extras = nn.ParameterList(nn.Parameter(normal(1, d_model)[0]) for _ in range(extras))
        self.position = Learned(d_model, self.side**2 + extras)
        self.norm = norm
        self.dropout = Dropout(dropout)

    def places(self, real: Tensor | None) -> Tensor | None:
        """An image has no padding."""
        return None

    def forward(self, pixels: Tensor, *, real: Tensor | None = None) -> Tensor:
        """pixels [B, channels, size, size] → [B, extras + patches, D], rows of patches one after the other"""
        if pixels.shape[1:] != (self.channels, self.size, self.size):
            raise DataError(
                f"an image of {tuple(pixels.shape[1:])} does not fit this model: its images are "
                f"{(self.channels, self.size, self.size)} (channels, height, width)",
                "resize and crop images as the preprocessor_config.json of the model says",
            )
        x = self.project(self._unfolded(pixels))  # [B, patches, D]
        if len(self.extras):
            extras = torch.stack(list(self.extras)).expand(len(x), -1, -1)
            x = torch.cat([extras, x], dim=1)
        x = x + self.position.rows(x.shape[1])
        return self.dropout(x if self.norm is None else self.norm(x))

    def _unfolded(self, pixels: Tensor) -> Tensor:
        """[B, patches, channels · patch · patch]"""
        side, patch = self.side, self.patch
        whole = pixels[:, :, : side * patch, : side * patch]
        squares = whole.unflatten(3, (side, patch)).unflatten(
            2, (side, patch)
        )  # [B, channels, side, patch, side, patch]
        return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


FrontEnd = Embedding | Patches
