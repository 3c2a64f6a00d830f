"""Settings of a recipe that are one word with an option: `gnmt:0.6`, `average:10`, `ema:0.999`.

No torch here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regard.data.generated.algorithmic_tasks import TASKS, GeneratedTask
from regard.system.arguments import LARGEST_SIZE
from regard.system.errors import SettingError
from regard.system.options import construct, number_within, parse_option

MOST_INITIAL = 0.1  # of an average that is exported

# --- which weights are exported -------------------------------------------------------------------


@dataclass(frozen=True)
class Last:
    """The weights after the last update."""


@dataclass(frozen=True)
class Best:
    """The weights with the best validation score (early stopping's choice)."""


@dataclass(frozen=True)
class Average:
    """Checkpoint averaging: the mean of the weights at the last `count` validations.

    Section 6.1 of the paper averages the last 5 (base) or 20 (big) checkpoints.
    """

    count: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.count <= LARGEST_SIZE:
            raise ValueError(self.count)


@dataclass(frozen=True)
class Ema:
    """EMA: the exponential moving average of the weights over all updates; it is validated too."""

    decay: float = 0.999  # averages over about the last 1 / (1 − decay) = 1,000 updates

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(self.decay)

    def has_time(self, updates: int) -> bool:
        """Whether the average has left the initial weights: only a tenth of it is theirs."""
        return self.decay**updates <= MOST_INITIAL


ExportedWeights = Last | Best | Average | Ema


def parse_weights(text: str) -> ExportedWeights:
    constructors: dict[str, Callable[..., ExportedWeights]] = {
        "last": Last,
        "best": Best,
        "average": lambda count="5": Average(int(count)),
        "ema": lambda decay="0.999": Ema(float(decay)),
    }
    usage = "write last, best, average:COUNT like average:5, or ema:DECAY like ema:0.999"
    return parse_option(text, constructors, subject="choice of weights", usage=usage)


# --- weight initialization ------------------------------------------------------------------------


@dataclass(frozen=True)
class Initialization:
    """How every matrix and embedding table begins: Xavier uniform, as the modules are built.

    With a `deviation`, normal (BERT). `scales_residuals` divides the projections onto the residual
    stream by √(their number) (GPT-2).
    """

    deviation: float | None = None
    scales_residuals: bool = False


_LARGEST_DEVIATION = 1000.0  # far beyond any use, and products of weights are still numbers


def parse_initialization(text: str) -> Initialization:
    constructors: dict[str, Callable[..., Initialization]] = {
        "xavier": Initialization,
        "normal": lambda deviation="0.02": Initialization(_deviation(deviation)),
        "scaled": lambda deviation="0.02": Initialization(_deviation(deviation), True),
    }
    usage = f"write xavier, or normal:STD or scaled:STD from 0 to {_LARGEST_DEVIATION:g}"
    return parse_option(text, constructors, subject="initialization", usage=usage)


def _deviation(text: str) -> float:
    return number_within(text, 0, _LARGEST_DEVIATION)


# --- image tokens ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageTokens:
    """The tokens of an image: its side in pixels, the side of a patch, and how many codes."""

    size: int
    patch: int
    codes: int

    @property
    def length(self) -> int:
        """How many tokens an image has."""
        return (self.size // self.patch) ** 2

    def __post_init__(self) -> None:
        fits = 0 < self.patch <= self.size <= 1024 and self.size % self.patch == 0
        if not fits or not 2 <= self.codes <= 1 << 16:
            raise ValueError(self)


def parse_image_tokens(text: str) -> ImageTokens:
    return construct(
        lambda *values: ImageTokens(*map(int, values)),
        text.split(":"),
        problem=f"image_tokens {text!r} are not squares that make an image",
        usage="write SIZE:PATCH:CODES with a SIZE that is a multiple of PATCH, like 48:4:512",
    )


# --- generated tasks ------------------------------------------------------------------------------


def parse_generated_task(text: str) -> GeneratedTask:
    """A generated task with the lengths that it trains on: `copying:1:20`, or `copying` alone."""
    return parse_option(
        text,
        TASKS,
        subject="generated task",
        usage="write its name alone, or with its least and greatest length, like copying:1:20",
        convert=int,
    )


# --- mixtures of corpora --------------------------------------------------------------------------


def parse_mixture_weights(text: str) -> tuple[float, ...]:
    """The sampling weights of several corpora: `2,1,0.5`."""
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = ()
    # NaN is between no numbers.
    if not weights or any(not 0 < weight < float("inf") for weight in weights):
        raise SettingError(
            f"mixture_weights = {text!r} are not positive numbers", "write them like 2,1,0.5"
        )
    return weights
