"""What came before stacks of attention: recurrent and convolved layers, and how they look at a
memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from regard.errors import ModelError
from regard.spec.validation import sizes


@dataclass(frozen=True)
class DotScore:
    """q · k (Luong et al. 2015)."""


@dataclass(frozen=True)
class ScaledDotScore:
    """q · k / √width (equation 1 of Vaswani et al. 2017)."""


@dataclass(frozen=True)
class GeneralScore:
    """q · W k (Luong et al. 2015)."""


@dataclass(frozen=True)
class AdditiveScore:
    """v · tanh(W q + U k), with so many hidden numbers, d_model unless said (Bahdanau et al.
    2015)."""

    width: int | None = None

    def __post_init__(self) -> None:
        sizes(self, "width")


AttentionScore = DotScore | ScaledDotScore | GeneralScore | AdditiveScore


@dataclass(frozen=True)
class BahdanauAttention:
    """The state before a step looks at the memory, and what it finds is part of the cell's input
    (Bahdanau et al. 2015).

    Scores are divided by the `temperature`: towards 0, only the best place counts.
    """

    score: AttentionScore = field(default_factory=AdditiveScore)
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _warm(self.temperature)


@dataclass(frozen=True)
class LuongAttention:
    """The state after a step looks at the memory (Luong et al. 2015). With `feeding`, what the step
    gave is part of the next one's input."""

    score: AttentionScore = field(default_factory=GeneralScore)
    temperature: float = 1.0
    feeding: bool = False

    def __post_init__(self) -> None:
        _warm(self.temperature)


def _warm(temperature: float) -> None:
    if temperature <= 0:
        raise ModelError(
            f"scores cannot be divided by {temperature}", "give a small positive temperature"
        )


@dataclass(frozen=True)
class Recurrent:
    """Layers of cells that go through a sequence, and carry a state of d_model numbers from place
    to place: tanh (`rnn`), `gru` or `lstm`. In a `bidirectional` layer, half of the numbers go
    backwards.

    As a decoder it starts from what the encoder had read at its end (and, going backwards, at its
    beginning), and `looks` at the memory, if at all. `dropout` acts after each layer.
    """

    cell: Literal["rnn", "gru", "lstm"]
    layers: int = 1
    bidirectional: bool = False
    looks: BahdanauAttention | LuongAttention | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        sizes(self, "layers")


@dataclass(frozen=True)
class GatedUnit:
    """x ← (x + gated linear unit(convolution(x))) √½ over `kernel` places (Gehring et al. 2017,
    ConvS2S)."""

    kernel: int = 3

    @property
    def dilations(self) -> tuple[int, ...]:
        return (1,)


@dataclass(frozen=True)
class BottleneckUnit:
    """x ← x + a convolution over `kernel` places at half the width, each map after norm and relu;
    the layers take one of `dilations` after the other, and a norm comes last (Kalchbrenner et al.
    2016, ByteNet)."""

    kernel: int = 3
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Convolutional:
    """Layers of convolutions. As a decoder they see no place behind them, and `see` the memory by
    attention in each layer, or at the place that is as far from the beginning (`aligned`), without
    any attention."""

    layers: int
    unit: GatedUnit | BottleneckUnit = field(default_factory=GatedUnit)
    sees: Literal["attention", "aligned"] | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        sizes(self, "layers")
        sizes(self.unit, "kernel")
        if not self.unit.dilations or min(self.unit.dilations) < 1:
            raise ModelError(
                "a convolution needs distances of at least 1", "give `dilations` such as (1, 2, 4)"
            )
