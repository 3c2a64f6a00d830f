"""What a stack is given: tokens, sound or images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from regard.errors import ModelError
from regard.spec.feedforward import Activation
from regard.spec.position import InputPosition, Sinusoidal
from regard.spec.residual import LayerNorm, Norm
from regard.spec.validation import sizes


@dataclass(frozen=True)
class Tokens:
    """Token embeddings, times √d_model if `scale`, plus positions and segments, then norm and
    dropout (Sections 3.4, 3.5, 5.4). A `width` other than d_model is mapped to it at the end."""

    vocabulary: int
    position: InputPosition | None = field(default_factory=Sinusoidal)
    scale: bool = True
    dropout: float = 0.1
    segments: int = 0
    norm: Norm | None = None
    width: int | None = None


@dataclass(frozen=True)
class Spectrogram:
    """Sound as a spectrogram of `mels` numbers a frame: two convolutions over three frames, each
    with its `activation`, of which the second keeps every other place; then positions and dropout
    (Whisper)."""

    mels: int
    position: InputPosition | None
    activation: Activation = "gelu"
    dropout: float = 0.0


@dataclass(frozen=True)
class Patches:
    """Square images cut into squares of `patch` pixels, each mapped to a vector; before them come
    `extras` trained vectors (a class token, a distillation token); then positions, norm and dropout
    (Dosovitskiy et al. 2021). Positions are learned, or sinusoids of rows and columns."""

    size: int
    patch: int
    channels: int = 3
    extras: int = 1
    bias: bool = True
    norm: Norm | None = None
    dropout: float = 0.0
    position: Literal["learned", "sinusoidal"] = "learned"

    def __post_init__(self) -> None:
        if self.patch > self.size:
            raise ModelError(
                f"no patch of {self.patch} pixels fits into {self.size}", "give a smaller `patch`"
            )

    @property
    def positions(self) -> int:
        """All of them; pixels that fill no patch at the right and bottom edges are not seen."""
        return (self.size // self.patch) ** 2 + self.extras


@dataclass(frozen=True)
class TimeNorm:
    """Each channel over all its times; a batch is best padded little, because padding is among
    them."""

    eps: float = 1e-5


@dataclass(frozen=True)
class Convolution:
    """Over time, without padding: `channels` numbers from `kernel` steps, every `stride` steps;
    then norm."""

    channels: int
    kernel: int
    stride: int
    bias: bool = False
    norm: LayerNorm | TimeNorm | None = None

    def __post_init__(self) -> None:
        sizes(self, "channels", "kernel", "stride")


@dataclass(frozen=True)
class ConvPosition:
    """To each position is added what a convolution in `groups` of channels makes of the `kernel`
    positions around it."""

    kernel: int = 128
    groups: int = 16


@dataclass(frozen=True)
class Waveform:
    """Samples of sound through `convolutions`, a norm (`features`) and a linear map to d_model;
    then positions, norm and dropout (Baevski et al. 2020). `activation` follows every convolution.
    With `masked`, a trained vector can stand in for positions that the model is to guess."""

    convolutions: tuple[Convolution, ...]
    position: ConvPosition = field(default_factory=ConvPosition)
    activation: Activation = "gelu"
    features: Norm = field(default_factory=LayerNorm)
    project_dropout: float = 0.0
    norm: Norm | None = None
    dropout: float = 0.1
    masked: bool = True

    def __post_init__(self) -> None:
        if not self.convolutions:
            raise ModelError("sound needs at least one convolution", "give `convolutions`")


FrontEnd = Tokens | Spectrogram | Patches | Waveform
