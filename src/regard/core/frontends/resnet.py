"""Residual networks of convolutions over images (He et al. 2016, ResNet): the stem, and stages of
residual blocks."""

# Letters of shapes: B images, C channels, H rows and W columns, N = H · W positions.

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.context import Context
from regard.core.encoder_output import EncoderOutput
from regard.core.feedforward import ACTIVATIONS
from regard.core.linear import normal
from regard.core.norm import BatchNorm2d
from regard.core.output import Inputs
from regard.core.side import ImageFrontEnd, Side, SideKind
from regard.system.errors import DataError

MakeNorm = Callable[[int], BatchNorm2d]  # of so many channels


class ConvNorm(nn.Module):
    """Convolution without bias over a feature map, and BatchNorm: [B, inputs, H, W] → [B, outputs,
    H / stride, W / stride], rounded up."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, norm: MakeNorm, stride: int = 1
    ) -> None:
        super().__init__()
        self.stride = stride
        # He et al. 2015, equation 14: the variance of gradients stays, behind ReLUs.
        std = (2.0 / (outputs * kernel**2)) ** 0.5
        self.weight = nn.Parameter(normal(outputs, inputs, kernel, kernel, std=std))
        self.norm = norm(outputs)

    def extra_repr(self) -> str:
        outputs, inputs, kernel, _ = self.weight.shape
        return f"{inputs} → {outputs}, kernel={kernel} × {kernel}, stride={self.stride}"

    def forward(self, x: Tensor) -> Tensor:
        padding = self.weight.shape[-1] // 2
        x = functional.conv2d(x, self.weight, stride=self.stride, padding=padding)
        return self.norm(x)


class ConvStem(ImageFrontEnd):
    """Stem of a ResNet: [B, channels, height, width] → feature maps [B, C, H, W], which its stages
    read."""

    def __init__(self, part: spec.ConvStem, d_model: int, norm: MakeNorm) -> None:
        super().__init__()
        self.spec = part
        self.patch = part.patch
        self.embed = ConvNorm(part.channels, d_model, part.kernel, norm, part.stride)
        self.activation = ACTIVATIONS[part.activation]

    def extra_repr(self) -> str:
        return f"channels={self.spec.channels}, max_pooling={self.spec.pool}"

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        return self.spec.grid(pixels.shape[-2], pixels.shape[-1])

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
        x = self.activation(self.embed(pixels))
        if self.spec.pool:
            x = functional.max_pool2d(x, 3, stride=2, padding=1)
        return x

    def states(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        """As feature maps [B, C, H, W]: so transformers has them."""
        return self.as_maps(hidden, inputs["pixel_values"])

    def vector(self, pooled: Tensor) -> Tensor:
        return pooled[:, :, None, None]  # a feature map of one position


class ResidualBlock(nn.Module):
    """Residual block: two convolutions of 3 × 3 (basic), or one between two of 1 × 1 (bottleneck);
    where the shape changes, the shortcut is a convolution of 1 × 1."""

    def __init__(
        self, part: spec.ResidualStages, sizes: spec.ResidualBlock, norm: MakeNorm
    ) -> None:
        super().__init__()
        _, _, inputs, outputs, stride = sizes
        if part.unit == "basic":
            layers = [
                ConvNorm(inputs, outputs, 3, norm, stride),
                ConvNorm(outputs, outputs, 3, norm),
            ]
        else:
            inner = outputs // 4
            first, second = (stride, 1) if part.strided == "1x1" else (1, stride)
            layers = [
                ConvNorm(inputs, inner, 1, norm, first),
                ConvNorm(inner, inner, 3, norm, second),
                ConvNorm(inner, outputs, 1, norm),
            ]
        self.layers = nn.ModuleList(layers)
        self.shortcut: nn.Module = nn.Identity()
        if sizes.projects:
            self.shortcut = ConvNorm(inputs, outputs, 1, norm, stride)
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] → [B, outputs, H / stride, W / stride]"""
        y = x
        for layer in self.layers[:-1]:
            y = functional.relu(layer(y))
        y = self.layers[-1](y)
        return self.activation(y + self.shortcut(x))


class ResidualStages(Side):
    """Stages of residual blocks: feature maps [B, C, H, W] → positions row by row [B, N, D]."""

    kind: ClassVar[SideKind] = "convolutional"

    def __init__(self, blocks: Sequence[ResidualBlock], depths: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.layers = len(blocks)
        self.depths = tuple(depths)

    def extra_repr(self) -> str:
        return f"stages of {self.depths} blocks"

    @property
    def output_layers(self) -> list[int]:
        return [sum(self.depths[: i + 1]) - 1 for i in range(len(self.depths))]

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        memory: EncoderOutput | None = None,
    ) -> Tensor:
        context = context or Context()
        return context.probe.through("output", self.maps(x, context).flatten(2).mT)

    def maps(self, x: Tensor, context: Context | None = None) -> Tensor:
        """The feature map of the last stage [B, D, H, W]."""
        context = context or Context()
        x = _as_positions(partial(context.probe.through, "embedded"), x)
        for i, block in enumerate(self.blocks):
            x = _as_positions(partial(context.layer_done, context.layer(i)), block(x))
        return x


def _as_positions(look: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A feature map [B, C, H, W] on its way past a probe, which sees positions [B, N, C]."""
    return look(x.flatten(2).mT).mT.unflatten(2, x.shape[2:])
