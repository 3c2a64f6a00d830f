"""What a model is made of, as plain frozen data.

A choice is a type that carries its own options; a union lists what may stand in a place. `build.build` turns a spec into
modules, `size.parameters` counts it without building it, `to_dict`/`from_dict` write it as JSON with a closed schema.
Nothing here imports torch or knows a family's name.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from regard.errors import ModelError, did_you_mean

# ------------------------------------------------------------------ positions that are added at the input


@dataclass(frozen=True)
class Sinusoidal:
    """Section 3.5: sines and cosines of geometric wavelengths.

    `halves` puts all sines before all cosines (the authors' code, and Marian); `interleaved` alternates them (the paper's
    formula). The two differ by a renaming of dimensions only.
    """

    order: Literal["halves", "interleaved"] = "halves"
    base: float = 10_000.0


@dataclass(frozen=True)
class Learned:
    """One trained vector for each position up to `length` (Table 3, row E). Some tables begin with `offset` rows that no
    position uses."""

    length: int = 512
    offset: int = 0


@dataclass(frozen=True)
class Fixed:
    """One vector for each position up to `length`, which training leaves alone. They begin as sinusoids, but are kept as they
    were stored: Whisper's were rounded to half precision before they were trained with."""

    length: int


@dataclass(frozen=True)
class Concatenated:
    """Sinusoids of `width` dimensions set beside those of the token, and all together mapped to d_model."""

    width: int
    order: Literal["halves", "interleaved"] = "halves"
    base: float = 10_000.0

    def __post_init__(self) -> None:
        _sizes(self, "width")


@dataclass(frozen=True)
class Axial:
    """Trained vectors for the rows and for the columns of a grid of `shape`, over which the positions run; that of a position
    are those of its axes set beside each other, of so many `widths` (Kitaev et al. 2020). At `most` so many are used."""

    shape: tuple[int, ...]
    widths: tuple[int, ...]
    most: int

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.widths) or min((*self.shape, *self.widths, self.most), default=0) < 1:
            raise ModelError(
                f"axes of {self.shape} positions cannot have vectors of {self.widths}", "give each axis one width"
            )

    @property
    def length(self) -> int:
        return min(self.most, math.prod(self.shape))


InputPosition = Sinusoidal | Learned | Fixed | Concatenated | Axial

# ------------------------------------------------------------------ positions inside the attention of a stack


@dataclass(frozen=True)
class Rope:
    """Rotates pairs of dimensions of q and k by angles that grow with the position (Su et al. 2021).

    `share` of each head's dimensions is rotated; a pair is dimension i and i + half (`halves`) or neighbours (`neighbours`).
    """

    base: float = 10_000.0
    share: float = 1.0
    pairs: Literal["halves", "neighbours"] = "halves"
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class Stretched:
    """Positions divided by `factor` (Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True)
class Banded:
    """LLaMA 3: long wavelengths stretched by `factor`, short ones left, those between blended."""

    factor: float
    low: float
    high: float
    length: int


RopeScaling = Stretched | Banded


@dataclass(frozen=True)
class Buckets:
    """T5: a trained bias for each head and bucket of distance, exact when near and logarithmic when far."""

    count: int = 32
    distance: int = 128


@dataclass(frozen=True)
class Alibi:
    """A fixed penalty on the score that grows with distance, another slope for each head (Press et al. 2022)."""


@dataclass(frozen=True)
class Disentangled:
    """DeBERTa (He et al. 2021): a trained vector for each distance, which every layer projects as it does its input. Content
    looks at positions (`c2p`), positions at content (`p2c`), or both; each term counts in the scale of the scores.

    Distances go up to `distance` on each side. `buckets` on each side share the vectors: half of them are exact distances,
    the other half logarithmic. `dropout` acts on the vectors, in each layer anew.
    """

    distance: int
    buckets: int | None = None
    terms: Literal["both", "c2p", "p2c"] = "both"
    norm: Norm | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class Repeated:
    """In sequences of more than `length` positions, the first block of `size` counts as if it were there `times` more, for
    all but the first and the last block. That is how transformers evaluates BigBird: whose random blocks are then all the
    first one."""

    size: int
    times: int
    length: int


@dataclass(frozen=True)
class RelativeKeys:
    """Shaw et al. 2018: each layer has a trained vector for each distance up to `distance` on each side, which is added to
    the keys at that distance. (To the values nothing is added, which their Table 3 finds no worse.)"""

    distance: int

    def __post_init__(self) -> None:
        _sizes(self, "distance")


@dataclass(frozen=True)
class RelativeSinusoids:
    """Transformer-XL (Dai et al. 2019): each layer looks by content and by sinusoids of distances that it projects, with a
    trained query of each head for either."""


StackPosition = Rope | Buckets | Alibi | Disentangled | Repeated | RelativeKeys | RelativeSinusoids

# ------------------------------------------------------------------ parts of a block


@dataclass(frozen=True)
class LayerNorm:
    eps: float = 1e-5
    bias: bool = True


@dataclass(frozen=True)
class RmsNorm:
    """x / rms(x) · (offset + weight) (Zhang and Sennrich 2019); Gemma's weights are stored with an offset of 1."""

    eps: float = 1e-6
    offset: float = 0.0


