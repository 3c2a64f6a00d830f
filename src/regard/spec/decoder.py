"""Models with a decoder: language models, encoder–decoders, and those that forecast time series."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from regard.spec.baselines import Convolutional, Recurrent
from regard.spec.frontend import (
    FeatureMap,
    LaggedValues,
    ObjectQueries,
    Patches,
    Spectrogram,
    Tokens,
)
from regard.spec.head import ClassifierHead, Distribution, LMHead, SeriesWindow
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
)
from regard.spec.stack import Resampler, Segments, Stack
from regard.spec.validation import Size
from regard.system.errors import ModelError

# ------------------------------------------------------------------ language models


class _LanguageModel(ModelSpec):
    """What language models have in common, whatever their decoder is made of."""

    tokens: Tokens
    stack: Stack | Recurrent

    @property
    def front_ends(self) -> FrontEnds:
        return {"decoder": self.tokens}

    @property
    def inputs(self) -> Inputs:
        has_segments = self.tokens.segment_tokens or self.tokens.segments > 0
        segments = " token_type_ids" * has_segments
        names_token = isinstance(self.labels, ClassifierHead) and self.labels.pool == "named"
        named = " mc_token_ids" * names_token
        return arguments(self.tokens.main_input_name, f"attention_mask{segments}{named}")

    @property
    def vocab_size(self) -> int:
        return self.tokens.vocabulary

    @property
    def kv_cache_size(self) -> int:
        return self.stack.kv_cache_size


@dataclass(frozen=True)
class Decoder(_LanguageModel):
    """Decoder-only Transformer (GPT): a causal language model, unless its heads say otherwise."""

    d_model: Size
    tokens: Tokens
    stack: Stack
    heads: Heads = (LMHead(),)
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's

    def validate(self) -> None:
        check_no_cross(self.stack)
        check_decoder(self.stack)
        check_tied(self.tied, self.stack, self.d_model, self.head)
        if isinstance(self.stack.scheme, Segments) and self.tokens.position is not None:
            raise ModelError(
                "positions added at the input start again in each segment, so they do not "
                "work with a segment memory",
                "set `position` of the stack, for example RelativeSinusoids, and "
                "tokens.position=None",
            )

    @property
    def stacks(self) -> Stacks:
        return {"decoder": self.stack}

    def with_stacks(self, stacks: Stacks) -> Self:
        return dataclasses.replace(self, stack=stacks["decoder"])


@dataclass(frozen=True)
class RecurrentDecoder(_LanguageModel):
    """Recurrent language model, whose state may be carried over from segment to segment."""

    d_model: Size
    tokens: Tokens
    stack: Recurrent
    heads: Heads = (LMHead(),)
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's

    def validate(self) -> None:
        if self.stack.bidirectional:
            raise ModelError("a language model cannot be bidirectional", "set bidirectional=False")
        if self.stack.looks is not None:
            raise ModelError("a language model has no encoder to attend to", "remove `looks`")


# ------------------------------------------------------------------ encoder–decoders


class _TwoSided(ModelSpec):
    """What encoder–decoders have in common, whatever their sides are made of."""

    encoder: Any
    decoder: Any

    @property
    def is_encoder_decoder(self) -> bool:
        return True

    @property
    def kv_cache_size(self) -> int | None:
        return self.decoder.kv_cache_size

    @property
    def stacks(self) -> Stacks:
        sides = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: side for name, side in sides.items() if isinstance(side, Stack)}

    def with_stacks(self, stacks: Stacks) -> Self:
        return dataclasses.replace(self, **stacks)  # type: ignore[type-var]


class _Translator(_TwoSided):
    """What encoder–decoders have in common that write tokens, or answer object queries."""

    source: Tokens | Spectrogram | FeatureMap | Patches
    target: Tokens | ObjectQueries

    @property
    def front_ends(self) -> FrontEnds:
        parts = {"encoder": self.source, "decoder": self.target}
        # Object queries read nothing.
        return {name: part for name, part in parts.items() if not isinstance(part, ObjectQueries)}

    @property
    def inputs(self) -> Inputs:
        writes = self.head is not None
        source = arguments(self.source.main_input_name, self.source.mask_name)
        if isinstance(self.target, ObjectQueries):
            return (*source, *arguments("", "decoder_attention_mask"))
        return (
            *source,
            # Without a language-model head the decoder reads the source once more (BART's
            # classifier), unless it is given something else.
            Input("decoder_input_ids", required=writes or isinstance(self.source, Spectrogram)),
            *arguments("", "decoder_attention_mask"),
        )

    @property
    def kv_cache_size(self) -> int | None:
        # Object queries are answered at once.
        return super().kv_cache_size if isinstance(self.target, Tokens) else None

    @property
    def target_tokens(self) -> Tokens:
        """The token embedding of a decoder that writes."""
        assert isinstance(self.target, Tokens)
        return self.target

    @property
    def tokens(self) -> Tokens:
        """The token embedding of a source of text."""
        assert isinstance(self.source, Tokens)
        return self.source


@dataclass(frozen=True)
class EncoderDecoder(_Translator):
    """Encoder–decoder Transformer (Figure 1)."""

    d_model: Size  # width of the residual stream
    source: Tokens | Spectrogram | FeatureMap | Patches
    target: Tokens | ObjectQueries
    encoder: Stack
    decoder: Stack
    heads: Heads = (LMHead(),)
    # Weight tying (Section 3.4): one matrix for both embeddings and the output, for the target
    # embedding and the output, for both embeddings, or for none of them.
    share: Literal["all", "target", "inputs", "none"] = "all"
    # Cross-attention to the encoder's last layer, or to the layer of the same number, to which the
    # final norm is applied as to the last.
    looks: Literal["last", "matching"] = "last"
    # Width of the encoder's residual stream; None: d_model. What the encoder gives is mapped to
    # d_model where its width is another.
    encoder_width: Size | None = None
    resampler: Resampler | None = None  # of what the encoder gives of each image

    def validate(self) -> None:
        if self.looks == "matching" and self.encoder.layers != self.decoder.layers:
            raise ModelError(
                "looks='matching' needs as many encoder as decoder layers, not "
                f"{self.encoder.layers} and {self.decoder.layers}",
                "set the same number of layers",
            )
        if self.looks == "matching" and self.encoder_width is not None:
            raise ModelError(
                "looks='matching' needs an encoder of the decoder's width", "remove encoder_width"
            )
        _check_sides(self, causal=isinstance(self.target, Tokens))
        # Speech has no vocabulary, and no embedding to share.
        sizes = {name: tokens.vocabulary for name, tokens in self.embeddings.items()}
        _check_vocabulary(self.share, sizes.get("source", 0), sizes.get("target", 0))
        if any(isinstance(stack.scheme, Segments) for stack in (self.encoder, self.decoder)):
            raise ModelError(
                "a segment memory is for language models, which read a text segment by segment",
                "use another scheme",
            )

    @property
    def is_gated(self) -> bool:
        """Whether a language model reads images by gated cross-attention, and any number of them:
        pixel_values are [texts, images, channels, height, width] then."""
        return any(block.gated is not None for block in self.decoder.blocks)

    @property
    def inputs(self) -> Inputs:
        if not self.is_gated:
            return super().inputs
        # Which image each word sees: [texts, tokens, images].
        images = Input("image_attention_mask", required=False)
        _, *others = super().inputs
        return (Input("pixel_values", content="text_images"), *others, images)

    @property
    def memory_width(self) -> int:
        """The width of what the encoder gives."""
        return self.encoder.width(self.encoder_width or self.d_model)

    @property
    def maps_memory(self) -> bool:
        """Whether one matrix maps what the encoder gives to d_model: attention reads no other
        width."""
        cross = self.decoder.block.cross
        return self.memory_width != self.d_model and cross is not None and cross.memory is None

    @property
    def patches(self) -> Patches:
        """The front end of a model that reads images by patches."""
        assert isinstance(self.source, Patches)
        return self.source

    @property
    def spectrogram(self) -> Spectrogram:
        """The front end of a speech model."""
        assert isinstance(self.source, Spectrogram)
        return self.source

    @property
    def feature_map(self) -> FeatureMap:
        """The front end of a detector."""
        assert isinstance(self.source, FeatureMap)
        return self.source

    @property
    def queries(self) -> ObjectQueries:
        """The object queries of a detector."""
        assert isinstance(self.target, ObjectQueries)
        return self.target


@dataclass(frozen=True)
class SequenceToSequence(_Translator):
    """Sequence-to-sequence model with a recurrent or convolutional encoder and decoder."""

    d_model: Size
    source: Tokens
    target: Tokens
    encoder: Recurrent | Convolutional
    decoder: Recurrent | Convolutional
    heads: Heads = (LMHead(),)
    share: Literal["all", "target", "inputs", "none"] = "all"  # as in EncoderDecoder

    def validate(self) -> None:
        _check_vocabulary(self.share, self.source.vocabulary, self.target.vocabulary)
        encoder = self.encoder
        decoder = self.decoder
        if isinstance(encoder, Recurrent):
            check_recurrent_encoder(encoder, self.d_model)
        if isinstance(decoder, Recurrent) and decoder.bidirectional:
            raise ModelError("a decoder cannot be bidirectional", "set bidirectional=False")
        if isinstance(encoder, Convolutional) and encoder.sees is not None:
            raise ModelError(
                "an encoder has no other sequence to attend to", "remove `sees` from the encoder"
            )
        if isinstance(encoder, Convolutional) and encoder.unit.kernel % 2 == 0:
            raise ModelError(
                (f"the kernel of an encoder's convolution must be odd, not {encoder.unit.kernel}"),
                "set an odd kernel size",
            )
        if isinstance(decoder, Convolutional) and decoder.sees is None:
            raise ModelError(
                "a convolutional decoder must attend to the encoder",
                "set sees='attention' or sees='aligned'",
            )
        if isinstance(encoder, Convolutional) != isinstance(decoder, Convolutional):
            raise ModelError(
                "a recurrent and a convolutional side cannot be combined",
                "use the same kind for encoder and decoder",
            )


@dataclass(frozen=True)
class SeriesEncoderDecoder(_TwoSided):
    """Encoder–decoder of time series: each step is forecast from those before it.

    The decoder reads the lagged values of the steps to come, in training those of the data, in
    forecasting its own. Its hidden states become a distribution for each step.
    """

    d_model: Size
    input: LaggedValues
    encoder: Stack
    decoder: Stack
    horizon: Size  # steps that are forecast
    output: Distribution | None = field(default_factory=Distribution)  # None: without a head

    def validate(self) -> None:
        _check_sides(self)

    @property
    def front_ends(self) -> FrontEnds:
        return {"encoder": self.input}

    @property
    def inputs(self) -> Inputs:
        part = self.input
        return (
            Input(part.main_input_name),
            Input("past_time_features", required=part.covariates > 0),
            Input("past_observed_mask", required=False),
            Input("static_categorical_features", required=bool(part.categories)),
            Input("static_real_features", required=part.static_features > 0),
            *arguments("", "future_values future_time_features future_observed_mask"),
            Input("decoder_attention_mask", required=False),
        )

    @property
    def series_window(self) -> SeriesWindow:
        part = self.input
        # What comes before is read as lagged values only.
        spans = tuple((step, step + 1) for step in range(part.past - part.length, part.past))
        return SeriesWindow(part.past, part.channels, self.horizon, self.output, spans)


def _check_sides(model: EncoderDecoder | SeriesEncoderDecoder, causal: bool = True) -> None:
    """A decoder reads an encoder of the same width, and neither reads anything else."""
    check_no_cross(model.encoder)
    if causal:
        check_decoder(model.decoder, chunks=False)
    is_gated = any(block.gated is not None for block in model.decoder.blocks)
    if not is_gated and any(block.cross is None for block in model.decoder.blocks):
        raise ModelError(
            "the decoder of an encoder–decoder has no cross-attention", "set `cross` of its blocks"
        )
    sides = model.stacks
    if getattr(model, "encoder_width", None) is not None:
        sides = {"decoder": model.decoder}  # the other one's width is mapped
    if any(stack.width(model.d_model) != model.d_model for stack in sides.values()):
        raise ModelError(
            "the outputs of the encoder and the decoder must have d_model dimensions",
            "set Reversible(gives='mean')",
        )


def _check_vocabulary(share: str, source: int, target: int) -> None:
    if share in ("all", "inputs") and source != target:
        raise ModelError(
            f"share={share!r} needs one vocabulary, but source has {source} tokens and "
            f"target {target}",
            "train a joint tokenizer, or set share='target'",
        )
