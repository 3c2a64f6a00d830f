"""Log-mel spectrograms of recordings, as Whisper hears them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.data.audio import RATE, Samples

SECONDS = 30  # of a window
_FFT = 400  # samples of a frame: 25 ms
HOP = 160  # samples from frame to frame: 10 ms
# After a recording: as many as hear a part of it, and as the reflection at the end is long.
_SILENT_FRAMES = 4


def log_mel(samples: Samples, mels: int = 80, seconds: float = SECONDS) -> Tensor:
    """Log-mel spectrogram [W, mels, frames] of the W windows of a recording at 16 kHz.

    100 frames a second; Whisper has 80 or 128 mels.
    """
    samples = np.asarray(samples, np.float32)
    length = round(seconds * RATE)
    silence = -len(samples) % length  # that fills the last window
    waves = torch.from_numpy(np.pad(samples, (0, silence)).reshape(-1, length))  # [W, samples]
    frames = waves.shape[1] // HOP
    # Most of a window may be the silence that fills it: no frame of it is transformed.
    heard = HOP * (-(-len(samples) // HOP) + _SILENT_FRAMES)
    spectrum = torch.stft(
        waves[:, :heard], _FFT, HOP, window=torch.hann_window(_FFT), return_complex=True
    )
    # The last frame would begin where the window ends.
    power = spectrum[..., :-1].abs().square()  # [W, 201, frames]
    energy = _filters(mels) @ power  # [W, mels, frames]
    energy = functional.pad(energy, (0, frames - energy.shape[-1]))
    log = energy.clamp_min(1e-10).log10()  # silence would be −∞
    # Whisper's normalization: a dynamic range of 8, then about -1 to 1.
    log = torch.maximum(log, log.amax(dim=(1, 2), keepdim=True) - 8.0)
    return (log + 4.0) / 4.0


@lru_cache(maxsize=4)
def _filters(mels: int) -> Tensor:
    """The filter bank in float32, computed once: [mels, 201]."""
    return torch.from_numpy(mel_filters(mels).astype(np.float32))


def mel_filters(mels: int) -> NDArray[np.float64]:
    """Mel filter bank [mels, 201]: triangles of equal area, evenly spaced on Slaney's mel scale.

    From 0 to 8000 Hz.
    """
    # Filter i rises from corner i, peaks at i + 1 and falls to i + 2.
    corners = _hertz(np.linspace(0.0, _mel(RATE / 2), mels + 2))
    # Frequencies of the FFT, in Hz: [201].
    bins = np.linspace(0.0, RATE / 2, 1 + _FFT // 2)
    low = corners[:-2, None]  # [mels, 1], as the next two
    middle = corners[1:-1, None]
    high = corners[2:, None]
    rising = (bins - low) / (middle - low)
    falling = (high - bins) / (high - middle)
    triangles = np.minimum(rising, falling).clip(0.0)
    return triangles * (2.0 / (high - low))  # Slaney's normalization: area 1


def mel_scale_hertz(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Frequencies at shares of the mel scale, of which 1 is 8000 Hz."""
    return _hertz(shares * _mel(RATE / 2))


def frequency_ticks(mels: int) -> dict[str, float]:
    """Where round frequencies lie in a spectrogram: shares of its height, from below."""
    # Filter i peaks at corner i + 1 of mels + 2, and is drawn as row i.
    return {
        f"{kilohertz} kHz": ((mels + 1) * _mel(1000.0 * kilohertz) / _mel(RATE / 2) - 0.5) / mels
        for kilohertz in (1, 2, 4)
    }


# Slaney's scale: 3 mels for 200 Hz up to 1000 Hz, beyond that 27 mels for a factor of 6.4.
_BEND = 15.0  # mels at 1000 Hz


def _mel(hertz: float) -> float:
    if hertz < 1000.0:
        return 3.0 * hertz / 200.0
    return _BEND + 27.0 * float(np.log(hertz / 1000.0) / np.log(6.4))


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    beyond = 1000.0 * 6.4 ** ((mel - _BEND) / 27.0)
    return np.where(mel >= _BEND, beyond, 200.0 * mel / 3.0)