Norm = LayerNorm | RmsNorm
Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]


@dataclass(frozen=True)
class Plain:
    """Section 3.3: two linear maps with an activation between; `dropout` acts on the inner activations."""

    d_ff: int
    activation: Activation = "relu"
    dropout: float = 0.0
    bias: bool = True


@dataclass(frozen=True)
class Gated:
    """activation(x W) ⊙ (x V), mapped back (Shazeer 2020): SwiGLU, GeGLU."""

    d_ff: int
    activation: Activation = "silu"
    dropout: float = 0.0
    bias: bool = False


@dataclass(frozen=True)
class Experts:
    """`count` networks like `inner`, of which a router asks `top` for each place (Shazeer et al. 2017, Fedus et al. 2022).

    In training each takes up to `capacity` times its even share of a batch, and the rest is dropped; `balance` is the weight
    of the loss that keeps shares even.
    """

    count: int
    inner: Plain | Gated
    top: int = 2
    capacity: float = 1.25
    balance: float = 0.01

    def __post_init__(self) -> None:
        _sizes(self, "count", "top")
        if self.top > self.count:
            raise ModelError(f"{self.top} of {self.count} experts cannot be asked", "lower `top`, or raise `count`")
        if self.capacity <= 0:
            raise ModelError("experts without capacity answer nothing", "give a `capacity` of about 1.25")

    @property
    def d_ff(self) -> int:
        return self.inner.d_ff

    @property
    def activation(self) -> Activation:
        return self.inner.activation

    @property
    def dropout(self) -> float:
        return self.inner.dropout

    @property
    def bias(self) -> bool:
        return self.inner.bias


FeedForward = Plain | Gated | Experts


@dataclass(frozen=True)
class Softmax:
    """Exact attention; `dropout` acts on the attention weights. With `top`, only that many best scores of each query count."""

    dropout: float = 0.0
    top: int | None = None

    def __post_init__(self) -> None:
        _sizes(self, "top")


@dataclass(frozen=True)
class Elu:
    """Features elu(x) + 1 (Katharopoulos et al. 2020); nothing is scaled."""


@dataclass(frozen=True)
class Favor:
    """Positive features of random directions, whose products are the exponentials of softmax attention on average
    (Choromanski et al. 2021, Performer).

    `count` directions, d_k · ln d_k unless said, orthogonal in groups of d_k, drawn from `seed`, the same in all layers;
    training draws them anew every `redraw` steps (0: never).
    """

    count: int | None = None
    seed: int = 0
    redraw: int = 1000

    def __post_init__(self) -> None:
        _sizes(self, "count")


@dataclass(frozen=True)
class Linear:
    """Linear attention: the features of queries and keys are multiplied, so that keys are summed up once for all queries."""

    features: Elu | Favor = field(default_factory=Elu)

    @property
    def dropout(self) -> float:
        """Weights that are never made cannot be dropped."""
        return 0.0


@dataclass(frozen=True)
class Linformer:
    """Keys and values of up to `length` places are projected to `rank` of them (Wang et al. 2020).

    Projections are one for keys and one for values of each head (`none` shared), one each for all `heads`, one for both
    (`both`), or one for all `layers` of the stack.
    """

    length: int
    rank: int
    share: Literal["none", "heads", "both", "layers"] = "heads"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _sizes(self, "length", "rank")


@dataclass(frozen=True)
class Ring:
    """Chunks whose last one stands before the first, and where one that is met twice counts twice. Sequences of more than
    `beyond` places are filled up to a multiple of `places`, which may be those of chunks of several kinds."""

    places: int
    beyond: int

    def __post_init__(self) -> None:
        _sizes(self, "places", "beyond")


@dataclass(frozen=True)
class Chunks:
    """Softmax attention in chunks of `chunk` places that see some chunks `before` and `after` them too, on a ring; inputs of
    one chunk see all. (Chunks in a line are a pattern, `BlockLocal`.)"""

    chunk: int
    ring: Ring
    before: int = 1
    after: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _chunked(self)


@dataclass(frozen=True)
class Twice:
    """Twice as many buckets as there are chunks, rounded down to a power of two; more than `limit` are told by two hashes."""

    limit: int


@dataclass(frozen=True)
class Lsh:
    """Places that hash to one of `buckets` look at each other, in chunks of `chunk` places that see some chunks `before` and
    `after` them too; `rounds` of other hashes, drawn from `seed`, are weighed (Kitaev et al. 2020, Reformer). Many buckets
    are cheaper as a product: (8, 16) are 128, told by two hashes.

    Chunks stand in a line, or as in the paper on a `ring`, those of all rounds together."""

    buckets: int | tuple[int, ...] | Twice
    chunk: int = 64
    rounds: int = 1
    before: int = 1
    after: int = 0
    seed: int = 0
    dropout: float = 0.0
    ring: Ring | None = None

    def __post_init__(self) -> None:
        _sizes(self, "rounds")
        _chunked(self)
        factors = self.factors
        if factors is not None and (not factors or any(factor < 2 or factor % 2 for factor in factors)):
            raise ModelError(f"{self.buckets} buckets cannot come in opposite pairs", "give even numbers")

    @property
    def factors(self) -> tuple[int, ...] | None:
        """None where the length decides."""
        if isinstance(self.buckets, Twice):
            return None
        return (self.buckets,) if isinstance(self.buckets, int) else self.buckets


