"""Numbers of the studies of positions, and the outcomes that follow from them."""

from __future__ import annotations

import math

from attention_verdicts import Case, losses

from regard.lab.study.positional_encodings import wavelength
from regard.lab.study.positions import ADDED, TRANSLATED
from regard.lab.study.study import Numbers, Outcome


def sinusoids(largest: float = 1.0, nearest: float = 2.0, error: float = 1e-12) -> Numbers:
    return {
        "length": 2048,
        "largest": largest,
        "norm": [8.0, 8.0],
        "neighbour": 2.0,
        "nearest": nearest,
        "nearest_offset": 1,
        "distances": [2.0, 3.0],
        "offsets": [1],
        "shift_errors": [error],
        "fitted_error": 1e-12,
        "table": [[0.0, 1.0], [0.8, 0.5]],
        "matrix": [[1.0, 0.0], [0.0, 1.0]],
    }


def wavelengths(factor: float = 1.0, variation: float = 0.0, last_product: float = 10.0) -> Numbers:
    """Wavelengths as the formula has them times a factor; products fall to the last one."""
    return {
        "dimensions": [0, 64],
        "wavelengths": [2 * math.pi, factor * wavelength(64)],
        "products": [64.0, 30.0, 20.0, last_product],
        "variation": variation,
    }


def learned_positions(english: float, reversing: float) -> Numbers:
    """Losses of learned positions, where sinusoids have 3.0 and 0.1."""
    return {
        "runs": {
            "English": {"sinusoidal": losses(3.0, 3.001), "learned": losses(english, english)},
            "reversing": {"sinusoidal": losses(0.1, 0.1), "learned": losses(reversing, reversing)},
        }
    }


def extrapolation(
    sinusoidal: float, learned: float, alibi: float, spread: float = 0.0, inside: float = 98.0
) -> Numbers:
    """Accuracies at nine letters, which two seeds spread about, where all have 98 % at six."""
    beyond = {"sinusoidal": sinusoidal, "learned": learned, "ALiBi": alibi}
    values = {
        kind: [[inside, accuracy + spread], [inside, accuracy - spread]]
        for kind, accuracy in beyond.items()
    }
    return {"lengths": [6, 9], "accuracies": values, "steps": 10}


def read_positions(concatenated: float, added: float, seeds: int = 2) -> Numbers:
    """Per cent of positions that a probe finds, in vectors that enter the first layer."""
    found = dict.fromkeys(ADDED, added) | {"concatenated": concatenated, "none": 8.0}
    return {
        "runs": {kind: [{"input": value, "output": 50.0}] * seeds for kind, value in found.items()},
        "steps": 10,
    }


def relative_positions(*relative: tuple[float, float], seeds: int = 2) -> Numbers:
    """Loss and BLEU of both relative kinds, where sinusoids have 2.0 and 30."""
    scores = dict(zip(TRANSLATED, [(2.0, 30.0), *relative], strict=True))
    return {
        "runs": {
            kind: [{"loss": loss, "bleu": bleu}] * seeds for kind, (loss, bleu) in scores.items()
        },
        "steps": 10,
    }


VERDICTS: dict[str, list[Case]] = {
    "read_positions": [
        (read_positions(99.0, 20.0), Outcome.HOLDS),
        # Added ones can be read back too.
        (read_positions(99.0, 70.0), Outcome.LIMITED),
        (read_positions(60.0, 70.0), Outcome.FAILS),
        (read_positions(99.0, 20.0, seeds=1), Outcome.UNDECIDED),
    ],
    "relative_positions": [
        (relative_positions((1.8, 33.0), (1.9, 32.0)), Outcome.HOLDS),
        (relative_positions((1.8, 33.0), (2.0, 32.0)), Outcome.LIMITED),
        # A lower loss, but no better translations.
        (relative_positions((1.8, 29.0), (2.1, 33.0)), Outcome.FAILS),
        # One has failed to train, or there is one seed.
        (relative_positions((1.8, 33.0), (5.1, 1.0)), Outcome.UNDECIDED),
        (relative_positions((1.8, 33.0), (1.9, 32.0), seeds=1), Outcome.UNDECIDED),
    ],
    "sinusoids": [
        (sinusoids(), Outcome.HOLDS),
        (sinusoids(nearest=0.01), Outcome.LIMITED),
        (sinusoids(nearest=0.0), Outcome.FAILS),
        (sinusoids(largest=1.5), Outcome.FAILS),
        (sinusoids(error=0.1), Outcome.FAILS),
    ],
    "wavelengths": [
        (wavelengths(), Outcome.HOLDS),
        (wavelengths(last_product=25.0), Outcome.LIMITED),
        (wavelengths(factor=0.5), Outcome.FAILS),
        (wavelengths(variation=0.1), Outcome.FAILS),
    ],
    "learned_positions": [
        (learned_positions(3.01, 0.1), Outcome.HOLDS),
        (learned_positions(3.01, 2.0), Outcome.LIMITED),
        (learned_positions(4.0, 2.0), Outcome.FAILS),
    ],
    "extrapolation": [
        (extrapolation(95.0, 40.0, 97.0), Outcome.HOLDS),
        # Learned positions do too, or ALiBi keeps less.
        (extrapolation(95.0, 95.0, 97.0), Outcome.LIMITED),
        (extrapolation(95.0, 40.0, 30.0), Outcome.LIMITED),
        (extrapolation(40.0, 40.0, 97.0), Outcome.FAILS),
        (extrapolation(80.0, 40.0, 97.0, spread=10.0), Outcome.UNDECIDED),
        # Copying was not learned.
        (extrapolation(45.0, 20.0, 45.0, inside=50.0), Outcome.UNDECIDED),
    ],
}
