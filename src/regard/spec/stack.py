"""Transformer blocks, and stacks of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

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
    MixtureOfExperts,
    PositionWise,
)
from regard.spec.mask import CausalMask, FullMask, MaskPattern, is_causal
from regard.spec.position import (
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
    InstanceNorm,
    LayerNorm,
    Norm,
    Parallel,
    PostNorm,
    PreNorm,
    Residual,
)
from regard.spec.validation import (
    Count,
    Depth,
    ExtraTokens,
    GridSide,
    NonNegative,
    Part,
    Rate,
    Share,
    Size,
    WindowSide,
    check_field,
    check_odd,
)
from regard.system.errors import ModelError

# ------------------------------------------------------------------ blocks


@dataclass(frozen=True)
class Conformer(Part):
    """What a Conformer's block has besides (Gulati et al. 2020, Section 2): a convolution module.

    It stands behind self-attention, with a residual and a norm as there; a norm ends the block.
    """

    kernel: Size = 31  # positions of the depthwise convolution, centred
    # Feed-forward networks on both sides of them, of which the residual adds one half each.
    macaron: bool = True
    bias: bool = True  # of the convolutions
    batch_norm: BatchNorm = field(default_factory=BatchNorm)  # behind the depthwise convolution

    def validate(self) -> None:
        if self.kernel % 2 == 0:
            raise ModelError(
                f"the kernel of a Conformer must be odd, not {self.kernel}", "set an odd kernel"
            )


@dataclass(frozen=True)
class GatedCross(Part):
    """Gated cross-attention before a block (Alayrac et al. 2022, Flamingo): x + tanh(α) · y of
    cross-attention and of a feed-forward network, each behind a norm like the block's.

    α begins at 0: a language model that gets such layers is as it was.
    """

    attention: Attention
    feedforward: PositionWise
    gate: Literal["scalar", "vector"] = "scalar"  # one α for a sublayer, or one for each dimension


@dataclass(frozen=True)
class Resampler(Part):
    """Perceiver resampler (Alayrac et al. 2022): trained latents that attend to the positions of an
    image and to each other, so that any image has as many positions."""

    latents: Size
    layers: Depth
    attention: Attention
    feedforward: PositionWise
    norm: Norm = field(default_factory=LayerNorm)


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
    pattern: MaskPattern = field(default_factory=FullMask)  # mask of the self-attention
    position: StackPosition | None = None  # equal ones of several blocks are one part, with weights
    conformer: Conformer | None = None  # a Conformer's convolutions
    gated: GatedCross | None = None  # to the encoder's output, before the block (Flamingo)

    def validate(self) -> None:
        plain = isinstance(self.residual, PreNorm | PostNorm) and not self.changes_outputs
        alone = self.cross is None and not is_causal(self.pattern)
        if self.conformer is not None and not (plain and alone):
            raise ModelError(
                "a Conformer's block reads both ways, with PreNorm or PostNorm and nothing else",
                "remove `cross`, a causal mask, `layer_scale` and `drop_path`, or `conformer`",
            )
        if self.gated is not None and not (plain and self.cross is None):
            raise ModelError(
                "gated cross-attention stands before plain blocks, with PreNorm or PostNorm",
                "remove `cross`, `layer_scale` and `drop_path`, or `gated`",
            )
        if self.changes_outputs and isinstance(self.residual, Parallel):
            raise ModelError(
                "LayerScale and stochastic depth need PreNorm or PostNorm blocks",
                "use PreNorm or PostNorm, or remove `layer_scale` and `drop_path`",
            )
        if self.cross is not None and (
            self.cross.projection != "apart" or self.cross.qk_norm is not None
        ):
            raise ModelError(
                "cross-attention cannot share, tie or norm its projections: queries and keys come "
                "from different sequences",
                "set projection='apart' and qk_norm=None for `cross`",
            )
        if self.cross is not None and isinstance(self.residual, Parallel):
            raise ModelError(
                "a parallel block cannot have cross-attention", "use PreNorm or PostNorm"
            )
        _check_mixer(self)

    @property
    def changes_outputs(self) -> bool:
        return self.layer_scale is not None or self.drop_path > 0


def _check_mixer(block: Block) -> None:
    """Mixers other than softmax support only full and causal masks, and no score biases."""
    attention = block.attention
    mixer = attention.mixer
    position = block.position
    name = type(mixer).__name__
    position_name = type(position).__name__
    if attention.projection == "global" and (is_causal(block.pattern) or position is not None):
        raise ModelError(
            "projection='global' needs an encoder without positions inside the stack",
            ("add positions at the input, or use attention `global`, which has one projection"),
        )
    if isinstance(mixer, SoftmaxAttention):
        return
    if isinstance(mixer, AdditiveAttention | BuildsAttention):
        # Positions of single layers add scores of their own, whose scale is not defined here.
        by_layer = isinstance(position, RelativeKeys | RelativeSinusoids | Disentangled)
        if by_layer or (isinstance(position, Rope) and isinstance(mixer, AdditiveAttention)):
            raise ModelError(
                f"{position_name} needs dot-product scores of softmax attention, not {name}",
                "use T5Bias, Alibi, or positions at the input",
            )
        return
    if isinstance(mixer, Linformer) and is_causal(block.pattern):
        raise ModelError(
            ("Linformer has no causal form: it projects all positions before a query reads them"),
            "use it in encoders, and softmax, window, linear or performer attention in decoders",
        )
    if block.pattern not in (FullMask(), CausalMask()):
        raise ModelError(
            f"{name} supports no masks other than FullMask() and CausalMask()",
            ("use softmax attention, which computes only the allowed blocks of a sparse mask"),
        )
    # RoPE acts on q and k, not on scores, so linear attention can use it (Su et al. 2021).
    rotated = isinstance(position, Rope) and isinstance(mixer, LinearAttention)
    if position is not None and not rotated:
        raise ModelError(
            f"{name} computes no scores, so {position_name} cannot be added to them",
            "add positions at the input",
        )


# ------------------------------------------------------------------ schemes


class _Scheme(Part):
    """How a stack applies its blocks."""

    def check(self, blocks: tuple[Block, ...]) -> None:
        """Raises a ModelError for blocks that cannot be applied so."""


@dataclass(frozen=True)
class Plain(_Scheme):
    """One block after the other."""

    # LayerDrop (Fan et al. 2020): P that training skips a layer, for all examples of a batch.
    layer_drop: Share = 0.0


@dataclass(frozen=True)
class Shared(_Scheme):
    """Parameter sharing across layers (Lan et al. 2020, ALBERT)."""

    groups: Depth = 1  # of consecutive layers, each with the weights of one block

    def check(self, blocks: tuple[Block, ...]) -> None:
        firsts = self.first_layers(len(blocks))
        equal = all(
            layer in firsts or block == blocks[layer - 1] for layer, block in enumerate(blocks)
        )
        if len(firsts) < self.groups or not equal:
            raise ModelError(
                f"{len(blocks)} layers do not make {self.groups} groups of equal blocks",
                "make the blocks equal, or change `groups`",
            )

    def first_layers(self, layers: int) -> list[int]:
        """The first layer of each group."""
        groups = [layer * self.groups // layers for layer in range(layers)]
        return [groups.index(group) for group in dict.fromkeys(groups)]


@dataclass(frozen=True)
class Universal(_Scheme):
    """Universal Transformer (Dehghani et al. 2019): a shared block, adaptive computation time."""

    timing: bool = True  # add sinusoids of the position and of the step, at each step
    halts: bool = True  # each position halts by itself; its output is a mean of its steps
    least: Rate = 0.01  # ε: a position halts when its probabilities sum up to 1 − ε
    cost: NonNegative = 0.01  # τ: weight of the ponder time in the loss

    def check(self, blocks: tuple[Block, ...]) -> None:
        Shared().check(blocks)


@dataclass(frozen=True)
class ConvLayer(_Scheme):
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

    def check(self, blocks: tuple[Block, ...]) -> None:
        if any(block.pattern != FullMask() for block in blocks):
            raise ModelError(
                "ConvLayer reads later positions, so it needs an unmasked stack",
                "set pattern=FullMask(), or another scheme",
            )


@dataclass(frozen=True)
class Reversible(_Scheme):
    """Reversible residual layers (Kitaev et al. 2020, Reformer), with two streams.

    Each sublayer maps (a, b) to (b, a + sublayer(norm(b))). Both streams start as the
    embedding. The backward pass recomputes activations from the output instead of storing them:
    sublayers depend on nothing outside that needs gradients.
    """

    gives: Literal["mean", "both"] = "mean"  # output: mean of the streams, or both concatenated

    def check(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            outside = isinstance(block.position, T5Bias | Disentangled | BuildsPosition)
            if outside or isinstance(block.feedforward, MixtureOfExperts):
                raise ModelError(
                    "a reversible stack recomputes its sublayers, so it supports neither T5Bias, "
                    "Disentangled and custom positions nor experts",
                    "use another position or feed-forward, or the scheme Plain",
                )
            twice = isinstance(block.norm, BatchNorm)  # it would count each batch twice
            if twice or block.changes_outputs or not isinstance(block.residual, PreNorm):
                raise ModelError(
                    "a reversible stack has PreNorm blocks without BatchNorm, LayerScale and "
                    "stochastic depth",
                    "change the blocks, or use the scheme Plain",
                )


@dataclass(frozen=True)
class CompressiveMemory(Part):
    """Compressive memory (Rae et al. 2020): positions that leave the memory are compressed."""

    length: Count  # n_cm: positions of the compressed memory
    factor: Size  # c: compression rate, positions that become one
    function: Literal["convolution", "mean", "max"] = "convolution"  # f_c of Section 3.1


@dataclass(frozen=True)
class Segments(_Scheme):
    """Segment-level recurrence (Dai et al. 2019, Transformer-XL)."""

    memory: Size  # positions of earlier segments to attend to
    compressed: CompressiveMemory | None = None

    @property
    def length(self) -> int:
        """How many earlier positions the layers keep."""
        if self.compressed is None:
            return self.memory
        # Up to factor − 1 old positions wait until there are enough of them to compress.
        return self.memory + self.compressed.length + self.compressed.factor - 1

    def check(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            if self.compressed is not None and block.pattern != CausalMask():
                raise ModelError(
                    "compressed memory needs a causal mask without a window",
                    "set pattern=CausalMask()",
                )
            softmax = isinstance(block.attention.mixer, SoftmaxAttention)
            if isinstance(block.position, Rope) or not softmax:
                raise ModelError(
                    "a segment memory needs softmax attention and relative positions",
                    "set mixer=SoftmaxAttention() and position=RelativeSinusoids, RelativeKeys, "
                    "T5Bias or Alibi",
                )
            part = block.feedforward
            if isinstance(part, ConvFeedForward) and part.mixes_positions:
                raise ModelError(
                    "a segment memory does not store the inputs of convolutions",
                    "use kernels of size 1, or another scheme",
                )


def _check_alone(block: Block) -> None:
    """Stages over images and alignments have masks of their own."""
    softmax = isinstance(block.attention.mixer, SoftmaxAttention)
    alone = block.position is None and block.cross is None
    if not softmax or not alone or block.pattern != FullMask():
        raise ModelError(
            "stages and the Evoformer need softmax attention with a full mask, and neither "
            "positions nor cross-attention",
            "remove the other patterns, positions and mixers",
        )


@dataclass(frozen=True)
class Stages(_Scheme):
    """Hierarchical stages over images, with attention in shifted windows (Liu et al. 2021, Swin).

    After each stage but the last, 2 × 2 patches become one, twice as wide. Windows of every other
    layer are moved by half of their size.
    """

    side: GridSide  # patches along one side of the image, in the first stage
    window: WindowSide  # patches along one side of a window
    depths: tuple[Size, ...]  # layers of each stage

    def validate(self) -> None:
        if not self.depths or min(self.sides) < self.window:
            raise ModelError(
                f"a window of {self.window} × {self.window} patches is larger than the last of "
                f"{len(self.depths)} stages, {self.sides[-1]} × {self.sides[-1]}",
                "use a smaller window, fewer stages, smaller patches or larger images",
            )

    def check(self, blocks: tuple[Block, ...]) -> None:
        if len(blocks) != sum(self.depths):
            raise ModelError(
                f"depths={self.depths} do not add up to {len(blocks)} layers",
                "use one block for each layer of a stage",
            )
        for block in blocks:
            _check_alone(block)

    @property
    def sides(self) -> tuple[int, ...]:
        """Patches along one side, in each stage; an odd one is rounded up."""
        sides = [self.side]
        for _ in self.depths[1:]:
            sides.append(-(-sides[-1] // 2))
        return tuple(sides)

    def drop_path(self, rate: float, layer: int) -> float:
        """The stochastic depth of a layer: linear decay (Huang et al. 2016, equation 4)."""
        return rate * (layer / max(sum(self.depths) - 1, 1))

    def shift(self, stage: int, layer: int) -> int:
        """By how many patches the windows of a stage's layer are moved: 0 where one is all."""
        if layer % 2 == 0 or self.sides[stage] <= self.window:
            return 0
        return self.window // 2