def _chunked(part: Chunks | Lsh) -> None:
    _sizes(part, "chunk")
    if min(part.before, part.after) < 0:
        raise ModelError("a chunk cannot see fewer chunks than itself", "give `before` and `after` of at least 0")
    if part.ring is not None and (part.ring.places % part.chunk or part.ring.beyond > part.chunk):
        raise ModelError(
            f"a ring of {part.ring.places} places beyond {part.ring.beyond} has no whole chunks of {part.chunk}",
            "give a multiple of `chunk`, beyond `chunk` at most",
        )


Mixer = Softmax | Linear | Linformer | Chunks | Lsh


@dataclass(frozen=True)
class Attention:
    """Section 3.2.2: `heads` queries of width d_k look at `groups` keys (as many as heads unless said) and d_v values.

    `bias` names the projections that have one, of q, k, v and o; `scale` is d_k^-½ unless said, or (d_k · terms)^-½ where
    positions add terms to q·k. With `shared` projections, keys are the queries at length 1, and the scale is 1 unless said;
    with `global` ones, tokens that the caller names look at everything, by projections of their own (Longformer).
    """

    heads: int
    d_k: int
    d_v: int
    groups: int | None = None
    bias: str = "qkvo"
    scale: float | None = None
    mixer: Mixer = field(default_factory=Softmax)
    projection: Literal["apart", "shared", "global"] = "apart"

    def __post_init__(self) -> None:
        shared = self.projection == "shared"
        if isinstance(self.mixer, Lsh) and not shared:
            raise ModelError("hashing needs queries and keys that are the same", "say projection='shared'")
        if isinstance(self.mixer, Linear) and self.mixer.features == Elu() and self.scale is not None:
            raise ModelError("features of elu have no scale", "leave `scale` out, or use Favor")
        if self.projection == "global" and not isinstance(self.mixer, Softmax):
            raise ModelError("only softmax attention has global tokens", "use the softmax mixer")
        if (shared or isinstance(self.mixer, Chunks)) and self.key_heads != self.heads:
            raise ModelError("shared queries and keys, and chunks, have one number of heads", "leave `groups` out")

    @property
    def key_heads(self) -> int:
        return self.groups or self.heads


@dataclass(frozen=True)
class PostNorm:
    """The paper: norm(x + sublayer(x))."""


@dataclass(frozen=True)
class PreNorm:
    """x + sublayer(norm(x)); such a stack usually ends with a norm of its own."""


@dataclass(frozen=True)
class Parallel:
    """x + attention(norm(x)) + feedforward(norm(x)), with one norm for both or one each (GPT-J, PaLM, GPT-NeoX)."""

    norms: Literal[1, 2] = 2


@dataclass(frozen=True)
class Reversible:
    """Two streams take turns: (a, b) → (b, a + sublayer(norm(b))); training makes activations again from the end (Kitaev et
    al. 2020, Reformer). The stack begins with both streams alike and gives their mean, or both side by side."""

    gives: Literal["mean", "both"] = "mean"


Residual = PostNorm | PreNorm | Parallel | Reversible

# ------------------------------------------------------------------ who may look at whom, inside a stack


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
        _sizes(self, "size")


@dataclass(frozen=True)
class Dilated:
    """A window with gaps: itself and `size` neighbours on each side, of which each is `step` farther than the last."""

    size: int
    step: int

    def __post_init__(self) -> None:
        _sizes(self, "size", "step")


@dataclass(frozen=True)
class Strided:
    """The Sparse Transformer (Child et al. 2019): neighbours nearer than `stride`, and all at multiples of it."""

    stride: int

    def __post_init__(self) -> None:
        _sizes(self, "stride")


@dataclass(frozen=True)
class BlockLocal:
    """The sequence is cut into blocks of `size`; `neighbours` on each side are seen too."""

    size: int
    neighbours: int = 0

    def __post_init__(self) -> None:
        _sizes(self, "size")


@dataclass(frozen=True)
class Global:
    """The `first` and the `last` positions, or blocks of `size` positions, look at all others and are seen by all."""

    first: int = 1
    last: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        _sizes(self, "size")


@dataclass(frozen=True)
class RandomBlocks:
    """Each block of `size` positions looks at `count` blocks that are drawn once, from `seed`: from all blocks of the
    sequence, or from those `before` it, as decoders need."""

    size: int
    count: int = 1
    seed: int = 0
    of: Literal["all", "before"] = "all"

    def __post_init__(self) -> None:
        _sizes(self, "size", "count")


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


def _sizes(part: Any, *names: str) -> None:
    for name in names:
        value = getattr(part, name)
        if value is not None and value < 1:
            raise ModelError(f"{type(part).__name__}.{name} cannot be {value}", "give at least 1")


# ------------------------------------------------------------------ assemblies


