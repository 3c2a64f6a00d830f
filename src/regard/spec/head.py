"""Output heads: language modelling, pooling, classification and forecasting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from regard.spec.attention import QuestionTokens
from regard.spec.feedforward import Activation
from regard.spec.residual import BatchNorm, LayerNorm, Norm
from regard.spec.stack import Stack
from regard.spec.validation import Count, Depth, NonNegative, Part, Positive, Rate, Size
from regard.system.errors import ModelError


@dataclass(frozen=True)
class HeadTransform(Part):
    """Transform of BERT's masked-LM head, before the vocabulary: dense layer, activation, norm."""

    width: Size  # of the dense layer's output: E, where it is tied to an embedding of that width
    activation: Activation = "gelu"
    norm: Norm = field(default_factory=LayerNorm)


@dataclass(frozen=True)
class LMHead(Part):
    """Language-modelling head (Section 3.4): a linear map from hidden states to logits.

    The softmax is part of the loss and of decoding.
    """

    bias: bool | Literal["kept"] = False  # `kept`: saved, but neither added nor trained
    scale: float = 1.0  # of the hidden states: d_model^-½ in T5 with tied embeddings
    transform: HeadTransform | None = None
    cap: Positive | None = None  # soft-capping (Gemma 2): logits become cap · tanh(logit / cap)


@dataclass(frozen=True)
class EndToken(Part):
    """Pooling at the end-of-text token: the first position that holds it (CLIP), or the last."""

    token: Count | None = None  # None: the highest id of the row, which CLIP reserves for the end
    which: Literal["first", "last"] = "first"

    def validate(self) -> None:
        if self.token is None and self.which == "last":
            raise ModelError("pooling at the last end token needs its id", "set `token`")


@dataclass(frozen=True)
class AttentionPool(Part):
    """Multi-head attention pooling (Lee et al. 2019): a learned query attends to all positions.

    A feed-forward sublayer with a norm before it and a residual follows (SigLIP).
    """

    heads: Size
    d_ff: Size
    activation: Activation = "gelu_tanh"
    norm: Norm = field(default_factory=LayerNorm)


@dataclass(frozen=True)
class Pool(Part):
    """Pooling: one vector for the input, then norm, dropout, dense layer and projection."""

    # Padding is ignored: `last` is the last token, and `mean` is over tokens. Only `final` is the
    # last position, padding or not: of texts that are all padded to one length (SigLIP).
    # `first_and_mean`: the first position beside the mean of all others, twice as wide (DINOv2).
    which: (
        Literal["first", "last", "mean", "final", "first_and_mean", "named"]
        | EndToken
        | AttentionPool
    ) = "first"
    activation: Activation | None = "tanh"  # of the dense layer (BERT's pooler); None: no layer
    dropout: Rate = 0.0
    norm: Norm | None = None
    width: Size | None = None  # of a last linear map (CLIP's projection)
    bias: bool = False  # of that map


# The pooled vector is scored to
#   classify     an input,
#   next         say whether the second text follows the first (BERT's next-sentence prediction),
#   choice       weigh one of several answers against the others (multiple choice);
# every position is scored to
#   tag          it (token classification),
#   answer       with the start and the end of a span (extractive question answering),
#   detect       whether its token was replaced (ELECTRA's discriminator),
#   transcribe   speech to letters (CTC),
#   segment      as a part of an image (semantic segmentation).
# and an object query
#   objects      as an object, with its class and its box.
HeadTask = Literal[
    "classify", "next", "choice", "tag", "answer", "detect", "transcribe", "segment", "objects"
]


@dataclass(frozen=True)
class HeadFeedForward(Part):
    """Feed-forward sublayer of a head, with its residual and norm (BigBird's span scores)."""

    d_ff: Size
    activation: Activation = "gelu"
    norm: Norm = field(default_factory=LayerNorm)
    dropout: Rate = 0.0  # on its input and on its output


@dataclass(frozen=True)
class ClassifierHead(Part):
    """Classification head: a linear map to logits, of the pooled vector or of every position."""

    count: Size  # classes
    task: HeadTask = "classify"
    hidden: Activation | None = None  # of a dense layer before; None: no such layer
    bias: bool = True
    dropout: Rate = 0.0  # on the input of the linear map
    feedforward: HeadFeedForward | None = None  # before all of these
    # The question cannot be the answer: 10⁶ is taken from the scores of its tokens and of the
    # separator, but not from those of the first token (BigBird).
    excludes: QuestionTokens | None = None
    # What is scored instead of the pooled vector: the mean of all positions (SigLIP), or the one
    # that a call names in `mc_token_ids`, without which it is the last one (GPT).
    pool: Literal["mean", "named"] | None = None
    # Of the hidden layer: as wide as what it reads, and without a norm, unless they are set (ViLT).
    width: Size | None = None
    norm: Norm | None = None

    def validate(self) -> None:
        if self.hidden is None and (self.width or self.norm):
            raise ModelError("`width` and `norm` are of a hidden layer", "set `hidden`")
        # The start and the end of a span; one logit of a binary decision, or of an answer among
        # others.
        expected = {"answer": 2, "detect": 1, "choice": 1}.get(self.task, self.count)
        if self.count != expected:
            raise ModelError(
                f"the task {self.task!r} needs count={expected}, not {self.count}",
                f"set count={expected}",
            )

    @property
    def each(self) -> bool:
        """Whether every position is scored, and not the pooled vector."""
        return self.task not in ("classify", "next", "choice")


