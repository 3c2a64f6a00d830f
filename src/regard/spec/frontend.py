"""Input embeddings: of tokens, spectrograms, image patches, waveforms, time series, graphs and
trajectories."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from regard.spec.baselines import ResidualStages
from regard.spec.feedforward import Activation
from regard.spec.position import InputPosition, Sinusoidal
from regard.spec.residual import BatchNorm, InstanceNorm, LayerNorm, Norm
from regard.spec.validation import (
    Count,
    ExtraTokens,
    Part,
    Positive,
    Rate,
    Share,
    Size,
    check_odd,
)
from regard.system.errors import ModelError


class _FrontEnd(Part):
    """What makes vectors of the inputs of a stack."""

    mask_name = "attention_mask"  # transformers' name of the mask of its padding

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        """The shape of its main input: of so many positions, samples or nodes, if it has no size
        of its own."""
        return rows, length


class _Sequence(_FrontEnd):
    """What has positions added."""

    position: InputPosition | None

    @property
    def max_length(self) -> int | None:
        """The longest sequence that there are positions for; None where any length has them."""
        if self.position is None:
            return None
        return self.position.max_length


@dataclass(frozen=True)
class ZeroedTokens(Part):
    """Token dropout (ESM): padding has the vector 0, and so have masked tokens.

    The others are scaled as if 12 % of the tokens were masked, as many as in its training.
    """

    mask: Count | None = None  # the id of the mask token; None: padding only


@dataclass(frozen=True)
class Tokens(_Sequence):
    """Token embeddings (Sections 3.4, 3.5, 5.4), plus positions and segments, norm and dropout."""

    main_input_name = "input_ids"  # the argument of a model's call, as transformers names it
    vocabulary: Size  # number of token ids
    position: InputPosition | None = field(default_factory=Sinusoidal)
    scale: bool = True  # multiply by √d_model (Section 3.4)
    dropout: Rate = 0.1  # P_drop of Section 5.4, on the sum
    segments: Count = 0  # rows of the segment (token type) embedding: 2 in BERT, 0 for none
    segment_tokens: bool = False  # segments are tokens, whose own vectors are added (GPT)
    norm: Norm | None = None
    # E of ALBERT and ELECTRA, mapped to d_model at the end; None: d_model.
    width: Size | None = None
    zeroed: ZeroedTokens | None = None
    # Of an alignment, whose rows follow each other: the positions of each sequence.
    columns: Size | None = None

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return rows, -(-length // (self.columns or 1)) * (self.columns or 1)


@dataclass(frozen=True)
class TimeScale(Part):
    """Windows over time of one length; the next one begins `stride` steps later."""

    length: Size  # time steps of a window: a patch of a series
    stride: Size  # smaller than the length, windows overlap


def _check_scales(scales: tuple[TimeScale, ...]) -> None:
    for scale in scales:
        if scale.length < scale.stride:
            raise ModelError(
                f"a window of {scale.length} positions every {scale.stride} leaves sound out",
                "set a length of at least the stride in `scales`",
            )


@dataclass(frozen=True)
class Spectrogram(_Sequence):
    """Log-mel spectrogram front end (Whisper): two convolutions, then positions and dropout.

    Both convolutions span three frames; the second has stride 2, which halves the length.
    """

    main_input_name = "input_features"  # frames [B, mels, N]
    mels: Size  # mel bands of a frame
    position: InputPosition | None
    activation: Activation = "gelu"
    dropout: Rate = 0.0
    scales: tuple[TimeScale, ...] = ()  # coarser ones, as in Waveform

    def validate(self) -> None:
        _check_scales(self.scales)

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return rows, self.mels, 2 * length


@dataclass(frozen=True)
class Patches(_FrontEnd):
    """Patch embeddings of square images (Dosovitskiy et al. 2021, ViT).

    Each patch is mapped linearly to a vector. Positions, norm and dropout follow.
    """

    main_input_name = "pixel_values"  # images [B, channels, size, size]
    tubelet = 1  # frames of a patch: an image does not move
    mask_name = ""  # images of a batch have one size: nothing is padded
    size: Size  # side of the image in pixels
    patch: Size  # side of a patch in pixels
    channels: Size = 3
    # Learned vectors in front: the class token, then the distillation token (DeiT).
    extras: ExtraTokens = 1
    bias: bool = True  # of the linear map; CLIP has none
    # Before it, 3 × 3 convolutions of stride 2 with LayerNorm and ReLU, until a position is a patch
    # (Xiao et al. 2021, who have BatchNorm): so the map is of channels, not of pixels.
    convolutions: bool = False
    norm: Norm | None = None
    dropout: Rate = 0.0
    # Sinusoids are of rows and columns; `fixed` are those that files hold, and nobody trains (MAE).
    position: Literal["learned", "sinusoidal", "fixed", "none"] = "learned"
    # Images of other sizes are read too: the positions are interpolated, bicubically (DINOv2).
    interpolated: bool = False
    mask_token: bool = False  # has a learned vector that replaces masked patches in pretraining
    padded: bool = False  # pixels at the edges that fill no patch are filled up with zeros (Swin)
    # Of the patches, which the encoder does not see in pretraining: they are left out (MAE), or the
    # mask token stands there (SimMIM).
    masked_share: Share = 0.0
    mask_unit: Size = 1  # side, in patches, of the squares that are hidden as a whole (SimMIM)

    def validate(self) -> None:
        if self.patch > self.size:
            raise ModelError(
                f"a patch of {self.patch} pixels does not fit into an image of {self.size}",
                "set a smaller `patch`",
            )
        if self.convolutions and self.patch.bit_count() > 1:
            raise ModelError(
                f"convolutions of stride 2 do not end at a patch of {self.patch} pixels",
                "set `patch` to a power of two",
            )
        if self.interpolated and self.position != "learned":
            raise ModelError("only learned positions can be interpolated", "remove `interpolated`")
        if self.mask_unit > 1 and not self.mask_token:
            raise ModelError("masking squares of patches needs a mask token", "set mask_token=True")

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return rows, self.channels, self.size, self.size

    @property
    def pixels(self) -> int:
        """The numbers of a patch, of all channels."""
        return self.channels * self.tubelet * self.patch**2

    @property
    def positions(self) -> int:
        """The sequence length: all patches, and the extra tokens.

        Pixels at the right and bottom edges that fill no patch are ignored, unless `padded`.
        """
        return self.side**2 + self.extras

    @property
    def side(self) -> int:
        """Patches along one side."""
        if self.padded:
            return -(-self.size // self.patch)
        return self.size // self.patch

    @property
    def maskable(self) -> int:
        """How many squares of an image are hidden or not: patches, or units of several."""
        return (-(-self.side // self.mask_unit)) ** 2


@dataclass(frozen=True)
class Tubelets(Patches):
    """Tubelet embeddings of clips (Arnab et al. 2021, ViViT; Tong et al. 2022, VideoMAE).

    A tubelet, the same patch of some frames, is mapped to a vector. Learned positions are those of
    patches and, added to them, of frames; the tubelets of a patch follow each other (Bertasius et
    al. 2021, TimeSformer). Sinusoids count all tubelets, frame after frame.
    """

    frames: Size = 8  # of a clip
    tubelet: Size = 1  # frames that are one vector
    # Each frame is a row of its own: nothing is attended to in other frames ("space only").
    separate: bool = False

    def validate(self) -> None:
        super().validate()
        if self.tubelet > self.frames:
            raise ModelError(
                f"a tubelet of {self.tubelet} frames does not fit into a clip of {self.frames}",
                "set a smaller `tubelet`",
            )
        has_position = self.position in ("learned", "sinusoidal")
        of_images = self.padded or self.interpolated or self.mask_token or self.mask_unit > 1
        of_images = of_images or self.convolutions
        if of_images or not has_position:
            raise ModelError(
                "clips have learned or sinusoidal positions, and no mask tokens",
                "remove the other options of Tubelets",
            )
        if self.position == "sinusoidal" and self.extras:
            raise ModelError("sinusoids of tubelets have no extra tokens", "set extras=0")
        if self.separate and self.tubelet > 1:
            raise ModelError("a tubelet joins frames, which are separate", "set tubelet=1")

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return rows, self.frames, self.channels, self.size, self.size

    @property
    def times(self) -> int:
        """Tubelets one after the other; frames at the end that fill none are ignored."""
        return self.frames // self.tubelet

    @property
    def positions(self) -> int:
        times = 1 if self.separate else self.times
        return self.side**2 * times + self.extras


@dataclass(frozen=True)
class TextAndImage(_FrontEnd):
    """One sequence of a text and an image (Kim et al. 2021, ViLT).

    Behind the tokens stand the patches, and each has the vector of its modality added. Images may
    have any size: their positions are interpolated.
    """

    main_input_name = "input_ids"
    reads = "input_ids pixel_values"  # the arguments of both
    mask_name = "attention_mask token_type_ids pixel_mask"  # their masks, and segments of the text
    text: Tokens
    image: Patches
    modalities: Size = 2  # rows of their embedding: text, image; a third is that of a second image

    def validate(self) -> None:
        if self.image.position != "learned" or self.image.mask_token or self.modalities < 2:
            raise ModelError(
                "text and image need learned positions of patches, no mask token, and vectors of "
                "two modalities",
                "set position='learned', mask_token=False and modalities=2 or more",
            )


@dataclass(frozen=True)
class ConvStem(_FrontEnd):
    """Stem of a convolutional network (He et al. 2016, ResNet): a convolution, BatchNorm, an
    activation, and max pooling of 3 × 3 with stride 2.

    It reads images of any size.
    """

    main_input_name = "pixel_values"  # images [B, channels, height, width]
    extras = 0  # tokens in front
    mask_token = False
    size: Size = 224  # side, in pixels, that images are brought to
    channels: Size = 3
    kernel: Size = 7  # side, in pixels
    stride: Size = 2
    pool: bool = True
    activation: Activation = "relu"
    norm: BatchNorm = field(default_factory=partial(BatchNorm, counts=True))

    def validate(self) -> None:
        check_odd(self.kernel)

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return rows, self.channels, self.size, self.size

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the feature map of an image of so many pixels."""
        stride = self.patch
        return -(-height // stride), -(-width // stride)

    @property
    def patch(self) -> int:
        """Pixels from one position to the next."""
        return self.stride * (1 + self.pool)


@dataclass(frozen=True)
class OverlapPatches(_FrontEnd):
    """Overlapping patch embedding (Xie et al. 2021, SegFormer): a convolution, then LayerNorm.

    It reads images of any size, and adds no positions.
    """

    main_input_name = "pixel_values"  # images [B, channels, height, width]
    extras = 0  # tokens in front
    mask_token = False
    size: Size = 512  # side, in pixels, that images are brought to
    channels: Size = 3
    kernel: Size = 7  # side, in pixels
    patch: Size = 4  # pixels from one position to the next

    def validate(self) -> None:
        check_odd(self.kernel)

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return rows, self.channels, self.size, self.size

    @property
    def positions(self) -> int:
        """The positions of an image."""
        return (-(-self.size // self.patch)) ** 2


@dataclass(frozen=True)
class FeatureMap(_FrontEnd):
    """Feature map of an image (Carion et al. 2020, DETR): a backbone, then a linear map to d_model.

    The backbone is a stem and stages of convolutions, or patches. Its positions are for an
    `AddedPosition` of the stack. It reads images of any size.
    """

    main_input_name = "pixel_values"  # images [B, channels, height, width]
    mask_name = "pixel_mask"  # True at pixels that are no padding
    extras = 0  # tokens in front
    mask_token = False
    backbone: ConvStem | Patches
    width: Size  # of what the stem or the patches give
    stages: ResidualStages | None = None
    # Sinusoids of rows and columns, or a table of 50 of each.
    position: Literal["sinusoidal", "learned"] = "sinusoidal"
    dropout: Rate = 0.0
    # The longest wavelength of the sinusoids is so many times the shortest, a side of the image:
    # a low one tells neighbours apart from the start (Liu et al. 2022, DAB-DETR, Section 4.4).
    temperature: Positive = 10_000
    # Whether positions are added to the features as well: values then say where they are.
    placed: bool = False

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return self.backbone.shape(rows, length)

    @property
    def features(self) -> int:
        """The width of what the backbone gives."""
        return self.width if self.stages is None else self.stages.width(self.width)

    @property
    def halvings(self) -> int:
        """How many stages halve rows and columns."""
        blocks = [] if self.stages is None else self.stages.blocks(self.width)
        return sum(block.stride > 1 for block in blocks)

    @property
    def size(self) -> int:
        """The side, in pixels, that images are brought to."""
        return self.backbone.size

    @property
    def channels(self) -> int:
        return self.backbone.channels

    @property
    def patch(self) -> int:
        """Pixels from one position to the next."""
        return self.backbone.patch * 2**self.halvings

    @property
    def positions(self) -> int:
        """The positions of an image."""
        return (-(-self.size // self.patch)) ** 2


@dataclass(frozen=True)
class ObjectQueries(_FrontEnd):
    """Object queries (Carion et al. 2020, DETR): what a decoder reads that finds objects.

    With anchors each begins with a box of its own, which is learned: its middle is the position of
    the query, and the head says how the object's box differs from it (Liu et al. 2022, DAB-DETR).
    """

    count: Size  # the most objects that can be found in an image
    anchors: bool = False


@dataclass(frozen=True)
class Convolution(Part):
    """One-dimensional convolution over time, without padding, then a norm.

    The padding of a batch enters mean and variance of InstanceNorm here (as in the group norm of
    wav2vec 2.0), so a batch is best padded little.
    """

    channels: Size  # output channels
    kernel: Size  # in time steps of its input
    stride: Size  # in time steps of its input
    bias: bool = False
    norm: LayerNorm | InstanceNorm | None = None


@dataclass(frozen=True)
class ConvPosition(Part):
    """Convolutional positional embedding (wav2vec 2.0): a grouped convolution, added to x."""

    kernel: Size = 128  # positions, centred on the one that is encoded
    groups: Size = 16  # of channels; d_model must be a multiple


@dataclass(frozen=True)
class Waveform(_FrontEnd):
    """Raw waveform front end (Baevski et al. 2020, wav2vec 2.0): a convolutional feature encoder.

    A norm and a linear map to d_model follow the convolutions; then positions, norm and dropout.
    """

    main_input_name = "input_values"  # samples [B, N]
    convolutions: tuple[Convolution, ...]
    position: ConvPosition = field(default_factory=ConvPosition)
    activation: Activation = "gelu"  # after each convolution
    features: Norm | None = field(default_factory=LayerNorm)  # before the linear map
    project_dropout: Rate = 0.0  # after the linear map
    norm: Norm | None = None  # after the positions
    dropout: Rate = 0.1
    masked: bool = True  # has a learned vector that replaces masked positions in pretraining
    # Multi-scale: each position is told what its windows sound like, of these lengths in positions.
    scales: tuple[TimeScale, ...] = ()

    def validate(self) -> None:
        if not self.convolutions:
            raise ModelError("a Waveform needs at least one convolution", "set `convolutions`")
        _check_scales(self.scales)

    @property
    def normalizes_over_time(self) -> bool:
        """Whether padding changes what is computed of a recording."""
        return any(isinstance(convolution.norm, InstanceNorm) for convolution in self.convolutions)

    def positions(self, samples: int) -> int:
        """The positions after the convolutions of so many samples."""
        for convolution in self.convolutions:
            samples = (samples - convolution.kernel) // convolution.stride + 1
        return samples


@dataclass(frozen=True)
class RandomMasking(Part):
    """Masked pre-training of series: a share of the patches, drawn at random."""

    share: Share = 0.5
    same_for_channels: bool = False  # one draw for all channels of a series
    never: tuple[Count, ...] = ()  # channels without masks
    value: float = 0.0  # what stands in masked patches


@dataclass(frozen=True)
class ForecastMasking(Part):
    """Masked pre-training of series: the last patches, of each series as many as drawn for it."""

    patches: tuple[Size, ...] = (2,)  # numbers to draw from
    never: tuple[Count, ...] = ()  # channels without masks
    value: float = 0.0  # what stands in masked patches


@dataclass(frozen=True)
class SeriesPatches(Part):
    """Patch embeddings of time series (Nie et al. 2023, PatchTST): each channel by itself.

    A window is normalized by its own statistics, cut into patches, and each of them mapped to a
    vector. Patches end with the window; steps before the first one are ignored. With several
    scales, the patches of all of them are one sequence.
    """

    main_input_name = "past_values"  # windows [B, length, channels]
    length: Size  # of the window, in time steps: the look-back
    channels: Size
    scales: tuple[TimeScale, ...]
    class_token: bool = False
    # Instance normalization: by mean and deviation (RevIN without its affine map), or by the mean
    # of absolute values.
    scaler: Literal["std", "mean"] | None = "std"
    position: Literal["learned", "fixed"] = "learned"  # fixed: sinusoids, standardized
    dropout: Rate = 0.0
    shared: bool = True  # one linear map for all channels
    masking: RandomMasking | ForecastMasking | None = None

    def validate(self) -> None:
        if not self.scales:
            raise ModelError("SeriesPatches needs at least one patch length", "set `scales`")
        for scale in self.scales:
            if scale.length > self.length:
                raise ModelError(
                    f"a patch of {scale.length} steps does not fit into a series of {self.length}",
                    "set a smaller `patch`",
                )
        if self.masking is not None and len(self.scales) > 1:
            raise ModelError("masked patches must have the same length", "set one scale")

    @property
    def patches(self) -> int:
        """How many patches a channel has, of all scales together."""
        return sum((self.length - one.length) // one.stride + 1 for one in self.scales)

    @property
    def positions(self) -> int:
        """The sequence length of a channel."""
        return self.patches + int(self.class_token)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The first step of each position and the one after its last, scale after scale."""
        spans = [(0, 0)] if self.class_token else []
        for scale in self.scales:
            first = (self.length - scale.length) % scale.stride
            for begin in range(first, self.length - scale.length + 1, scale.stride):
                spans.append((begin, begin + scale.length))
        return tuple(spans)


@dataclass(frozen=True)
class StaticCategory(Part):
    """Static categorical feature of a time series, such as its number: an embedding of it."""

    count: Size  # different values: the cardinality
    width: Size  # of the embedding


@dataclass(frozen=True)
class LaggedValues(Part):
    """Lagged values of time series (Salinas et al. 2020, DeepAR), read by an encoder–decoder.

    A time step is a vector: the values of all channels some steps earlier, on the scale of the
    window, then what holds for the whole series (static features, and the logarithms of location
    and scale), then what is known of the step itself (time features). A linear map, positions, norm
    and dropout follow, on each side by weights of its own.
    """

    main_input_name = "past_values"  # windows [B, past, channels]
    length: Size  # steps that the encoder reads: the context
    channels: Size
    lags: tuple[Size, ...] = (1, 2, 3, 4, 5, 6, 7)  # in time steps
    scaler: Literal["std", "mean"] | None = "mean"  # instance normalization, as in SeriesPatches
    categories: tuple[StaticCategory, ...] = ()
    static_features: Count = 0  # numbers that are given for the whole series
    # Numbers that are given for each step, in the future too: of the calendar, and any others.
    time_features: Count = 0
    dynamic_features: Count = 0
    norm: Norm = field(default_factory=LayerNorm)
    dropout: Rate = 0.0

    def validate(self) -> None:
        if not self.lags:
            raise ModelError(
                "at least one lag is needed, since each step reads earlier ones by them",
                "set `lags` to at least one number of time steps",
            )

    @property
    def past(self) -> int:
        """Time steps of a window: the context, and before it what the first step looks back to."""
        return self.length + max(self.lags)

    @property
    def covariates(self) -> int:
        """The numbers that are given for each step."""
        return self.time_features + self.dynamic_features

    @property
    def width(self) -> int:
        """The numbers of one time step, before they are mapped to d_model."""
        embedded = sum(category.width for category in self.categories)
        # Location and scale of each channel are static features as well.
        static = embedded + self.static_features + 2 * self.channels
        return len(self.lags) * self.channels + static + self.covariates


@dataclass(frozen=True)
class NodeFeatures(_FrontEnd):
    """Node embeddings of graphs: a linear map of each node's features, and where the node is.

    Structural encodings: the node's degree (Graphormer's centrality encoding), and the first
    eigenvectors of the graph's Laplacian (Dwivedi and Bresson 2021), whose signs are drawn anew in
    each training step.
    """

    main_input_name = "node_features"  # features [B, nodes, features]
    features: Size  # numbers of a node
    normalized: bool = True  # each node's features are divided by their sum of absolute values
    input_dropout: Rate = 0.0  # on the features
    dropout: Rate = 0.0  # on the embedding
    degrees: Count = 0  # rows of the embedding of degrees; 0 for none
    laplacian: Count = 0  # eigenvectors; 0 for none

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return rows, length, self.features


@dataclass(frozen=True)
class Trajectories(_FrontEnd):
    """Embeddings of trajectories (Chen et al. 2021, Decision Transformer): three tokens a step.

    They are the return-to-go, the state and the action, each through a linear map of its own, with
    the vector of the time step added; a norm follows.
    """

    main_input_name = "states"  # states [B, steps, states]
    states: Size  # numbers of a state
    actions: Size  # numbers of an action; where there is a choice, one for each of its actions
    steps: Size = 4096  # time steps of the longest episode
    norm: Norm = field(default_factory=LayerNorm)
    dropout: Rate = 0.1
    # transformers' stack is GPT-2's: it adds the first of so many positions to every token, and
    # keeps a table of so many words that nothing reads.
    positions: Size = 1024
    vocabulary: Size = 1

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return rows, length, self.states


# Of a Transformer; a stem stands before stages of convolutions.
FrontEnd = (
    Tokens
    | Spectrogram
    | Patches
    | OverlapPatches
    | FeatureMap
    | TextAndImage
    | Waveform
    | SeriesPatches
    | NodeFeatures
    | Trajectories
)