@dataclass(frozen=True)
class Block:
    """Self-attention, then cross-attention if there is a memory, then the feed-forward, each inside a residual."""

    attention: Attention
    feedforward: FeedForward
    cross: Attention | None = None
    residual: Residual = field(default_factory=PostNorm)
    norm: Norm = field(default_factory=LayerNorm)
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.cross is not None and self.cross.projection != "apart":
            raise ModelError("queries of one sequence are no keys of another", "let cross-attention project them apart")
        if self.cross is not None and isinstance(self.residual, Parallel):
            raise ModelError("a parallel block has no place for cross-attention", "use PreNorm or PostNorm")


@dataclass(frozen=True)
class Neighbours:
    """norm(block(x) + activation(convolution(x))), each position with its `width` neighbours (DeBERTa v2)."""

    width: int
    groups: int = 1
    activation: Activation = "tanh"
    norm: Norm = field(default_factory=LayerNorm)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % 2 == 0:
            raise ModelError(f"a convolution of width {self.width} has no middle", "give an odd width")


@dataclass(frozen=True)
class Universal:
    """What a shared layer is told at each of its steps (Dehghani et al. 2019): with `timing`, sinusoids of the step and of
    the place. With `halts`, each place stops when its probability to do so reaches 1 − `least`, and what comes out is the
    mean of its steps; `cost` is the price of a step in the loss."""

    timing: bool = True
    halts: bool = True
    least: float = 0.01
    cost: float = 0.01


@dataclass(frozen=True)
class Stack:
    """`final`: a norm after the last block, and `dropout` after that; `shared`: one block applied `layers` times; `beside`:
    what is added to the first block; `memory`: how many places before a segment of a text its layers remember, when the
    caller carries them on (Dai et al. 2019, Transformer-XL); `turns`: blocks that take turns with the first one."""

    layers: int
    block: Block
    pattern: Pattern = field(default_factory=Everything)
    position: StackPosition | None = None
    final: Norm | None = None
    shared: bool = False
    dropout: float = 0.0
    beside: Neighbours | None = None
    memory: int | None = None
    universal: Universal | None = None
    turns: tuple[Block, ...] = ()

    def __post_init__(self) -> None:
        _sizes(self, "memory")
        if self.turns:
            _different(self)
        if isinstance(self.block.residual, Reversible):
            _reversible(self)
        if self.universal is not None and not self.shared:
            raise ModelError("steps are told to one layer that makes them all", "say shared=True")
        if self.memory is not None and (
            isinstance(self.position, Rope) or not isinstance(self.block.attention.mixer, Softmax)
        ):
            raise ModelError(
                "a memory holds places whose numbers change from segment to segment, and needs softmax attention",
                "use a position that knows distances: RelativeSinusoids, RelativeKeys, Buckets or Alibi",
            )
        if self.beside is not None and self.pattern != Everything():
            raise ModelError("a convolution sees what follows", "use it in a stack that may see everything")
        for block in (self.block, *self.turns):
            _mixable(self, block.attention)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """That of each layer."""
        each = (self.block, *self.turns)
        return tuple(each[i % len(each)] for i in range(self.layers))

    @property
    def rings(self) -> bool:
        """Whether layers see chunks on a ring, which are others for the same text when it grows or is padded."""
        mixers = [block.attention.mixer for block in self.blocks]
        return any(isinstance(mixer, Chunks | Lsh) and mixer.ring is not None for mixer in mixers)

    def width(self, d_model: int) -> int:
        """Of what comes out at each place."""
        residual = self.block.residual
        return 2 * d_model if isinstance(residual, Reversible) and residual.gives == "both" else d_model


def _different(stack: Stack) -> None:
    """What all layers share must fit all of them."""
    blocks = (stack.block, *stack.turns)
    lengths = any(isinstance(b.attention.mixer, Linformer) and b.attention.mixer.share == "layers" for b in blocks)
    if stack.shared or stack.position is not None or stack.memory is not None or lengths:
        raise ModelError("layers that differ share no parts, no positions and no memory", "leave `turns` out")
    if any((b.residual, b.cross is None) != (stack.block.residual, stack.block.cross is None) for b in blocks):
        raise ModelError("layers that take turns hand on different things", "give all of them one residual scheme")


def _reversible(stack: Stack) -> None:
    """Nothing may come from outside of the sublayers that gradients would have to reach, or that is of another width."""
    experts = any(isinstance(block.feedforward, Experts) for block in stack.blocks)
    if isinstance(stack.position, Buckets | Disentangled) or experts:
        raise ModelError(
            "a reversible stack makes its sublayers again, and with them no shared tables and no losses beside",
            "use another position or feed-forward, or PreNorm",
        )
    if stack.beside is not None or stack.universal is not None:
        raise ModelError("both streams of a reversible stack are plain layers", "use PreNorm")


