"""Blocks, and stacks of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from regard.errors import ModelError
from regard.spec.attention import (
    Attention,
    BuildsAttention,
    ChunkedAttention,
    LinearAttention,
    Linformer,
    LshAttention,
    SoftmaxAttention,
)
from regard.spec.feedforward import Activation, MixtureOfExperts, PositionWise
from regard.spec.mask import CausalMask, FullMask, MaskPattern, is_causal
from regard.spec.position import (
    Alibi,
    BuildsPosition,
    Disentangled,
    RelativeKeys,
    RelativeSinusoids,
    Rope,
    StackPosition,
    T5Bias,
)
from regard.spec.residual import LayerNorm, Norm, Parallel, PostNorm, Residual, Reversible
from regard.spec.validation import sizes


@dataclass(frozen=True)
class Block:
    """Self-attention, then cross-attention if there is a memory, then the feed-forward, each inside
    a residual."""

    attention: Attention
    feedforward: PositionWise
    cross: Attention | None = None
    residual: Residual = field(default_factory=PostNorm)
    norm: Norm = field(default_factory=LayerNorm)
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.cross is not None and self.cross.projection != "apart":
            raise ModelError(
                "queries of one sequence are no keys of another",
                "let cross-attention project them apart",
            )
        if self.cross is not None and isinstance(self.residual, Parallel):
            raise ModelError(
                "a parallel block has no place for cross-attention", "use PreNorm or PostNorm"
            )


@dataclass(frozen=True)
class ConvLayer:
    """norm(block(x) + activation(convolution(x))), each position with its `width` neighbours
    (DeBERTa v2)."""

    width: int
    groups: int = 1
    activation: Activation = "tanh"
    norm: Norm = field(default_factory=LayerNorm)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % 2 == 0:
            raise ModelError(
                f"a convolution of width {self.width} has no middle", "give an odd width"
            )


@dataclass(frozen=True)
class Universal:
    """What a shared layer is told at each of its steps (Dehghani et al. 2019): with `timing`,
    sinusoids of the step and of the place. With `halts`, each place stops when its probability to
    do so reaches 1 − `least`, and what comes out is the mean of its steps; `cost` is the price of a
    step in the loss."""

    timing: bool = True
    halts: bool = True
    least: float = 0.01
    cost: float = 0.01


@dataclass(frozen=True)
class CompressiveMemory:
    """What leaves a memory is not forgotten at once: `factor` places are made to one, by the mean
    or the largest of each number or by a learned convolution, and the last `places` of these are
    remembered (Rae et al. 2020)."""

    places: int
    factor: int
    function: Literal["convolution", "mean", "max"] = "convolution"

    def __post_init__(self) -> None:
        sizes(self, "factor")
        sizes(self, "places", least=0)


@dataclass(frozen=True)
class Stack:
    """`final`: a norm after the last block, and `dropout` after that; `shared`: one block applied
    `layers` times; `beside`: what is added to the first block; `memory`: how many places before a
    segment of a text its layers remember, when the caller carries them on (Dai et al. 2019,
    Transformer-XL); `turns`: blocks that take turns with the first one;
    `compressed`: what becomes of places that leave the memory. `heads` and `cross_heads` say how
    many heads are left in each block where these are fewer than the block's, because some were
    pruned."""

    layers: int
    block: Block
    pattern: MaskPattern = field(default_factory=FullMask)
    position: StackPosition | None = None
    final: Norm | None = None
    shared: bool = False
    dropout: float = 0.0
    beside: ConvLayer | None = None
    memory: int | None = None
    universal: Universal | None = None
    turns: tuple[Block, ...] = ()
    compressed: CompressiveMemory | None = None
    heads: tuple[int, ...] | None = None
    cross_heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        sizes(self, "memory")
        _uneven(self)
        if self.turns:
            _different(self)
        if self.compressed is not None and (self.memory is None or self.pattern != CausalMask()):
            raise ModelError(
                "what is compressed has left a memory, and is seen wherever it was",
                "give a `memory`, and pattern=Causal()",
            )
        if isinstance(self.block.residual, Reversible):
            _reversible(self)
        if self.universal is not None and not self.shared:
            raise ModelError("steps are told to one layer that makes them all", "say shared=True")
        if self.memory is not None and (
            isinstance(self.position, Rope)
            or not isinstance(self.block.attention.mixer, SoftmaxAttention)
        ):
            raise ModelError(
                "a memory holds places whose numbers change from segment to segment, and needs "
                "softmax attention",
                "use a position that knows distances: RelativeSinusoids, RelativeKeys, T5Bias "
                "or Alibi",
            )
        if self.beside is not None and self.pattern != FullMask():
            raise ModelError(
                "a convolution sees what follows", "use it in a stack that may see everything"
            )
        for block in (self.block, *self.turns):
            _mixable(self, block.attention)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """That of each layer, with the heads that are left."""
        each = (self.block, *self.turns)
        return tuple(
            self._with_left(each[i % len(each)], 0 if self.shared else i)
            for i in range(self.layers)
        )

    @property
    def own(self) -> tuple[Block, ...]:
        """Those that have weights of their own: one for all layers, if shared."""
        return self.blocks[: 1 if self.shared else None]

    def _with_left(self, block: Block, number: int) -> Block:
        if self.heads is not None:
            block = dataclasses.replace(block, attention=fewer(block.attention, self.heads[number]))
        if self.cross_heads is not None and block.cross is not None:
            block = dataclasses.replace(block, cross=fewer(block.cross, self.cross_heads[number]))
        return block

    @property
    def rings(self) -> bool:
        """Whether layers see chunks on a ring, which are others for the same text when it grows or
        is padded."""
        mixers = [block.attention.mixer for block in self.blocks]
        return any(
            isinstance(mixer, ChunkedAttention | LshAttention) and mixer.ring is not None
            for mixer in mixers
        )

    def width(self, d_model: int) -> int:
        """Of what comes out at each place."""
        residual = self.block.residual
        return (
            2 * d_model
            if isinstance(residual, Reversible) and residual.gives == "both"
            else d_model
        )


def _different(stack: Stack) -> None:
    """What all layers share must fit all of them."""
    blocks = (stack.block, *stack.turns)
    lengths = any(
        isinstance(b.attention.mixer, Linformer) and b.attention.mixer.share == "layers"
        for b in blocks
    )
    if stack.shared or stack.position is not None or stack.memory is not None or lengths:
        raise ModelError(
            "layers that differ share no parts, no positions and no memory", "leave `turns` out"
        )
    if any(
        (b.residual, b.cross is None) != (stack.block.residual, stack.block.cross is None)
        for b in blocks
    ):
        raise ModelError(
            "layers that take turns hand on different things",
            "give all of them one residual scheme",
        )


def _uneven(stack: Stack) -> None:
    blocks = 1 if stack.shared else stack.layers
    for given, cross in ((stack.heads, False), (stack.cross_heads, True)):
        part = stack.block.cross if cross else stack.block.attention
        if given is None:
            continue
        if part is None or len(given) != blocks or min(given) < 1 or max(given) > part.heads:
            problem = f"{given} are no numbers of heads for {blocks} blocks"
            raise ModelError(problem, f"give each block 1 to {part.heads if part else 0}")
        if not prunable(stack, cross):
            raise ModelError(
                "layers of this stack cannot have heads of their own number: a part tells all of "
                "them apart",
                "prune attention without T5Bias, Alibi, groups of heads, Linformer or hashing",
            )


def _reversible(stack: Stack) -> None:
    """Nothing may come from outside of the sublayers that gradients would have to reach, or that is
    of another width."""
    experts = any(isinstance(block.feedforward, MixtureOfExperts) for block in stack.blocks)
    if isinstance(stack.position, T5Bias | Disentangled | BuildsPosition) or experts:
        raise ModelError(
            "a reversible stack makes its sublayers again, and with them no shared tables and no "
            "losses beside",
            "use another position or feed-forward, or PreNorm",
        )
    if stack.beside is not None or stack.universal is not None:
        raise ModelError("both streams of a reversible stack are plain layers", "use PreNorm")


def _mixable(stack: Stack, attention: Attention) -> None:
    """Mixers other than softmax know few patterns, and no scores that positions could add to."""
    mixer = attention.mixer
    if attention.projection == "global" and (
        is_causal(stack.pattern) or stack.position is not None
    ):
        raise ModelError(
            "global tokens see what follows, and know no positions",
            "use an encoder with input positions",
        )
    if isinstance(mixer, SoftmaxAttention):
        return
    if isinstance(mixer, BuildsAttention):
        _own_kernel(stack, mixer)
        return
    name = type(mixer).__name__
    if isinstance(mixer, Linformer) and is_causal(stack.pattern):
        raise ModelError(
            "Linformer mixes all places before a query looks, so nothing can be hidden from it: "
            "it has no causal form",
            "use it in encoders, and softmax, window, linear or performer attention in decoders",
        )
    if stack.pattern not in (FullMask(), CausalMask()):
        raise ModelError(
            f"{name} attention knows no pattern but Everything and Causal()",
            "use the softmax mixer, which computes a sparse pattern at its own cost",
        )
    if stack.position is not None and not (
        isinstance(stack.position, Rope) and isinstance(mixer, LinearAttention)
    ):
        raise ModelError(
            f"{name} attention has no scores to which {type(stack.position).__name__} could add",
            "add positions at the input",
        )


def _own_kernel(stack: Stack, mixer: BuildsAttention) -> None:
    """A kernel from outside the package is given the mask of any pattern, rotated queries and keys,
    and a score bias; but nobody knows how it would scale scores that each layer computes."""
    if isinstance(stack.position, RelativeKeys | RelativeSinusoids | Disentangled):
        raise ModelError(
            f"{type(stack.position).__name__} computes scores for softmax attention only, "
            f"not for {type(mixer).__name__}",
            "use Rope, T5Bias, Alibi, or positions at the input",
        )


def fewer(part: Attention, heads: int) -> Attention:
    """The same with so many of its heads: each has keys of its own, or all have the same."""
    return dataclasses.replace(
        part, heads=heads, groups=None if part.key_heads == part.heads else part.groups
    )


def prunable(stack: Stack, cross: bool = False) -> bool:
    """Whether heads can be taken out of some of its layers: not if a table of all layers tells
    heads apart, or if several heads, but not all, share their keys, or if the mixer has weights or
    draws for each head."""
    part = stack.block.cross if cross else stack.block.attention
    if (
        part is None
        or stack.turns
        or (not cross and isinstance(stack.position, T5Bias | Alibi | BuildsPosition))
    ):
        return False
    alike = part.key_heads in (1, part.heads)
    return (
        alike
        and isinstance(part.mixer, SoftmaxAttention | LinearAttention)
        and part.projection != "shared"
    )


def with_heads(stack: Stack, heads: tuple[int, ...], cross_heads: tuple[int, ...] = ()) -> Stack:
    """The same with so many heads in each block; where all blocks have as many, that is the block's
    own number."""
    attention, own = _left(stack.block.attention, heads)
    block, other = dataclasses.replace(stack.block, attention=attention), None
    if block.cross is not None:
        cross, other = _left(block.cross, cross_heads)
        block = dataclasses.replace(block, cross=cross)
    return dataclasses.replace(stack, block=block, heads=own, cross_heads=other)


def _left(part: Attention, heads: tuple[int, ...]) -> tuple[Attention, tuple[int, ...] | None]:
    if len(set(heads)) > 1:
        return part, heads
    return part if heads[0] == part.heads else fewer(part, heads[0]), None
