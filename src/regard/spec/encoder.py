"""Encoders of text, images, audio, time series and graphs, and dual encoders."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from regard.spec.baselines import Recurrent
from regard.spec.frontend import (
    FrontEnd,
    LaggedValues,
    NodeFeatures,
    Patches,
    SeriesPatches,
    Spectrogram,
    Tokens,
    Waveform,
)
from regard.spec.head import (
    ClassifierHead,
    ContrastiveHead,
    DistilledHead,
    ForecastHead,
    HeadTask,
    LMHead,
    PatchHead,
    Pool,
    SeriesHead,
    SeriesWindow,
)
from regard.spec.inputs import Input, arguments
from regard.spec.mask import NeighbourMask
from regard.spec.model_spec import ModelSpec, check_no_cross, check_recurrent_encoder, check_tied
from regard.spec.pixel_decoder import MaskedImageDecoder, PixelShuffleHead
from regard.spec.position import ShortestPathBias
from regard.spec.stack import Stack
from regard.spec.validation import Size
from regard.system.errors import ModelError


@dataclass(frozen=True)
class Encoder(ModelSpec):
    """Encoder-only Transformer (BERT, ViT, wav2vec 2.0), with the heads that its task needs."""

    d_model: Size
    input: FrontEnd
    stack: Stack
    pool: Pool | None = None
    head: LMHead | None = None  # masked language modelling
    labels: ClassifierHead | DistilledHead | None = None
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's
    series: SeriesHead | None = None  # of time series
    contrastive: ContrastiveHead | None = None  # of pre-training on sound
    pixels: MaskedImageDecoder | None = None  # of masked pre-training on images

    def validate(self) -> None:
        check_no_cross(self.stack)
        _check_series(self)
        _check_graph(self)
        needs_pool = isinstance(self.labels, ClassifierHead) and not (
            self.labels.each or self.labels.pool
        )
        if needs_pool and self.pool is None:
            raise ModelError(
                "a sequence classification head needs a pooled vector",
                "set `pool`, or use a token-level task such as 'tag'",
            )
        if not isinstance(self.input, Tokens) and self.head is not None:
            raise ModelError(
                "a language-model head needs tokens as input",
                "set `labels` instead of `head`",
            )
        if isinstance(self.input, Waveform) and self.d_model % self.input.position.groups:
            groups = self.input.position.groups
            problem = (
                f"d_model {self.d_model} is not divisible by {groups}, the number of channel groups"
            )
            raise ModelError(problem, "change one of them")
        if self.contrastive is not None and not isinstance(self.input, Waveform):
            raise ModelError(
                "contrastive pre-training needs a Waveform as input", "set input=Waveform(…)"
            )
        _check_pixels(self)
        if self.head is not None and self.head.transform is None:
            check_tied(self.tied, self.stack, self.d_model)

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"input": self.input} if isinstance(self.input, Tokens) else {}

    @property
    def front_ends(self) -> dict[str, FrontEnd | LaggedValues]:
        return {"encoder": self.input}

    @property
    def inputs(self) -> tuple[Input, ...]:
        name = self.input.main_input_name
        match self.input:
            # Images of a batch have one size: nothing is padded.
            case Patches(mask_token=True):
                return arguments(name, "bool_masked_pos")
            case Patches(masked_share=share):
                return arguments(name, "noise" if share or self.pixels is not None else "")
            case Tokens() if self.stack.block.attention.projection == "global":
                return arguments(name, "attention_mask global_attention_mask token_type_ids")
            case Tokens():
                return arguments(name, "attention_mask token_type_ids")
            case SeriesPatches():
                return arguments(name, "past_observed_mask")
            case Spectrogram():
                # Whisper has no attention mask: padding is silence, and is attended to.
                return arguments(name)
            case NodeFeatures(laplacian=laplacian):
                paths = isinstance(self.stack.block.position, ShortestPathBias)
                return (
                    *arguments(name, "attention_mask"),
                    Input("edges"),
                    Input("eigenvectors", required=laplacian > 0),
                    Input(
                        "distances",
                        required=paths,
                    ),
                )
            case Waveform() if self.contrastive is not None:
                return arguments(name, "attention_mask mask_time_indices sampled_negative_indices")
            case Waveform():
                return arguments(name, "attention_mask")

    @property
    def vocab_size(self) -> int | None:
        if isinstance(self.input, Tokens):
            return self.input.vocabulary
        return None

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.stack}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        return dataclasses.replace(self, stack=stacks["encoder"])

    @property
    def task(self) -> HeadTask | None:
        if self.labels is None:
            return None
        return self.labels.task

    @property
    def scored(self) -> int:
        """The input width of the classification head."""
        pooled = isinstance(self.labels, ClassifierHead) and not (
            self.labels.each or self.labels.pool
        )
        if pooled and self.pool is not None and self.pool.width:
            return self.pool.width
        if pooled and self.pool is not None and self.pool.activation:
            return self.d_model  # the pooler's dense layer ends at d_model
        width = self.stack.width(self.d_model)
        if pooled and self.pool is not None and self.pool.which == "first_and_mean":
            return 2 * width
        return width

    @property
    def tokens(self) -> Tokens:
        """The token embedding of a text encoder."""
        assert isinstance(self.input, Tokens)
        return self.input

    @property
    def patches(self) -> Patches:
        """The patch embedding of an image encoder."""
        assert isinstance(self.input, Patches)
        return self.input

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


def _check_series(model: Encoder) -> None:
    """A time-series head needs a time-series front end, and the other way round."""
    if not isinstance(model.input, SeriesPatches):
        if model.series is not None:
            raise ModelError("the head `series` needs time series as input", "set `labels` instead")
        return
    if model.labels is not None or model.pool is not None:
        raise ModelError(
            "models of time series do not have `labels` and `pool`", "set `series` instead"
        )
    if isinstance(model.series, PatchHead):
        if len(model.input.scales) > 1:
            raise ModelError("a PatchHead needs patches of one length", "set one scale")
    elif model.series is not None:
        first = model.series.pool == "first"
        if first != model.input.class_token:
            raise ModelError(
                "pool='first' of the head and class_token=True of the input belong together",
                "set both, or neither",
            )


def _check_pixels(model: Encoder) -> None:
    """A pixel decoder needs images, with mask tokens only if it is a PixelShuffleHead."""
    if model.pixels is None:
        return
    if not isinstance(model.input, Patches):
        raise ModelError("pixel reconstruction needs images as input", "set input=Patches(…)")
    if isinstance(model.pixels, PixelShuffleHead) != model.input.mask_token:
        raise ModelError(
            "PixelShuffleHead needs a mask token, and PixelDecoder works without one",
            "set mask_token=True for PixelShuffleHead, mask_token=False for PixelDecoder",
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
    """Recurrent encoder of text, with a classification head: an LSTM or a BiLSTM classifier."""

    d_model: Size
    input: Tokens
    stack: Recurrent
    pool: Pool | None = None
    labels: ClassifierHead | None = None

    def validate(self) -> None:
        check_recurrent_encoder(self.stack, self.d_model)
        if self.labels is not None and not self.labels.each and self.pool is None:
            raise ModelError(
                "a sequence classification head needs a pooled vector",
                "set `pool`, or use a token-level task such as 'tag'",
            )

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"input": self.input}

    @property
    def front_ends(self) -> dict[str, FrontEnd | LaggedValues]:
        return {"encoder": self.input}

    @property
    def inputs(self) -> tuple[Input, ...]:
        return arguments(self.input.main_input_name, "attention_mask token_type_ids")

    @property
    def vocab_size(self) -> int:
        return self.input.vocabulary

    @property
    def task(self) -> HeadTask | None:
        """The task of the classification head; None without one."""
        return None if self.labels is None else self.labels.task

    @property
    def head(self) -> None:
        """None: recurrent encoders have no masked-LM head."""

    @property
    def tokens(self) -> Tokens:
        """The token embedding."""
        return self.input


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
    def front_ends(self) -> dict[str, FrontEnd | LaggedValues]:
        return {"text.encoder": self.text.input, "image.encoder": self.image.input}

    @property
    def inputs(self) -> tuple[Input, ...]:
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
    def stacks(self) -> dict[str, Stack]:
        return {"text.encoder": self.text.stack, "image.encoder": self.image.stack}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        text = dataclasses.replace(self.text, stack=stacks["text.encoder"])
        image = dataclasses.replace(self.image, stack=stacks["image.encoder"])
        return dataclasses.replace(self, text=text, image=image)
