"""All kinds of models."""

from __future__ import annotations

from dataclasses import dataclass, field

from regard.spec.decoder import (
    Decoder,
    EncoderDecoder,
    RecurrentDecoder,
    SequenceToSequence,
    SeriesEncoderDecoder,
)
from regard.spec.encoder import ConvolutionalEncoder, DualEncoder, Encoder, RecurrentEncoder
from regard.spec.head import Points, Quantiles, SeriesWindow
from regard.spec.model_spec import (
    Inputs,
    ModelSpec,
    arguments,
)
from regard.spec.speech import TextToSpeech, VariationalTextToSpeech, Vocoder
from regard.spec.validation import Depth, Size


@dataclass(frozen=True)
class MemoryNetwork(ModelSpec):
    """End-to-end memory network (Sukhbaatar et al. 2015): a question attends to sentences in hops.

    The answer is one word.
    """

    d_model: Size  # d: width of the sentence vectors
    vocabulary: Size  # V
    hops: Depth = 3  # K: rounds of attention
    sentences: Size = 50  # rows of the temporal encoding T_A (Section 4.1): the longest memory

    @property
    def inputs(self) -> Inputs:
        return arguments("story question", "story_mask question_mask")

    @property
    def vocab_size(self) -> int:
        return self.vocabulary


@dataclass(frozen=True)
class LinearForecaster(ModelSpec):
    """Linear forecaster of time series (Zeng et al. 2023): each channel by itself, one map for all.

    DLinear maps a moving average, the trend, and the rest of a window; NLinear maps the window
    less its last value.
    """

    length: Size  # of the window, in time steps: the look-back
    channels: Size
    horizon: Size  # steps that are forecast
    output: Points | Quantiles = field(default_factory=Points)
    moving_average: Size | None = 25  # steps of DLinear's trend; None: NLinear

    @property
    def inputs(self) -> Inputs:
        return arguments("past_values", "past_observed_mask")

    @property
    def widths(self) -> dict[str, int]:
        return {"": self.length}

    @property
    def series_window(self) -> SeriesWindow:
        return SeriesWindow(self.length, self.channels, self.horizon, self.output)


Model = (
    EncoderDecoder
    | SequenceToSequence
    | SeriesEncoderDecoder
    | Encoder
    | RecurrentEncoder
    | ConvolutionalEncoder
    | Decoder
    | RecurrentDecoder
    | DualEncoder
    | MemoryNetwork
    | LinearForecaster
    | TextToSpeech
    | VariationalTextToSpeech
    | Vocoder
)
