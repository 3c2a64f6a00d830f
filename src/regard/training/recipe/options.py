"""Choices written as one word with options: `gnmt:0.6`, `average:10`, `ema:0.999`. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regard.decode.strategy import GNMTPenalty, LengthPenalty, PowerPenalty
from regard.errors import SettingError, did_you_mean


@dataclass(frozen=True)
class Last:
    """The weights after the last step."""


@dataclass(frozen=True)
class Best:
    """The weights of the best validation."""


@dataclass(frozen=True)
class Average:
    """The mean of the weights at the last `count` validations (the paper averages the last 5 or 20 checkpoints)."""

    count: int = 5


@dataclass(frozen=True)
class Ema:
    """An exponential moving average over steps; validation looks at it too."""

    decay: float = 0.999


@dataclass(frozen=True)
class Xavier:
    """Uniform, as wide as inputs and outputs allow: how the parts start by themselves."""


@dataclass(frozen=True)
class Normal:
    """Every matrix and table normal with one deviation (BERT)."""

    deviation: float = 0.02


@dataclass(frozen=True)
class Scaled:
    """The same, but what is added to the residual stream is divided by the root of how often that happens (GPT-2)."""

    deviation: float = 0.02


WeightsChoice = Last | Best | Average | Ema
StartChoice = Xavier | Normal | Scaled
LengthPenaltyChoice = LengthPenalty


def weights(text: str) -> WeightsChoice:
    return _choice(
        text,
        {
            "last": Last,
            "best": Best,
            "average": lambda n="5": Average(int(n)),
            "ema": lambda d="0.999": Ema(float(d)),
        },
    )


def start(text: str) -> StartChoice:
    return _choice(
        text,
        {
            "xavier": Xavier,
            "normal": lambda d="0.02": Normal(float(d)),
            "scaled": lambda d="0.02": Scaled(float(d)),
        },
    )


def length_penalty(text: str) -> LengthPenalty:
    return _choice(
        text,
        {
            "gnmt": lambda a="0.6": GNMTPenalty(float(a)),
            "power": lambda a="1.0": PowerPenalty(float(a)),
        },
    )


def _choice(text: str, kinds: Mapping[str, Callable[..., Any]]) -> Any:
    name, _, option = text.partition(":")
    if name not in kinds:
        raise SettingError(f"there is no choice {text!r}", did_you_mean(name, kinds))
    try:
        return kinds[name](option) if option else kinds[name]()
    except (TypeError, ValueError):
        raise SettingError(
            f"{text!r} is not complete or has a wrong option",
            f"write it like {name}:NUMBER, or {name} alone",
        ) from None
