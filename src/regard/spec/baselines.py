"""Architectures before the Transformer: recurrent and convolutional networks with attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from regard.spec.feedforward import Activation
from regard.spec.residual import BatchNorm
from regard.spec.validation import Depth, Part, Positive, Rate, Size
from regard.system.errors import ModelError

# ------------------------------------------------------------------ alignment scores
# q is the decoder's state, k an encoder output; Luong et al. 2015, Section 3.1, name the kinds.


@dataclass(frozen=True)
class DotScore(Part):
    """Dot-product score (Luong et al. 2015): q · k."""


@dataclass(frozen=True)
class ScaledDotScore(Part):
    """Scaled dot-product score (Equation 1 of Vaswani et al. 2017): q · k / √d_model."""


@dataclass(frozen=True)
class GeneralScore(Part):
    """General score (Luong et al. 2015): q · W k."""


@dataclass(frozen=True)
class AdditiveScore(Part):
    """Additive score (Bahdanau et al. 2015): v · tanh(W q + U k)."""

    width: Size | None = None  # of the hidden layer; None: d_model


AttentionScore = DotScore | ScaledDotScore | GeneralScore | AdditiveScore

# ------------------------------------------------------------------ attention of recurrent decoders


@dataclass(frozen=True)
class BahdanauAttention(Part):
    """Bahdanau attention (Bahdanau et al. 2015): the previous state attends to the encoder outputs.

    The context vector is part of the cell's input.
    """

    score: AttentionScore = field(default_factory=AdditiveScore)
    temperature: Positive = 1.0  # divides the scores; towards 0, only the best position counts


@dataclass(frozen=True)
class LuongAttention(Part):
    """Luong attention (Luong et al. 2015): the current state attends to the encoder outputs."""

    score: AttentionScore = field(default_factory=GeneralScore)
    temperature: Positive = 1.0  # divides the scores
    feeding: bool = False  # input feeding (Section 3.3): the next step's input has the output


# ------------------------------------------------------------------ layers


@dataclass(frozen=True)
class Recurrent(Part):
    """Recurrent neural network: layers of cells with a state of d_model dimensions.

    A decoder starts from the encoder's final states.
    """

    # `rnn` is Elman's, with tanh; `rnn_relu` has a ReLU instead (Le et al. 2015).
    cell: Literal["rnn", "rnn_relu", "gru", "lstm"]
    layers: Depth = 1
    bidirectional: bool = False  # half of the state's dimensions read backwards
    looks: BahdanauAttention | LuongAttention | None = None  # attention to the encoder, in decoders
    dropout: Rate = 0.0  # after each layer

    kv_cache_size = 0  # the state has a fixed size

    def width(self, d_model: int) -> int:
        """The width of the output, as `Stack.width`."""
        return d_model


@dataclass(frozen=True)
class GatedUnit(Part):
    """Gated convolution (Gehring et al. 2017, ConvS2S): x ← (x + GLU(convolution(x))) · √½."""

    kernel: Size = 3  # positions

    @property
    def dilations(self) -> tuple[int, ...]:
        return (1,)


@dataclass(frozen=True)
class BottleneckUnit(Part):
    """Bottleneck residual block (Kalchbrenner et al. 2016, ByteNet): a dilated convolution.

    The convolution has half the width, and norm and ReLU precede every map. A norm follows the
    last block.
    """

    kernel: Size = 3  # positions
    dilations: tuple[Size, ...] = (1, 2, 4, 8, 16)  # of the layers, repeated in turn


@dataclass(frozen=True)
class Convolutional(Part):
    """Convolutional network over positions; causal in a decoder."""

    layers: Depth
    unit: GatedUnit | BottleneckUnit = field(default_factory=GatedUnit)
    # A decoder reads the encoder by attention in each layer (ConvS2S), or takes its output at the
    # same position (`aligned`, ByteNet). None in an encoder.
    sees: Literal["attention", "aligned"] | None = None
    dropout: Rate = 0.0

    kv_cache_size = 0  # the states of convolutions have a fixed size

    def validate(self) -> None:
        if not self.unit.dilations:
            raise ModelError(
                "a convolutional stack needs dilations", "set `dilations`, for example (1, 2, 4)"
            )


# ------------------------------------------------------------------ images


class ResidualBlock(NamedTuple):
    """Where a residual block of convolutions stands, and what shapes it maps."""

    stage: int
    layer: int  # of the stage
    inputs: int  # channels
    outputs: int
    stride: int

    @property
    def projects(self) -> bool:
        """Whether its shortcut is a convolution, because it changes the shape."""
        return self.stride > 1 or self.inputs != self.outputs


@dataclass(frozen=True)
class ResidualStages(Part):
    """Stages of residual blocks of convolutions over images (He et al. 2016, ResNet).

    The first block of each stage halves the rows and columns; BatchNorm follows each convolution.
    """

    widths: tuple[Size, ...] = (256, 512, 1024, 2048)  # output channels of each stage
    depths: tuple[Depth, ...] = (3, 4, 6, 3)  # blocks of each stage
    # Two convolutions of 3 × 3; or one between two of 1 × 1, with a quarter of the channels.
    unit: Literal["basic", "bottleneck"] = "bottleneck"
    halves_first: bool = False  # the first stage too; in most networks the stem has done so
    # Which convolution of a bottleneck has the stride: the paper's is the first, most have it in
    # that of 3 × 3 (ResNet v1.5).
    strided: Literal["1x1", "3x3"] = "3x3"
    activation: Activation = "relu"  # of each sum; inside a block it is ReLU
    norm: BatchNorm = field(default_factory=partial(BatchNorm, counts=True))

    kv_cache_size = 0  # it does not decode

    def validate(self) -> None:
        if not self.widths or len(self.widths) != len(self.depths):
            raise ModelError(
                f"{len(self.widths)} widths and {len(self.depths)} depths do not make stages",
                "give one width and one depth for each stage",
            )
        if self.unit == "bottleneck" and min(self.widths) < 4:
            raise ModelError(
                "a bottleneck has a quarter of its output channels, so that 4 are the least",
                "give larger `widths`, or unit='basic'",
            )

    def width(self, d_model: int) -> int:
        """The width of the output, as `Stack.width`."""
        return self.widths[-1]

    def blocks(self, inputs: int) -> Iterator[ResidualBlock]:
        """All blocks, over so many channels of the stem."""
        for stage, (outputs, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            for layer in range(depth):
                halves = layer == 0 and (stage > 0 or self.halves_first)
                yield ResidualBlock(stage, layer, inputs, outputs, 1 + halves)
                inputs = outputs
