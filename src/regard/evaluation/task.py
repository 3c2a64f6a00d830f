"""The contract of a task: what it is asked, what it reads, what a model predicts and its scores.

The table of all tasks is `evaluation/tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from regard.decode.strategy import Limit, Strategy
from regard.evaluation.examples import NO_DATA, ExampleKind
from regard.evaluation.metrics.metric import OutputKind
from regard.system.arguments import whole_number

DEFAULT_TOP = 5


@dataclass(frozen=True)
class PredictionOptions:
    """`labels` of a model that has none of its own, `context` of questions, `top` answers each.

    With `samples`, a forecast has the quantiles of so many sample trajectories.
    `truncation`: texts that are longer than the model reads are truncated, not refused.
    """

    labels: Sequence[str] = ()
    context: str | None = None
    top: int = DEFAULT_TOP
    samples: int | None = None
    truncation: bool = False

    def __post_init__(self) -> None:
        whole_number("top", self.top, least=1)
        if self.samples is not None:
            whole_number("samples", self.samples, least=1)


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

    def positions(self, limit: int | None) -> int:
        """The tokens that a model of at most so many positions reads at once."""
        return min(self.context, limit or self.context)


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


@dataclass(frozen=True)
class Card:
    """What the model card of a run says of its task."""

    # The hub lists a model, and chooses its widget, by this key of the card's YAML header.
    pipeline_tag: str  # Hugging Face's name of the task
    description: str
    usage: str


Answer: TypeAlias = Callable[[Any, list[str], PredictionOptions], Sequence[Any]]
Predict: TypeAlias = Callable[[Any, Sequence[Any], Settings], Outputs]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What models are trained for, asked for and scored by; some tasks are not all of these."""

    # --- asked for, by `regard predict`: texts or files in, plain data out ---
    method: str = ""  # of the models that have it; their other tasks may have the same
    answer: Answer | None = None
    options: tuple[str, ...] = ()  # of `PredictionOptions`, that it reads
    names_parts: bool = False  # whether an input has several answers, each with a name of its own
    reads_media: bool = False  # whether of a model of images or sound its inputs are files

    # --- scored, by `regard evaluate` and at the end of a run ---
    reads: ExampleKind = NO_DATA
    unit: str = ""  # what its examples are counted in
    predict: Mapping[OutputKind, Predict] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # by default
    other_metrics: tuple[str, ...] = ()  # that can be asked for
    # Default metrics that count what not all examples have, as entities: whether these have it.
    conditions: Mapping[str, Callable[[Sequence[Any]], bool]] = field(default_factory=dict)
    scores: Mapping[str, str] = field(default_factory=dict)  # at the end of a run: name → metric
    decodes: bool = False  # whether its predictions are decoded: the settings of decoding apply

    # --- trained ---
    card: Card | None = None
