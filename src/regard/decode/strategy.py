"""How the next token is chosen, as plain data. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from regard.errors import SettingError

Number = TypeVar("Number")


class Penalty(Protocol):
    """A hypothesis of n tokens (its end included) scores log P / divisor(n)."""

    def divisor(self, n: float) -> float: ...


@dataclass(frozen=True)
class GNMTPenalty:
    """log P / ((5 + n) / 6)^alpha: Wu et al. 2016, equation 14, as in the paper (beam 4, alpha 0.6)."""

    alpha: float = 0.6

    def divisor(self, n: float) -> float:
        return ((5.0 + n) / 6.0) ** self.alpha


@dataclass(frozen=True)
class PowerPenalty:
    """log P / n^alpha: Hugging Face's `length_penalty`; above 0 favours long outputs, below 0 short ones."""

    alpha: float = 1.0

    def divisor(self, n: float) -> float:
        return float(n**self.alpha)


LengthPenalty = GNMTPenalty | PowerPenalty


@dataclass(frozen=True)
class Greedy:
    """The likeliest token at each step."""


@dataclass(frozen=True)
class Sampling:
    """A token by chance: logits / temperature, then the `top_k` likeliest, then the smallest set that holds `top_p` of the
    probability, then those with at least `min_p` of the likeliest one's. 0 (or 1 for top_p) switches a filter off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise SettingError(
                f"temperature must be above 0, not {self.temperature}",
                "use greedy decoding instead of temperature 0",
            )
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise SettingError(
                "sampling filters are out of range", "top_k ≥ 0, 0 < top_p ≤ 1, 0 ≤ min_p ≤ 1"
            )


@dataclass(frozen=True)
class BeamSearch:
    """The `width` best beginnings at each step.

    `places`: a finished hypothesis gives its place up for good (`given up`), so that width 1 is greedy decoding, or the next
    best beginning takes it (`refilled`), and only the `width` best finished ones are kept.
    `stop`: a sentence is done when nothing open can still enter the n-best (`certain`, which never changes the answer), when
    `width` hypotheses are finished (`full`), or when moreover the best open one, scored as if it ended here, is below all of
    them (`likely`). Places that are given up run out when `width` are finished, so there all but `certain` are `full`.

    `refilled` with Power(p) is `generate(num_beams=width, length_penalty=p)` of transformers: `full` is its
    early_stopping=True, `likely` its False, `certain` its "never". One beam means greedy decoding there.
    """

    width: int = 4
    penalty: LengthPenalty = field(default_factory=GNMTPenalty)
    n_best: int = 1
    places: Literal["given up", "refilled"] = "given up"
    stop: Literal["certain", "likely", "full"] = "certain"

    def __post_init__(self) -> None:
        if self.width < 1 or not 1 <= self.n_best <= self.width:
            raise SettingError(
                f"a beam of {self.width} cannot give {self.n_best} translations",
                "choose a width of at least n_best and 1",
            )


Strategy = Greedy | Sampling | BeamSearch


@dataclass(frozen=True)
class Limit:
    """The longest output for a source of n tokens: factor · n + extra. The paper: input length + 50."""

    factor: float = 1.0
    extra: int = 50
    most: int | None = None  # what the model itself can hold

    def __call__(self, source_length: int) -> int:
        asked = max(1, int(self.factor * source_length) + self.extra)
        return asked if self.most is None else min(asked, self.most)


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence without its end token; `finished` is False when the length limit cut it."""

    tokens: tuple[int, ...]
    score: float
    log_probability: float
    finished: bool
