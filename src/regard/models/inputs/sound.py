"""Recordings as inputs of speech models.

A recording is a WAV file, its contents, or an array of 16,000 samples a second between -1 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.audio import RATE, Samples, read_wav_and_rate, resample
from regard.models.inputs.arrays import as_array
from regard.system.arguments import whole_number
from regard.system.errors import DataError, Say

Sound = str | Path | bytes | Samples
_SOUND_FORMS = "pass a WAV file, or an array at 16,000 samples per second, from -1 to 1"


def read_samples(sound: Any) -> Samples:
    """The samples of an array, a tensor or a list at 16 kHz: [samples], float32."""
    samples = as_array(sound, "recording", _SOUND_FORMS)
    if not np.issubdtype(samples.dtype, np.floating):
        raise DataError(
            f"samples of dtype {samples.dtype} are not floating-point audio",
            "pass values from -1 to 1: divide 16-bit integers by 32768",
        )
    if samples.ndim != 1 or not len(samples):
        raise DataError(f"a recording has shape {samples.shape}", "pass [samples], one or more")
    if not np.isfinite(samples).all():
        raise DataError("a recording has NaN or infinite samples", "record or convert it again")
    return samples.astype(np.float32, copy=False)


def read_recordings(
    sounds: Sequence[Sound], say: Say, sampling_rate: int | None = None
) -> list[Samples]:
    """The samples of recordings, each [samples]; other rates are resampled, and said.

    Files say their own rate; `sampling_rate` is that of arrays, which is said if it is assumed.
    """
    recordings = []
    rates: set[int] = set()
    if sampling_rate is not None:
        whole_number("sampling_rate", sampling_rate, least=1)
    elif not all(isinstance(sound, str | Path | bytes) for sound in sounds):
        say(f"an array is taken to have {RATE:,} samples per second; pass its sampling_rate")
    for sound in sounds:
        rate = sampling_rate or RATE
        if isinstance(sound, str | Path | bytes):
            sound, rate = read_wav_and_rate(sound)
        rates.add(rate)
        recordings.append(resample(read_samples(sound), rate))
    say_resampled(rates, say)
    return recordings


def say_resampled(rates: set[int], say: Say) -> None:
    """Says which sample rates were not the models' own."""
    others = sorted(rates - {RATE})
    if others:
        names = " and ".join(f"{rate:,}" for rate in others)
        say(f"audio at {names} samples per second is resampled to {RATE:,}")


def spectrogram_image(features: Tensor) -> NDArray[np.uint8]:
    """A spectrogram [mels, frames] in shades of grey, low frequencies in the first row."""
    low = features.amin()
    high = features.amax()
    # Silence has one value everywhere: without the bound it would be 0 / 0.
    brightness = (features - low) / (high - low).clamp_min(1e-9)
    return (brightness * 255).round().to(torch.uint8).numpy()
