"""Overlapping patch embedding (Xie et al. 2021, SegFormer): a convolution, then LayerNorm."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from regard import spec
from regard.core.context import Context
from regard.core.convolution import GridConvolution
from regard.core.norm import Norm
from regard.core.output import Inputs
from regard.core.side import ImageFrontEnd
from regard.system.errors import DataError


class OverlapEmbedding(nn.Module):
    """Convolution with a stride, then a norm: what begins each stage."""

    def __init__(self, project: GridConvolution, norm: Norm) -> None:
        super().__init__()
        self.project = project
        self.norm = norm

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[B, N, inputs] on a grid → [B, N', D]"""
        return self.norm(self.project(x, grid))


class OverlapPatches(ImageFrontEnd):
    """Patches that overlap: [B, channels, height, width] → positions row by row [B, N, D]."""

    shows_first: ClassVar[bool] = False

    def __init__(self, part: spec.OverlapPatches, embed: OverlapEmbedding) -> None:
        super().__init__()
        self.spec = part
        self.patch = part.patch
        self.embed = embed

    def grid(self, inputs: Tensor) -> tuple[int, int]:
        height, width = inputs.shape[-2:]
        return -(-height // self.patch), -(-width // self.patch)

    def forward(
        self,
        pixels: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        if pixels.ndim != 4 or pixels.shape[1] != self.spec.channels:
            raise DataError(
                f"the image has the shape {tuple(pixels.shape[1:])}, but this model needs "
                f"{self.spec.channels} channels, height and width",
                "convert images as the preprocessor_config.json of the model says",
            )
        return self.embed.norm(self.embed.project.of_map(pixels))

    def states(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        """As feature maps [B, D, rows, columns]: so transformers has them."""
        return self.as_maps(hidden, inputs["pixel_values"])