def _mixable(stack: Stack, attention: Attention) -> None:
    """Mixers other than softmax know few patterns, and no scores that positions could add to."""
    mixer = attention.mixer
    if attention.projection == "global" and (causal(stack.pattern) or stack.position is not None):
        raise ModelError("global tokens see what follows, and know no positions", "use an encoder with input positions")
    if isinstance(mixer, Softmax):
        return
    name = type(mixer).__name__
    if isinstance(mixer, Linformer) and causal(stack.pattern):
        raise ModelError(
            "Linformer mixes all places before a query looks, so nothing can be hidden from it: it has no causal form",
            "use it in encoders, and softmax, window, linear or performer attention in decoders",
        )
    if stack.pattern not in (Everything(), Causal()):
        raise ModelError(
            f"{name} attention knows no pattern but Everything and Causal()",
            "use the softmax mixer, which computes a sparse pattern at its own cost",
        )
    if stack.position is not None and not (isinstance(stack.position, Rope) and isinstance(mixer, Linear)):
        raise ModelError(
            f"{name} attention has no scores to which {type(stack.position).__name__} could add",
            "add positions at the input",
        )


@dataclass(frozen=True)
class Tokens:
    """Token embeddings, times √d_model if `scale`, plus positions and segments, then norm and dropout (Sections 3.4, 3.5,
    5.4). A `width` other than d_model is mapped to it at the end."""

    vocabulary: int
    position: InputPosition | None = field(default_factory=Sinusoidal)
    scale: bool = True
    dropout: float = 0.1
    segments: int = 0
    norm: Norm | None = None
    width: int | None = None


@dataclass(frozen=True)
class Frames:
    """Sound as a spectrogram of `mels` numbers a frame: two convolutions over three frames, each with its `activation`, of
    which the second keeps every other place; then positions and dropout (Whisper)."""

    mels: int
    position: InputPosition | None
    activation: Activation = "gelu"
    dropout: float = 0.0


