"""Input embeddings: of tokens, spectrograms, image patches and waveforms."""

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
    """Token embeddings (Sections 3.4, 3.5, 5.4), plus positions and segments, norm and dropout."""

    vocabulary: int  # number of token ids
    position: InputPosition | None = field(default_factory=Sinusoidal)
    scale: bool = True  # multiply by √d_model (Section 3.4)
    dropout: float = 0.1  # P_drop of Section 5.4, on the sum
    segments: int = 0  # rows of the segment (token type) embedding: 2 in BERT, 0 for none
    norm: Norm | None = None
    width: int | None = None  # E of ALBERT and ELECTRA, mapped to d_model at the end; None: d_model

    @property
    def main_input_name(self) -> str:
        """The argument of a model's call that holds the input, as transformers names it."""
        return "input_ids"

    @property
    def max_length(self) -> int | None:
        """The longest sequence that there are positions for; None where any length has them."""
        if self.position is None:
            return None
        return self.position.max_length


@dataclass(frozen=True)
class Spectrogram:
    """Log-mel spectrogram front end (Whisper): two convolutions, then positions and dropout.

    Both convolutions span three frames; the second has stride 2, which halves the length.
    """

    mels: int  # mel bands of a frame
    position: InputPosition | None
    activation: Activation = "gelu"
    dropout: float = 0.0

    @property
    def main_input_name(self) -> str:
        """The argument for frames [B, mels, N]."""
        return "input_features"

    @property
    def max_length(self) -> int | None:
        """The longest sequence that there are positions for; None where any length has them."""
        if self.position is None:
            return None
        return self.position.max_length


@dataclass(frozen=True)
class Patches:
    """Patch embeddings of square images (Dosovitskiy et al. 2021, ViT).

    Each patch is mapped linearly to a vector. Positions, norm and dropout follow.
    """

    size: int  # side of the image in pixels
    patch: int  # side of a patch in pixels
    channels: int = 3
    extras: int = 1  # learned vectors in front: the class token, then the distillation token (DeiT)
    bias: bool = True  # of the linear map; CLIP has none
    norm: Norm | None = None
    dropout: float = 0.0
    position: Literal["learned", "sinusoidal"] = "learned"  # sinusoids are of rows and columns

    def __post_init__(self) -> None:
        if self.patch > self.size:
            raise ModelError(
                f"no patch of {self.patch} pixels fits into {self.size}", "give a smaller `patch`"
            )

    @property
    def positions(self) -> int:
        """The sequence length: all whole patches, and the extra tokens.

        Pixels at the right and bottom edges that fill no patch are ignored.
        """
        return (self.size // self.patch) ** 2 + self.extras

    @property
    def main_input_name(self) -> str:
        """The argument for images [B, channels, size, size]."""
        return "pixel_values"


@dataclass(frozen=True)
class TimeNorm:
    """Normalization over time, of each channel by itself (the group norm of wav2vec 2.0).

    Padding enters the mean and the variance, so a batch is best padded little.
    """

    eps: float = 1e-5


@dataclass(frozen=True)
class Convolution:
    """One-dimensional convolution over time, without padding, then a norm."""

    channels: int  # output channels
    kernel: int  # in time steps of its input
    stride: int  # in time steps of its input
    bias: bool = False
    norm: LayerNorm | TimeNorm | None = None

    def __post_init__(self) -> None:
        sizes(self, "channels", "kernel", "stride")


@dataclass(frozen=True)
class ConvPosition:
    """Convolutional positional embedding (wav2vec 2.0): a grouped convolution, added to x."""

    kernel: int = 128  # positions, centred on the one that is encoded
    groups: int = 16  # of channels; d_model must be a multiple


@dataclass(frozen=True)
class Waveform:
    """Raw waveform front end (Baevski et al. 2020, wav2vec 2.0): a convolutional feature encoder.

    A norm and a linear map to d_model follow the convolutions; then positions, norm and dropout.
    """

    convolutions: tuple[Convolution, ...]
    position: ConvPosition = field(default_factory=ConvPosition)
    activation: Activation = "gelu"  # after each convolution
    features: Norm = field(default_factory=LayerNorm)  # before the linear map
    project_dropout: float = 0.0  # after the linear map
    norm: Norm | None = None  # after the positions
    dropout: float = 0.1
    masked: bool = True  # has a learned vector that replaces masked positions in pretraining

    def __post_init__(self) -> None:
        if not self.convolutions:
            raise ModelError("sound needs at least one convolution", "give `convolutions`")

    @property
    def normalizes_over_time(self) -> bool:
        """Whether padding changes what is computed of a recording."""
        return any(isinstance(convolution.norm, TimeNorm) for convolution in self.convolutions)

    @property
    def main_input_name(self) -> str:
        """The argument for samples [B, N]."""
        return "input_values"


FrontEnd = Tokens | Spectrogram | Patches | Waveform
