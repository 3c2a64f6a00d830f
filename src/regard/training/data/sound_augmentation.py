"""Augmentation of sound: speed perturbation, time shifts, noise, and the masks of SpecAugment.

What a recording becomes is a pure function of (seed, epoch, row), so that a resumed run hears the
same sounds, whichever batches they are in.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.core.seeding import derive_seed, philox
from regard.data.audio import RATE, Samples, mel_scale_hertz, resample
from regard.training.recipe.sections import TrainSettings

Intervals = NDArray[np.float64]
# Apart from the streams that order recordings and augment images.
_STREAM = 0x50D
# What is drawn from a stream of its own, so that one setting does not shift another's numbers.
_WARP = 0  # speed, shift and loudness of noise
_NOISE = 1
_TIME_MASKS = 2
_FREQUENCY_MASKS = 3
_SNR_RANGE = 30.0  # dB: noise further below the recording is hardly heard
_FFT_MULTIPLE = 512  # a Fourier transform of a prime length takes several times as long


class LengthLimits(NamedTuple):
    """The fewest and the most samples that a recording may have once it is augmented."""

    fewest: int = 1
    most: int = sys.maxsize


@dataclass(frozen=True)
class SoundAugmentation:
    """Random changes of recordings that leave their words as they are.

    Speed perturbation is Ko et al. 2015, the masks are those of SpecAugment (Park et al. 2019),
    without its time warping, which the authors found to matter least. Widths are shares, of the
    recording and of the mel scale.
    """

    settings: TrainSettings

    # --- sound ------------------------------------------------------------------------------------

    def samples(self, samples: Samples, row: int, epoch: int, limits: LengthLimits) -> Samples:
        """A recording played slower or faster, later, and with noise.

        Where another speed would break the limits, the recording keeps its own.
        """
        speed, shift, loudness = self._generator(row, epoch, _WARP).random(3)
        # Whole percents: a resampling filter is computed once for each.
        percent = round(100 * (1 + self.settings.speed_perturbation * (2 * speed - 1)))
        resampled = resample(samples, percent, 100)
        if limits.fewest <= len(resampled) <= limits.most:
            samples = resampled
        silence = min(int(shift * self.settings.time_shift * RATE), limits.most - len(samples))
        rms = float(np.sqrt(np.mean(samples**2)))  # of what is heard, without the silence
        samples = np.pad(samples, (silence, 0))
        if self.settings.noise_snr is None:
            return samples
        decibels = self.settings.noise_snr + _SNR_RANGE * loudness
        noise = self._generator(row, epoch, _NOISE).standard_normal(len(samples), np.float32)
        return samples + np.float32(rms * 10 ** (-decibels / 20)) * noise

    # --- masks ------------------------------------------------------------------------------------

    def mask_waveform(self, samples: Samples, row: int, epoch: int) -> Samples:
        """SpecAugment for models of waveforms: stretches and bands of silence."""
        bands = self._masks(row, epoch, "frequency")
        if len(bands):
            samples = _without_bands(samples, bands)
        for begin, end in _places(self._masks(row, epoch, "time"), len(samples)):
            samples[begin:end] = 0.0
        return samples

    def mask_spectrogram(self, features: Tensor, frames: int, row: int, epoch: int) -> None:
        """SpecAugment in place: `features` [1, mels, window] get the mean where they are masked.

        The first `frames` are the recording; the silence that fills the window has no masks.
        """
        # Park et al. mask by 0, which is the mean of what their models read.
        mean = features[..., :frames].mean()
        for begin, end in _places(self._masks(row, epoch, "time"), frames):
            features[..., begin:end] = mean
        for begin, end in _places(self._masks(row, epoch, "frequency"), features.shape[1]):
            features[:, begin:end, :frames] = mean

    def _masks(self, row: int, epoch: int, axis: Literal["time", "frequency"]) -> Intervals:
        """Intervals inside [0, 1], each of a uniform length up to the width: [count, 2]."""
        count = getattr(self.settings, f"{axis}_masks")
        generator = self._generator(row, epoch, _TIME_MASKS if axis == "time" else _FREQUENCY_MASKS)
        lengths, places = generator.random((count, 2)).T
        lengths = getattr(self.settings, f"{axis}_mask_width") * lengths
        begin = places * (1 - lengths)
        return np.stack([begin, begin + lengths], axis=1)

    def _generator(self, row: int, epoch: int, purpose: int) -> np.random.Generator:
        key = derive_seed(self.settings.seed, _STREAM, epoch)
        return np.random.Generator(philox(key, int(row), row=purpose))


def _places(intervals: Intervals, count: int) -> list[list[int]]:
    """Intervals of [0, 1] as places among so many: from the first to before the second."""
    places: list[list[int]] = np.rint(intervals * count).astype(np.int64).tolist()
    return places


def _without_bands(samples: Samples, bands: Intervals) -> Samples:
    """A band-stop filter; `bands` [count, 2] are shares of the mel scale."""
    length = -(-len(samples) // _FFT_MULTIPLE) * _FFT_MULTIPLE
    spectrum = np.fft.rfft(samples, length)
    hertz_of_bin = RATE / length
    for low, high in mel_scale_hertz(bands):
        spectrum[round(low / hertz_of_bin) : round(high / hertz_of_bin)] = 0.0
    return np.fft.irfft(spectrum, length)[: len(samples)].astype(np.float32)
