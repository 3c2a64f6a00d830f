"""Transformer blocks, and stacks of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from regard.spec.attention import (
    AdditiveAttention,
    Attention,
    BuildsAttention,
    ChunkedAttention,
    LinearAttention,
    Linformer,
    LshAttention,
    SoftmaxAttention,
)
from regard.spec.feedforward import (
    Activation,
    ConvFeedForward,
    FeedForward,
    GatedFeedForward,
    MixtureOfExperts,
    PositionWise,
)
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
from regard.spec.residual import (
    BatchNorm,
    LayerNorm,
    Norm,
    Parallel,
    PostNorm,
    Residual,
    Reversible,
)
from regard.spec.validation import (
    Count,
    Depth,
    GridSide,
    NonNegative,
    Part,
    Positive,
    Rate,
    Share,
    Size,
    WindowSide,
)
from regard.system.errors import ModelError

# ------------------------------------------------------------------ blocks and their extras


@dataclass(frozen=True)
class Block(Part):
    """Transformer block (Section 3.1): self-attention, cross-attention, feed-forward network."""

    attention: Attention
    feedforward: PositionWise
    cross: Attention | None = None  # to the encoder's output; None in encoders and language models
    residual: Residual = field(default_factory=PostNorm)  # around each sublayer
    norm: Norm = field(default_factory=LayerNorm)
    dropout: Rate = 0.1  # P_drop of Section 5.4, on the output of each sublayer
    # LayerScale (Touvron et al. 2021, CaiT): a learned factor for each dimension of a sublayer's
    # output. The number is what all of them start with; None: no such factors.
    layer_scale: float | None = None
    # Stochastic depth (Huang et al. 2016): P that training skips a sublayer for one example.
    drop_path: Share = 0.0

    def validate(self) -> None:
        changes_outputs = self.layer_scale is not None or self.drop_path > 0
        if changes_outputs and isinstance(self.residual, Parallel | Reversible):
            raise ModelError(
                "LayerScale and stochastic depth need PreNorm or PostNorm blocks",
                "use PreNorm or PostNorm, or remove `layer_scale` and `drop_path`",
            )
        if self.cross is not None and self.cross.projection != "apart":
            raise ModelError(
                "cross-attention cannot share or tie its projections: queries and keys come "
                "from different sequences",
                "set projection='apart' for `cross`",
            )
        if self.cross is not None and isinstance(self.residual, Parallel):
            raise ModelError(
                "a parallel block cannot have cross-attention", "use PreNorm or PostNorm"
            )


@dataclass(frozen=True)
class ConvLayer(Part):
    """Convolution layer of DeBERTa v2, next to the first block.

    It gives norm(block(x) + activation(convolution(x))).
    """

    width: Size  # kernel size in positions
    groups: Size = 1  # of channels
    activation: Activation = "tanh"
    norm: Norm = field(default_factory=LayerNorm)
    dropout: Rate = 0.0

    def validate(self) -> None:
        if self.width % 2 == 0:
            raise ModelError(
                f"the width of the convolution must be odd, not {self.width}", "set an odd `width`"
            )


@dataclass(frozen=True)
class Universal(Part):
    """Universal Transformer (Dehghani et al. 2019): a shared block, adaptive computation time."""

    timing: bool = True  # add sinusoids of the position and of the step, at each step
    halts: bool = True  # each position halts by itself; its output is a mean of its steps
    least: Rate = 0.01  # ε: a position halts when its probabilities sum up to 1 − ε
    cost: NonNegative = 0.01  # τ: weight of the ponder time in the loss


@dataclass(frozen=True)
class Stages(Part):
    """Hierarchical stages over images, with attention in shifted windows (Liu et al. 2021, Swin).

    After each stage but the last, 2 × 2 patches become one, twice as wide. Windows of every other
    layer are moved by half of their size.
    """

    side: GridSide  # patches along one side of the image, in the first stage
    window: WindowSide  # patches along one side of a window
    depths: tuple[Size, ...]  # layers of each stage
    heads: tuple[Size, ...]  # of each stage
    mlp_ratio: Positive = 4.0  # d_ff in multiples of the width of a stage

    def validate(self) -> None:
        if not self.depths or len(self.depths) != len(self.heads):
            raise ModelError(
                f"`depths` has {len(self.depths)} stages and `heads` {len(self.heads)}",
                "set one depth and one number of heads for each stage",
            )
        if min(self.sides) < self.window:
            raise ModelError(
                f"a window of {self.window} × {self.window} patches is larger than the last of "
                f"{len(self.depths)} stages, {self.sides[-1]} × {self.sides[-1]}",
                "use a smaller window, fewer stages, smaller patches or larger images",
            )

    @property
    def sides(self) -> tuple[int, ...]:
        """Patches along one side, in each stage; an odd one is rounded up."""
        sides = [self.side]
        for _ in self.depths[1:]:
            sides.append(-(-sides[-1] // 2))
        return tuple(sides)

    def shift(self, stage: int, layer: int) -> int:
        """By how many patches the windows of a stage's layer are moved: 0 where one is all."""
        if layer % 2 == 0 or self.sides[stage] <= self.window:
            return 0
        return self.window // 2


