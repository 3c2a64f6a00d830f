"""The distance of spoken texts from recordings of them: mel-cepstral distortion."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.evaluation.metrics.metric import Array, Metric, ratio

_COEFFICIENTS = 13  # without the first one, the energy
_DECIBELS = 10.0 / math.log(10.0) * math.sqrt(2.0)
_NEPERS = 4.0 * math.log(10.0)  # of a unit of `data.audio.log_mel`, in the logarithm of energies


class MelCepstralDistortion(Metric):
    """Mel-cepstral distortion in decibels (Kubichek 1993), along the path of dynamic time warping.

    Of log-mel spectrograms [frames, mels] as `data.audio.log_mel` has them; less is better.
    """

    name = "mcd"
    definition = "mel-cepstral distortion, 13 coefficients without energy, time-warped, dB"
    greater_is_better = False
    unit = ""

    def count(self, prediction: ArrayLike, reference: ArrayLike) -> Sequence[float]:
        one = cepstrum(np.asarray(prediction, np.float64))  # [T, 13]
        other = cepstrum(np.asarray(reference, np.float64))  # [S, 13]
        distances = np.sqrt(np.square(one[:, None] - other).sum(axis=-1))
        total, steps = warped(distances)
        return _DECIBELS * total, steps

    def score(self, totals: Array) -> float:
        return ratio(*totals)


def cepstrum(spectrogram: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cosine transform of logarithms of energies [frames, mels]: [frames, 13]."""
    mels = spectrogram.shape[1]
    orders = np.arange(1, _COEFFICIENTS + 1)[:, None]
    waves = np.cos(np.pi / mels * (np.arange(mels) + 0.5) * orders)  # [13, mels]
    # In the units of amplitudes, half of those of energies.
    return spectrogram @ waves.T * (_NEPERS / 2 / mels)


def warped(distances: NDArray[np.float64]) -> tuple[float, float]:
    """Dynamic time warping of distances [T, S]: their sum along the nearest path, and its steps."""
    # Of the row before: the best sum that ends at each column, and its steps; lists, because single
    # numbers of arrays are slow.
    above = [(0.0, 0.0), *[(math.inf, 0.0)] * distances.shape[1]]
    for row in distances.tolist():
        here = [(math.inf, 0.0)]
        for column, distance in enumerate(row):
            # A step in both, in the reference alone, or in the prediction alone.
            total, steps = min(above[column], above[column + 1], here[column])
            here.append((total + distance, steps + 1.0))
        above = here
    return above[-1]
