"""How queries, keys and values are made, and how they are mixed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from regard.errors import ModelError
from regard.spec.validation import sizes


@dataclass(frozen=True)
class SoftmaxAttention:
    """Exact attention; `dropout` acts on the attention weights. With `top`, only that many best
    scores of each query count."""

    dropout: float = 0.0
    top: int | None = None

    def __post_init__(self) -> None:
        sizes(self, "top")


@dataclass(frozen=True)
class EluFeatures:
    """Features elu(x) + 1 (Katharopoulos et al. 2020); nothing is scaled."""


@dataclass(frozen=True)
class FavorFeatures:
    """Positive features of random directions, whose products are the exponentials of softmax
    attention on average (Choromanski et al. 2021, Performer).

    `count` directions, d_k · ln d_k unless said, orthogonal in groups of d_k, drawn from `seed`,
    the same in all layers; training draws them anew every `redraw` steps (0: never).
    """

    count: int | None = None
    seed: int = 0
    redraw: int = 1000

    def __post_init__(self) -> None:
        sizes(self, "count")


@dataclass(frozen=True)
class LinearAttention:
    """Linear attention: the features of queries and keys are multiplied, so that keys are summed up
    once for all queries."""

    features: EluFeatures | FavorFeatures = field(default_factory=EluFeatures)

    @property
    def dropout(self) -> float:
        """Weights that are never made cannot be dropped."""
        return 0.0


@dataclass(frozen=True)
class Linformer:
    """Keys and values of up to `length` places are projected to `rank` of them (Wang et al. 2020).

    Projections are one for keys and one for values of each head (`none` shared), one each for all
    `heads`, one for both (`both`), or one for all `layers` of the stack.
    """

    length: int
    rank: int
    share: Literal["none", "heads", "both", "layers"] = "heads"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        sizes(self, "length", "rank")


@dataclass(frozen=True)
class ChunkRing:
    """Chunks whose last one stands before the first, and where one that is met twice counts twice.
    Sequences of more than `beyond` places are filled up to a multiple of `places`, which may be
    those of chunks of several kinds."""

    places: int
    beyond: int

    def __post_init__(self) -> None:
        sizes(self, "places", "beyond")


@dataclass(frozen=True)
class ChunkedAttention:
    """Softmax attention in chunks of `chunk` places that see some chunks `before` and `after` them
    too, on a ring; inputs of one chunk see all. (Chunks in a line are a mask, `BlockLocalMask`.)"""

    chunk: int
    ring: ChunkRing
    before: int = 1
    after: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _chunked(self)


@dataclass(frozen=True)
class AutoBuckets:
    """Twice as many buckets as there are chunks, rounded down to a power of two; more than `limit`
    are told by two hashes."""

    limit: int


@dataclass(frozen=True)
class LshAttention:
    """Places that hash to one of `buckets` look at each other, in chunks of `chunk` places that see
    some chunks `before` and `after` them too; `rounds` of other hashes, drawn from `seed`, are
    weighed (Kitaev et al. 2020, Reformer). Many buckets are cheaper as a product: (8, 16) are 128,
    told by two hashes.

    Chunks stand in a line, or as in the paper on a `ring`, those of all rounds together."""

    buckets: int | tuple[int, ...] | AutoBuckets
    chunk: int = 64
    rounds: int = 1
    before: int = 1
    after: int = 0
    seed: int = 0
    dropout: float = 0.0
    ring: ChunkRing | None = None

    def __post_init__(self) -> None:
        sizes(self, "rounds")
        _chunked(self)
        factors = self.factors
        if factors is not None and (
            not factors or any(factor < 2 or factor % 2 for factor in factors)
        ):
            raise ModelError(
                f"{self.buckets} buckets cannot come in opposite pairs", "give even numbers"
            )

    @property
    def factors(self) -> tuple[int, ...] | None:
        """None where the length decides."""
        if isinstance(self.buckets, AutoBuckets):
            return None
        return (self.buckets,) if isinstance(self.buckets, int) else self.buckets


def _chunked(part: ChunkedAttention | LshAttention) -> None:
    sizes(part, "chunk")
    if min(part.before, part.after) < 0:
        raise ModelError(
            "a chunk cannot see fewer chunks than itself", "give `before` and `after` of at least 0"
        )
    if part.ring is not None and (part.ring.places % part.chunk or part.ring.beyond > part.chunk):
        raise ModelError(
            f"a ring of {part.ring.places} places beyond {part.ring.beyond} has no whole chunks "
            f"of {part.chunk}",
            "give a multiple of `chunk`, beyond `chunk` at most",
        )


class AttentionSizes(NamedTuple):
    """What an attention kernel of a user's own is built for."""

    heads: int
    key_heads: int
    d_k: int
    d_v: int
    scale: float


@runtime_checkable
class BuildsAttention(Protocol):
    """The seam for an attention kernel from outside the package: any frozen dataclass with a
    `build` that returns a module with the signature of `core.attention.Mixer`.

    `core.explicit_attention.ExplicitAttention` is a base class for such modules."""

    @property
    def dropout(self) -> float: ...
    def build(self, sizes: AttentionSizes) -> Any: ...


Mixer = (
    SoftmaxAttention
    | LinearAttention
    | Linformer
    | ChunkedAttention
    | LshAttention
    | BuildsAttention
)


@dataclass(frozen=True)
class Attention:
    """Section 3.2.2: `heads` queries of width d_k look at `groups` keys (as many as heads unless
    said) and d_v values.

    `bias` names the projections that have one, of q, k, v and o; `scale` is d_k^-½ unless said, or
    (d_k · terms)^-½ where positions add terms to q·k. With `shared` projections, keys are the
    queries at length 1, and the scale is 1 unless said; with `global` ones, tokens that the caller
    names look at everything, by projections of their own (Longformer).
    """

    heads: int
    d_k: int
    d_v: int
    groups: int | None = None
    bias: str = "qkvo"
    scale: float | None = None
    mixer: Mixer = field(default_factory=SoftmaxAttention)
    projection: Literal["apart", "shared", "global"] = "apart"

    def __post_init__(self) -> None:
        if not isinstance(self.mixer, Mixer):
            raise ModelError(
                f"{self.mixer!r} is no attention kernel",
                "give a part of regard.spec, or a frozen dataclass with `dropout` and `build`",
            )
        shared = self.projection == "shared"
        if isinstance(self.mixer, LshAttention) and not shared:
            raise ModelError(
                "hashing needs queries and keys that are the same", "say projection='shared'"
            )
        if (
            isinstance(self.mixer, LinearAttention)
            and self.mixer.features == EluFeatures()
            and self.scale is not None
        ):
            raise ModelError("features of elu have no scale", "leave `scale` out, or use Favor")
        if self.projection == "global" and not isinstance(self.mixer, SoftmaxAttention):
            raise ModelError("only softmax attention has global tokens", "use the softmax mixer")
        if (shared or isinstance(self.mixer, ChunkedAttention)) and self.key_heads != self.heads:
            raise ModelError(
                "shared queries and keys, and chunks, have one number of heads",
                "leave `groups` out",
            )

    @property
    def key_heads(self) -> int:
        return self.groups or self.heads