@dataclass(frozen=True)
class Pyramid(_Scheme):
    """Hierarchical stages over images of any size (Xie et al. 2021, SegFormer).

    Before each stage but the first, a convolution gives fewer positions of another width, after
    each stage there is a norm. Keys and values are of a map that is smaller by the reduction.
    """

    depths: tuple[Size, ...]  # layers of each stage
    widths: tuple[Size, ...]  # of each stage; that of the first is d_model
    reductions: tuple[Size, ...]  # of each stage, along rows and along columns
    kernels: tuple[Size, ...]  # of the convolution before each stage but the first
    strides: tuple[Size, ...]
    # The all-MLP decoder: the maps of all stages, as large as the first and of this width,
    # concatenated and mapped to it again. None: the output is the last stage's.
    fused: Size | None = None

    def validate(self) -> None:
        stages = len(self.depths)
        lengths = {len(self.widths), len(self.reductions)}
        lengths |= {1 + len(self.kernels), 1 + len(self.strides)}
        if lengths != {stages}:
            raise ModelError(
                f"{stages} depths, but {len(self.widths)} widths, {len(self.reductions)} "
                f"reductions, {len(self.kernels)} kernels and {len(self.strides)} strides",
                "give one for each stage; kernels and strides for each but the first",
            )
        check_odd(*self.kernels)

    def check(self, blocks: tuple[Block, ...]) -> None:
        if len(blocks) != sum(self.depths):
            raise ModelError(
                f"depths={self.depths} do not add up to {len(blocks)} layers",
                "use one block for each layer of a stage",
            )
        for block in blocks:
            _check_alone(block)

    @property
    def stages(self) -> list[int]:
        """The stage of each layer."""
        return [stage for stage, depth in enumerate(self.depths) for _ in range(depth)]