@dataclass(frozen=True)
class Patches:
    """Square images cut into squares of `patch` pixels, each mapped to a vector; before them come `extras` trained vectors
    (a class token, a distillation token); then positions, norm and dropout (Dosovitskiy et al. 2021). Positions are learned,
    or sinusoids of rows and columns."""

    size: int
    patch: int
    channels: int = 3
    extras: int = 1
    bias: bool = True
    norm: Norm | None = None
    dropout: float = 0.0
    position: Literal["learned", "sinusoidal"] = "learned"

    def __post_init__(self) -> None:
        if self.patch > self.size:
            raise ModelError(f"no patch of {self.patch} pixels fits into {self.size}", "give a smaller `patch`")

    @property
    def positions(self) -> int:
        """All of them; pixels that fill no patch at the right and bottom edges are not seen."""
        return (self.size // self.patch) ** 2 + self.extras


@dataclass(frozen=True)
class TimeNorm:
    """Each channel over all its times; a batch is best padded little, because padding is among them."""

    eps: float = 1e-5


@dataclass(frozen=True)
class Convolution:
    """Over time, without padding: `channels` numbers from `kernel` steps, every `stride` steps; then norm."""

    channels: int
    kernel: int
    stride: int
    bias: bool = False
    norm: LayerNorm | TimeNorm | None = None

    def __post_init__(self) -> None:
        _sizes(self, "channels", "kernel", "stride")


@dataclass(frozen=True)
class Nearby:
    """To each position is added what a convolution in `groups` of channels makes of the `kernel` positions around it."""

    kernel: int = 128
    groups: int = 16


@dataclass(frozen=True)
class Waves:
    """Samples of sound through `convolutions`, a norm (`features`) and a linear map to d_model; then positions, norm and
    dropout (Baevski et al. 2020). `activation` follows every convolution. With `masked`, a trained vector can stand in for
    positions that the model is to guess."""

    convolutions: tuple[Convolution, ...]
    position: Nearby = field(default_factory=Nearby)
    activation: Activation = "gelu"
    features: Norm = field(default_factory=LayerNorm)
    project_dropout: float = 0.0
    norm: Norm | None = None
    dropout: float = 0.1
    masked: bool = True

    def __post_init__(self) -> None:
        if not self.convolutions:
            raise ModelError("sound needs at least one convolution", "give `convolutions`")


Input = Tokens | Frames | Patches | Waves


@dataclass(frozen=True)
class Transform:
    """A dense layer, activation and norm before the vocabulary, as BERT's masked-word head has it."""

    width: int
    activation: Activation = "gelu"
    norm: Norm = field(default_factory=LayerNorm)


@dataclass(frozen=True)
class LanguageHead:
    """Linear map to the vocabulary, of `scale` times the hidden states; the softmax belongs to loss and decoding. A bias that
    is only `kept` is stored, neither added nor trained."""

    bias: bool | Literal["kept"] = False
    scale: float = 1.0
    transform: Transform | None = None


@dataclass(frozen=True)
class End:
    """The first position that holds `token`; without one, that of the highest token id, which some vocabularies reserve for
    the end."""

    token: int | None = None


@dataclass(frozen=True)
class Pool:
    """One vector for a whole input: that of the first or the last real position, of the end token, or the mean; then `norm`,
    `dropout`, a dense layer with `activation`, and a linear map without bias to `width`, each if there is one."""

    which: Literal["first", "last", "mean"] | End = "first"
    activation: Activation | None = "tanh"
    dropout: float = 0.0
    norm: Norm | None = None
    width: int | None = None


Task = Literal["classify", "next", "tag", "answer", "detect", "transcribe"]


@dataclass(frozen=True)
class Labels:
    """A score for each of `count` classes, for a `task`.

    Of the pooled vector: `classify` an input, or say whether its second text comes `next` after the first. Of every
    position: `tag` it, `answer` by where a span starts and ends, `detect` that the token was replaced, `transcribe` sound
    to letters. With a `hidden` activation there is a dense layer before; `dropout` acts on what is scored.
    """

    count: int
    task: Task = "classify"
    hidden: Activation | None = None
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        expected = {"next": 2, "answer": 2, "detect": 1}.get(self.task, self.count)
        if self.count != expected:
            raise ModelError(f"the task {self.task!r} has {expected} scores, not {self.count}", f"say count={expected}")

    @property
    def each(self) -> bool:
        """Whether every position has scores of its own."""
        return self.task not in ("classify", "next")


@dataclass(frozen=True)
class Votes:
    """A score for each of `count` classes: the mean of what the first `voters` positions say, each through its own map. A
    distilled model has two: the class token learnt from labels, the distillation token from a teacher (Touvron et al.)."""

    count: int
    voters: int = 2


@dataclass(frozen=True)
class EncoderDecoder:
    """`share`: one matrix for both embeddings and the output (`all`), for target and output (`target`), for both embeddings
    (`inputs`), or none. `looks`: a decoder layer looks at the `last` layer of the encoder, or at the `matching` one, finished
    as the last is."""

    d_model: int
    source: Tokens | Frames
    target: Tokens
    encoder: Stack
    decoder: Stack
    head: LanguageHead = field(default_factory=LanguageHead)
    share: Literal["all", "target", "inputs", "none"] = "all"
    looks: Literal["last", "matching"] = "last"

    def __post_init__(self) -> None:
        if self.looks == "matching" and self.encoder.layers != self.decoder.layers:
            raise ModelError(
                f"{self.encoder.layers} and {self.decoder.layers} layers do not match", "give both sides as many layers"
            )
        _one_vocabulary(
            self.share, self.source.vocabulary if isinstance(self.source, Tokens) else 0, self.target.vocabulary
        )
        if self.decoder.block.cross is None:
            raise ModelError("the decoder of an encoder–decoder has no cross-attention", "give decoder.block a `cross`")
        if any(stack.width(self.d_model) != self.d_model for stack in (self.encoder, self.decoder)):
            raise ModelError(
                "what one side gives must be as wide as what the other takes", "let Reversible give 'mean'"
            )
        if any(isinstance(block.attention.mixer, Chunks | Lsh) for block in self.decoder.blocks):
            raise _grows()
        _decodes(self.decoder)


def _one_vocabulary(share: str, source: int, target: int) -> None:
    if share in ("all", "inputs") and source != target:
        raise ModelError(
            f"share={share!r} needs one vocabulary, not {source} and {target} tokens",
            "learn a joint tokenizer, or share='target'",
        )


# ------------------------------------------------------------------ what came before stacks of attention


@dataclass(frozen=True)
class Dot:
    """q · k (Luong et al. 2015)."""


@dataclass(frozen=True)
class ScaledDot:
    """q · k / √width (equation 1 of Vaswani et al. 2017)."""


@dataclass(frozen=True)
class General:
    """q · W k (Luong et al. 2015)."""


@dataclass(frozen=True)
class Additive:
    """v · tanh(W q + U k), with so many hidden numbers, d_model unless said (Bahdanau et al. 2015)."""

    width: int | None = None

    def __post_init__(self) -> None:
        _sizes(self, "width")


Score = Dot | ScaledDot | General | Additive


@dataclass(frozen=True)
class LooksBefore:
    """The state before a step looks at the memory, and what it finds is part of the cell's input (Bahdanau et al. 2015).

    Scores are divided by the `temperature`: towards 0, only the best place counts.
    """

    score: Score = field(default_factory=Additive)
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _warm(self.temperature)


@dataclass(frozen=True)
class LooksAfter:
    """The state after a step looks at the memory (Luong et al. 2015). With `feeding`, what the step gave is part of the next
    one's input."""

    score: Score = field(default_factory=General)
    temperature: float = 1.0
    feeding: bool = False

    def __post_init__(self) -> None:
        _warm(self.temperature)


def _warm(temperature: float) -> None:
    if temperature <= 0:
        raise ModelError(f"scores cannot be divided by {temperature}", "give a small positive temperature")


@dataclass(frozen=True)
class Recurrent:
    """Layers of cells that go through a sequence, and carry a state of d_model numbers from place to place: tanh (`rnn`),
    `gru` or `lstm`. In a `bidirectional` layer, half of the numbers go backwards.

    As a decoder it starts from what the encoder had read at its end (and, going backwards, at its beginning), and `looks` at
    the memory, if at all. `dropout` acts after each layer.
    """

    cell: Literal["rnn", "gru", "lstm"]
    layers: int = 1
    bidirectional: bool = False
    looks: LooksBefore | LooksAfter | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _sizes(self, "layers")


@dataclass(frozen=True)
class GatedUnit:
    """x ← (x + gated linear unit(convolution(x))) √½ over `kernel` places (Gehring et al. 2017, ConvS2S)."""

    kernel: int = 3

    @property
    def dilations(self) -> tuple[int, ...]:
        return (1,)


@dataclass(frozen=True)
class NarrowUnit:
    """x ← x + a convolution over `kernel` places at half the width, each map after norm and relu; the layers take one of
    `dilations` after the other, and a norm comes last (Kalchbrenner et al. 2016, ByteNet)."""

    kernel: int = 3
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Convolved:
    """Layers of convolutions. As a decoder they see no place behind them, and `see` the memory by attention in each layer, or
    at the place that is as far from the beginning (`aligned`), without any attention."""

    layers: int
    unit: GatedUnit | NarrowUnit = field(default_factory=GatedUnit)
    sees: Literal["attention", "aligned"] | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _sizes(self, "layers")
        _sizes(self.unit, "kernel")
        if not self.unit.dilations or min(self.unit.dilations) < 1:
            raise ModelError("a convolution needs distances of at least 1", "give `dilations` such as (1, 2, 4)")


@dataclass(frozen=True)
class SequenceToSequence:
    """An encoder–decoder of recurrent or convolved parts. `share` is that of `EncoderDecoder`."""

    d_model: int
    source: Tokens
    target: Tokens
    encoder: Recurrent | Convolved
    decoder: Recurrent | Convolved
    head: LanguageHead = field(default_factory=LanguageHead)
    share: Literal["all", "target", "inputs", "none"] = "all"

    def __post_init__(self) -> None:
        _one_vocabulary(self.share, self.source.vocabulary, self.target.vocabulary)
        encoder, decoder = self.encoder, self.decoder
        if isinstance(encoder, Recurrent) and encoder.looks is not None:
            raise ModelError("an encoder has no memory to look at", "leave `looks` out of it")
        if isinstance(encoder, Recurrent) and encoder.bidirectional and self.d_model % 2:
            raise ModelError(f"half of d_model {self.d_model} cannot go backwards", "give an even d_model")
        if isinstance(decoder, Recurrent) and decoder.bidirectional:
            raise ModelError("a decoder cannot read backwards what it has not written", "say bidirectional=False")
        if isinstance(encoder, Convolved) and encoder.sees is not None:
            raise ModelError("an encoder has no memory to see", "leave `sees` out of it")
        if isinstance(encoder, Convolved) and encoder.unit.kernel % 2 == 0:
            raise ModelError(f"a convolution of width {encoder.unit.kernel} has no middle", "give an odd kernel")
        if isinstance(decoder, Convolved) and decoder.sees is None:
            raise ModelError("a decoder of convolutions must see the memory", "say sees='attention' or 'aligned'")
        if isinstance(encoder, Convolved) != isinstance(decoder, Convolved):
            raise ModelError("recurrent and convolved parts hand on different memories", "use one kind on both sides")


@dataclass(frozen=True)
class Encoder:
    """Embedding, stack, and on top what the task needs: a pooled vector, scores over the vocabulary, scores of labels.

    `tied`: the head's vocabulary matrix is the embedding's.
    """

    d_model: int
    input: Input
    stack: Stack
    pool: Pool | None = None
    head: LanguageHead | None = None
    labels: Labels | Votes | None = None
    tied: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.labels, Labels) and not self.labels.each and self.pool is None:
            raise ModelError("labels for a whole input need one vector of it", "give a `pool`, or a task such as 'tag'")
        if not isinstance(self.input, Tokens) and self.head is not None:
            raise ModelError("a head over the vocabulary needs tokens as input", "give `labels` instead of a `head`")
        if isinstance(self.input, Waves) and self.d_model % self.input.position.groups:
            problem = f"d_model {self.d_model} does not divide by {self.input.position.groups} groups of channels"
            raise ModelError(problem, "correct one of them")
        if self.head is not None and self.head.transform is None:
            _tied(self)

    @property
    def scored(self) -> int:
        """The width of what its labels score."""
        wide, pooled = self.stack.width(self.d_model), isinstance(self.labels, Labels) and not self.labels.each
        return self.d_model if pooled and self.pool is not None and self.pool.activation else wide

    @property
    def tokens(self) -> Tokens:
        """The input of an encoder of text."""
        assert isinstance(self.input, Tokens)
        return self.input

    @property
    def patches(self) -> Patches:
        """The input of an encoder of images."""
        assert isinstance(self.input, Patches)
        return self.input

    @property
    def waves(self) -> Waves:
        """The input of an encoder of sound."""
        assert isinstance(self.input, Waves)
        return self.input


