"""Multi-head attention: its projections, and the mixer that weighs the values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from regard.spec.residual import Norm
from regard.spec.validation import Count, Depth, HeadSize, Part, Positive, Rate, Size
from regard.system.errors import ModelError

# ------------------------------------------------------------------ mixers


@dataclass(frozen=True)
class SoftmaxAttention(Part):
    """Scaled dot-product attention (Section 3.2.1): softmax(Q Kᵀ · scale) V."""

    dropout: Rate = 0.0  # on the attention weights
    top: Size | None = None  # top-k attention: only the k best scores of each query count
    cap: Positive | None = None  # soft-capping (Gemma 2): scores become cap · tanh(score / cap)
    # Attention sinks (gpt-oss): a learned score of each head that takes a share of the softmax.
    sinks: bool = False


@dataclass(frozen=True)
class AdditiveAttention(Part):
    """Additive attention (Bahdanau et al. 2015) in each head: softmax(w · tanh(q + k)) V.

    Queries and keys are projected by the layer, so the hidden layer of the score has the width d_k
    and w is a vector for each head. There is no scale.
    """

    dropout: Rate = 0.0  # on the attention weights


@dataclass(frozen=True)
class EluFeatures(Part):
    """ELU feature map (Katharopoulos et al. 2020): elu(x) + 1, without a scale."""


@dataclass(frozen=True)
class FavorFeatures(Part):
    """FAVOR+ features (Choromanski et al. 2021, Performer): positive orthogonal random features.

    In expectation their products are the exponentials of softmax attention. The directions are
    orthogonal in groups of d_k.
    """

    count: Size | None = None  # number of random directions; None: d_k · ln d_k
    seed: int = 0  # the same in all layers
    redraw: Count = 1000  # training steps between two draws; 0: never


@dataclass(frozen=True)
class LinearAttention(Part):
    """Linear attention: φ(Q) (φ(K)ᵀ V), whose cost grows linearly with the length.

    The sum over keys in the parentheses is computed once for all queries.
    """

    features: EluFeatures | FavorFeatures = field(default_factory=EluFeatures)

    @property
    def dropout(self) -> float:
        """No dropout: the attention weights are never computed."""
        return 0.0


@dataclass(frozen=True)
class Linformer(Part):
    """Linformer (Wang et al. 2020): keys and values are projected along the length."""

    length: Size  # n: the longest sequence
    rank: Size  # k: the length after the projection
    # Section 4: E and F of each head (`none`), E and F for all heads (`heads`), E = F (`both`, the
    # paper's key-value sharing), or one E for all layers (`layers`).
    share: Literal["none", "heads", "both", "layers"] = "heads"
    dropout: Rate = 0.0  # on the attention weights


@dataclass(frozen=True)
class ChunkRing(Part):
    """Ring of chunks, as in Reformer's implementation: the last chunk precedes the first.

    A chunk that is reached from both sides counts twice.
    """

    multiple: Size  # sequences are padded to a multiple: the least common one of all chunk sizes
    beyond: Size  # sequences of up to this many positions are not padded


@dataclass(frozen=True)
class ChunkedAttention(Part):
    """Chunked (local) attention of Reformer: softmax attention within and between near chunks.

    Inputs of at most one chunk have full attention. Chunks in a line, and not on a ring, are a
    mask: `BlockLocalMask`.
    """

    chunk: Size  # positions in a chunk
    ring: ChunkRing
    before: Count = 1  # earlier chunks that a chunk attends to
    after: Count = 0  # later chunks that a chunk attends to
    dropout: Rate = 0.0

    def validate(self) -> None:
        _check_chunks(self)


@dataclass(frozen=True)
class AutoBuckets(Part):
    """Number of hash buckets by the length: twice the number of chunks, as a power of two."""

    limit: Size  # more buckets than this are the product of two hashes


@dataclass(frozen=True)
class LshAttention(Part):
    """LSH attention (Kitaev et al. 2020, Reformer): attention within hash buckets.

    Positions are sorted by bucket and cut into chunks, and attend within and between near chunks.
    """

    # Many buckets are cheaper as a product: (8, 16) are 128 buckets by two hashes.
    buckets: Size | tuple[Size, ...] | AutoBuckets
    chunk: Size = 64  # positions in a chunk
    rounds: Depth = 1  # n_rounds of Section 2: independent hashes, whose outputs are combined
    before: Count = 1  # earlier chunks that a chunk attends to
    after: Count = 0  # later chunks that a chunk attends to
    seed: int = 0  # of the random rotations
    dropout: Rate = 0.0
    ring: ChunkRing | None = None  # of the chunks of all rounds together; None: in a line

    def validate(self) -> None:
        _check_chunks(self)
        factors = self.factors
        # The hash is argmax([xR; −xR]) (Section 2): buckets come in pairs.
        if factors is not None and (
            not factors or any(factor < 2 or factor % 2 for factor in factors)
        ):
            raise ModelError(
                f"LSH needs an even number of buckets, not {self.buckets}",
                "set `buckets` to even numbers",
            )

    @property
    def factors(self) -> tuple[int, ...] | None:
        """The buckets of each hash; None where the length determines them."""
        if isinstance(self.buckets, AutoBuckets):
            return None
        return (self.buckets,) if isinstance(self.buckets, int) else self.buckets


def _check_chunks(part: ChunkedAttention | LshAttention) -> None:
    if part.ring is not None and (part.ring.multiple % part.chunk or part.ring.beyond > part.chunk):
        raise ModelError(
            f"a ring of a multiple of {part.ring.multiple} positions beyond "
            f"{part.ring.beyond} does not divide into chunks of {part.chunk}",
            "set `multiple` to a multiple of `chunk`, and `beyond` to `chunk` or less",
        )


# ------------------------------------------------------------------ mixers from outside the package


class AttentionSizes(NamedTuple):
    """Sizes of an attention layer, from which a custom mixer is built."""

    heads: int  # h: query heads
    key_heads: int  # key and value heads; fewer than `heads` in grouped-query attention
    d_k: int
    d_v: int
    scale: float  # of the scores q·k


@runtime_checkable
class BuildsAttention(Protocol):
    """Protocol of custom mixers: a frozen dataclass whose `build` returns the attention module.

    The module is a `core.attention.Mixer`, of which `core.mixers.explicit_attention` has a simple
    kind, `ExplicitAttention`.
    """

    @property
    def dropout(self) -> float: ...
    def build(self, sizes: AttentionSizes) -> Any: ...


Mixer = (
    SoftmaxAttention
    | AdditiveAttention
    | LinearAttention
    | Linformer
    | ChunkedAttention
    | LshAttention
    | BuildsAttention
)


# ------------------------------------------------------------------ global tokens


@dataclass(frozen=True)
class FirstTokens(Part):
    """The first tokens of a row: [CLS], where there is one."""

    count: Size = 1


@dataclass(frozen=True)
class QuestionTokens(Part):
    """The tokens of a question, which a separator divides from its context."""

    separator: Count  # id of the token; the first one in a row counts
    answers: bool = False  # instead those behind it and a second separator


# Which tokens are global (Longformer) where a call does not choose them.
GlobalTokens = FirstTokens | QuestionTokens


# ------------------------------------------------------------------ the layer


@dataclass(frozen=True)
class Attention(Part):
    """Multi-head attention (Section 3.2.2), multi-query or grouped-query with fewer `groups`."""

    heads: HeadSize  # h in Section 3.2.2
    d_k: HeadSize  # width of a head's queries and keys
    d_v: HeadSize  # width of a head's values
    groups: Size | None = None  # key and value heads: 1 is multi-query attention; None: `heads`
    bias: str = "qkvo"  # the projections that have a bias
    # Of the scores. None: d_k^-½, and (d_k · terms)^-½ where positions add terms to q·k.
    scale: Positive | None = None
    mixer: Mixer = field(default_factory=SoftmaxAttention)
    # `shared`: keys are the queries at length 1, and scale is 1 unless it is set (Reformer).
    # `global`: tokens that the caller chooses attend to everything, by a second set of projections
    # (Longformer, Section 3.1).
    # `tied_qkv`: one matrix for queries, keys and values; `tied_qk`, `tied_kv`: one for two.
    projection: Literal["apart", "shared", "global", "tied_qkv", "tied_qk", "tied_kv"] = "apart"
    # With `global`: which tokens they are where a call chooses none; None: there are none then.
    global_tokens: GlobalTokens | None = None
    qk_norm: Norm | None = None  # of each head's queries and keys, before positions turn them
    memory: Size | None = None  # width of what cross-attention reads; None: d_model

    def validate(self) -> None:
        if not set(self.bias) <= set("qkvo"):
            raise ModelError(
                f"bias={self.bias!r} does not name projections",
                "use letters of 'qkvo', or '' for none",
            )
        shared = self.projection == "shared"
        if isinstance(self.mixer, LshAttention) and not shared:
            raise ModelError(
                "LSH attention needs shared queries and keys", "set projection='shared'"
            )
        unscaled = (AdditiveAttention(self.mixer.dropout), LinearAttention(EluFeatures()))
        if self.scale is not None and self.mixer in unscaled:
            raise ModelError(
                f"{type(self.mixer).__name__} has no scale here",
                "remove `scale`, or use FavorFeatures for linear attention",
            )
        _check_tied(self)
        _check_groups(self)
        if self.qk_norm is not None and self.projection != "apart":
            raise ModelError(
                "`qk_norm` needs queries and keys with projections of their own",
                "set projection='apart'",
            )
        if self.global_tokens is not None and self.projection != "global":
            raise ModelError(
                "`global_tokens` needs the projections of global attention",
                "set projection='global'",
            )
        if self.projection == "global" and not isinstance(self.mixer, SoftmaxAttention):
            raise ModelError(
                "projection='global' needs softmax attention", "set mixer=SoftmaxAttention()"
            )

    @property
    def key_heads(self) -> int:
        return self.groups or self.heads

    @property
    def kv_cache_size(self) -> int:
        """How many numbers the KV cache holds for each token.

        0 where there is none: linear attention has sums of a fixed size, and chunks are computed
        anew in each step.
        """
        if isinstance(self.mixer, LinearAttention | ChunkedAttention | LshAttention):
            return 0
        # One key and one value for each key head; grouped queries share them.
        return self.key_heads * (self.d_k + self.d_v)


def _check_tied(part: Attention) -> None:
    """Tied projections: outputs of one matrix have equal widths and numbers of heads."""
    if not part.projection.startswith("tied"):
        return
    tied = part.projection.removeprefix("tied_")
    if "v" in tied and part.d_k != part.d_v:
        raise ModelError(
            (f"tied keys and values have one width, but d_k is {part.d_k} and d_v is {part.d_v}"),
            "set d_v = d_k",
        )
    if "q" in tied and part.key_heads != part.heads:
        raise ModelError(
            ("tied queries and keys have the same number of heads, so `groups` cannot be set"),
            "remove `groups`",
        )


def _check_groups(attention: Attention) -> None:
    """Grouped-query attention: each key-value head serves equally many query heads."""
    if attention.heads % attention.key_heads:
        raise ModelError(
            f"{attention.heads} heads are not divisible by groups={attention.key_heads}",
            "choose `groups` so that it divides the number of heads",
        )
    one_number = attention.projection == "shared" or isinstance(attention.mixer, ChunkedAttention)
    if one_number and attention.key_heads != attention.heads:
        raise ModelError(
            "shared queries and keys, and chunked attention, do not support grouped heads",
            "remove `groups`",
        )
