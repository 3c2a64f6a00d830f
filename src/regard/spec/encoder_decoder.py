"""Encoder–decoders: Transformers, recurrent and convolutional ones, and for time series."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from regard.spec.attention import ChunkedAttention, LshAttention
from regard.spec.baselines import Convolutional, Recurrent
from regard.spec.frontend import FrontEnd, LaggedValues, Spectrogram, Tokens
from regard.spec.head import Distribution, LMHead, SeriesWindow
from regard.spec.inputs import Input, arguments
from regard.spec.model_spec import (
    Head,
    ModelSpec,
    check_decoder,
    check_no_cross,
    check_recurrent_encoder,
    chunks_shift,
)
from regard.spec.stack import Segments, Stack
from regard.spec.validation import Size
from regard.system.errors import ModelError


def _encoder_decoder_inputs(source: Tokens | Spectrogram, *, writes: bool) -> tuple[Input, ...]:
    inputs = (
        Input(source.main_input_name),
        Input("attention_mask", required=False),
        # Without a language-model head the decoder reads the source once more (BART's classifier),
        # unless it is given something else, and there are no target tokens to score.
        Input("decoder_input_ids", required=writes or isinstance(source, Spectrogram)),
        Input("decoder_attention_mask", required=False),
    )
    return (*inputs, Input("labels", required=False)) if writes else inputs


@dataclass(frozen=True)
class EncoderDecoder(ModelSpec):
    """Encoder–decoder Transformer (Figure 1)."""

    d_model: Size  # width of the residual stream
    source: Tokens | Spectrogram
    target: Tokens
    encoder: Stack
    decoder: Stack
    heads: tuple[Head, ...] = (LMHead(),)
    # Weight tying (Section 3.4): one matrix for both embeddings and the output, for the target
    # embedding and the output, for both embeddings, or for none of them.
    share: Literal["all", "target", "inputs", "none"] = "all"
    # Cross-attention to the encoder's last layer, or to the layer of the same number, to which the
    # final norm is applied as to the last.
    looks: Literal["last", "matching"] = "last"

    def validate(self) -> None:
        if self.looks == "matching" and self.encoder.layers != self.decoder.layers:
            raise ModelError(
                "looks='matching' needs as many encoder as decoder layers, not "
                f"{self.encoder.layers} and {self.decoder.layers}",
                "set the same number of layers",
            )
        check_no_cross(self.encoder)
        # Speech has no vocabulary, and no embedding to share.
        source_vocabulary = self.source.vocabulary if isinstance(self.source, Tokens) else 0
        _check_vocabulary(self.share, source_vocabulary, self.target.vocabulary)
        if any(isinstance(stack.scheme, Segments) for stack in (self.encoder, self.decoder)):
            raise ModelError(
                "a segment memory is for language models, which read a text segment by segment",
                "use another scheme",
            )
        if any(block.cross is None for block in self.decoder.blocks):
            raise ModelError(
                "the decoder of an encoder–decoder has no cross-attention",
                "set `cross` of its blocks",
            )
        if any(stack.width(self.d_model) != self.d_model for stack in (self.encoder, self.decoder)):
            raise ModelError(
                "the outputs of the encoder and the decoder must have d_model dimensions",
                "set Reversible(gives='mean')",
            )
        if any(
            isinstance(block.attention.mixer, ChunkedAttention | LshAttention)
            for block in self.decoder.blocks
        ):
            raise chunks_shift()
        check_decoder(self.decoder)

    @property
    def embeddings(self) -> dict[str, Tokens]:
        if isinstance(self.source, Tokens):
            return {"source": self.source, "target": self.target}
        return {"target": self.target}

    @property
    def front_ends(self) -> dict[str, FrontEnd | LaggedValues]:
        return {"encoder": self.source, "decoder": self.target}

    @property
    def inputs(self) -> tuple[Input, ...]:
        return _encoder_decoder_inputs(self.source, writes=self.head is not None)

    @property
    def is_encoder_decoder(self) -> bool:
        return True

    @property
    def tokens(self) -> Tokens:
        """The token embedding of a source of text."""
        assert isinstance(self.source, Tokens)
        return self.source

    @property
    def vocab_size(self) -> int:
        return self.target.vocabulary

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        return dataclasses.replace(self, encoder=stacks["encoder"], decoder=stacks["decoder"])

    @property
    def kv_cache_size(self) -> int:
        return self.decoder.kv_cache_size

    @property
    def spectrogram(self) -> Spectrogram:
        """The front end of a speech model."""
        assert isinstance(self.source, Spectrogram)
        return self.source


@dataclass(frozen=True)
class SequenceToSequence(ModelSpec):
    """Sequence-to-sequence model with a recurrent or convolutional encoder and decoder."""

    d_model: Size
    source: Tokens
    target: Tokens
    encoder: Recurrent | Convolutional
    decoder: Recurrent | Convolutional
    heads: tuple[Head, ...] = (LMHead(),)
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

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"source": self.source, "target": self.target}

    @property
    def front_ends(self) -> dict[str, FrontEnd | LaggedValues]:
        return {"encoder": self.source, "decoder": self.target}

    @property
    def inputs(self) -> tuple[Input, ...]:
        return _encoder_decoder_inputs(self.source, writes=self.head is not None)

    @property
    def is_encoder_decoder(self) -> bool:
        return True

    @property
    def tokens(self) -> Tokens:
        """The token embedding of a source of text."""
        assert isinstance(self.source, Tokens)
        return self.source

    @property
    def vocab_size(self) -> int:
        return self.target.vocabulary

    @property
    def kv_cache_size(self) -> int:
        return 0  # states of a fixed size


@dataclass(frozen=True)
class SeriesEncoderDecoder(ModelSpec):
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
        if any(block.cross is None for block in self.decoder.blocks):
            raise ModelError(
                "the decoder of an encoder–decoder has no cross-attention",
                "set `cross` of its blocks",
            )
        if any(stack.width(self.d_model) != self.d_model for stack in (self.encoder, self.decoder)):
            raise ModelError(
                "the outputs of the encoder and the decoder must have d_model dimensions",
                "set Reversible(gives='mean')",
            )
        check_decoder(self.decoder)

    @property
    def front_ends(self) -> dict[str, FrontEnd | LaggedValues]:
        return {"encoder": self.input}

    @property
    def inputs(self) -> tuple[Input, ...]:
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

    @property
    def is_encoder_decoder(self) -> bool:
        return True

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        return dataclasses.replace(self, encoder=stacks["encoder"], decoder=stacks["decoder"])

    @property
    def kv_cache_size(self) -> int:
        return self.decoder.kv_cache_size


def _check_vocabulary(share: str, source: int, target: int) -> None:
    if share in ("all", "inputs") and source != target:
        raise ModelError(
            f"share={share!r} needs one vocabulary, but source has {source} tokens and "
            f"target {target}",
            "train a joint tokenizer, or set share='target'",
        )
