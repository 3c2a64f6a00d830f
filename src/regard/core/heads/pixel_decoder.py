"""Decoders of masked image modelling: pixels of all patches from the visible ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.frontends.patch_embedding import VisiblePatches
from regard.core.heads.head import Head, Reading
from regard.core.linear import Linear, normal
from regard.core.output import Output, Outputs, asides
from regard.core.positions.positional_encoding import FixedPosition
from regard.core.stack import Stack
from regard.system.errors import ModelError

_MASKED_PIXELS_EPS = 1e-5
_VARIANCE_EPS = 1e-6  # the authors' code: a patch of one colour has no variance


class PixelDecoder(Head):
    """A small Transformer from the hidden states of visible patches to the pixels of all patches.

    Pixels of a patch are in the order row, column, channel (He et al. 2022).
    """

    def __init__(
        self, part: spec.PixelDecoder, inputs: int, stack: Stack, patches: spec.Patches
    ) -> None:
        super().__init__()
        width = part.d_model
        self.spec = part
        self.project = Linear(inputs, width)
        self.mask_token = nn.Parameter(normal(1, width)[0])
        self.position = FixedPosition.grid(width, patches.side, patches.extras)
        self.stack = stack
        self.output = Linear(width, patches.channels * patches.patch**2)
        self.channels = patches.channels
        self.extras = patches.extras

    def forward(self, hidden: Tensor, order: VisiblePatches) -> Tensor:
        """hidden [B, extras + K, D] of the visible patches → pixels of all of them [B, N, P]."""
        x = self.project(hidden)
        extras, visible = x.split([self.extras, x.shape[1] - self.extras], dim=1)
        count = order.restore.shape[1]
        masked = self.mask_token.to(x.dtype).expand(x.shape[0], count - visible.shape[1], -1)
        shuffled = torch.cat([visible, masked], dim=1)  # [B, N, width]
        # Not `take_along_dim`, which the ONNX exporter traces for one number of rows.
        patches = shuffled.gather(1, order.restore[..., None].expand_as(shuffled))
        x = torch.cat([extras, patches], dim=1)
        x = x + self.position.rows(x.shape[1])
        return self.output(self.stack(x)[:, self.extras :])

    def targets(self, patches: Tensor) -> Tensor:
        """The targets of the loss: pixels [B, N, P] of unfolded patches, normalized or not."""
        # A patch is unfolded as channel, row, column.
        pixels = patches.unflatten(-1, (self.channels, -1)).mT.flatten(-2)
        if not self.spec.normalized:
            return pixels
        variance, mean = torch.var_mean(pixels, dim=-1, keepdim=True)
        return (pixels - mean) / (variance + _VARIANCE_EPS).sqrt()

    def error(self, predicted: Tensor, patches: Tensor, masked: Tensor) -> Tensor:
        """The mean squared error of the pixels of each masked patch, 0 at visible ones: [B, N]."""
        squares = (predicted - self.targets(patches)).square().mean(dim=-1)
        return squares * masked

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        """The pixels and their loss, under transformers' names (MAE)."""
        order = reading.order
        if order is None:
            return {}
        patches = reading.front.unfold(reading.main)
        predicted = self(hidden, order)
        loss = self.error(predicted, patches, order.masked).sum() / order.masked.sum()
        return {**asides(loss=loss), "logits": Output(predicted)}


class PixelShuffleHead(Head):
    """SimMIM's one-layer decoder (Xie et al. 2022): a 1 × 1 convolution and a pixel shuffle.

    A convolution of that size is a linear map of each position, so it is one here.
    """

    def __init__(self, part: spec.PixelShuffleHead, inputs: int, patches: spec.Patches) -> None:
        super().__init__()
        self.output = Linear(inputs, patches.channels * part.stride**2)
        self.stride = part.stride
        self.size = patches.size
        self.patch = patches.patch
        self.extras = patches.extras

    def image(self, hidden: Tensor) -> Tensor:
        """hidden [B, extras + N, D], row by row → [B, channels, √N · stride, √N · stride]."""
        x = self.output(hidden[:, self.extras :])  # [B, N, channels · stride · stride]
        side = math.isqrt(x.shape[1])
        return functional.pixel_shuffle(x.mT.unflatten(2, (side, side)), self.stride)

    def forward(self, hidden: Tensor, order: VisiblePatches | None = None) -> Tensor:
        """The pixels of all patches [B, N, P], each as channel, row, column."""
        image = self.image(hidden)
        side = image.shape[-1]
        if side != self.size or self.size % self.patch:
            raise ModelError(
                f"encoder_stride {self.stride} reconstructs {side} × {side} pixels, which do not "
                f"match images of {self.size} × {self.size} in patches of {self.patch}",
                "remove bool_masked_pos, or change encoder_stride",
            )
        return functional.unfold(image, self.patch, stride=self.patch).mT

    def targets(self, patches: Tensor) -> Tensor:
        """The targets of the loss: the pixels [B, N, P] themselves."""
        return patches

    def error(self, predicted: Tensor, patches: Tensor, masked: Tensor) -> Tensor:
        """The mean absolute error of the pixels of each masked patch, 0 at visible ones: [B, N]."""
        return (predicted - patches).abs().mean(dim=-1) * masked

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        """The image, and the loss of its masked patches where some are."""
        masked = reading.more.get("masked")
        image = {"reconstruction": Output(self.image(hidden))}
        if masked is None:
            return image
        patches = reading.front.unfold(reading.main)
        error = self.error(self(hidden), patches, masked)  # [B, N]
        # In transformers a small number is added to the masked pixels, which may be none.
        count = masked.sum() + _MASKED_PIXELS_EPS / self.patch**2
        return {**asides(loss=error.sum() / count), **image}


MaskedImageDecoder = PixelDecoder | PixelShuffleHead
