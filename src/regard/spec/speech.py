"""Text to speech: durations, pitch and energy of tokens, latents of frames, and vocoders."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Self

from regard.spec.frontend import Tokens
from regard.spec.head import HifiGan, SpectrogramHead
from regard.spec.model_spec import (
    FrontEnds,
    Heads,
    Inputs,
    ModelSpec,
    Stacks,
    arguments,
    check_no_cross,
)
from regard.spec.residual import LayerNorm
from regard.spec.stack import Stack
from regard.spec.validation import Depth, NonNegative, Part, Positive, Rate, Size
from regard.system.errors import ModelError


def _check_odd(kernel: int) -> None:
    """A convolution with as many positions on both sides."""
    if kernel % 2 == 0:
        raise ModelError(f"a kernel of speech must be odd, not {kernel}", "set an odd kernel")


@dataclass(frozen=True)
class VariancePredictor(Part):
    """Convolutions that predict one number of each token (Ren et al. 2021, FastSpeech 2, Figure 1).

    Behind each convolution stand ReLU, a norm of its channels and dropout.
    """

    layers: Depth = 2  # convolutions
    channels: Size = 256  # of each of them
    kernel: Size = 3  # tokens that each sees
    dropout: Rate = 0.5  # behind each norm
    detached: bool = False  # its loss does not reach the encoder
    norm: LayerNorm = field(default_factory=LayerNorm)

    def validate(self) -> None:
        _check_odd(self.kernel)


@dataclass(frozen=True)
class Variance(Part):
    """Pitch or energy: predicted for each token, and added to its vector by a convolution."""

    predictor: VariancePredictor = field(default_factory=VariancePredictor)
    kernel: Size = 1  # of the convolution that makes vectors of the numbers
    dropout: Rate = 0.0  # on these vectors

    def validate(self) -> None:
        _check_odd(self.kernel)


@dataclass(frozen=True)
class VarianceAdaptor(Part):
    """Variance adaptor (FastSpeech 2, Section 2.3): pitch, energy, and durations in frames.

    Each token is repeated as many times as it lasts (length regulation).
    """

    durations: VariancePredictor = field(default_factory=VariancePredictor)  # log(frames + 1)
    pitch: Variance = field(default_factory=Variance)  # the mean over the frames of a token
    energy: Variance = field(default_factory=Variance)  # the same
    slowness: Positive = 1.0  # durations are multiplied by it
    dropout: Rate = 0.0  # on what the decoder reads, which is multiplied by √d_model


@dataclass(frozen=True)
class Voice(Part):
    """Who speaks: vectors that are added to those of all tokens, each by a number of the call."""

    speakers: Size | None = None  # rows of a table
    languages: Size | None = None
    width: Size | None = None  # of a vector of the speaker, which is joined to that of each token


@dataclass(frozen=True)
class TextToSpeech(ModelSpec):
    """Text to speech without autoregression (FastSpeech 2): tokens, durations, frames.

    The heads make a spectrogram of the frames and, if there is a vocoder, samples of that.
    """

    d_model: Size
    source: Tokens  # letters or phonemes
    encoder: Stack  # of tokens
    adaptor: VarianceAdaptor  # from tokens to frames
    decoder: Stack  # of frames
    heads: Heads = (SpectrogramHead(),)  # and HifiGan, if there is a vocoder
    voice: Voice = field(default_factory=Voice)  # of several

    def validate(self) -> None:
        check_no_cross(self.encoder)
        check_no_cross(self.decoder)
        vocoder = self.part(HifiGan)
        if vocoder is not None and vocoder.mels != self.spectrogram.mels:
            raise ModelError(
                f"the vocoder reads {vocoder.mels} mels, and there are {self.spectrogram.mels}",
                "set the same number for both",
            )

    @property
    def inputs(self) -> Inputs:
        # Labels are read in training only, as in transformers.
        labels = "spectrogram_labels duration_labels pitch_labels energy_labels"
        voice = "speaker_ids lang_ids speaker_embedding"
        return arguments("input_ids", f"attention_mask {labels} {voice}")

    @property
    def speakers(self) -> int | None:
        """Who speaks, of several."""
        return self.voice.speakers

    @property
    def spectrogram(self) -> SpectrogramHead:
        """The head of the spectrogram, which all have."""
        part: SpectrogramHead = self.part(SpectrogramHead)
        return part

    @property
    def front_ends(self) -> FrontEnds:
        return {"encoder": self.source}

    @property
    def stacks(self) -> Stacks:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def with_stacks(self, stacks: Stacks) -> Self:
        return dataclasses.replace(self, **stacks)  # type: ignore[arg-type]


# ------------------------------------------------------------------ drawn, and not only computed


@dataclass(frozen=True)
class StochasticDurations(Part):
    """Stochastic duration predictor (Kim et al. 2021, VITS, Section 2.2.2): noise, turned into
    logarithms of durations by flows of rational-quadratic splines."""

    flows: Depth = 4
    layers: Depth = 3  # dilated depth-separable convolutions in each, and before the first
    kernel: Size = 3  # tokens that each sees
    bins: Size = 10  # of a spline
    bound: Positive = 5.0  # beyond it, on both sides, a spline changes nothing
    dropout: Rate = 0.5  # behind each convolution before the flows

    def validate(self) -> None:
        _check_odd(self.kernel)


@dataclass(frozen=True)
class CouplingFlow(Part):
    """Residual coupling layers (Kim et al. 2021, VITS, Section 2.2.1): each moves half of the
    channels by what a WaveNet (van den Oord et al. 2016) hears in the others."""

    channels: Size = 192
    flows: Depth = 4
    layers: Depth = 4  # gated convolutions of each
    kernel: Size = 5  # frames that each sees
    growth: Size = 1  # each is so many times as dilated as that before
    dropout: Rate = 0.0

    def validate(self) -> None:
        _check_odd(self.kernel)
        if self.channels % 2:
            raise ModelError(
                f"{self.channels} channels have no halves", "set an even number of them"
            )


@dataclass(frozen=True)
class VariationalTextToSpeech(ModelSpec):
    """Text to speech by a flow (Kim et al. 2021, VITS): tokens, durations, latents, samples.

    This is what speaks; the posterior encoder and the discriminators that it is trained with are
    no part of it.
    """

    d_model: Size
    source: Tokens  # letters or phonemes
    encoder: Stack  # of tokens
    durations: StochasticDurations | VariancePredictor
    flow: CouplingFlow  # from the prior of each frame to its latents
    heads: Heads = (HifiGan(192, of_latents=True),)  # from latents to samples
    speakers: Size | None = None  # rows of a table, of several
    voice: Size | None = None  # width of a row, which durations, flow and vocoder are told
    rate: Positive = 1.0  # durations are divided by it (`speaking_rate`)
    noise: NonNegative = 0.667  # of the deviations of frames (`noise_scale`)
    duration_noise: NonNegative = 0.8  # of the durations (`noise_scale_duration`)

    def validate(self) -> None:
        check_no_cross(self.encoder)
        vocoder = self.part(HifiGan)
        fits = vocoder is not None and vocoder.mels == self.flow.channels
        if not fits or vocoder.voice != self.voice or (self.speakers and not self.voice):
            raise ModelError(
                f"no vocoder reads {self.flow.channels} channels and voices of {self.voice}",
                "set `mels` and `voice` of a HifiGan, and `voice` where there are `speakers`",
            )

    @property
    def inputs(self) -> Inputs:
        return arguments("input_ids", "attention_mask speaker_id speaking_rate")

    @property
    def front_ends(self) -> FrontEnds:
        return {"encoder": self.source}

    @property
    def stacks(self) -> Stacks:
        return {"encoder": self.encoder}

    def with_stacks(self, stacks: Stacks) -> Self:
        return dataclasses.replace(self, **stacks)  # type: ignore[arg-type]


# ------------------------------------------------------------------ a vocoder alone


@dataclass(frozen=True)
class Vocoder(ModelSpec):
    """A vocoder alone: samples of a log-mel spectrogram."""

    heads: Heads = (HifiGan(),)

    @property
    def inputs(self) -> Inputs:
        return arguments("spectrogram")

    @property
    def widths(self) -> dict[str, int]:
        return {"": self.part(HifiGan).mels}
