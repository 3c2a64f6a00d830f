"""What is asked of a served model, and what it answers: the interface of the engine.

    engine = await models.engine("translator")                  # regard.serve.models.Models
    reading = engine.read("The cat sat.")                       # text, or the bytes of a file
    stream = engine.submit(Generation(reading, BeamSearch(4), max_new_tokens=60))
    async for token in stream:                                  # or `for token in stream`
        print(token.index, token.text)
    result = await stream.result()                              # raises the request's own error

    answers = await engine.ask("classify", ["a text"], PredictionOptions(top=3)).result()
    value = await engine.call(lambda model: model.perplexity("a text")).result()

`submit`, `ask` and `call` raise `QueueFull`, or `SettingError` for what can never be served, at
once; what fails later, `result` raises. An engine also has `metrics()`, `limits`, `model`, and
`drain()`; `Models` has `names()`, `describe(name)` without loading, and `engine(name)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field
from torch import Tensor

from regard.decode.strategy import BeamSearch, Greedy, Sampling, Strategy
from regard.look.inspectable import Reading
from regard.system.errors import RegardError, SettingError
from regard.system.pending import ItemStream

FinishReason = Literal["stop", "length", "cancelled"]


# ------------------------------------------------------------------ limits


@dataclass(frozen=True)
class Limits:
    """The bounds of one engine.

    `rows`: sequences that are decoded at once; each sample and each beam of a text is one.
    `queue`, `queue_per_client`: requests that wait; more are refused (`QueueFull`).
    `prefill_tokens`: tokens of prompts and sources that are read between two decoding steps.
    `max_new_tokens`, `max_tokens`: of an output, and of a prompt and its output together.
    `seconds`: after which a request that is still there is cancelled.
    `look_values`: numbers that one request's `look` may return.
    """

    rows: int = 64
    queue: int = 1024
    queue_per_client: int = 256
    prefill_tokens: int = 512
    max_new_tokens: int = 4096
    max_tokens: int = 8192
    seconds: float = 600.0
    look_values: int = 1_000_000


class QueueFull(RegardError):
    """No room in the queue, or the server is shutting down; `retry_after` is in seconds."""

    def __init__(self, problem: str, retry_after: float) -> None:
        super().__init__(problem, f"try again in {retry_after:.0f} s", retry_after)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.retry_after)


# ------------------------------------------------------------------ what is asked


# Annotated with their bounds: these are also the form in which a request to a route has them.
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=300)]
Index: TypeAlias = Annotated[int, Field(ge=0, le=1 << 20)]
Text: TypeAlias = Annotated[str, Field(max_length=1 << 20)]
Indices: TypeAlias = Annotated[tuple[Index, ...], Field(max_length=4096)]
Positions: TypeAlias = Annotated[tuple[Index, ...], Field(min_length=1, max_length=4096)]
Points: TypeAlias = Annotated[tuple[Name, ...], Field(max_length=64)]


@dataclass(frozen=True)
class AttentionRows:
    """Weights of one attention (`decoder.3.cross`): of these query rows and heads, or of all."""

    name: Name
    rows: Indices | None = None
    heads: Indices | None = None


@dataclass(frozen=True)
class Patch:
    """Activation patching: in this request, `point` (`encoder.2.residual`) has at `positions` what
    it has in a run of the model on `text`."""

    point: Name
    text: Text
    positions: Positions


@dataclass(frozen=True)
class LookRequest:
    """What to record of the request's own run, and what to change in it.

    The answer is `Result.look`, with a key for each: `attention` and `hidden` by name, `alignment`
    and `lens` as `regard.look` has them. `heads_off` and `patch` change the answer itself.
    """

    attention: Annotated[tuple[AttentionRows, ...], Field(max_length=64)] = ()
    hidden: Points = ()  # named points, `decoder.2.residual`, without wildcards
    alignment: bool = False
    lens: Annotated[int, Field(ge=0, le=50)] = 0  # so many tokens after each layer; 0 is no lens
    heads_off: Annotated[tuple[tuple[Name, Index], ...], Field(max_length=512)] = ()
    patch: Patch | None = None


@dataclass(frozen=True)
class Generation:
    """A text, or features of sound, to go on from, and how.

    The strategy has the seed and how many choices there are: `Sampling(draws=n)`,
    `BeamSearch(n_best=n)`; `decode.strategy.returning(strategy, n)` sets it.

    `prefix`: token ids that an output is told to begin with, behind the start tokens.
    `stops`: texts before the first of which an output ends.
    `logprobs`: how many likeliest tokens are told besides each; None is no log-probabilities.
    `echo`: whether tokens of the prompt come first, with log-probabilities where asked for.
    """

    reading: Reading
    strategy: Strategy = field(default_factory=Greedy)
    max_new_tokens: int = 256
    prefix: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    echo: bool = False
    look: LookRequest | None = None
    client: str = ""  # the queue is fair to clients, not to requests

    @property
    def source(self) -> Tensor:
        """[S] token ids, or [mels, N] frames."""
        return self.reading.inputs[0]

    @property
    def choices(self) -> int:
        match self.strategy:
            case Sampling(draws=count) | BeamSearch(n_best=count):
                return count
            case _:
                return 1

    @property
    def rows(self) -> int:
        """How many sequences it decodes at once."""
        match self.strategy:
            case Sampling(draws=count) | BeamSearch(width=count):
                return count
            case _:
                return 1


# ------------------------------------------------------------------ what is answered


@dataclass(frozen=True)
class Token:
    """What a choice goes on with, and will not change any more.

    `text` has complete characters only, and nothing that may be the beginning of a stop: it may be
    empty now, and come with a later token. The texts of a choice together are its text. A beam
    sends the tokens on which all its live hypotheses agree.
    """

    index: int  # of the choice
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...] = ()  # of each id, where asked for
    top: tuple[tuple[tuple[int, float], ...], ...] = ()  # of each id: (id, log-probability) …
    is_prompt: bool = False  # of the prompt (`echo`); the first one has the log-probability 0


@dataclass(frozen=True)
class Choice:
    """One answer, complete: `ids` without the end token; `score` after a length penalty."""

    index: int
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    log_probability: float
    score: float


@dataclass(frozen=True)
class Usage:
    """What a request has cost. `look_values` are the numbers that `look` has returned."""

    prompt_tokens: int
    completion_tokens: int
    look_values: int = 0
    seconds_waiting: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """All choices of a request, best first, and what was looked at."""

    choices: tuple[Choice, ...]
    usage: Usage
    look: dict[str, Any] | None = None


# The tokens of a generation as they are decoded; its `result` comes after them.
Stream: TypeAlias = ItemStream[Token, Result]


@dataclass(frozen=True)
class Metrics:
    """Counters of one engine since it began; seconds are sums."""

    waiting: int = 0
    running: int = 0
    rows: int = 0  # that are decoded at once now
    requests: int = 0  # taken up so far
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    step_rows: int = 0  # rows of all steps together
    seconds_waiting: float = 0.0
    seconds_to_first_token: float = 0.0
    seconds: float = 0.0


def require_within(
    generation: Generation, limits: Limits, positions: int | None, room: int | None
) -> None:
    """Refuses a request that can never be served. The model reads inputs of so many `positions`,
    and has `room` for so many new tokens; None: there is no end."""
    if generation.rows > limits.rows:
        raise SettingError(
            f"{generation.rows} sequences at once are more than this server decodes",
            f"ask for {limits.rows} samples or beams at most",
        )
    if not 1 <= generation.max_new_tokens <= limits.max_new_tokens:
        raise SettingError(
            f"{generation.max_new_tokens:,} new tokens are out of range",
            f"ask for 1 to {limits.max_new_tokens:,}",
        )
    length = generation.source.shape[-1]
    most = min(limits.max_tokens, positions or limits.max_tokens)
    if generation.source.is_floating_point():
        most = length  # frames are cut into windows by who reads them
    if length > most or (room is not None and room < 1):
        raise SettingError(
            f"the input has {length:,} tokens, and this model reads {most:,}", "shorten it"
        )