@dataclass(frozen=True)
class CompressiveMemory(Part):
    """Compressive memory (Rae et al. 2020): positions that leave the memory are compressed."""

    length: Count  # n_cm: positions of the compressed memory
    factor: Size  # c: compression rate, positions that become one
    function: Literal["convolution", "mean", "max"] = "convolution"  # f_c of Section 3.1


# ------------------------------------------------------------------ the stack


@dataclass(frozen=True)
class Stack(Part):
    """Stack of Transformer blocks: an encoder's, a decoder's, or a language model's layers."""

    layers: Depth  # N in Section 3.1
    block: Block
    pattern: MaskPattern = field(default_factory=FullMask)  # mask of the self-attention
    position: StackPosition | None = None
    final: Norm | None = None  # after the last block
    shared: bool = False  # one block's weights for all layers (ALBERT, Universal Transformer)
    dropout: Rate = 0.0  # after the final norm
    conv_layer: ConvLayer | None = None  # added to the first block's output
    memory: Size | None = None  # positions of earlier segments to attend to (Transformer-XL)
    universal: Universal | None = None
    alternating_blocks: tuple[Block, ...] = ()  # blocks that alternate with `block` (Reformer)
    compressed: CompressiveMemory | None = None
    heads: tuple[Size, ...] | None = None  # heads left in each block after pruning; None: all
    cross_heads: tuple[Size, ...] | None = None  # the same of the cross-attention
    stages: Stages | None = None  # of Swin; `block` is that of the first stage
    # LayerDrop (Fan et al. 2020): P that training skips a layer, for all examples of a batch.
    layer_drop: Share = 0.0

    def validate(self) -> None:
        _check_pruned_heads(self)
        _check_layer_drop(self)
        if self.stages is not None:
            _check_stages(self, self.stages)
        if self.alternating_blocks:
            _check_alternating(self)
        if self.compressed is not None and (self.memory is None or self.pattern != CausalMask()):
            raise ModelError(
                "compressed memory needs a segment memory and a causal mask without a window",
                "set `memory`, and pattern=CausalMask()",
            )
        if isinstance(self.block.residual, Reversible):
            _check_reversible(self)
        if self.universal is not None and not self.shared:
            raise ModelError(
                "a Universal Transformer applies one layer repeatedly, so its weights must be "
                "shared",
                "set shared=True",
            )
        if self.memory is not None and (
            isinstance(self.position, Rope)
            or not isinstance(self.block.attention.mixer, SoftmaxAttention)
        ):
            raise ModelError(
                "a segment memory needs softmax attention and relative positions",
                "set mixer=SoftmaxAttention() and position=RelativeSinusoids, RelativeKeys, "
                "T5Bias or Alibi",
            )
        if self.conv_layer is not None and self.pattern != FullMask():
            raise ModelError(
                "`conv_layer` reads later positions, so it needs an unmasked stack",
                "set pattern=FullMask(), or remove `conv_layer`",
            )
        for block in (self.block, *self.alternating_blocks):
            _check_mixer(self, block.attention)
            _check_convolution(self, block.feedforward)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The block of each layer, with the heads that pruning left."""
        if self.stages is not None:
            return tuple(_stage_blocks(self, self.stages))
        alternating = (self.block, *self.alternating_blocks)
        blocks = []
        for layer in range(self.layers):
            number = 0 if self.shared else layer
            blocks.append(self._pruned(alternating[layer % len(alternating)], number))
        return tuple(blocks)

    @property
    def unique_blocks(self) -> tuple[Block, ...]:
        """The blocks with weights: one for each layer, or a single one if shared."""
        if self.shared:
            return self.blocks[:1]
        return self.blocks

    def _pruned(self, block: Block, number: int) -> Block:
        if self.heads is not None:
            block = dataclasses.replace(block, attention=fewer(block.attention, self.heads[number]))
        if self.cross_heads is not None and block.cross is not None:
            block = dataclasses.replace(block, cross=fewer(block.cross, self.cross_heads[number]))
        return block

    @property
    def rings(self) -> bool:
        """Whether layers have chunks on a ring, which shift when the text grows or is padded."""
        mixers = [block.attention.mixer for block in self.blocks]
        return any(
            isinstance(mixer, ChunkedAttention | LshAttention) and mixer.ring is not None
            for mixer in mixers
        )

    @property
    def kv_cache_size(self) -> int:
        """How many numbers the KV caches of all layers hold for each token."""
        if self.compressed is not None:  # a compressive memory has a fixed size
            return 0
        return sum(block.attention.kv_cache_size for block in self.blocks)

    def width(self, d_model: int) -> int:
        """The width of the output: both streams of a reversible stack may be concatenated."""
        residual = self.block.residual
        if isinstance(residual, Reversible) and residual.gives == "both":
            return 2 * d_model
        if self.stages is not None:
            return 2 ** (len(self.stages.depths) - 1) * d_model
        return d_model


# ------------------------------------------------------------------ validation


def _check_layer_drop(stack: Stack) -> None:
    """LayerDrop: a layer that is skipped leaves its input as it is."""
    # These have loops of their own, or layers that change the width.
    others = (stack.stages, stack.universal, stack.memory, stack.conv_layer)
    reversible = isinstance(stack.block.residual, Reversible)
    if stack.layer_drop and (reversible or any(part is not None for part in others)):
        raise ModelError(
            "LayerDrop does not work with stages, reversible or Universal stacks, a "
            "segment memory or a convolution",
            "remove `layer_drop`",
        )


def _check_stages(stack: Stack, stages: Stages) -> None:
    """Stages: what all layers of a stack would share has another size in each of them."""
    others = (stack.position, stack.universal, stack.memory, stack.conv_layer, stack.heads)
    plain = isinstance(stack.block.attention.mixer, SoftmaxAttention) and not (
        stack.shared or stack.alternating_blocks or stack.block.cross
    )
    if any(part is not None for part in others) or stack.pattern != FullMask() or not plain:
        raise ModelError(
            "a stack with stages needs softmax attention with a full mask, and neither "
            "positions nor shared blocks",
            "remove the other patterns, positions, mixers and shared blocks",
        )
    if not isinstance(stack.block.feedforward, FeedForward | GatedFeedForward):
        raise ModelError(
            "a stack with stages needs a FeedForward or GatedFeedForward, whose width "
            "grows with the stage",
            "use one of them",
        )
    if stack.layers != sum(stages.depths):
        raise ModelError(
            f"depths={stages.depths} do not add up to layers={stack.layers}",
            f"set layers={sum(stages.depths)}",
        )
    width = stack.block.attention.heads * stack.block.attention.d_k
    for number, heads in enumerate(stages.heads):
        if 2**number * width % heads:
            raise ModelError(
                f"the width {2**number * width} of stage {number + 1} is not divisible by "
                f"{heads} heads",
                "change one of them",
            )


def _stage_blocks(stack: Stack, stages: Stages) -> Iterator[Block]:
    """The block of each layer: wider in each stage, and skipped more often the deeper it is."""
    first = stack.block
    feedforward = first.feedforward
    assert isinstance(feedforward, FeedForward | GatedFeedForward), "checked before"
    number = 0
    for stage, depth in enumerate(stages.depths):
        width = 2**stage * first.attention.heads * first.attention.d_k
        heads = stages.heads[stage]
        d_head = width // heads
        attention = dataclasses.replace(first.attention, heads=heads, d_k=d_head, d_v=d_head)
        wider = dataclasses.replace(feedforward, d_ff=int(stages.mlp_ratio * width))
        for _ in range(depth):
            # Linear decay (Huang et al. 2016, equation 4).
            rate = first.drop_path * number / max(stack.layers - 1, 1)
            yield dataclasses.replace(first, attention=attention, feedforward=wider, drop_path=rate)
            number += 1


def _check_alternating(stack: Stack) -> None:
    """Alternating blocks: what all layers share must fit all of them."""
    blocks = (stack.block, *stack.alternating_blocks)
    lengths = any(
        isinstance(b.attention.mixer, Linformer) and b.attention.mixer.share == "layers"
        for b in blocks
    )
    if stack.shared or stack.position is not None or stack.memory is not None or lengths:
        raise ModelError(
            "alternating blocks cannot have shared weights, positions of the stack or a "
            "segment memory",
            "remove these, or `alternating_blocks`",
        )
    if any(
        (b.residual, b.cross is None) != (stack.block.residual, stack.block.cross is None)
        for b in blocks
    ):
        raise ModelError(
            ("alternating blocks need the same residual scheme, and all or none cross-attention"),
            "set the same `residual` for all of them",
        )


def _check_pruned_heads(stack: Stack) -> None:
    """Pruned heads: one number for each block with weights, and 1 to h heads in each."""
    blocks = 1 if stack.shared else stack.layers
    for counts, cross in ((stack.heads, False), (stack.cross_heads, True)):
        part = stack.block.cross if cross else stack.block.attention
        if counts is None:
            continue
        if part is None or len(counts) != blocks or min(counts) < 1 or max(counts) > part.heads:
            problem = f"{counts} are not valid numbers of heads for {blocks} blocks"
            raise ModelError(problem, f"set 1 to {part.heads if part else 0} heads for each block")
        if not prunable(stack, cross):
            raise ModelError(
                "the layers of this stack cannot have different numbers of heads: they share "
                "a part with one entry per head",
                "prune attention without T5Bias, Alibi, grouped heads, Linformer or LSH",
            )


def _check_reversible(stack: Stack) -> None:
    """Reversible stacks: sublayers depend on nothing outside that needs gradients.

    The backward pass recomputes each sublayer by itself, so gradients do not reach shared tables
    or auxiliary losses.
    """
    if isinstance(stack.block.norm, BatchNorm):
        raise ModelError(
            "a reversible stack computes each sublayer twice, so BatchNorm would count "
            "each batch twice",
            "use LayerNorm or RMSNorm, or PreNorm",
        )
    experts = any(isinstance(block.feedforward, MixtureOfExperts) for block in stack.blocks)
    if isinstance(stack.position, T5Bias | Disentangled | BuildsPosition) or experts:
        raise ModelError(
            "a reversible stack recomputes its sublayers, so it supports neither T5Bias, "
            "Disentangled and custom positions nor experts",
            "use another position or feed-forward, or PreNorm",
        )
    if stack.conv_layer is not None or stack.universal is not None:
        raise ModelError(
            "a reversible stack cannot have `conv_layer` or `universal`", "use PreNorm"
        )


def _check_mixer(stack: Stack, attention: Attention) -> None:
    """Mixers other than softmax support only full and causal masks, and no score biases."""
    mixer = attention.mixer
    if attention.projection == "global" and (
        is_causal(stack.pattern) or stack.position is not None
    ):
        raise ModelError(
            "projection='global' needs an encoder without positions inside the stack",
            ("add positions at the input, or use attention `global`, which has one projection"),
        )
    if isinstance(mixer, SoftmaxAttention):
        return
    if isinstance(mixer, AdditiveAttention):
        _check_additive(stack)
        return
    if isinstance(mixer, BuildsAttention):
        _check_custom_mixer(stack, mixer)
        return
    name = type(mixer).__name__
    if isinstance(mixer, Linformer) and is_causal(stack.pattern):
        raise ModelError(
            ("Linformer has no causal form: it projects all positions before a query reads them"),
            "use it in encoders, and softmax, window, linear or performer attention in decoders",
        )
    if stack.pattern not in (FullMask(), CausalMask()):
        raise ModelError(
            f"{name} supports no masks other than FullMask() and CausalMask()",
            ("use softmax attention, which computes only the allowed blocks of a sparse mask"),
        )
    # RoPE acts on q and k, not on scores, so linear attention can use it (Su et al. 2021).
    if stack.position is not None and not (
        isinstance(stack.position, Rope) and isinstance(mixer, LinearAttention)
    ):
        raise ModelError(
            f"{name} computes no scores, so {type(stack.position).__name__} cannot be "
            "added to them",
            "add positions at the input",
        )


def _check_additive(stack: Stack) -> None:
    """Additive scores are no products: what positions add must be a bias."""
    if isinstance(stack.position, Rope | RelativeKeys | RelativeSinusoids | Disentangled):
        raise ModelError(
            f"{type(stack.position).__name__} needs dot-product scores, not additive ones",
            "use T5Bias, Alibi, or positions at the input",
        )


def _check_convolution(stack: Stack, feedforward: PositionWise) -> None:
    """Convolutions over positions need the inputs before a segment, which no memory holds."""
    if (
        isinstance(feedforward, ConvFeedForward)
        and feedforward.mixes_positions
        and stack.memory is not None
    ):
        raise ModelError(
            "a segment memory does not store the inputs of convolutions",
            "use kernels of size 1, or remove `memory`",
        )


def _check_custom_mixer(stack: Stack, mixer: BuildsAttention) -> None:
    """Custom mixers support all masks, RoPE and score biases, but no positions of single layers.

    These add scores of their own, whose scale in a custom mixer is not defined.
    """
    if isinstance(stack.position, RelativeKeys | RelativeSinusoids | Disentangled):
        raise ModelError(
            f"{type(stack.position).__name__} computes scores for softmax attention only, "
            f"not for {type(mixer).__name__}",
            "use Rope, T5Bias, Alibi, or positions at the input",
        )


# ------------------------------------------------------------------ pruning of heads


def fewer(part: Attention, heads: int) -> Attention:
    """The attention with fewer heads, for pruning.

    Either each head has its own keys, then these become fewer too, or all heads share theirs.
    """
    return dataclasses.replace(
        part, heads=heads, groups=None if part.key_heads == part.heads else part.groups
    )


def prunable(stack: Stack, cross: bool = False) -> bool:
    """Whether heads can be pruned from single layers.

    They cannot if a bias for all layers has one entry per head, if groups of heads share their
    keys, or if the mixer has weights or random draws per head.
    """
    part = stack.block.cross if cross else stack.block.attention
    if (
        part is None
        or stack.alternating_blocks
        or stack.stages is not None
        or (not cross and isinstance(stack.position, T5Bias | Alibi | BuildsPosition))
    ):
        return False
    ungrouped = part.key_heads in (1, part.heads)  # multi-query or plain multi-head attention
    return (
        ungrouped
        and isinstance(part.mixer, SoftmaxAttention | LinearAttention)
        and part.projection != "shared"
    )


def with_heads(stack: Stack, heads: tuple[int, ...], cross_heads: tuple[int, ...] = ()) -> Stack:
    """The stack with pruned heads; `heads` are the numbers of heads left in each block.

    Where all blocks have equally many, the number is written into the block itself.
    """
    attention, self_counts = _prune(stack.block.attention, heads)
    block = dataclasses.replace(stack.block, attention=attention)
    cross_counts = None
    if block.cross is not None:
        cross, cross_counts = _prune(block.cross, cross_heads)
        block = dataclasses.replace(block, cross=cross)
    return dataclasses.replace(stack, block=block, heads=self_counts, cross_heads=cross_counts)


def _prune(part: Attention, heads: tuple[int, ...]) -> tuple[Attention, tuple[int, ...] | None]:
    """(attention of the block, heads of each block, or None where they are those of the block)."""
    if len(set(heads)) > 1:
        return part, heads
    if heads[0] == part.heads:
        return part, None
    return fewer(part, heads[0]), None
