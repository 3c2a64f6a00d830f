"""Text to speech: durations, pitch and energy of tokens, and vocoders."""

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
from regard.spec.stack import Stack
from regard.spec.validation import Depth, Part, Positive, Rate, Size
from regard.system.errors import ModelError


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

    def validate(self) -> None:
        if self.kernel % 2 == 0:
            raise ModelError(
                f"the kernel of a predictor must be odd, not {self.kernel}", "set an odd kernel"
            )


@dataclass(frozen=True)
class Variance(Part):
    """Pitch or energy: predicted for each token, and added to its vector by a convolution."""

    predictor: VariancePredictor = field(default_factory=VariancePredictor)
    kernel: Size = 1  # of the convolution that makes vectors of the numbers
    dropout: Rate = 0.0  # on these vectors

    def validate(self) -> None:
        if self.kernel % 2 == 0:
            raise ModelError(
                f"the kernel of a variance must be odd, not {self.kernel}", "set an odd kernel"
            )


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
