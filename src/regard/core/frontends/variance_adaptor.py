"""FastSpeech 2's variance adaptor (Ren et al. 2021): durations, pitch and energy of tokens, from
which the frames are made that a decoder reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.convolution import DilatedConvolution, zero_padding
from regard.core.dropout import Dropout
from regard.core.linear import Linear, normal
from regard.core.norm import LayerNorm
from regard.core.output import Inputs
from regard.core.side import FrontEnd

if TYPE_CHECKING:
    from regard import spec


class Variances(NamedTuple):
    """Of each token: its duration, log(frames + 1) where it is predicted, and pitch and energy."""

    durations: Tensor  # [B, S]
    pitch: Tensor  # [B, S, 1]
    energy: Tensor  # [B, S, 1]


class VariancePredictor(nn.Module):
    """Convolutions, each with ReLU, a norm and dropout, and a linear map to one number."""

    def __init__(self, part: spec.VariancePredictor, d_model: int) -> None:
        super().__init__()
        widths = [d_model, *[part.channels] * part.layers]
        layers = range(part.layers)
        self.convolutions = nn.ModuleList(
            DilatedConvolution(widths[i], part.channels, part.kernel, 1) for i in layers
        )
        self.norms = nn.ModuleList(LayerNorm(part.channels, part.norm.eps) for _ in layers)
        self.dropout = Dropout(part.dropout)
        self.output = Linear(part.channels, 1)
        self.detached = part.detached

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """x [B, S, D] → [B, S, 1]"""
        if self.detached:
            x = x.detach()
        for convolve, norm in zip(self.convolutions, self.norms, strict=True):
            x = convolve(zero_padding(x, padding_mask))  # [B, S, C]
            x = self.dropout(norm(functional.relu(x)))
        return self.output(x)


class Variance(nn.Module):
    """Pitch or energy: a predictor, and the convolution that makes vectors of its numbers."""

    def __init__(self, part: spec.Variance, d_model: int) -> None:
        super().__init__()
        self.predictor = VariancePredictor(part.predictor, d_model)
        self.embed = DilatedConvolution(1, d_model, part.kernel, 1)
        self.dropout = Dropout(part.dropout)

    def vectors(self, values: Tensor) -> Tensor:
        """values [B, S, 1] → [B, S, D]"""
        return self.dropout(self.embed(values))


class Voices(nn.Module):
    """Adds the vectors of speaker and language to those of all tokens, or joins them."""

    def __init__(self, part: spec.Voice, d_model: int) -> None:
        super().__init__()

        def table(rows: int | None) -> nn.Parameter | None:
            return None if rows is None else nn.Parameter(normal(rows, d_model))

        self.speakers = table(part.speakers)
        self.languages = table(part.languages)
        self.joined = None if part.width is None else Linear(d_model + part.width, d_model)

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        """x [B, S, D] of all that the call says: [B, S, D]."""
        rows = {"speaker_ids": self.speakers, "lang_ids": self.languages}
        for name, table in rows.items():
            if table is not None and name in inputs:
                x = x + functional.embedding(inputs[name].view(-1), table)[:, None]
        vector = inputs.get("speaker_embedding")
        if self.joined is not None and vector is not None:
            # [B, S, width]
            each = functional.normalize(vector)[:, None].expand(-1, x.shape[1], -1)
            x = self.joined(torch.cat([x, each.to(x.dtype)], dim=-1))
        return x


class VarianceAdaptor(FrontEnd):
    """From the encoder's vectors of tokens [B, S, D] to frames for the decoder [B, T, D]."""

    def __init__(self, part: spec.VarianceAdaptor, voice: spec.Voice, d_model: int) -> None:
        super().__init__()
        self.voices = Voices(voice, d_model)
        self.durations = VariancePredictor(part.durations, d_model)
        self.pitch = Variance(part.pitch, d_model)
        self.energy = Variance(part.energy, d_model)
        self.slowness = part.slowness
        self.scale = math.sqrt(d_model)
        self.dropout = Dropout(part.dropout)

    def predict(self, x: Tensor, is_token: Tensor | None, padding_mask: Tensor | None) -> Variances:
        """The variances of tokens x [B, S, D]; 0 where `is_token` [B, S] is False. Convolutions
        see zeros where the `padding_mask` is."""
        values = Variances(
            self.durations(x, padding_mask).squeeze(-1),
            self.pitch.predictor(x, padding_mask),
            self.energy.predictor(x, padding_mask),
        )
        if is_token is None:
            return values
        return Variances(
            values.durations.masked_fill(~is_token, 0.0),
            values.pitch.masked_fill(~is_token[..., None], 0.0),
            values.energy.masked_fill(~is_token[..., None], 0.0),
        )

    def forward(  # type: ignore[override]
        self, x: Tensor, variances: Variances, frames: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """What the decoder reads of x [B, S, D]: [B, T, D], and which of it is a frame [B, T].
        Durations are whole here."""
        # Both at the level of tokens, as FastPitch has it.
        x = x + self.energy.vectors(variances.energy) + self.pitch.vectors(variances.pitch)
        x, is_frame = regulate(x, variances.durations, frames)
        return self.dropout(x * self.scale), is_frame


def regulate(x: Tensor, durations: Tensor, frames: int | None = None) -> tuple[Tensor, Tensor]:
    """Length regulation (Ren et al. 2019, FastSpeech): tokens x [B, S, D], each as often as it
    lasts [B, T, D], and which of these is a frame [B, T]. Without `frames` there are as many as the
    durations [B, S] say."""
    ends = durations.cumsum(dim=1)  # [B, S]
    # Counting the frames waits for the device.
    count = int(ends[:, -1].max()) if frames is None else frames
    times = torch.arange(count, device=x.device).expand(len(x), -1).contiguous()  # [B, T]
    tokens = torch.searchsorted(ends, times, right=True)  # [B, T], S beyond the end
    is_frame = tokens < x.shape[1]
    tokens = tokens.clamp_max(x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2])
    return zero_padding(x.gather(1, tokens), is_frame), is_frame


def whole_durations(predicted: Tensor) -> Tensor:
    """Frames of each token [B, S], of the logarithms that are predicted."""
    return (predicted.exp() - 1.0).round().clamp_min(0.0).long()


def log_durations(frames: Tensor) -> Tensor:
    """What is predicted of so many frames: log(frames + 1)."""
    return (frames.float() + 1.0).log()
