"""Front ends: patches of images, spectrogram frames, waveforms. (Token embeddings are in
`embedding`, patches of time series in `series_patches`, nodes of graphs in `node_features`.)

A front end maps its inputs to [B, T, D]; `output_padding_mask` turns a padding mask of the inputs
into one of the T positions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.embedding import Embedding
from regard.core.feedforward import ACTIVATIONS
from regard.core.linear import Linear, normal
from regard.core.node_features import NodeFeatures
from regard.core.norm import LayerNorm, Norm
from regard.core.positional_encoding import (
    FixedPosition,
    InputPosition,
    LearnedPosition,
    Sinusoidal2D,
)
from regard.core.series_patches import SeriesPatches
from regard.errors import DataError

PatchPosition = LearnedPosition | FixedPosition | Sinusoidal2D


class PatchShape(NamedTuple):
    """An image of `size` × `size` pixels, cut into squares of `patch` × `patch`."""

    size: int
    patch: int
    channels: int
    interpolated: bool = False  # images of other sizes are read too
    masked_share: float = 0.0  # of the patches, hidden in pre-training
    padded: bool = False  # zeros fill up the patches at the edges

    @property
    def side(self) -> int:
        """Patches along one side."""
        if self.padded:
            return -(-self.size // self.patch)
        return self.size // self.patch


class VisiblePatches(NamedTuple):
    """Random masking by shuffling (He et al. 2022, MAE): which patches an encoder sees."""

    visible: Tensor  # [B, K]: the numbers of the patches, in the order in which they are read
    restore: Tensor  # [B, N]: where each patch stands, behind the visible ones if it is masked
    masked: Tensor  # [B, N] bool


class Patches(nn.Module):
    """ViT's patch embedding: squares of pixels, each mapped to a vector, behind `extras` trained
    vectors such as the class token (Dosovitskiy et al. 2021).

    A convolution whose stride is its kernel is a linear map of the pixels of each patch, so it is
    one here.
    """

    def __init__(
        self,
        d_model: int,
        shape: PatchShape,
        position: PatchPosition | None,
        *,
        extras: int,
        bias: bool,
        norm: Norm | None,
        dropout: float,
        mask_token: bool = False,
    ) -> None:
        super().__init__()
        self.size = shape.size
        self.patch = shape.patch
        self.channels = shape.channels
        self.side = shape.side
        self.project = Linear(shape.channels * shape.patch**2, d_model, bias=bias)
        self.extras = nn.ParameterList(nn.Parameter(normal(1, d_model)[0]) for _ in range(extras))
        self.position = position
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.interpolated = shape.interpolated
        self.masked_share = shape.masked_share
        self.padded = shape.padded
        self.mask_token = nn.Parameter(torch.zeros(d_model)) if mask_token else None

    def extra_repr(self) -> str:
        return f"size={self.size}, patch={self.patch}, channels={self.channels}"

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        """Rows and columns of patches in images [..., height, width]."""
        height, width = pixels.shape[-2:]
        if self.padded:
            return -(-height // self.patch), -(-width // self.patch)
        return height // self.patch, width // self.patch

    def output_padding_mask(self, padding_mask: Tensor | None) -> Tensor | None:
        """An image has no padding."""
        return None

    def forward(
        self,
        pixels: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        masked: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """pixels [B, channels, size, size] → [B, extras + patches, D], patches row by row.

        At the `masked` patches [B, patches] the mask token stands instead. If numbers of `visible`
        patches [B, K] are given, only these are read, in their order.
        """
        self._check_size(pixels)
        x = self.project(self.unfold(pixels))  # [B, patches, D]
        if masked is not None:
            assert self.mask_token is not None, "this model has no mask token"
            x = torch.where(masked[..., None], self.mask_token.to(x.dtype), x)
        if len(self.extras):
            extras = torch.stack(list(self.extras)).expand(x.shape[0], -1, -1)
            x = torch.cat([extras, x], dim=1)  # [B, extras + patches, D]
        if self.position is not None:
            x = x + self._positions(self.position, self.grid(pixels))
        if visible is not None:
            x = self._only(visible, x)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)

    def random_masking(self, noise: Tensor) -> VisiblePatches:
        """Hides the patches with the highest noise [B, N], the same number in every image."""
        count = int(noise.shape[1] * (1 - self.masked_share))
        shuffled = noise.argsort(dim=1)
        restore = shuffled.argsort(dim=1)
        return VisiblePatches(shuffled[:, :count], restore, restore >= count)

    def _only(self, visible: Tensor, x: Tensor) -> Tensor:
        """The extras, and the visible patches [B, K] of x [B, extras + patches, D]."""
        extras = torch.arange(len(self.extras), device=x.device).expand(len(x), -1)
        rows = torch.cat([extras, visible + len(self.extras)], dim=1)  # [B, extras + K]
        return x.gather(1, rows[..., None].expand(-1, -1, x.shape[2]))

    def _check_size(self, pixels: Tensor) -> None:
        fits = pixels.shape[1:] == (self.channels, self.size, self.size)
        if self.interpolated:
            fits = pixels.shape[1] == self.channels and min(self.grid(pixels)) > 0
        if not fits:
            raise DataError(
                f"an image of {tuple(pixels.shape[1:])} does not fit this model: its images are "
                f"{(self.channels, self.size, self.size)} (channels, height, width)",
                "resize and crop images as the preprocessor_config.json of the model says",
            )

    def _positions(self, position: PatchPosition, grid: tuple[int, int]) -> Tensor:
        """The position of each patch, behind those of the extras: [extras + patches, D]."""
        count = len(self.extras) + self.side**2
        table = position.rows(count)
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
        if self.padded:
            height, width = pixels.shape[-2:]
            missing = (0, columns * self.patch - width, 0, rows * self.patch - height)
            pixels = functional.pad(pixels, missing)
        # Pixels beyond the last complete patch are ignored, as by a convolution.
        pixels = pixels[:, :, : rows * self.patch, : columns * self.patch]
        # [B, channels, rows, patch, columns, patch]
        squares = pixels.unflatten(3, (columns, self.patch)).unflatten(2, (rows, self.patch))
        # In a patch: channel, row, column, which is the order of a convolution's weight.
        return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class Spectrogram(nn.Module):
    """Whisper's front end for log-mel frames: two convolutions over three frames each, of which the
    second keeps every other position; then positions (Radford et al. 2023)."""

    def __init__(
        self,
        mels: int,
        d_model: int,
        position: InputPosition | None,
        activation: str,
        dropout: float,
    ) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, d_model, kernel_size=3, padding=1)
        self.second = nn.Conv1d(d_model, d_model, kernel_size=3, padding=1, stride=2)
        self.activation = ACTIVATIONS[activation]
        self.position = position
        self.dropout = Dropout(dropout)

    def output_padding_mask(self, padding_mask: Tensor | None) -> Tensor | None:
        if padding_mask is None:
            return None
        return padding_mask[:, ::2]

    def forward(
        self, features: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> Tensor:
        """features [B, mels, N] → [B, ⌈N / 2⌉, D]"""
        x = self.activation(self.first(features))  # [B, D, N]
        x = self.activation(self.second(x)).mT  # [B, ⌈N / 2⌉, D]
        if self.position is not None:
            x = x + self.position.rows(x.shape[1])[: x.shape[1]]
        return self.dropout(x)


class TimeNorm(nn.Module):
    """Group normalisation with one group a channel, over time: [B, C, T]."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.group_norm(x, x.shape[1], self.weight, self.bias, self.eps)


