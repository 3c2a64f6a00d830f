"""Positional encodings: added at the input, or inside the attention of a stack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from regard.spec.residual import Norm
from regard.spec.validation import Count, Fraction, Part, Positive, Rate, Size
from regard.system.errors import ModelError

# ------------------------------------------------------------------ added at the input


class _AddedPosition(Part):
    """A position that is added at the input."""

    @property
    def max_length(self) -> int | None:
        """The longest sequence that there are positions for; sinusoids have none."""
        return getattr(self, "length", None)


@dataclass(frozen=True)
class Sinusoidal(_AddedPosition):
    """Sinusoidal positional encoding (Section 3.5): sines and cosines of geometric wavelengths."""

    # `halves` puts all sines before all cosines (the authors' code, and Marian); `interleaved`
    # alternates them (the paper's formula). The two differ by a permutation of dimensions.
    order: Literal["halves", "interleaved"] = "halves"
    base: Positive = 10_000.0  # the longest wavelength is 2π · base


@dataclass(frozen=True)
class LearnedPosition(_AddedPosition):
    """Learned positional embeddings (Table 3, row E): one trained vector for each position."""

    length: Size = 512  # the longest sequence
    offset: Count = 0  # unused rows at the table's start: 2 in BART and RoBERTa
    # The padding token, where positions count all tokens but these (RoBERTa): theirs is the last of
    # the unused rows.
    padding: Count | None = None


@dataclass(frozen=True)
class FixedPosition(_AddedPosition):
    """Fixed positional embeddings: a table of vectors that is saved but not trained.

    They are initialized as sinusoids, but a checkpoint's values win: Whisper's were rounded to
    half precision before training.
    """

    length: Size  # the longest sequence


@dataclass(frozen=True)
class ConcatenatedPosition(_AddedPosition):
    """Concatenated positional encoding: sinusoids appended to the token embedding.

    A linear map takes the longer vectors to d_model.
    """

    width: Size  # dimensions of the sinusoids
    order: Literal["halves", "interleaved"] = "halves"
    base: Positive = 10_000.0


@dataclass(frozen=True)
class AxialPosition(_AddedPosition):
    """Axial positional embeddings (Kitaev et al. 2020, Reformer): one table per axis of a grid.

    Positions fill the grid row by row. The vector of a position is the concatenation of the
    vectors of its coordinates.
    """

    shape: tuple[Size, ...]  # of the grid
    widths: tuple[Size, ...]  # of each axis' vectors; their sum is the embedding's width
    most: Size  # the longest sequence, at most the size of the grid

    def validate(self) -> None:
        if (
            len(self.shape) != len(self.widths)
            or min((*self.shape, *self.widths, self.most), default=0) < 1
        ):
            raise ModelError(
                f"axial positions need one width for each axis: {self.shape} positions, widths "
                f"{self.widths}",
                "set as many widths as axes",
            )

    @property
    def length(self) -> int:
        """The longest sequence: the grid may be larger."""
        return min(self.most, math.prod(self.shape))


InputPosition = Sinusoidal | LearnedPosition | FixedPosition | ConcatenatedPosition | AxialPosition

# ------------------------------------------------------------------ inside the attention of a stack


@dataclass(frozen=True)
class Rope(Part):
    """Rotary position embeddings (RoPE; Su et al. 2021): q and k are rotated by their position.

    Pairs of dimensions turn by angles that grow with the position, so q·k depends on distances.
    """

    base: Positive = 10_000.0  # θ_i = base^(−2i/d)
    share: Fraction = 1.0  # fraction of each head's dimensions that is rotated
    # `halves` pairs dimension i with i + d/2 (Hugging Face), `neighbours` 2i with 2i + 1 (paper).
    pairs: Literal["halves", "neighbours"] = "halves"
    scaling: RopeScaling | None = None
    stored: bool = False  # files hold θ, and theirs count: ESM-2's were rounded to half precision


@dataclass(frozen=True)
class LinearScaling(Part):
    """Position interpolation (Chen et al. 2023): positions are divided by `factor`."""

    factor: Positive


@dataclass(frozen=True)
class BandedScaling(Part):
    """RoPE scaling of LLaMA 3.1: by wavelength; those between the two limits are blended."""

    factor: Positive
    low: Positive  # wavelengths over length / low are stretched by `factor`
    high: Positive  # wavelengths under length / high are kept
    length: Size  # context length of pretraining


@dataclass(frozen=True)
class YarnScaling(Part):
    """RoPE scaling of YaRN (Peng et al. 2023): by how often a pair turns in the pretrained context.

    Pairs that turn at least `fast` times are kept, those that turn at most `slow` times are
    stretched by `factor`, and those between are blended.
    """

    factor: Positive
    length: Size  # context length of pretraining
    fast: Positive = 32.0
    slow: Positive = 1.0
    truncate: bool = True  # both limits are moved to whole pairs
    attention: Positive | None = None  # of queries and keys; None: 0.1 ln(factor) + 1


RopeScaling = LinearScaling | BandedScaling | YarnScaling


@dataclass(frozen=True)
class T5Bias(Part):
    """Relative position bias of T5 (Raffel et al. 2020): a learned scalar per head and bucket.

    Half of the buckets are single distances, the others grow logarithmically.
    """

    count: Size = 32  # buckets; halved between the two directions unless causal
    distance: Size = 128  # everything farther shares the last bucket


@dataclass(frozen=True)
class Alibi(Part):
    """Attention with linear biases (ALiBi; Press et al. 2022): −slope · distance on the scores.

    The slopes are fixed, a geometric sequence over the heads.
    """


@dataclass(frozen=True)
class Disentangled(Part):
    """Disentangled attention (He et al. 2021, DeBERTa): a learned vector for each distance.

    Every layer projects the vectors to queries and keys. Each term that they add to the scores
    counts in the scale (Equation 4).
    """

    distance: Size  # k in Section 3.1: the largest distance on each side
    buckets: Size | None = None  # on each side (v2): half exact distances, half logarithmic
    terms: Literal["both", "c2p", "p2c"] = "both"  # content-to-position, position-to-content
    norm: Norm | None = None  # of the vectors (v2)
    dropout: Rate = 0.0  # on the vectors, drawn anew in each layer
    # Of the vectors: the layer's projections of content, or a second pair (v1).
    projections: Literal["shared", "own"] = "shared"

    def validate(self) -> None:
        # The logarithm of their quotient is what the other distances are divided by.
        exact = None if self.buckets is None else self.buckets // 2
        if exact is not None and exact in (0, self.distance - 1):
            raise ModelError(
                f"{self.buckets} buckets (position_buckets) of distances up to {self.distance} "
                f"(max_relative_positions) leave no logarithmic ones beyond {exact} exact ones",
                "set position_buckets to 2 or more, or change max_relative_positions",
            )


@dataclass(frozen=True)
class RepeatedBlockBias(Part):
    """Repeated-block bias: ln(1 + times) on the scores of the first block of keys.

    This reproduces how Hugging Face transformers evaluates BigBird: outside training, all random
    blocks are the first one. It concerns every query block but the first and the last.
    """

    size: Size  # positions in a block
    times: Count  # how many more times the first block counts
    length: Count  # shorter sequences, and those of this length, use full attention


@dataclass(frozen=True)
class ShortestPathBias(Part):
    """Spatial encoding of graphs (Ying et al. 2021, Graphormer): a learned scalar per head and
    shortest path between two nodes."""

    distance: Size = 8  # farther nodes share one scalar, and nodes without a path another


@dataclass(frozen=True)
class RelativeKeys(Part):
    """Relative position representations (Shaw et al. 2018): learned vectors added to the keys.

    Each layer has one vector per distance, the same for all heads.
    """

    distance: Size  # k: larger distances are clipped to it, on each side
    windowed: bool = False  # instead, larger distances add nothing (VITS)
    # Whether others are added to the values, which the paper's Table 3 finds no better.
    values: bool = False


@dataclass(frozen=True)
class RelativeSinusoids(Part):
    """Relative positional encoding of Transformer-XL (Dai et al. 2019, Section 3.3).

    Each layer projects sinusoids of the distances to keys; each head has learned biases to the
    query, u for the content and v for the distance.
    """

    # Sines and cosines of a vector: the authors' order, or one after the other (ESPnet).
    order: Literal["halves", "interleaved"] = "halves"


@dataclass(frozen=True)
class AddedPosition(Part):
    """Positions that each attention adds to its queries and keys (Carion et al. 2020, DETR).

    The vectors are the front end's; values are without them.
    """


# ------------------------------------------------------------------ from outside the package


class PositionSizes(NamedTuple):
    """Sizes of a stack, from which a custom position is built."""

    d_model: int
    heads: int  # h
    d_k: int  # width of a head's queries and keys
    causal: bool  # whether the mask hides later positions


@runtime_checkable
class BuildsPosition(Protocol):
    """Protocol of custom positions inside attention: a frozen dataclass whose `build` returns one.

    What it returns is a `core.position_terms.StackPosition`.
    """

    def build(self, sizes: PositionSizes) -> Any: ...


StackPosition = (
    Rope
    | T5Bias
    | Alibi
    | Disentangled
    | RepeatedBlockBias
    | RelativeKeys
    | RelativeSinusoids
    | ShortestPathBias
    | AddedPosition
    | BuildsPosition
)
