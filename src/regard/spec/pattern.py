"""Who may look at whom, inside a stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.spec.check import sizes


@dataclass(frozen=True)
class Everything:
    """Each position looks at all positions."""


@dataclass(frozen=True)
class Causal:
    """Each position looks at itself and what came before; with a `window`, at that many at most."""

    window: int | None = None


@dataclass(frozen=True)
class Window:
    """Each position looks at itself and at `size` neighbours on each side."""

    size: int

    def __post_init__(self) -> None:
        sizes(self, "size")


@dataclass(frozen=True)
class Dilated:
    """A window with gaps: itself and `size` neighbours on each side, of which each is `step` farther than the last."""

    size: int
    step: int

    def __post_init__(self) -> None:
        sizes(self, "size", "step")


@dataclass(frozen=True)
class Strided:
    """The Sparse Transformer (Child et al. 2019): neighbours nearer than `stride`, and all at multiples of it."""

    stride: int

    def __post_init__(self) -> None:
        sizes(self, "stride")


@dataclass(frozen=True)
class BlockLocal:
    """The sequence is cut into blocks of `size`; `neighbours` on each side are seen too."""

    size: int
    neighbours: int = 0

    def __post_init__(self) -> None:
        sizes(self, "size")


@dataclass(frozen=True)
class Global:
    """The `first` and the `last` positions, or blocks of `size` positions, look at all others and are seen by all."""

    first: int = 1
    last: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        sizes(self, "size")


@dataclass(frozen=True)
class RandomBlocks:
    """Each block of `size` positions looks at `count` blocks that are drawn once, from `seed`: from all blocks of the
    sequence, or from those `before` it, as decoders need."""

    size: int
    count: int = 1
    seed: int = 0
    of: Literal["all", "before"] = "all"

    def __post_init__(self) -> None:
        sizes(self, "size", "count")


@dataclass(frozen=True)
class Beyond:
    """Sequences of more than `length` positions follow the pattern; in shorter ones, each position sees all."""

    length: int
    inner: Pattern


@dataclass(frozen=True)
class Both:
    """What both patterns allow."""

    first: Pattern
    second: Pattern


@dataclass(frozen=True)
class Either:
    """What one of two patterns allows."""

    first: Pattern
    second: Pattern


@dataclass(frozen=True)
class Opposite:
    """What a pattern does not allow."""

    inner: Pattern


Pattern = (
    Everything
    | Causal
    | Window
    | Dilated
    | Strided
    | BlockLocal
    | Global
    | RandomBlocks
    | Beyond
    | Both
    | Either
    | Opposite
)


def causal(pattern: Pattern) -> bool:
    """Whether no position sees what follows it."""
    match pattern:
        case Causal():
            return True
        case Both(first, second):
            return causal(first) or causal(second)
        case Either(first, second):
            return causal(first) and causal(second)
        case _:
            return False


def counts_from_the_end(pattern: Pattern) -> bool:
    """Whether what a position sees changes when the sequence grows."""
    match pattern:
        case Beyond():
            return True
        case Global(_, last):
            return last > 0
        case RandomBlocks(of=drawn):
            return drawn == "all"
        case Both(first, second) | Either(first, second):
            return counts_from_the_end(first) or counts_from_the_end(second)
        case Opposite(inner):
            return counts_from_the_end(inner)
        case _:
            return False
