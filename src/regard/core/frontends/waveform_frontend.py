"""The front end of waveforms: convolutions over samples (Wav2Vec2, HuBERT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.context import Context
from regard.core.convolution import normalized_weight
from regard.core.dropout import Dropout
from regard.core.feedforward import ACTIVATIONS
from regard.core.frontends.time_scales import TimeScales
from regard.core.linear import Linear, normal
from regard.core.norm import Norm
from regard.core.side import FrontEnd
from regard.system.errors import DataError


class Convolution(nn.Module):
    """[B, inputs, T] → [B, outputs, ⌊(T − kernel) / stride⌋ + 1], normalised over the channels, or
    each channel over time; He's initialisation."""

    def __init__(self, part: spec.Convolution, inputs: int, norm: Norm | None) -> None:
        super().__init__()
        self.stride = part.stride
        self.weight = nn.Parameter(torch.empty(part.channels, inputs, part.kernel))
        self.bias = nn.Parameter(torch.zeros(part.channels)) if part.bias else None
        self.norm = norm
        if not self.weight.is_meta:
            nn.init.kaiming_normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv1d(x, self.weight, self.bias, self.stride)
        if self.norm is None:
            return x
        # Channels must be the last dimension for norms.
        return self.norm(x.mT).mT


class ConvPosition(nn.Module):
    """wav2vec 2.0's convolutional positions. The weight is kept as directions and their lengths,
    one for each position of the kernel (weight normalisation, Salimans and Kingma 2016)."""

    def __init__(self, part: spec.ConvPosition, d_model: int, activation: str) -> None:
        super().__init__()
        kernel = part.kernel
        groups = part.groups
        self.spec = part
        self.activation = ACTIVATIONS[activation]
        self.direction = nn.Parameter(torch.empty(d_model, d_model // groups, kernel))
        self.length = nn.Parameter(torch.empty(1, 1, kernel))
        self.bias = nn.Parameter(torch.zeros(d_model))
        if not self.direction.is_meta:
            # Hugging Face's Wav2Vec2: 2 · √(1 / (kernel · channels)).
            nn.init.normal_(self.direction, std=2 * (kernel * d_model) ** -0.5)
            self.length.data.copy_(self.direction.norm(dim=(0, 1), keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        """The positional term [B, T, D] to add to x."""
        weight = normalized_weight(self.direction, self.length, (0, 1))  # [D, D / groups, kernel]
        padding = self.spec.kernel // 2
        near = functional.conv1d(x.mT, weight, self.bias, padding=padding, groups=self.spec.groups)
        near = near[:, :, : x.shape[1]]  # an even kernel makes one position too many
        return self.activation(near).mT


class Waveform(FrontEnd):
    """wav2vec 2.0's feature encoder: samples become positions, one for each stride of all
    convolutions together (Baevski et al. 2020)."""

    def __init__(
        self,
        part: spec.Waveform,
        convolutions: list[Convolution],
        features: Norm | None,
        project: Linear,
        norm: Norm | None,
        scales: TimeScales | None,
    ) -> None:
        super().__init__()
        d_model = len(project.weight)
        position = ConvPosition(part.position, d_model, part.activation)
        self.convolutions = nn.ModuleList(convolutions)
        self.strides = [(layer.kernel, layer.stride) for layer in part.convolutions]
        self.activation = ACTIVATIONS[part.activation]
        self.features = features
        self.project = project
        self.project_dropout = Dropout(part.project_dropout)
        self.mask = nn.Parameter(normal(1, d_model)[0]) if part.masked else None
        self.position = position
        self.norm = norm
        self.scales = scales
        self.dropout = Dropout(part.dropout)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """The number of positions after the convolutions; below 1 for too few samples."""
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
        if self.scales is not None:
            x = self.scales(x, is_sound)
        if is_sound is not None:
            x = x * is_sound[..., None]  # what is near an end hears silence beyond it
        x = x + self.position(x)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)

    def latents(self, waves: Tensor) -> Tensor:
        """Normalised convolution features of waves [B, samples]: [B, T, channels]."""
        least = self.receptive_field(1)
        if waves.shape[1] < least:
            raise DataError(
                f"{waves.shape[1]} audio samples are too few: one position of this model reads "
                f"{least}",
                "use longer audio",
            )
        x = waves[:, None]  # [B, 1, samples]
        for convolution in self.convolutions:
            x = self.activation(convolution(x))  # [B, channels, T]
        x = x.mT  # [B, T, channels]
        return x if self.features is None else self.features(x)

    def receptive_field(self, positions: int) -> int:
        """The number of samples that this number of positions reads."""
        samples = positions
        for kernel, stride in reversed(self.strides):
            samples = (samples - 1) * stride + kernel
        return samples
