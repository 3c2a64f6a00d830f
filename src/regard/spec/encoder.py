"""Encoders of text, images, audio, time series and graphs, and dual encoders."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from regard.spec.baselines import Recurrent, ResidualStages
from regard.spec.frontend import (
    ConvStem,
    FeatureMap,
    FrontEnd,
    NodeFeatures,
    OverlapPatches,
    Patches,
    SeriesPatches,
    Spectrogram,
    TextAndImage,
    Tokens,
    Trajectories,
    Tubelets,
    Waveform,
)
from regard.spec.head import (
    ChannelHead,
    ContrastiveHead,
    ForecastHead,
    LMHead,
    MaskedImageDecoder,
    PatchHead,
    PixelDecoder,
    PixelShuffleHead,
    Pool,
    SeriesHead,
    SeriesWindow,
    TrajectoryHead,
    TubeletDecoder,
)
from regard.spec.mask import NeighbourMask
from regard.spec.model_spec import (
    FrontEnds,
    Heads,
    Input,
    Inputs,
    ModelSpec,
    Stacks,
    arguments,
    check_decoder,
    check_no_cross,
    check_recurrent_encoder,
    check_tied,
    heads,
)
from regard.spec.position import ShortestPathBias
from regard.spec.stack import Divided, Evoformer, Stack, Stages
from regard.spec.validation import Size
from regard.system.errors import ModelError


@dataclass(frozen=True)
class Encoder(ModelSpec):
    """Encoder-only Transformer (BERT, ViT, wav2vec 2.0), with the heads that its task needs."""

    d_model: Size
    input: FrontEnd
    stack: Stack
    heads: Heads = ()
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's

    def validate(self) -> None:
        check_no_cross(self.stack)
        _check_inputs_of_heads(self)
        _check_clips(self)
        _check_alignment(self)
        _check_series(self)
        _check_graph(self)
        if isinstance(self.input, Waveform) and self.d_model % self.input.position.groups:
            groups = self.input.position.groups
            problem = (
                f"d_model {self.d_model} is not divisible by {groups}, the number of channel groups"
            )
            raise ModelError(problem, "change one of them")
        if self.pixels and isinstance(self.pixels, PixelShuffleHead) != self.patches.mask_token:
            raise ModelError(
                "PixelShuffleHead needs a mask token, and PixelDecoder works without one",
                "set mask_token=True for PixelShuffleHead, mask_token=False for PixelDecoder",
            )
        check_tied(self.tied, self.stack, self.d_model, self.head)
        if isinstance(self.input, Trajectories):
            check_decoder(self.stack)  # an action must not be seen by its prediction

    @property
    def front_ends(self) -> FrontEnds:
        return {"encoder": self.input}

    @property
    def inputs(self) -> Inputs:
        name = self.input.main_input_name
        match self.input:
            case FeatureMap() | TextAndImage():
                return arguments(self.reads, self.input.mask_name)
            case Tubelets():
                # What is hidden in pre-training; a classifier sees all.
                hides = self.input.position == "sinusoidal" and self.labels is None
                clips = Input(name, content="clips")
                return (clips, *arguments("", "bool_masked_pos" if hides else ""))
            # Images of a batch have one size: nothing is padded.
            case Patches(mask_token=True):
                return arguments(name, "bool_masked_pos")
            case Patches(masked_share=share):
                return arguments(name, "noise" if share or self.pixels is not None else "")
            case Tokens():
                is_global = self.stack.block.attention.projection == "global"
                masks = "attention_mask" + " global_attention_mask" * is_global
                return arguments(name, f"{masks} token_type_ids")
            case SeriesPatches():
                return arguments(name, "past_observed_mask")
            case Spectrogram() | OverlapPatches():
                # Whisper has no attention mask: padding is silence, and is attended to.
                return arguments(name)
            case NodeFeatures(laplacian=laplacian):
                paths = isinstance(self.stack.block.position, ShortestPathBias)
                return (
                    *arguments(name, "attention_mask"),
                    Input("edges"),
                    Input("eigenvectors", required=laplacian > 0),
                    Input("distances", required=paths),
                )
            case Trajectories():
                return (
                    *arguments(f"{name} actions", "rewards"),
                    *arguments("returns_to_go timesteps", "attention_mask"),
                )
            case Waveform() if self.contrastive is not None:
                return arguments(name, "attention_mask mask_time_indices sampled_negative_indices")
            case Waveform():
                return arguments(name, "attention_mask")

    @property
    def stacks(self) -> Stacks:
        return {"encoder": self.stack}

    def with_stacks(self, stacks: Stacks) -> Self:
        return dataclasses.replace(self, stack=stacks["encoder"])

    @property
    def series(self) -> SeriesHead | None:
        """The head of time series."""
        return self.part(ForecastHead, PatchHead, ChannelHead)

    @property
    def contrastive(self) -> ContrastiveHead | None:
        """The head of pre-training on sound."""
        return self.part(ContrastiveHead)

    @property
    def pixels(self) -> MaskedImageDecoder | None:
        """The head of masked pre-training on images."""
        return self.part(PixelDecoder, PixelShuffleHead)

    @property
    def tokens(self) -> Tokens:
        """The token embedding of an encoder that reads text, perhaps with an image."""
        if isinstance(self.input, TextAndImage):
            return self.input.text
        assert isinstance(self.input, Tokens)
        return self.input

    @property
    def reads(self) -> str:
        return self.input.reads if isinstance(self.input, TextAndImage) else super().reads

    @property
    def vocab_size(self) -> int | None:
        if isinstance(self.input, TextAndImage):
            return self.input.text.vocabulary
        return super().vocab_size

    @property
    def max_length(self) -> int | None:
        if isinstance(self.input, TextAndImage):
            return self.input.text.max_length
        return super().max_length

    @property
    def image_positions(self) -> int:
        if isinstance(self.input, TextAndImage):
            return self.input.image.positions
        return super().image_positions

    @property
    def patches(self) -> Patches:
        """The patch embedding of an encoder that reads images, perhaps with a text."""
        if isinstance(self.input, TextAndImage):
            return self.input.image
        assert isinstance(self.input, Patches)
        return self.input

    def with_image_size(self, size: int) -> Self:
        """The same encoder for images of another side."""
        front: Any = self.input
        front = dataclasses.replace(front, size=size)
        stack = self.stack
        match stack.scheme:
            case Stages():
                scheme = dataclasses.replace(stack.scheme, side=front.side)
                stack = dataclasses.replace(stack, scheme=scheme)
            case Divided():
                divided = dataclasses.replace(stack.scheme, patches=front.side**2)
                stack = dataclasses.replace(stack, scheme=divided)
        return dataclasses.replace(self, input=front, stack=stack)

    @property
    def nodes(self) -> NodeFeatures:
        """The front end of an encoder of graphs."""
        assert isinstance(self.input, NodeFeatures)
        return self.input

    @property
    def windows(self) -> SeriesPatches:
        """The front end of an encoder of time series."""
        assert isinstance(self.input, SeriesPatches)
        return self.input

    @property
    def trajectories(self) -> Trajectories:
        """The front end of a model of trajectories."""
        assert isinstance(self.input, Trajectories)
        return self.input

    @property
    def series_window(self) -> SeriesWindow:
        """What an encoder of time series reads and forecasts."""
        part = self.windows
        head = self.series
        if not isinstance(head, ForecastHead):
            return SeriesWindow(part.length, part.channels, spans=part.spans)
        return SeriesWindow(part.length, part.channels, head.horizon, head.output, part.spans)

    @property
    def spectrogram(self) -> Spectrogram:
        """The front end of an encoder of spectrograms."""
        assert isinstance(self.input, Spectrogram)
        return self.input

    @property
    def waves(self) -> Waveform:
        """The waveform front end of a speech encoder."""
        assert isinstance(self.input, Waveform)
        return self.input


# What the input of a model must be for a head of it.
_INPUTS: dict[type, type] = {
    LMHead: Tokens,
    ContrastiveHead: Waveform,
    PixelDecoder: Patches,
    TubeletDecoder: Tubelets,
    PixelShuffleHead: Patches,
    ForecastHead: SeriesPatches,
    PatchHead: SeriesPatches,
    ChannelHead: SeriesPatches,
    TrajectoryHead: Trajectories,
}


def _check_inputs_of_heads(model: Encoder | ConvolutionalEncoder) -> None:
    """Heads of sounds, images and time series read no other medium."""
    for head in model.heads:
        is_series = isinstance(model.input, SeriesPatches)
        needed = _INPUTS.get(type(head), type(None) if is_series else object)
        if not isinstance(model.input, needed):
            raise ModelError(
                f"a {type(head).__name__} does not read {type(model.input).__name__}",
                "set another head, or another input",
            )


def _check_series(model: Encoder) -> None:
    """What a head of time series asks of their patches."""
    if not isinstance(model.input, SeriesPatches) or model.series is None:
        return
    if isinstance(model.series, PatchHead):
        if len(model.input.scales) > 1:
            raise ModelError("a PatchHead needs patches of one length", "set one scale")
    elif (model.series.pool == "first") != model.input.class_token:
        raise ModelError(
            "pool='first' of the head and class_token=True of the input belong together",
            "set both, or neither",
        )


def _check_clips(model: Encoder) -> None:
    """Divided attention and its front end know the same clip."""
    scheme = model.stack.scheme
    part = model.input
    if not isinstance(scheme, Divided):
        return
    clip = None
    if isinstance(part, Tubelets) and part.position == "learned" and not part.separate:
        clip = Divided(part.times, part.side**2, part.extras)
    if scheme != clip:
        raise ModelError(
            f"{scheme} does not divide what {type(part).__name__} gives",
            "set input=Tubelets(…) with learned positions and as many frames, patches and extras",
        )


def _check_alignment(model: Encoder) -> None:
    """An Evoformer and its front end belong together."""
    columns = isinstance(model.input, Tokens) and model.input.columns
    if isinstance(model.stack.scheme, Evoformer) != bool(columns):
        raise ModelError(
            "an Evoformer reads alignments, and nothing else does",
            "set both scheme=Evoformer(…) and input=Tokens(…, columns=N), or neither",
        )


def _check_graph(model: Encoder) -> None:
    """Neighbour masks and shortest-path biases need graphs."""
    stack = model.stack
    along_edges = any(
        block.pattern == NeighbourMask() or isinstance(block.position, ShortestPathBias)
        for block in stack.blocks
    )
    if along_edges and not isinstance(model.input, NodeFeatures):
        raise ModelError(
            "NeighbourMask and ShortestPathBias need graphs as input", "set input=NodeFeatures(…)"
        )


@dataclass(frozen=True)
class RecurrentEncoder(ModelSpec):
    """Recurrent encoder of text with its heads: an LSTM or a BiLSTM classifier."""

    d_model: Size
    input: Tokens
    stack: Recurrent
    heads: Heads = ()
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's

    def validate(self) -> None:
        check_recurrent_encoder(self.stack, self.d_model)

    @property
    def front_ends(self) -> FrontEnds:
        return {"encoder": self.input}

    @property
    def inputs(self) -> Inputs:
        return arguments(self.input.main_input_name, "attention_mask token_type_ids")

    @property
    def tokens(self) -> Tokens:
        """The token embedding."""
        return self.input


@dataclass(frozen=True)
class ConvolutionalEncoder(ModelSpec):
    """Convolutional encoder of images with its heads (He et al. 2016, ResNet)."""

    d_model: Size  # channels of the stem
    input: ConvStem
    stack: ResidualStages
    heads: Heads = (Pool("mean", None),)
    tied = False  # no table of tokens
    pixels = None  # none of its positions can be hidden: it has no decoder of them

    def validate(self) -> None:
        _check_inputs_of_heads(self)

    @property
    def image_positions(self) -> int:
        """The positions of an image in the last stage."""
        halvings = len(self.stack.widths) - 1 + self.stack.halves_first
        side, _ = self.input.grid(self.input.size, self.input.size)
        return (-(-side // 2**halvings)) ** 2

    def with_image_size(self, size: int) -> Self:
        """The same encoder, whose images are brought to another side."""
        return dataclasses.replace(self, input=dataclasses.replace(self.input, size=size))

    @property
    def widths(self) -> dict[str, int]:
        return {"": self.stack.width(self.d_model)}

    @property
    def front_ends(self) -> FrontEnds:
        return {"encoder": self.input}

    @property
    def inputs(self) -> Inputs:
        return arguments(self.input.main_input_name)


@dataclass(frozen=True)
class DualEncoder(ModelSpec):
    """Dual encoder of texts and images (Radford et al. 2021, CLIP), compared by their cosine."""

    text: Encoder
    image: Encoder
    scale: float = 2.6592  # initial logit scale, ln(1 / 0.07): cosines are multiplied by e^scale
    # Initial logit bias of pairs that are judged one by one, by a sigmoid (SigLIP); None: a softmax
    # over the batch (CLIP).
    bias: float | None = None

    def validate(self) -> None:
        if not isinstance(self.text.input, Tokens) or not isinstance(self.image.input, Patches):
            raise ModelError(
                "a dual encoder needs a text encoder and an image encoder",
                "set text.input=Tokens(…) and image.input=Patches(…)",
            )
        widths = [
            tower.pool and (tower.pool.width or tower.d_model) for tower in (self.text, self.image)
        ]
        if widths[0] is None or widths[0] != widths[1]:
            raise ModelError(
                "both encoders of a dual encoder need pooled vectors of the same width",
                "set the same Pool(width=…) for both",
            )

    @property
    def front_ends(self) -> FrontEnds:
        return {"text.encoder": self.text.input, "image.encoder": self.image.input}

    @property
    def inputs(self) -> Inputs:
        return arguments("input_ids pixel_values", "attention_mask")

    @property
    def max_length(self) -> int | None:
        return self.text.max_length

    @property
    def pool(self) -> Pool | None:
        return self.text.pool

    @property
    def widths(self) -> dict[str, int]:
        return {"text": self.text.d_model, "image": self.image.d_model}

    @property
    def stacks(self) -> Stacks:
        return {"text.encoder": self.text.stack, "image.encoder": self.image.stack}

    def with_image_size(self, size: int) -> Self:
        """The same towers, for images of another side."""
        return dataclasses.replace(self, image=self.image.with_image_size(size))

    def with_stacks(self, stacks: Stacks) -> Self:
        text = dataclasses.replace(self.text, stack=stacks["text.encoder"])
        image = dataclasses.replace(self.image, stack=stacks["image.encoder"])
        return dataclasses.replace(self, text=text, image=image)


# ------------------------------------------------------------------ masked image modelling

SIMMIM_MASK_RATIO = 0.6  # Xie et al. 2022, Section 4.1


def masked_image_model(
    encoder: Encoder, stride: int | None = None, share: float = SIMMIM_MASK_RATIO
) -> Encoder:
    """An encoder of images with mask tokens for hidden patches, and a decoder of one layer.

    `stride` is the side of what one position reconstructs, in pixels; None: so that all positions
    give the image. What one position reconstructs is hidden as a whole.
    """
    if not isinstance(encoder.input, Patches) or isinstance(encoder.input, Tubelets):
        raise ModelError(
            "masked image modelling needs an encoder of patches of images",
            "use a ViT, or an Encoder with input=Patches(…)",
        )
    patches = encoder.input
    stride = stride or image_stride(encoder)
    if stride is None:
        raise ModelError(
            f"the image size {patches.size} is not divisible by the patch size {patches.patch}, "
            "or by the grid of the last stage",
            "change --image-size or --patch, or use fewer stages",
        )
    unit = 1 if stride % patches.patch else stride // patches.patch
    masked = dataclasses.replace(patches, mask_token=True, masked_share=share, mask_unit=unit)
    # Pooling by a mean (Swin) has no weights; a class token's is of no use without its head.
    has_mean = encoder.pool is not None and encoder.pool.which == "mean"
    parts = heads(encoder.pool if has_mean else None, PixelShuffleHead(stride))
    return dataclasses.replace(encoder, input=masked, heads=parts)


def image_stride(encoder: Encoder) -> int | None:
    """Pixels along an image for each position of the last layer; None if they do not divide it."""
    patches = encoder.patches
    scheme = encoder.stack.scheme
    side = scheme.sides[-1] if isinstance(scheme, Stages) else patches.side
    if patches.size % side or patches.size % patches.patch:
        return None
    return patches.size // side