@dataclass(frozen=True)
class DistilledHead(Part):
    """Classification head of a distilled image Transformer (Touvron et al. 2021, DeiT).

    The first positions have a linear map each, and the logits are the mean of theirs.
    """

    count: Size  # classes
    # The class token, trained on labels, and the distillation token, trained on a teacher.
    voters: Depth = 2
    each = False  # one label for the image

    @property
    def task(self) -> HeadTask:
        """Images have one label each."""
        return "classify"

    @property
    def excludes(self) -> None:
        """Nothing: no part of an image is a question."""
        return None


@dataclass(frozen=True)
class DetectionHead(Part):
    """Detection head (Carion et al. 2020, DETR): the class and the box of each object query."""

    count: Size  # classes, besides "no object"
    each = True  # position of the decoder is scored

    @property
    def task(self) -> HeadTask:
        return "objects"

    @property
    def excludes(self) -> None:
        """Nothing: no part of an image is a question."""
        return None


@dataclass(frozen=True)
class MaskDecoder(Part):
    """Mask Transformer (Strudel et al. 2021, Segmenter): a vector for each class goes through a
    stack with the patches; masks are scalar products of both, normalised."""

    count: Size  # classes
    width: Size  # of the stack
    stack: Stack
    each = True  # patch is scored

    @property
    def task(self) -> HeadTask:
        return "segment"

    @property
    def excludes(self) -> None:
        """Nothing: no part of an image is a question."""
        return None


@dataclass(frozen=True)
class SpectrogramHead(Part):
    """Spectrogram head: a linear map to mel bands, and a residual of convolutions (the postnet).

    Shen et al. 2018 (Tacotron 2), Section 2.2: batch norms, and tanh behind all but the last.
    """

    mels: Size = 80
    frames: Size = 1  # that a position gives (the reduction factor)
    layers: Depth = 5  # of the postnet
    channels: Size = 256  # of its convolutions
    kernel: Size = 5  # frames that each of them sees
    dropout: Rate = 0.5  # behind each of them
    norm: BatchNorm = field(default_factory=BatchNorm)


@dataclass(frozen=True)
class HifiGan(Part):
    """HiFi-GAN's generator (Kong et al. 2020): samples of a spectrogram by transposed convolutions.

    Behind each, residual blocks of several kernels hear other lengths; their mean goes on.
    """

    mels: Size = 80  # that it reads
    channels: Size = 512  # before the first of them, each of which halves the number
    rates: tuple[Size, ...] = (8, 8, 2, 2)  # by how much each lengthens
    kernels: tuple[Size, ...] = (16, 16, 4, 4)  # of each
    block_kernels: tuple[Size, ...] = (3, 7, 11)  # of the residual blocks behind each
    dilations: tuple[tuple[Size, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))  # of each block
    slope: NonNegative = 0.1  # of the leaky ReLU
    normalized: bool = True  # the spectrogram, by a mean and a deviation of each band
    # VITS: it reads latents, of which files hold no mean, and its last convolution has no bias.
    of_latents: bool = False
    voice: Size | None = None  # width of a vector of the speaker, which is added first

    def validate(self) -> None:
        sides = len(self.rates) == len(self.kernels)
        if not sides or len(self.block_kernels) != len(self.dilations):
            raise ModelError(
                "a vocoder needs one kernel for each rate, and dilations for each block kernel",
                "give tuples of the same length",
            )
        if self.channels >> len(self.rates) == 0:
            raise ModelError(
                f"{self.channels} channels cannot be halved {len(self.rates)} times",
                "raise `channels`",
            )

    @property
    def hop(self) -> int:
        """Samples of each frame."""
        return math.prod(self.rates)


@dataclass(frozen=True)
class ContactHead(Part):
    """Contact prediction (Rao et al. 2021): a logistic regression on the weights of all heads.

    It was fitted to known structures, and is not trained along.
    """

    count: Size  # heads of all layers