class Convolution(nn.Module):
    """[B, inputs, T] → [B, outputs, ⌊(T − kernel) / stride⌋ + 1], normalised; He's
    initialisation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int,
        stride: int,
        bias: bool,
        norm: LayerNorm | TimeNorm | None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.norm = norm
        if not self.weight.is_meta:
            nn.init.kaiming_normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv1d(x, self.weight, self.bias, self.stride)
        if self.norm is None:
            return x
        if isinstance(self.norm, TimeNorm):
            return self.norm(x)
        # LayerNorm over the channels, which must be the last dimension for it.
        return self.norm(x.mT).mT


class ConvPosition(nn.Module):
    """wav2vec 2.0's convolutional positions. The weight is kept as directions and their lengths,
    one for each position of the kernel (weight normalisation, Salimans and Kingma 2016)."""

    def __init__(self, d_model: int, kernel: int, groups: int, activation: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.groups = groups
        self.activation = ACTIVATIONS[activation]
        self.direction = nn.Parameter(torch.empty(d_model, d_model // groups, kernel))
        self.length = nn.Parameter(torch.empty(1, 1, kernel))
        self.bias = nn.Parameter(torch.zeros(d_model))
        if not self.direction.is_meta:
            # Hugging Face's Wav2Vec2: 2 · √(1 / (kernel · channels)).
            nn.init.normal_(self.direction, std=2 * (kernel * d_model) ** -0.5)
            self.length.data.copy_(self._norm())

    def _norm(self) -> Tensor:
        return torch.linalg.vector_norm(self.direction, dim=(0, 1), keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        """What to add to x [B, T, D]."""
        weight = self.direction * (self.length / self._norm())  # [D, D / groups, kernel]
        near = functional.conv1d(
            x.mT, weight, self.bias, padding=self.kernel // 2, groups=self.groups
        )
        near = near[:, :, : x.shape[1]]  # an even kernel makes one position too many
        return self.activation(near).mT


class Waveform(nn.Module):
    """wav2vec 2.0's feature encoder: samples become positions, one for each stride of all
    convolutions together (Baevski et al. 2020)."""

    def __init__(
        self,
        convolutions: list[Convolution],
        features: Norm | None,
        project: Linear,
        position: ConvPosition,
        *,
        activation: str,
        norm: Norm | None,
        dropout: tuple[float, float],
        masked: bool,
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.strides = [(convolution.kernel, convolution.stride) for convolution in convolutions]
        self.activation = ACTIVATIONS[activation]
        self.features = features
        self.project = project
        self.project_dropout = Dropout(dropout[0])
        self.mask = nn.Parameter(normal(1, len(project.weight))[0]) if masked else None
        self.position = position
        self.norm = norm
        self.dropout = Dropout(dropout[1])

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """The positions after the convolutions of so many samples; below 1 where they are too
        few."""
        for kernel, stride in self.strides:
            lengths = (lengths - kernel) // stride + 1
        return lengths

    def output_padding_mask(self, padding_mask: Tensor | None) -> Tensor | None:
        """The padding mask after the convolutions: each row has the positions that it would have
        alone, which no padding has a part in."""
        if padding_mask is None:
            return None
        lengths = self.output_lengths(padding_mask.sum(dim=1))  # [B]
        longest = padding_mask.shape[1]
        for kernel, stride in self.strides:
            longest = (longest - kernel) // stride + 1
        return torch.arange(longest, device=padding_mask.device) < lengths[:, None]

    def forward(
        self,
        waves: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        *,
        masked: Tensor | None = None,
        latents: Tensor | None = None,
    ) -> Tensor:
        """waves [B, samples] → [B, T, D]; at the `masked` positions [B, T] the mask vector stands
        in for what is heard. `latents` are what `self.latents` made of the waves."""
        if latents is None:
            latents = self.latents(waves)
        x = self.project_dropout(self.project(latents))  # [B, T, D]
        if masked is not None:
            assert self.mask is not None, "this model has no mask"
            x = torch.where(masked[..., None], self.mask, x)
        is_sound = self.output_padding_mask(padding_mask)
        if is_sound is not None:
            x = x * is_sound[..., None]  # what is near an end hears silence beyond it
        x = x + self.position(x)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)

    def latents(self, waves: Tensor) -> Tensor:
        """What the convolutions make of waves [B, samples], normalised: [B, T, channels]."""
        self._check(waves.shape[1])
        x = waves[:, None]  # [B, 1, samples]
        for convolution in self.convolutions:
            x = self.activation(convolution(x))  # [B, channels, T]
        x = x.mT  # [B, T, channels]
        return x if self.features is None else self.features(x)

    def _check(self, samples: int) -> None:
        # The receptive field of one position, from the last convolution back to the first.
        least = 1
        for kernel, stride in reversed(self.strides):
            least = (least - 1) * stride + kernel
        if samples < least:
            raise DataError(
                f"{samples} samples are too few: this model hears {least} at once",
                "give longer sound",
            )


FrontEnd = Embedding | Spectrogram | Patches | Waveform | SeriesPatches | NodeFeatures