@dataclass(frozen=True)
class Decoder:
    """A language model: embedding, causal stack, vocabulary."""

    d_model: int
    tokens: Tokens
    stack: Stack
    head: LanguageHead = field(default_factory=LanguageHead)
    tied: bool = True

    def __post_init__(self) -> None:
        _decodes(self.stack)
        _tied(self)
        if any(isinstance(b.attention.mixer, Lsh) and b.attention.mixer.ring is None for b in self.stack.blocks):
            raise _grows()
        if self.stack.memory is not None and self.tokens.position is not None:
            raise ModelError(
                "positions that are counted at the input begin anew in each segment", "tell them inside the stack"
            )


@dataclass(frozen=True)
class RecurrentDecoder:
    """A language model of recurrent layers, whose state may be carried on from text to text."""

    d_model: int
    tokens: Tokens
    stack: Recurrent
    head: LanguageHead = field(default_factory=LanguageHead)
    tied: bool = True

    def __post_init__(self) -> None:
        if self.stack.bidirectional:
            raise ModelError("a language model cannot read backwards what follows", "say bidirectional=False")
        if self.stack.looks is not None:
            raise ModelError("a language model has no memory to look at", "leave `looks` out")


def _decodes(stack: Stack) -> None:
    """A stack that writes one token after the other sees only what was written, and always sees it the same way."""
    if not causal(stack.pattern):
        raise ModelError("a decoder must not see what follows", "combine its pattern with Causal: Both(Causal(), …)")
    if counts_from_the_end(stack.pattern):
        raise ModelError(
            "what a decoder sees must not change when the text grows",
            "use Global(last=0) and RandomBlocks(of='before')",
        )