@dataclass(frozen=True)
class Divided(_Scheme):
    """Divided space–time attention over clips (Bertasius et al. 2021, TimeSformer).

    In each block every patch attends to itself in all frames, and then to the patches of its own
    frame. The tubelets of a patch follow each other, as `Tubelets` with learned positions has them.
    """

    frames: Size
    patches: Size  # of a frame
    extras: ExtraTokens = 1  # which every frame sees, and whose outputs are averaged over them

    def check(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            softmax = isinstance(block.attention.mixer, SoftmaxAttention)
            alone = block.position is None and block.cross is None
            sequential = isinstance(block.residual, PreNorm) and block.layer_scale is None
            if not softmax or not alone or not sequential or block.pattern != FullMask():
                raise ModelError(
                    "divided space–time attention needs softmax attention with a full mask in "
                    "PreNorm blocks, and neither positions nor cross-attention",
                    "change the blocks, or use the scheme Plain",
                )


@dataclass(frozen=True)
class Evoformer(_Scheme):
    """Evoformer (Jumper et al. 2021, AlphaFold 2) over an alignment of sequences of residues.

    Each block attends along the residues of a sequence, with a bias from the representation of
    pairs, then along the sequences at each residue, and then updates the pairs: from the alignment,
    by triangle multiplications and triangle attentions, and position-wise.
    """

    width: Size  # c_z: of the pair representation
    attention: Attention  # triangle attention
    feedforward: PositionWise  # the transition of pairs
    triangles: Size = 128  # channels of the triangle multiplications
    outer: Size = 32  # channels of the outer product, of each residue
    # How an alignment updates pairs: the outer product mean, or ESMFold's product and difference of
    # the first sequence.
    joined: Literal["outer_product_mean", "product_and_difference"] = "outer_product_mean"
    column_attention: bool = True  # along the sequences; ESMFold has a single one
    reach: Size = 32  # the largest distance of two residues that is told from others
    # Whether the last block updates pairs too, for who reads them. A model of the alignment alone
    # has no use for that.
    last: bool = False

    def check(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            _check_alone(block)
            if not isinstance(block.residual, PreNorm) or block.layer_scale is not None:
                raise ModelError(
                    "an Evoformer has PreNorm blocks without LayerScale", "change the blocks"
                )


Scheme = (
    Plain
    | Shared
    | Universal
    | ConvLayer
    | Reversible
    | Segments
    | Stages
    | Pyramid
    | Divided
    | Evoformer
)

# ------------------------------------------------------------------ the stack


@dataclass(frozen=True)
class Stack(Part):
    """Stack of Transformer blocks: an encoder's, a decoder's, or a language model's layers."""

    blocks: tuple[Block, ...]  # one a layer
    final: Norm | None = None  # after the last block
    dropout: Rate = 0.0  # after the final norm
    scheme: Scheme = field(default_factory=Plain)

    @classmethod
    def of(
        cls,
        layers: int,  # N in Section 3.1
        block: Block,
        pattern: MaskPattern | None = None,
        position: StackPosition | None = None,
        final: Norm | None = None,
        **options: Any,
    ) -> Stack:
        """A stack of equal blocks, with this mask pattern and this position if they are given."""
        check_field("Stack", "layers", layers, Depth)
        if pattern is not None:
            block = dataclasses.replace(block, pattern=pattern)
        if position is not None:
            block = dataclasses.replace(block, position=position)
        return cls((block,) * layers, final, **options)

    def validate(self) -> None:
        check_field("Stack", "layers", len(self.blocks), Depth)
        self.scheme.check(self.blocks)
        over_positions = any(
            isinstance(norm, InstanceNorm)
            for norm in (self.final, *(block.norm for block in self.blocks))
        )
        if over_positions and any(is_causal(block.pattern) for block in self.blocks):
            raise ModelError(
                "InstanceNorm is over all positions of a sequence, so a causal stack would see "
                "those that follow",
                "use it in encoders only, and LayerNorm, RMSNorm or BatchNorm in decoders",
            )

    def with_blocks(self, **changes: Any) -> Stack:
        """The stack with these fields of all blocks changed."""
        blocks = tuple(dataclasses.replace(block, **changes) for block in self.blocks)
        return dataclasses.replace(self, blocks=blocks)

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @property
    def block(self) -> Block:
        """The first block: where all are equal, the only one."""
        return self.blocks[0]

    @property
    def unique_layers(self) -> list[int]:
        """The layers with weights of their own."""
        match self.scheme:
            case Universal():
                return [0]
            case Shared():
                return self.scheme.first_layers(self.layers)
            case _:
                return list(range(self.layers))

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
        # A compressive memory has a fixed size.
        if isinstance(self.scheme, Segments) and self.scheme.compressed is not None:
            return 0
        return sum(block.attention.kv_cache_size for block in self.blocks)

    def width(self, d_model: int) -> int:
        """The width of the output: both streams of a reversible stack may be concatenated."""
        match self.scheme:
            case Reversible("both"):
                return 2 * d_model
            case Stages(depths=depths):
                return 2 ** (len(depths) - 1) * d_model
            case Pyramid(widths=widths, fused=fused):
                return fused or widths[-1]
            case _:
                return d_model
