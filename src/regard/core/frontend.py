"""What stands before a stack. A front end maps its inputs to [B, T, D], and `places` tells which of the T positions are real
when `real` tells it of the inputs. Tokens have theirs in `embed`; here are images and sound."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.dropout import Dropout
from regard.core.embedding import Embedding
from regard.core.feedforward import ACTIVATIONS
from regard.core.linear import Linear, normal
from regard.core.norm import LayerNorm, Norm
from regard.core.position import (
    AxialPosition,
    FixedPosition,
    LearnedPosition,
    Sinusoidal,
    Sinusoidal2D,
)
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
        position: LearnedPosition | Sinusoidal2D,
        norm: Norm | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.size, self.patch, self.channels = size, patch, channels
        self.side = size // patch
        self.project = Linear(channels * patch * patch, d_model, bias=bias)
        self.extras = nn.ParameterList(nn.Parameter(normal(1, d_model)[0]) for _ in range(extras))
        self.position = position
        self.norm = norm
        self.dropout = Dropout(dropout)

    def places(self, padding_mask: Tensor | None) -> Tensor | None:
        """An image has no padding."""
        return None

    def forward(self, pixels: Tensor, *, padding_mask: Tensor | None = None) -> Tensor:
        """pixels [B, channels, size, size] → [B, extras + patches, D], rows of patches one after the other"""
        if pixels.shape[1:] != (self.channels, self.size, self.size):
            raise DataError(
                f"an image of {tuple(pixels.shape[1:])} does not fit this model: its images are "
                f"{(self.channels, self.size, self.size)} (channels, height, width)",
                "resize and crop images as the preprocessor_config.json of the model says",
            )
        x = self.project(self._unfolded(pixels))  # [B, patches, D]
        if len(self.extras):
            extras = torch.stack(list(self.extras)).expand(x.shape[0], -1, -1)
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


class Spectrogram(nn.Module):
    """Frames of a spectrogram: two convolutions over three frames each, of which the second keeps every other place; then
    positions (Radford et al. 2023)."""

    def __init__(
        self,
        mels: int,
        d_model: int,
        position: Sinusoidal | LearnedPosition | FixedPosition | AxialPosition | None,
        activation: str,
        dropout: float,
    ) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, d_model, kernel_size=3, padding=1)
        self.second = nn.Conv1d(d_model, d_model, kernel_size=3, padding=1, stride=2)
        self.activation = ACTIVATIONS[activation]
        self.position = position
        self.dropout = Dropout(dropout)

    def places(self, padding_mask: Tensor | None) -> Tensor | None:
        return None if padding_mask is None else padding_mask[:, ::2]

    def forward(self, features: Tensor, *, padding_mask: Tensor | None = None) -> Tensor:
        """features [B, mels, N] → [B, ⌈N / 2⌉, D]"""
        x = self.activation(self.first(features))  # [B, D, N]
        x = self.activation(self.second(x)).mT
        if self.position is not None:
            x = x + self.position.rows(x.shape[1])[: x.shape[1]]
        return self.dropout(x)


class TimeNorm(nn.Module):
    """[B, C, T]: each channel over all its times."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.group_norm(x, x.shape[1], self.weight, self.bias, self.eps)


class Convolution(nn.Module):
    """[B, inputs, T] → [B, outputs, ⌊(T − kernel) / stride⌋ + 1], normalised; He's initialisation."""

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
        self.kernel, self.stride = kernel, stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.norm = norm
        if not self.weight.is_meta:
            nn.init.kaiming_normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv1d(x, self.weight, self.bias, self.stride)
        if self.norm is None:
            return x
        return self.norm(x) if isinstance(self.norm, TimeNorm) else self.norm(x.mT).mT


class ConvPosition(nn.Module):
    """Positions as a convolution over what is near, whose weight is kept as directions and their lengths, one for each place
    of the kernel (weight normalisation, Salimans and Kingma 2016)."""

    def __init__(self, d_model: int, kernel: int, groups: int, activation: str) -> None:
        super().__init__()
        self.kernel, self.groups = kernel, groups
        self.activation = ACTIVATIONS[activation]
        self.direction = nn.Parameter(torch.empty(d_model, d_model // groups, kernel))
        self.length = nn.Parameter(torch.empty(1, 1, kernel))
        self.bias = nn.Parameter(torch.zeros(d_model))
        if not self.direction.is_meta:
            nn.init.normal_(self.direction, std=2 * (kernel * d_model) ** -0.5)
            self.length.data.copy_(self._norm())

    def _norm(self) -> Tensor:
        return torch.linalg.vector_norm(self.direction, dim=(0, 1), keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        """What to add to x [B, T, D]."""
        weight = self.direction * (self.length / self._norm())
        near = functional.conv1d(
            x.mT, weight, self.bias, padding=self.kernel // 2, groups=self.groups
        )
        return self.activation(
            near[:, :, : x.shape[1]]
        ).mT  # an even kernel makes one position too many


class Waveform(nn.Module):
    """Samples of sound become positions, one for each stride of all convolutions together (Baevski et al. 2020)."""

    def __init__(
        self,
        convolutions: list[Convolution],
        project: Linear,
        position: ConvPosition,
        *,
        activation: str,
        features: Norm,
        project_dropout: float,
        norm: Norm | None,
        dropout: float,
        masked: bool,
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.strides = [(convolution.kernel, convolution.stride) for convolution in convolutions]
        self.activation = ACTIVATIONS[activation]
        self.features = features
        self.project = project
        self.project_dropout = Dropout(project_dropout)
        self.mask = nn.Parameter(normal(1, len(project.weight))[0]) if masked else None
        self.position = position
        self.norm = norm
        self.dropout = Dropout(dropout)

    def places(self, padding_mask: Tensor | None) -> Tensor | None:
        """The positions that no padding has a part in: those that each row would have alone."""
        if padding_mask is None:
            return None
        lengths, whole = padding_mask.sum(dim=1), padding_mask.shape[1]
        for kernel, stride in self.strides:
            lengths, whole = (lengths - kernel) // stride + 1, (whole - kernel) // stride + 1
        return torch.arange(whole, device=padding_mask.device) < lengths[:, None]

    def forward(
        self, waves: Tensor, *, padding_mask: Tensor | None = None, masked: Tensor | None = None
    ) -> Tensor:
        """waves [B, samples] → [B, T, D]; `masked` [B, T] says at which positions the mask stands in for what is heard."""
        self._check(waves.shape[1])
        x = waves[:, None]  # [B, 1, samples]
        for convolution in self.convolutions:
            x = self.activation(convolution(x))  # [B, channels, T]
        x = self.project_dropout(self.project(self.features(x.mT)))  # [B, T, D]
        if masked is not None:
            assert self.mask is not None, "this model has no mask"
            x = torch.where(masked[..., None], self.mask, x)
        places = self.places(padding_mask)
        if places is not None:
            x = x * places[..., None]  # what is near an end hears silence beyond it
        x = x + self.position(x)
        return self.dropout(x if self.norm is None else self.norm(x))

    def _check(self, samples: int) -> None:
        least = 1
        for kernel, stride in reversed(self.strides):
            least = (least - 1) * stride + kernel
        if samples < least:
            raise DataError(
                f"{samples} samples are too few: this model hears {least} at once",
                "give longer sound",
            )


FrontEnd = Embedding | Spectrogram | Patches | Waveform
