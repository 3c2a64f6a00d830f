"""Specs: the architecture of a model as frozen dataclasses.

Each choice is a class with its own options, and a union lists the alternatives. `builder.build`
turns a spec into modules, `parameter_count` counts its weights on the meta device, and
`to_dict`/`from_dict` serialize it to JSON with a closed schema.
Nothing here imports torch or depends on a family of models.

"Section 3.2" and the like, without a paper's name, are of Vaswani et al. 2017, "Attention Is All
You Need".
"""

from __future__ import annotations

# isort: off
# fmt: off
from regard.spec.attention import (
    AdditiveAttention,
    Attention,
    AttentionSizes,
    BuildsAttention,
    ChunkedAttention,
    EluFeatures,
    FavorFeatures,
    LinearAttention,
    Linformer,
    LshAttention,
    Mixer,
    ChunkRing,
    SoftmaxAttention,
    AutoBuckets,
)
from regard.spec.feedforward import (
    Activation,
    ConvFeedForward,
    MixtureOfExperts,
    PositionWise,
    GatedFeedForward,
    FeedForward,
)
from regard.spec.head import (
    AttentionPool,
    ContrastiveHead,
    EndToken,
    ClassifierHead,
    LMHead,
    Pool,
    HeadTask,
    HeadFeedForward,
    HeadTransform,
    DistilledHead,
    ChannelHead,
    ChannelPool,
    Distribution,
    Forecast,
    ForecastHead,
    PatchHead,
    Points,
    Quantiles,
    SeriesHead,
)
from regard.spec.global_tokens import (
    FirstTokens,
    GlobalTokens,
    QuestionTokens,
)
from regard.spec.frontend import (
    Convolution,
    Spectrogram,
    FrontEnd,
    ConvPosition,
    ForecastMasking,
    LaggedValues,
    NodeFeatures,
    Patches,
    RandomMasking,
    SeriesPatches,
    StaticCategory,
    TimeNorm,
    TimeScale,
    Tokens,
    Waveform,
)
from regard.spec.inputs import Input, InputKind
from regard.spec.model_spec import Head, ModelSpec, heads, knows_at_the_end, with_label_head
from regard.spec.encoder import (
    SIMMIM_MASK_RATIO,
    DualEncoder,
    Encoder,
    RecurrentEncoder,
    image_stride,
    masked_image_model,
)
from regard.spec.decoder import (
    Decoder,
    EncoderDecoder,
    RecurrentDecoder,
    SequenceToSequence,
    SeriesEncoderDecoder,
)
from regard.spec.model import LinearForecaster, MemoryNetwork, Model
from regard.spec.pixel_decoder import MaskedImageDecoder, PixelDecoder, PixelShuffleHead
from regard.spec.mask import (
    LongerThan,
    BlockLocalMask,
    And,
    CausalMask,
    DilatedMask,
    Or,
    FullMask,
    GlobalMask,
    Not,
    MaskPattern,
    NeighbourMask,
    RandomBlockMask,
    StridedMask,
    WindowMask,
    is_causal,
    counts_from_the_end,
)
from regard.spec.serialization import from_dict, own_kinds, to_dict
from regard.spec.position import (
    Alibi,
    AxialPosition,
    BandedScaling,
    BuildsPosition,
    T5Bias,
    ConcatenatedPosition,
    Disentangled,
    FixedPosition,
    InputPosition,
    LearnedPosition,
    PositionSizes,
    RelativeKeys,
    RelativeSinusoids,
    RepeatedBlockBias,
    Rope,
    RopeScaling,
    ShortestPathBias,
    Sinusoidal,
    StackPosition,
    LinearScaling,
    YarnScaling,
)
from regard.spec.baselines import (
    AdditiveScore,
    Convolutional,
    DotScore,
    GatedUnit,
    GeneralScore,
    LuongAttention,
    BahdanauAttention,
    BottleneckUnit,
    Recurrent,
    ScaledDotScore,
    AttentionScore,
)
from regard.spec.residual import (
    BatchNorm,
    LayerNorm,
    NoResidual,
    Norm,
    Parallel,
    PostNorm,
    PreNorm,
    Residual,
    RMSNorm,
    SandwichNorm,
)
from regard.spec.stack import (
    Block,
    CompressiveMemory,
    ConvLayer,
    Plain,
    Reversible,
    Scheme,
    Segments,
    Shared,
    Stack,
    Stages,
    Universal,
)
# fmt: on
# isort: on
