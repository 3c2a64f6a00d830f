"""Decoding strategies (greedy, sampling, beam search), length penalties and limits as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from regard.system.arguments import real_number, switch, whole_number
from regard.system.errors import SettingError, did_you_mean
from regard.system.options import number_within, parse_option


@dataclass(frozen=True)
class GNMTPenalty:
    """GNMT's length penalty: a hypothesis scores log P / ((5 + n) / 6)^alpha.

    Wu et al. 2016, equation 14; n counts the end token. The Transformer paper takes a beam of 4
    and alpha 0.6.
    """

    alpha: float = 0.6

    def divisor(self, n: float) -> float:
        """The divisor of the log-probability of n tokens, the end token included."""
        return ((5.0 + n) / 6.0) ** self.alpha


@dataclass(frozen=True)
class PowerPenalty:
    """Hugging Face's `length_penalty`: a hypothesis scores log P / n^alpha.

    Above 0 it favours long outputs, below 0 short ones; n counts the end token.
    """

    alpha: float = 1.0

    def divisor(self, n: float) -> float:
        """The divisor of the log-probability of n tokens, the end token included."""
        return float(n**self.alpha)


LengthPenalty = GNMTPenalty | PowerPenalty


def parse_length_penalty(text: str) -> LengthPenalty:
    """Parses a length penalty such as `gnmt:0.6` or `power:1.0`."""
    constructors: dict[str, Callable[..., LengthPenalty]] = {
        "gnmt": GNMTPenalty,
        "power": PowerPenalty,
    }
    word = str(text).partition(":")[0]
    if word.lstrip("-").replace(".", "", 1).isdigit():
        raise SettingError(
            f"length_penalty {text} does not name its formula",
            f"use gnmt:{word} (Wu et al. 2016) or power:{word} (as in transformers)",
        )
    return parse_option(text, constructors, convert=_exponent)


def _exponent(text: str) -> float:
    # The power of a long text's length must still be a float: at most 1e308.
    return number_within(text, -50, 50)


MIN_TEMPERATURE = 1e-6  # logits divided by less are infinite
# Logits divided by much more underflow in float32; all tokens are equally likely long before that.
MAX_TEMPERATURE = 1e18


@dataclass(frozen=True)
class Greedy:
    """Greedy decoding: the likeliest token at each step."""


@dataclass(frozen=True)
class Sampling:
    """Sampling with temperature, top-k, top-p (nucleus) and min-p filters, in this order.

    Logits are divided by `temperature`; then the `top_k` likeliest tokens are left, then the
    smallest set of tokens that has `top_p` of the probability, then the tokens with at least
    `min_p` of the likeliest one's. A value of 0 (1 for top_p) switches a filter off.
    `draws` is how many continuations of each text are drawn.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    draws: int = 1

    def __post_init__(self) -> None:
        for name in ("top_k", "seed"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("temperature", "top_p", "min_p"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:  # nan is outside as well
            raise SettingError(
                f"temperature = {self.temperature} is out of range",
                f"use a number from {MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}; 1 is usual, "
                "and greedy decoding instead of 0",
            )
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise SettingError(
                "top_k, top_p or min_p is out of range",
                "use top_k ≥ 0, 0 < top_p ≤ 1, 0 ≤ min_p ≤ 1",
            )


@dataclass(frozen=True)
class BeamSearch:
    """Beam search: the `width` best unfinished hypotheses are continued at each step.

    `slots`: what becomes of the slot of a hypothesis that finishes.
      - `released`: it stays empty, so that the beam shrinks, and width 1 is greedy decoding.
      - `refilled`: the next best unfinished hypothesis takes it; only the `width` best finished
        hypotheses are remembered.

    `stop`: when the search of a sentence ends.
      - `certain`: when no unfinished hypothesis can still enter the n-best list. This never
        changes the answer.
      - `full`: when `width` hypotheses are finished.
      - `likely`: when moreover the best unfinished hypothesis, scored as if it ended here, is
        below all of them.
    Released slots run out when `width` hypotheses are finished, so there `likely` is `full`.

    `refilled` with PowerPenalty(p) is `generate(num_beams=width, length_penalty=p)` of Hugging
    Face's transformers: `full` is its early_stopping=True, `likely` its False, `certain` its
    "never". One beam means greedy decoding there.
    """

    width: int = 4
    penalty: LengthPenalty = field(default_factory=GNMTPenalty)
    n_best: int = 1
    slots: Literal["released", "refilled"] = "released"
    stop: Literal["certain", "likely", "full"] = "certain"

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", whole_number("beam", self.width, least=1))
        object.__setattr__(self, "n_best", whole_number("n_best", self.n_best, least=1))
        if self.n_best > self.width:
            raise SettingError(
                f"a beam of {self.width} cannot return {self.n_best} hypotheses",
                f"set beam (--beam) to {max(1, self.n_best)}, or n_best to 1 … {self.width}",
            )


Strategy = Greedy | Sampling | BeamSearch


def sampling(**settings: Any) -> Strategy:
    """Sampling by its settings; at a temperature of 0 the likeliest token is always drawn."""
    drawn = Sampling(**{**settings, "temperature": settings.get("temperature") or 1.0})
    return Greedy() if settings.get("temperature") == 0 else drawn


def returning(strategy: Strategy, count: int) -> Strategy:
    """The strategy with `count` hypotheses of each text: as many draws, or the n best."""
    count = whole_number("num_return_sequences", count, least=1)
    if isinstance(strategy, Sampling):
        return replace(strategy, draws=count)
    if isinstance(strategy, BeamSearch):
        return replace(strategy, n_best=count)
    if count > 1:
        raise SettingError(
            f"greedy decoding has one continuation, not {count}",
            f"set beam={count}, or a temperature for sampling",
        )
    return strategy


# --- strategies by keywords ---


class DecodingOptions(TypedDict, total=False):
    """The keywords of `translate` and `generate` that set the strategy.

    `beam` and `length_penalty` (`gnmt:0.6`, `power:1.0`) are of beam search, a beam of 1 is greedy;
    the others are of sampling: any of them, or `sample=True`, draws by chance; a temperature of 0
    is greedy too. `num_beams` and `do_sample` are the names of transformers.
    """

    beam: int
    num_beams: int
    length_penalty: str
    sample: bool
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


_SEARCH_OPTIONS = ("beam", "length_penalty")
_OTHER_NAMES = {"num_beams": "beam", "do_sample": "sample"}


def choose_strategy(
    strategy: Strategy | None, options: DecodingOptions, other_keywords: Sequence[str] = ()
) -> Strategy | None:
    """Returns `strategy`, or one built from `options`, or None if both are empty.

    `other_keywords` are included in the suggestions for a misspelt option.
    """
    # A misspelt keyword reaches this point only without a type checker.
    for name in options:
        if name not in DecodingOptions.__annotations__:
            names = [*DecodingOptions.__annotations__, *other_keywords]
            raise SettingError(f"unknown decoding option {name!r}", did_you_mean(name, names))
    values: dict[str, Any] = {
        _OTHER_NAMES.get(name, name): value for name, value in options.items() if value is not None
    }
    if strategy is not None and not isinstance(strategy, Strategy):
        raise SettingError(
            f"{strategy!r} is not a decoding strategy",
            "pass beam=4 or temperature=0.8, or a strategy from regard.decode.strategy",
        )
    if not values:
        return strategy
    name = next(iter(values))
    if strategy is not None:
        raise SettingError(
            f"`{name}` conflicts with the strategy {strategy}", f"remove `{name}`, or the strategy"
        )
    search = {name: values.pop(name) for name in _SEARCH_OPTIONS if name in values}
    draws = switch("sample", values.pop("sample", bool(values)))
    if values and not draws:
        raise SettingError(
            f"{next(iter(values))} needs sampling, but sample=False", "set sample=True"
        )
    if draws and search:
        raise SettingError(
            "beam search does not sample",
            f"pass either {' and '.join(_SEARCH_OPTIONS)}, or sampling options",
        )
    if draws:
        return sampling(**values)
    width = whole_number("beam", search.get("beam", BeamSearch.width))
    # sample=False alone, or a beam of 1
    if not search or (width == 1 and "length_penalty" not in search):
        return Greedy()
    return BeamSearch(width, parse_length_penalty(search.get("length_penalty", "gnmt")))


# --- what goes in and what comes out ---


@dataclass(frozen=True)
class Limit:
    """The maximum length of an output for a source of n tokens: factor · n + extra.

    The Transformer paper's limit is the input length + 50.
    """

    factor: float = 1.0
    extra: int = 50
    maximum: int | None = None  # how many positions the model itself has

    @classmethod
    def fixed(cls, new_tokens: int) -> Limit:
        """The same limit for every source."""
        return cls(0.0, new_tokens)

    def __call__(self, source_length: int) -> int:
        limit = max(1, int(self.factor * source_length) + self.extra)
        if self.maximum is None:
            return limit
        return min(limit, self.maximum)


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sequence without its end token, and its score.

    `score` is the log-probability after the length penalty; `finished` is False when the length
    limit cut the sequence off.
    """

    tokens: tuple[int, ...]
    score: float
    log_probability: float
    finished: bool
