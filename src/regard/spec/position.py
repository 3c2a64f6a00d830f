"""Where a place is: told at the input, or inside the attention of a stack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from regard.errors import ModelError
from regard.spec.residual import Norm
from regard.spec.validation import sizes

# ------------------------------------------------------------------ added at the input


@dataclass(frozen=True)
class Sinusoidal:
    """Section 3.5: sines and cosines of geometric wavelengths.

    `halves` puts all sines before all cosines (the authors' code, and Marian); `interleaved`
    alternates them (the paper's formula). The two differ by a renaming of dimensions only.
    """

    order: Literal["halves", "interleaved"] = "halves"
    base: float = 10_000.0


@dataclass(frozen=True)
class LearnedPosition:
    """One trained vector for each position up to `length` (Table 3, row E). Some tables begin with
    `offset` rows that no position uses."""

    length: int = 512
    offset: int = 0


@dataclass(frozen=True)
class FixedPosition:
    """One vector for each position up to `length`, which training leaves alone. They begin as
    sinusoids, but are kept as they were stored: Whisper's were rounded to half precision before
    they were trained with."""

    length: int


@dataclass(frozen=True)
class ConcatenatedPosition:
    """Sinusoids of `width` dimensions set beside those of the token, and all together mapped to
    d_model."""

    width: int
    order: Literal["halves", "interleaved"] = "halves"
    base: float = 10_000.0

    def __post_init__(self) -> None:
        sizes(self, "width")


@dataclass(frozen=True)
class AxialPosition:
    """Trained vectors for the rows and for the columns of a grid of `shape`, over which the
    positions run; that of a position are those of its axes set beside each other, of so many
    `widths` (Kitaev et al. 2020). At `most` so many are used."""

    shape: tuple[int, ...]
    widths: tuple[int, ...]
    most: int

    def __post_init__(self) -> None:
        if (
            len(self.shape) != len(self.widths)
            or min((*self.shape, *self.widths, self.most), default=0) < 1
        ):
            raise ModelError(
                f"axes of {self.shape} positions cannot have vectors of {self.widths}",
                "give each axis one width",
            )

    @property
    def length(self) -> int:
        return min(self.most, math.prod(self.shape))


InputPosition = Sinusoidal | LearnedPosition | FixedPosition | ConcatenatedPosition | AxialPosition

# ------------------------------------------------------------------ inside the attention of a stack


@dataclass(frozen=True)
class Rope:
    """Rotates pairs of dimensions of q and k by angles that grow with the position (Su et al.
    2021).

    `share` of each head's dimensions is rotated; a pair is dimension i and i + half (`halves`) or
    neighbours (`neighbours`).
    """

    base: float = 10_000.0
    share: float = 1.0
    pairs: Literal["halves", "neighbours"] = "halves"
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor` (Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True)
class BandedScaling:
    """LLaMA 3: long wavelengths stretched by `factor`, short ones left, those between blended."""

    factor: float
    low: float
    high: float
    length: int


RopeScaling = LinearScaling | BandedScaling


@dataclass(frozen=True)
class T5Bias:
    """T5: a trained bias for each head and bucket of distance, exact when near and logarithmic when
    far."""

    count: int = 32
    distance: int = 128


@dataclass(frozen=True)
class Alibi:
    """A fixed penalty on the score that grows with distance, another slope for each head
    (Press et al. 2022)."""


@dataclass(frozen=True)
class Disentangled:
    """DeBERTa (He et al. 2021): a trained vector for each distance, which every layer projects as
    it does its input. Content looks at positions (`c2p`), positions at content (`p2c`), or both;
    each term counts in the scale of the scores.

    Distances go up to `distance` on each side. `buckets` on each side share the vectors: half of
    them are exact distances, the other half logarithmic. `dropout` acts on the vectors, in each
    layer anew.
    """

    distance: int
    buckets: int | None = None
    terms: Literal["both", "c2p", "p2c"] = "both"
    norm: Norm | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class RepeatedBlockBias:
    """In sequences of more than `length` positions, the first block of `size` counts as if it were
    there `times` more, for all but the first and the last block. That is how transformers evaluates
    BigBird: whose random blocks are then all the first one."""

    size: int
    times: int
    length: int


@dataclass(frozen=True)
class RelativeKeys:
    """Shaw et al. 2018: each layer has a trained vector for each distance up to `distance` on each
    side, which is added to the keys at that distance. (To the values nothing is added, which their
    Table 3 finds no worse.)"""

    distance: int

    def __post_init__(self) -> None:
        sizes(self, "distance")


@dataclass(frozen=True)
class RelativeSinusoids:
    """Transformer-XL (Dai et al. 2019): each layer looks by content and by sinusoids of distances
    that it projects, with a trained query of each head for either."""


class PositionSizes(NamedTuple):
    """What a position of a user's own is built for: the sizes of its stack."""

    d_model: int
    heads: int
    d_k: int
    causal: bool


@runtime_checkable
class BuildsPosition(Protocol):
    """The seam for a position inside attention from outside the package: any frozen dataclass with
    a `build` that returns a module with the method of `core.position_terms.Position`."""

    def build(self, sizes: PositionSizes) -> Any: ...


StackPosition = (
    Rope
    | T5Bias
    | Alibi
    | Disentangled
    | RepeatedBlockBias
    | RelativeKeys
    | RelativeSinusoids
    | BuildsPosition
)
