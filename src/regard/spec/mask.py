"""Attention masks: which positions each position attends to, inside a stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.spec.validation import Count, Part, Size

# i is the position of a query, j that of a key.

# ------------------------------------------------------------------ patterns


@dataclass(frozen=True)
class FullMask(Part):
    """Full mask: each position attends to all positions."""


@dataclass(frozen=True)
class CausalMask(Part):
    """Causal mask (Section 3.2.3): each position attends to itself and to earlier ones, j ≤ i."""

    window: Size | None = None  # sliding window: at most this many positions, itself included


@dataclass(frozen=True)
class WindowMask(Part):
    """Sliding-window mask (Longformer, Section 3.1): |i − j| ≤ size."""

    size: Size  # neighbours on each side, so 2 · size + 1 positions in all


@dataclass(frozen=True)
class NeighbourMask(Part):
    """Adjacency mask: a node of a graph attends to its neighbours, and to itself.

    The edges come with each call, so that it cannot be combined with other patterns.
    """


@dataclass(frozen=True)
class DilatedMask(Part):
    """Dilated sliding-window mask (Longformer, Section 3.1): a window with gaps."""

    size: Size  # neighbours on each side
    step: Size  # dilation: the distance between two neighbours


@dataclass(frozen=True)
class StridedMask(Part):
    """Strided mask of the Sparse Transformer (Child et al. 2019).

    Each position attends to those nearer than `stride`, and to all at multiples of it.
    """

    stride: Size  # l in Section 4.3, close to √n for n positions


@dataclass(frozen=True)
class BlockLocalMask(Part):
    """Block-local mask: the sequence is cut into blocks, and positions attend within theirs."""

    size: Size  # positions in a block
    neighbours: Count = 0  # blocks on each side that are visible too


@dataclass(frozen=True)
class GlobalMask(Part):
    """Global mask (Longformer, BigBird): some positions attend to all, and all attend to them."""

    first: Count = 1  # global blocks at the beginning
    last: Count = 0  # global blocks at the end
    size: Size = 1  # positions in a block; with 1, single positions are counted


@dataclass(frozen=True)
class RandomBlockMask(Part):
    """Random-block mask (BigBird): each block attends to some blocks that are drawn once."""

    size: Size  # positions in a block
    count: Size = 1  # random blocks for each block
    seed: int = 0
    of: Literal["all", "before"] = "all"  # drawn from all blocks, or, for decoders, earlier ones
    # `all` are the blocks of so many positions, whatever the input's length, so that padding
    # changes nothing; None: those of the padded input.
    length: Size | None = None


@dataclass(frozen=True)
class SentenceMask(Part):
    """Sentence mask: positions attend within their sentence, which a token ends.

    With `ends`, they also attend to the last token of every sentence, which stands for it. Lower
    layers without and upper layers with `ends` make an encoder hierarchical (Yang et al. 2016).
    """

    token: Count  # the id of the token that ends a sentence
    ends: bool = False


# ------------------------------------------------------------------ combinations


@dataclass(frozen=True)
class LongerThan(Part):
    """A pattern for long sequences only: up to `length` positions, the mask is full."""

    length: Count
    inner: MaskPattern


@dataclass(frozen=True)
class And(Part):
    """Intersection of masks: what both patterns allow."""

    first: MaskPattern
    second: MaskPattern


@dataclass(frozen=True)
class Or(Part):
    """Union of masks: what either of two patterns allows."""

    first: MaskPattern
    second: MaskPattern


@dataclass(frozen=True)
class Not(Part):
    """Complement of a mask: what the pattern does not allow."""

    inner: MaskPattern


MaskPattern = (
    FullMask
    | CausalMask
    | WindowMask
    | NeighbourMask
    | DilatedMask
    | StridedMask
    | BlockLocalMask
    | GlobalMask
    | RandomBlockMask
    | SentenceMask
    | LongerThan
    | And
    | Or
    | Not
)


# ------------------------------------------------------------------ properties of patterns


def is_causal(pattern: MaskPattern) -> bool:
    """Whether the mask is causal: no position attends to a later one."""
    match pattern:
        case CausalMask():
            return True
        case And(first, second):
            # One causal side is enough to hide everything that follows.
            return is_causal(first) or is_causal(second)
        case Or(first, second):
            return is_causal(first) and is_causal(second)
        case _:
            # Conservative: the complement of a mask may be causal, but nobody needs that.
            return False


def counts_from_the_end(pattern: MaskPattern) -> bool:
    """Whether a row of the mask changes when the sequence grows, which a KV cache forbids."""
    match pattern:
        case LongerThan():
            return True
        case GlobalMask(_, last):
            return last > 0
        case RandomBlockMask(of=candidates):
            return candidates == "all"
        case And(first, second) | Or(first, second):
            return counts_from_the_end(first) or counts_from_the_end(second)
        case Not(inner):
            return counts_from_the_end(inner)
        case _:
            return False
