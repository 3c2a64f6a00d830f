"""Architectures before the Transformer: recurrent and convolutional networks with attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from regard.errors import ModelError
from regard.spec.validation import sizes

# ------------------------------------------------------------------ alignment scores
# q is the decoder's state, k an encoder output; Luong et al. 2015, Section 3.1, name the kinds.


@dataclass(frozen=True)
class DotScore:
    """Dot-product score (Luong et al. 2015): q · k."""


@dataclass(frozen=True)
class ScaledDotScore:
    """Scaled dot-product score (Equation 1 of Vaswani et al. 2017): q · k / √d_model."""


@dataclass(frozen=True)
class GeneralScore:
    """General score (Luong et al. 2015): q · W k."""


@dataclass(frozen=True)
class AdditiveScore:
    """Additive score (Bahdanau et al. 2015): v · tanh(W q + U k)."""

    width: int | None = None  # of the hidden layer; None: d_model

    def __post_init__(self) -> None:
        sizes(self, "width")


AttentionScore = DotScore | ScaledDotScore | GeneralScore | AdditiveScore

# ------------------------------------------------------------------ attention of recurrent decoders


@dataclass(frozen=True)
class BahdanauAttention:
    """Bahdanau attention (Bahdanau et al. 2015): the previous state attends to the encoder outputs.

    The context vector is part of the cell's input.
    """

    score: AttentionScore = field(default_factory=AdditiveScore)
    temperature: float = 1.0  # divides the scores; towards 0, only the best position counts

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)


@dataclass(frozen=True)
class LuongAttention:
    """Luong attention (Luong et al. 2015): the current state attends to the encoder outputs."""

    score: AttentionScore = field(default_factory=GeneralScore)
    temperature: float = 1.0  # divides the scores
    feeding: bool = False  # input feeding (Section 3.3): the next step's input has the output

    def __post_init__(self) -> None:
        _check_temperature(self.temperature)


def _check_temperature(temperature: float) -> None:
    if temperature <= 0:
        raise ModelError(
            f"scores cannot be divided by {temperature}", "give a small positive temperature"
        )


# ------------------------------------------------------------------ layers


@dataclass(frozen=True)
class Recurrent:
    """Recurrent neural network: layers of cells with a state of d_model dimensions.

    A decoder starts from the encoder's final states.
    """

    # `rnn` is Elman's, with tanh; `rnn_relu` has a ReLU instead (Le et al. 2015).
    cell: Literal["rnn", "rnn_relu", "gru", "lstm"]
    layers: int = 1
    bidirectional: bool = False  # half of the state's dimensions read backwards
    looks: BahdanauAttention | LuongAttention | None = None  # attention to the encoder, in decoders
    dropout: float = 0.0  # after each layer

    def __post_init__(self) -> None:
        sizes(self, "layers")

    def width(self, d_model: int) -> int:
        """The width of the output, as `Stack.width`."""
        return d_model


@dataclass(frozen=True)
class GatedUnit:
    """Gated convolution (Gehring et al. 2017, ConvS2S): x ← (x + GLU(convolution(x))) · √½."""

    kernel: int = 3  # positions

    @property
    def dilations(self) -> tuple[int, ...]:
        return (1,)


@dataclass(frozen=True)
class BottleneckUnit:
    """Bottleneck residual block (Kalchbrenner et al. 2016, ByteNet): a dilated convolution.

    The convolution has half the width, and norm and ReLU precede every map. A norm follows the
    last block.
    """

    kernel: int = 3  # positions
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16)  # of the layers, repeated in turn


@dataclass(frozen=True)
class Convolutional:
    """Convolutional network over positions; causal in a decoder."""

    layers: int
    unit: GatedUnit | BottleneckUnit = field(default_factory=GatedUnit)
    # A decoder reads the encoder by attention in each layer (ConvS2S), or takes its output at the
    # same position (`aligned`, ByteNet). None in an encoder.
    sees: Literal["attention", "aligned"] | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        sizes(self, "layers")
        sizes(self.unit, "kernel")
        if not self.unit.dilations or min(self.unit.dilations) < 1:
            raise ModelError(
                "a convolution needs distances of at least 1", "give `dilations` such as (1, 2, 4)"
            )
