"""Decoders of masked image modelling: pixels of all patches from the visible ones."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.frontends.patch_embedding import VisiblePatches
from regard.core.heads.head import Head, Reading
from regard.core.linear import Linear, normal
from regard.core.output import Output, Outputs, asides
from regard.core.positions.positional_encoding import FixedPosition, Sinusoidal
from regard.core.stack import Stack
from regard.system.errors import ModelError

_MASKED_PIXELS_EPS = 1e-5
_VARIANCE_EPS = 1e-6  # the authors' code: a patch of one colour has no variance
# By which the pixels of clips were normalized; what is reconstructed is as before it.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class PixelDecoder(Head):
    """A small Transformer from the hidden states of visible patches to the pixels of all patches.

    Pixels of a patch are in the order row, column, channel (He et al. 2022).
    """

    project_bias: ClassVar[bool] = True

    def __init__(
        self, part: spec.PixelDecoder, inputs: int, stack: Stack, patches: spec.Patches
    ) -> None:
        super().__init__()
        width = part.d_model
        self.spec = part
        self.project = Linear(inputs, width, bias=self.project_bias)
        self.mask_token = nn.Parameter(normal(1, width)[0])
        self.position = self.positions(width, patches)
        self.stack = stack
        self.output = Linear(width, patches.pixels)
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
        x = x + self.position.rows(x.shape[1])[: x.shape[1]]
        return self.output(self.stack(x)[:, self.extras :])

    def positions(self, width: int, patches: spec.Patches) -> FixedPosition | Sinusoidal:
        """Those of all patches, behind the extras."""
        return FixedPosition.grid(width, patches.side, patches.extras)

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
        return {**asides(loss=loss), "logits": Output(self.shown(predicted, order))}

    def shown(self, predicted: Tensor, order: VisiblePatches) -> Tensor:
        """The pixels that a call gives: of all patches."""
        return predicted


class TubeletDecoder(PixelDecoder):
    """The pixel decoder of clips (Tong et al. 2022, VideoMAE); in a tubelet, the order of pixels is
    frame, row, column, channel."""

    project_bias = False

    def positions(self, width: int, patches: spec.Patches) -> FixedPosition | Sinusoidal:
        return Sinusoidal(width, "interleaved", 10_000.0)

    def targets(self, patches: Tensor) -> Tensor:
        """Pixels [B, N, P] between 0 and 1, or each channel of a tubelet normalized by itself."""
        pixels = patches.unflatten(-1, (self.channels, -1)).mT  # [B, N, pixels, channels]
        if self.channels == len(IMAGENET_MEAN):
            pixels = pixels * pixels.new_tensor(IMAGENET_STD) + pixels.new_tensor(IMAGENET_MEAN)
        if self.spec.normalized:
            variance, mean = torch.var_mean(pixels, dim=-2, keepdim=True)
            pixels = (pixels - mean) / (variance.sqrt() + _VARIANCE_EPS)
        return pixels.flatten(-2)

    def shown(self, predicted: Tensor, order: VisiblePatches) -> Tensor:
        """Of the masked tubelets, in their order: [B, M, P]."""
        return predicted[order.masked].unflatten(0, (len(predicted), -1))


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
