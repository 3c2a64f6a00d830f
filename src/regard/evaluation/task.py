"""The contract of an evaluation task: which data it reads, and what a model predicts of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from regard.decode.strategy import Limit, Strategy
from regard.evaluation.examples import ExampleKind
from regard.models import Model

# What a metric is computed from: the prediction of an example, the candidates ranked from the
# likeliest on (top-k accuracy), its negative log-likelihood and number of tokens, or levels and
# quantiles of a forecast.
OutputKind: TypeAlias = Literal["prediction", "ranking", "likelihood", "quantiles"]
# A file, two files of parallel text, or a folder; standard input is "-".
DataPath: TypeAlias = str | tuple[str, str]


@dataclass(frozen=True)
class DecodingOptions:
    """How texts are generated; what is None is as the model's folder says, or by default.

    `precision` packs the weights for inference before decoding; a packed model cannot be trained
    or saved afterwards.
    """

    strategy: Strategy | None = None
    limit: Limit | None = None
    batch_tokens: int = 4096
    precision: Literal["float32", "bf16", "int8"] | None = None


@dataclass(frozen=True)
class TextReading:
    """How plain text is cut into examples, and how it is corrupted; a run has its own values."""

    context: int = 512  # tokens that a model reads at once, or fewer if it has fewer positions
    streams: int = 1  # of a recurrent model: as many parts of the text are read side by side
    seed: int = 0  # of the corruption
    corrupted_share: float | None = None  # of the tokens; None is the objective's own
    span_length: float = 3.0  # mean length of a corrupted span
    next_sentence: bool = False  # whether masked rows are pairs of sentences, as BERT's


@dataclass(frozen=True)
class Settings:
    """The settings of an evaluation."""

    decoding: DecodingOptions = field(default_factory=DecodingOptions)
    tokenize: str | None = None  # sacreBLEU's tokenizer; None is its default
    max_length: int | None = None  # tokens of a text; longer ones are truncated, and it is said
    reading: TextReading = field(default_factory=TextReading)
    prefix: str = ""  # of each source, as T5's "summarize: "


@dataclass(frozen=True)
class Outputs:
    """What a model puts out for the examples, with its references, in the same order.

    `tokens` were generated in `seconds`, for models that generate.
    """

    values: Sequence[Any]
    references: Sequence[Any]
    tokens: int = 0
    seconds: float = 0.0


Predict: TypeAlias = Callable[[Any, Sequence[Any], Settings], Outputs]


@dataclass(frozen=True)
class Task:
    """A task that models are evaluated on: its data, its predictions, its metrics."""

    data: str  # what a file holds, for error messages
    unit: str  # what its examples are
    accepts: Callable[[Model], bool]  # whether a model can do it
    example: ExampleKind  # what the examples of a list are
    read: Callable[[DataPath], list[Any]]
    predict: Mapping[OutputKind, Predict]
    metrics: tuple[str, ...]  # by default
    other_metrics: tuple[str, ...] = ()  # that can be asked for
    # Default metrics that count what not all examples have, as entities: whether these have it.
    conditions: Mapping[str, Callable[[Sequence[Any]], bool]] = field(default_factory=dict)
