"""Patch embeddings of images (ViT), with positions of rows and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.linear import Linear, normal
from regard.core.norm import Norm
from regard.core.positions.positional_encoding import FixedPosition, LearnedPosition, Sinusoidal2D
from regard.core.side import ImageFrontEnd
from regard.system.errors import DataError

PatchPosition = LearnedPosition | FixedPosition | Sinusoidal2D


class VisiblePatches(NamedTuple):
    """Random masking by shuffling (He et al. 2022, MAE): which patches an encoder reads.

    Where mask tokens stand for the others (SimMIM), only `masked` is read.
    """

    visible: Tensor  # [B, K]: the numbers of the patches, in the order in which they are read
    restore: Tensor  # [B, N]: where each patch stands, behind the visible ones if it is masked
    masked: Tensor  # [B, N] bool


class Patches(ImageFrontEnd):
    """ViT's patch embedding: squares of pixels, each mapped to a vector, behind `extras` trained
    vectors such as the class token (Dosovitskiy et al. 2021).

    A convolution whose stride is its kernel is a linear map of the pixels of each patch, so it is
    one here; `convolutions` before it have a stride of 2.
    """

    gives_order: ClassVar[bool] = True  # a call says which patches were hidden
    shows_norm = False  # transformers' encoders of images are the same behind a decoder

    def __init__(
        self,
        part: spec.Patches,
        d_model: int,
        position: PatchPosition | None,
        norm: Norm | None,
        convolutions: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.spec = part
        self.patch = part.patch
        self.side = part.side
        self.convolutions = nn.ModuleList(convolutions)
        self.project = Linear(d_model if convolutions else part.pixels, d_model, bias=part.bias)
        extras = [nn.Parameter(normal(1, d_model)[0]) for _ in range(part.extras)]
        self.extras = nn.ParameterList(extras)
        self.position = position
        self.norm = norm
        self.dropout = Dropout(part.dropout)
        # A norm of patches that nothing joins or moves does not change the mask token (Swin).
        self.norm_before_masks = position is None and part.extras == 0
        self.mask_token = nn.Parameter(torch.zeros(d_model)) if part.mask_token else None

    def extra_repr(self) -> str:
        return f"size={self.spec.size}, patch={self.patch}, channels={self.spec.channels}"

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        height, width = pixels.shape[-2:]
        if self.spec.padded:
            return -(-height // self.patch), -(-width // self.patch)
        return height // self.patch, width // self.patch

    def forward(
        self,
        pixels: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        masked: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """pixels [B, channels, size, size] → [B, extras + patches, D], patches row by row.

        At the `masked` patches [B, patches] the mask token stands instead; without one, they are
        left out. If numbers of `visible` patches [B, K] are given, only these are read, in their
        order.
        """
        self._check_size(pixels, interpolates=context is not None and context.interpolates)
        x = self.embed(pixels)
        if self.norm is not None and self.norm_before_masks:
            x = self.norm(x)
        if masked is not None and self.mask_token is None:
            visible = self.hidden_patches(masked).visible
        elif masked is not None:
            x = self._with_mask_tokens(x, masked)
        if len(self.extras):
            extras = torch.stack(list(self.extras)).expand(x.shape[0], -1, -1)
            x = torch.cat([extras, x], dim=1)  # [B, extras + patches, D]
        if self.position is not None:
            x = x + self.positions(self.grid(pixels))
        if visible is not None:
            x = self._only(visible, x)
        if self.norm is not None and not self.norm_before_masks:
            x = self.norm(x)
        return self.dropout(x)

    def embed(self, pixels: Tensor) -> Tensor:
        """The vector of each patch: [B, patches, D]"""
        if not self.convolutions:
            return self.project(self.unfold(pixels))
        height, width = (side * self.patch for side in self.grid(pixels))
        x = pixels[:, :, :height, :width].flatten(2).mT
        for convolution in self.convolutions:
            x = functional.relu(convolution(x, (height, width)))  # [B, H / 2 · W / 2, C]
            height, width = height // 2, width // 2
        return self.project(x)

    def random_masking(self, noise: Tensor) -> VisiblePatches:
        """Hides the squares with the highest noise [B, maskable], as many in every image."""
        count = int(noise.shape[1] * (1 - self.spec.masked_share)) * self.spec.mask_unit**2
        if self.spec.mask_unit > 1:
            noise = self._of_patches(noise)
        shuffled = noise.argsort(dim=1)
        restore = shuffled.argsort(dim=1)
        return VisiblePatches(shuffled[:, :count], restore, restore >= count)

    def hidden_patches(self, masked: Tensor) -> VisiblePatches:
        """Hides these patches [B, N], as many in every image; the others keep their order."""
        counts = (~masked).sum(dim=1)
        if masked.ndim != 2 or bool((counts != counts[0]).any()):
            raise DataError(
                "the images of a batch have different numbers of masked patches",
                "mask as many in each of them",
            )
        return self._sorted(masked, int(counts[0]))

    def _sorted(self, masked: Tensor, visible: int) -> VisiblePatches:
        """Hides these patches [B, N], of which so many are visible in every image."""
        shuffled = masked.long().argsort(dim=1, stable=True)
        return VisiblePatches(shuffled[:, :visible], shuffled.argsort(dim=1), masked)

    def encoder_inputs(self, order: VisiblePatches) -> dict[str, Tensor]:
        """The arguments of `forward` besides an image: masked patches if there are mask tokens."""
        if self.mask_token is not None:
            return {"masked": order.masked}
        return {"visible": order.visible}

    def _of_patches(self, values: Tensor) -> Tensor:
        """Values of mask units [B, units] as those of their patches: [B, patches]."""
        units = math.isqrt(values.shape[1])
        square = values.unflatten(1, (units, units))
        for dimension in (1, 2):
            square = square.repeat_interleave(self.spec.mask_unit, dimension)
        return square[:, : self.side, : self.side].flatten(1)

    def _with_mask_tokens(self, x: Tensor, masked: Tensor) -> Tensor:
        """Patches [B, N, D] with the mask token at those that are `masked`, [B, N] or [1, N]."""
        assert self.mask_token is not None, "this model has no mask token"
        # `len` would make the number of images a constant of an exported graph.
        images = x.shape[0]
        if masked.ndim != 2 or masked.shape[0] not in (1, images) or masked.shape[1] != x.shape[1]:
            raise DataError(
                f"the mask of patches has the shape {list(masked.shape)}, but there are {images} "
                f"images of {x.shape[1]} patches",
                f"pass booleans of the shape {list(x.shape[:2])}",
            )
        return torch.where(masked[..., None], self.mask_token.to(x.dtype), x)

    def _only(self, visible: Tensor, x: Tensor) -> Tensor:
        """The extras, and the visible patches [B, K] of x [B, extras + patches, D]."""
        extras = torch.arange(len(self.extras), device=x.device).expand(x.shape[0], -1)
        rows = torch.cat([extras, visible + len(self.extras)], dim=1)  # [B, extras + K]
        # Not `take_along_dim`, which the ONNX exporter traces for one number of rows.
        return x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))

    def _check_size(self, pixels: Tensor, *, interpolates: bool) -> None:
        shape = (self.spec.channels, self.spec.size, self.spec.size)
        fits = pixels.shape[1:] == shape
        if self.spec.interpolated or (interpolates and self.spec.position == "learned"):
            fits = pixels.shape[1] == self.spec.channels and min(self.grid(pixels)) > 0
        if not fits:
            raise DataError(
                f"the image has the shape {tuple(pixels.shape[1:])}, but this model needs "
                f"{shape} (channels, height, width)",
                "resize and crop images as the preprocessor_config.json of the model says; learned "
                "positions are interpolated if asked for: interpolate_pos_encoding=True",
            )

    def positions(self, grid: tuple[int, int]) -> Tensor:
        """The position of each patch of a grid, behind those of the extras: [extras + patches,
        D]."""
        assert self.position is not None, "these patches have no positions"
        count = len(self.extras) + self.side**2
        table = self.position.rows(count)
        if grid == (self.side, self.side):
            return table
        extras, patches = table.split([len(self.extras), self.side**2])
        square = patches.unflatten(0, (self.side, self.side)).permute(2, 0, 1)  # [D, side, side]
        # In float32: bicubic weights in half precision would move the positions.
        scaled = functional.interpolate(square[None].float(), grid, mode="bicubic")[0]
        return torch.cat([extras, scaled.flatten(1).mT.to(table.dtype)])

    def unfold(self, pixels: Tensor) -> Tensor:
        """The pixels of each patch: [B, patches, channels · patch · patch]."""
        rows, columns = self.grid(pixels)
        if self.spec.padded:
            height, width = pixels.shape[-2:]
            missing = (0, columns * self.patch - width, 0, rows * self.patch - height)
            pixels = functional.pad(pixels, missing)
        # Pixels beyond the last complete patch are ignored, as by a convolution.
        pixels = pixels[:, :, : rows * self.patch, : columns * self.patch]
        # [B, channels, rows, patch, columns, patch]
        squares = pixels.unflatten(3, (columns, self.patch)).unflatten(2, (rows, self.patch))
        # In a patch: channel, row, column, which is the order of a convolution's weight.
        return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
