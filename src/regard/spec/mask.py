"""Who may look at whom, inside a stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.spec.validation import sizes


@dataclass(frozen=True)
class FullMask:
    """Each position looks at all positions."""


@dataclass(frozen=True)
class CausalMask:
    """Each position looks at itself and what came before; with a `window`, at that many at most."""

    window: int | None = None


@dataclass(frozen=True)
class WindowMask:
    """Each position looks at itself and at `size` neighbours on each side."""

    size: int

    def __post_init__(self) -> None:
        sizes(self, "size")


@dataclass(frozen=True)
class DilatedMask:
    """A window with gaps: itself and `size` neighbours on each side, of which each is `step`
    farther than the last."""

    size: int
    step: int

    def __post_init__(self) -> None:
        sizes(self, "size", "step")


@dataclass(frozen=True)
class StridedMask:
    """The Sparse Transformer (Child et al. 2019): neighbours nearer than `stride`, and all at
    multiples of it."""

    stride: int

    def __post_init__(self) -> None:
        sizes(self, "stride")


@dataclass(frozen=True)
class BlockLocalMask:
    """The sequence is cut into blocks of `size`; `neighbours` on each side are seen too."""

    size: int
    neighbours: int = 0

    def __post_init__(self) -> None:
        sizes(self, "size")


@dataclass(frozen=True)
class GlobalMask:
    """The `first` and the `last` positions, or blocks of `size` positions, look at all others and
    are seen by all."""

    first: int = 1
    last: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        sizes(self, "size")


@dataclass(frozen=True)
class RandomBlockMask:
    """Each block of `size` positions looks at `count` blocks that are drawn once, from `seed`: from
    all blocks of the sequence, or from those `before` it, as decoders need."""

    size: int
    count: int = 1
    seed: int = 0
    of: Literal["all", "before"] = "all"

    def __post_init__(self) -> None:
        sizes(self, "size", "count")


@dataclass(frozen=True)
class LongerThan:
    """Sequences of more than `length` positions follow the pattern; in shorter ones, each position
    sees all."""

    length: int
    inner: MaskPattern


@dataclass(frozen=True)
class And:
    """What both patterns allow."""

    first: MaskPattern
    second: MaskPattern


@dataclass(frozen=True)
class Or:
    """What one of two patterns allows."""

    first: MaskPattern
    second: MaskPattern


@dataclass(frozen=True)
class Not:
    """What a pattern does not allow."""

    inner: MaskPattern


MaskPattern = (
    FullMask
    | CausalMask
    | WindowMask
    | DilatedMask
    | StridedMask
    | BlockLocalMask
    | GlobalMask
    | RandomBlockMask
    | LongerThan
    | And
    | Or
    | Not
)


def is_causal(pattern: MaskPattern) -> bool:
    """Whether no position sees what follows it."""
    match pattern:
        case CausalMask():
            return True
        case And(first, second):
            return is_causal(first) or is_causal(second)
        case Or(first, second):
            return is_causal(first) and is_causal(second)
        case _:
            return False


def counts_from_the_end(pattern: MaskPattern) -> bool:
    """Whether what a position sees changes when the sequence grows."""
    match pattern:
        case LongerThan():
            return True
        case GlobalMask(_, last):
            return last > 0
        case RandomBlockMask(of=drawn):
            return drawn == "all"
        case And(first, second) | Or(first, second):
            return counts_from_the_end(first) or counts_from_the_end(second)
        case Not(inner):
            return counts_from_the_end(inner)
        case _:
            return False