@dataclass(frozen=True)
class ContrastiveHead(Part):
    """Contrastive pre-training head (Baevski et al. 2020, wav2vec 2.0, Sections 2 and 3).

    The latents of masked positions, quantized by G codebooks of V entries, are to be told from
    those of other positions by what the encoder makes of the rest.
    """

    groups: Size = 2  # G
    entries: Size = 320  # V, of each codebook
    code_width: Size = 256  # of an entry of each group, concatenated
    width: Size = 256  # of the space in which both sides are compared
    temperature: Positive = 0.1  # κ, of the cosines
    diversity: NonNegative = 0.1  # α, the weight of the loss for entries that are not in use
    dropout: Rate = 0.0  # on what is quantized

    def validate(self) -> None:
        if self.code_width % self.groups:
            raise ModelError(
                f"code_width {self.code_width} is not divisible by groups={self.groups}",
                "change one of them",
            )


@dataclass(frozen=True)
class TrajectoryHead(Part):
    """Head of trajectories (Chen et al. 2021, Decision Transformer): what follows in a trajectory.

    The position of a state gives its action; that of an action the next state and return-to-go.
    """

    bounded: bool = True  # actions are between −1 and 1, by a tanh


# ------------------------------------------------------------------ masked images


@dataclass(frozen=True)
class PixelDecoder(Part):
    """Decoder of a masked autoencoder (He et al. 2022, MAE): the pixels of all patches.

    It reads what the encoder made of the visible patches, a learned mask token for each hidden one,
    and fixed positions of all of them.
    """

    d_model: Size
    stack: Stack
    # The loss compares with pixels of mean 0 and variance 1 in each patch (Section 3).
    normalized: bool = True


@dataclass(frozen=True)
class TubeletDecoder(PixelDecoder):
    """Decoder of a masked autoencoder of clips (Tong et al. 2022, VideoMAE).

    Its positions are sinusoids, its map from the encoder has no bias, and the pixels of each
    channel of a tubelet are normalized by themselves.
    """


@dataclass(frozen=True)
class PixelShuffleHead(Part):
    """One-layer decoder of masked image modelling (Xie et al. 2022, SimMIM), trained by an L1 loss.

    A 1 × 1 convolution makes the pixels of a square from each position of the last layer; a pixel
    shuffle puts the squares beside each other. Hidden patches are mask tokens of the front end.
    """

    stride: Size  # side of such a square, in pixels


MaskedImageDecoder = PixelDecoder | TubeletDecoder | PixelShuffleHead


# ------------------------------------------------------------------ time series


@dataclass(frozen=True)
class Points(Part):
    """Point forecasts: one number for each step, by the squared error."""

    levels = None  # it has no quantiles


@dataclass(frozen=True)
class Quantiles(Part):
    """Quantile forecasts: a number for each level, by the pinball loss (Koenker, Bassett 1978)."""

    levels: tuple[float, ...] = (0.1, 0.5, 0.9)

    def validate(self) -> None:
        inside = all(0 < level < 1 for level in self.levels)
        if not self.levels or not inside or list(self.levels) != sorted(set(self.levels)):
            raise ModelError(
                f"quantile levels must increase between 0 and 1, not {self.levels}",
                "set levels such as (0.1, 0.5, 0.9)",
            )


@dataclass(frozen=True)
class Distribution(Part):
    """Distribution forecasts: the parameters of a distribution for each step, by its −log p."""

    levels = None  # it has no quantiles
    name: Literal["student_t", "normal", "negative_binomial"] = "student_t"

    @property
    def parameters(self) -> int:
        """How many parameters the distribution has."""
        return 3 if self.name == "student_t" else 2


Forecast = Points | Quantiles | Distribution


class SeriesWindow(NamedTuple):
    """What a model of time series reads, and what it forecasts."""

    length: int  # steps that it reads: the look-back
    channels: int
    horizon: int = 0  # steps that are forecast
    output: Forecast | None = None  # what is forecast for each of them
    # The first step of each position and the one after its last; none of a class token.
    spans: tuple[tuple[int, int], ...] = ()


ChannelPool = Literal["mean", "max", "first"]


@dataclass(frozen=True)
class ForecastHead(Part):
    """Forecasting head: a linear map of a channel's hidden states to its next values.

    Without a `pool`, the hidden states of all patches are concatenated (PatchTST's flatten head).
    """

    horizon: Size  # steps that are forecast
    output: Forecast = field(default_factory=Points)
    pool: ChannelPool | None = None
    dropout: Rate = 0.0


@dataclass(frozen=True)
class PatchHead(Part):
    """Reconstruction head of masked pre-training: the values of each patch, normalized."""

    dropout: Rate = 0.0


@dataclass(frozen=True)
class ChannelHead(Part):
    """Classification or regression of a series: a linear map of the pooled vectors of all channels.

    `range` bounds the numbers of a regression, by a sigmoid.
    """

    count: Size  # classes, or numbers
    task: Literal["classify", "regress"] = "classify"
    output: Points | Distribution = field(default_factory=Points)
    pool: ChannelPool = "mean"
    dropout: Rate = 0.0
    range: tuple[float, float] | None = None


SeriesHead = ForecastHead | PatchHead | ChannelHead