def _grows() -> ModelError:
    return ModelError(
        "hashed chunks change when the text grows, so a decoder's past could not be kept",
        "use Lsh in an Encoder (whose pattern may be Causal), and another mixer in decoders",
    )


def _tied(model: Encoder | Decoder) -> None:
    if model.tied and model.stack.width(model.d_model) != model.d_model:
        raise ModelError("an embedding is narrower than both streams of a stack", "say tied=False")


@dataclass(frozen=True)
class Pair:
    """Two towers that map texts and images to vectors of one space, compared by their cosine times e^scale, where the
    learnt scale starts at `scale` (Radford et al. 2021)."""

    text: Encoder
    image: Encoder
    scale: float = 2.6592

    def __post_init__(self) -> None:
        if not isinstance(self.text.input, Tokens) or not isinstance(self.image.input, Patches):
            raise ModelError("a pair is one tower of texts and one of images", "give it Tokens and Patches")
        widths = [tower.pool and (tower.pool.width or tower.d_model) for tower in (self.text, self.image)]
        if widths[0] is None or widths[0] != widths[1]:
            raise ModelError("a pair needs vectors of one width from both towers", "give both a Pool with that `width`")


@dataclass(frozen=True)
class MemoryNetwork:
    """Sentences are remembered, a question asks them in so many `hops`, and a word answers (Sukhbaatar et al. 2015). Ages of
    up to `sentences` are told apart."""

    d_model: int
    vocabulary: int
    hops: int = 3
    sentences: int = 50

    def __post_init__(self) -> None:
        _sizes(self, "d_model", "vocabulary", "hops", "sentences")


Model = EncoderDecoder | SequenceToSequence | Encoder | Decoder | RecurrentDecoder | Pair | MemoryNetwork

# ------------------------------------------------------------------ as JSON

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Sinusoidal, Learned, Fixed, Concatenated, Axial, Rope, Stretched, Banded, Buckets, Alibi, Disentangled, Repeated,
        RelativeKeys, RelativeSinusoids, LayerNorm, RmsNorm, Plain, Gated, Experts, Softmax, Elu, Favor, Linear, Linformer,
        Ring, Chunks, Twice, Lsh,
        Attention, PostNorm, PreNorm, Parallel, Reversible, Everything, Causal, Window, Dilated, Strided, BlockLocal, Global,
        RandomBlocks, Beyond, Both, Either, Opposite, Block, Neighbours, Universal, Stack, Tokens, Frames, Patches, TimeNorm,
        Convolution, Nearby, Waves, Transform, LanguageHead, End, Pool, Labels, Votes, EncoderDecoder, Encoder, Decoder,
        Pair, Dot, ScaledDot, General, Additive, LooksBefore, LooksAfter, Recurrent, GatedUnit, NarrowUnit, Convolved,
        SequenceToSequence, RecurrentDecoder, MemoryNetwork,
    )
}  # fmt: skip


def to_dict(part: Any) -> Any:
    """A spec as JSON values; every part carries its type's name under `kind`."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {f.name: to_dict(getattr(part, f.name)) for f in dataclasses.fields(part)}
        return {"kind": type(part).__name__, **fields}
    return [to_dict(item) for item in part] if isinstance(part, tuple) else part


def from_dict(data: Any) -> Any:
    """The inverse of `to_dict`. An unknown kind or key, or a value of the wrong type, is an error, not a guess."""
    if isinstance(data, list):
        return tuple(from_dict(item) for item in data)
    if not isinstance(data, dict):
        return data
    name = data.get("kind")
    if not isinstance(name, str) or name not in _KINDS:
        raise ModelError(f"the model's description has an unknown kind {name!r}", did_you_mean(str(name), _KINDS))
    kind = _KINDS[name]
    known = typing.get_type_hints(kind)
    values = {}
    for key, value in data.items():
        if key == "kind":
            continue
        if key not in known:
            raise ModelError(f"{name} has no option {key!r}", did_you_mean(key, known))
        values[key] = from_dict(value)
        if not _fits(values[key], known[key]):
            raise ModelError(f"{name}.{key} cannot be {value!r}", f"expected {known[key]}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ModelError(
            f"{name} is incomplete: {error}", "compare it with a config.json written by this version"
        ) from None


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, typing.get_args(hint)[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if hint is type(None) else isinstance(value, hint)
