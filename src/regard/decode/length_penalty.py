"""Length penalties of beam search, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regard.system.errors import SettingError
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
        "gnmt": lambda alpha="0.6": GNMTPenalty(_exponent(alpha)),  # Wu et al. 2016, Equation 14
        "power": lambda alpha="1.0": PowerPenalty(_exponent(alpha)),  # that of Hugging Face
    }
    word = str(text).partition(":")[0]
    if word.lstrip("-").replace(".", "", 1).isdigit():
        raise SettingError(
            f"length_penalty {text} does not name its formula",
            f"use gnmt:{word} (Wu et al. 2016) or power:{word} (as in transformers)",
        )
    return parse_option(text, constructors)


def _exponent(text: str) -> float:
    # The power of a long text's length must still be a float: at most 1e308.
    return number_within(text, -50, 50)
