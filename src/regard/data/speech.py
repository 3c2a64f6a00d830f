"""What speech is made of: pitch and energy of frames, and from a log-mel spectrogram to samples.

Frames are those of `data/audio`: 25 ms, one every 10 ms.
"""

from __future__ import annotations

import wave
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.data.audio import FFT, HOP, RATE, Samples, log_mel, mel_filters

_PITCH_WINDOW = 640  # samples: 40 ms hold two periods of the lowest voice
_LAGS = (RATE // 400, RATE // 60)  # of the highest and of the lowest voice, in samples
_VOICED = 0.4  # of the energy of a window, that it shares with itself one period later
_OCTAVE_COST = 0.05  # of the likeness
_REFERENCE = 128.0  # Hz, at which the pitch is 0
_LOUDNESS = (-1.5, 2.0)  # of a log-mel spectrogram
_UPDATES = 20  # halve the distance of what comes out, and more do little
_MOMENTUM = 0.99  # of the fast Griffin–Lim algorithm (Perraudin et al. 2013)


def whole_log_mel(samples: Samples, mels: int) -> Tensor:
    """The log-mel spectrogram of a whole recording [mels, frames], without silence behind it unless
    it is shorter than a window."""
    samples = np.pad(samples, (0, max(0, FFT - len(samples))))
    return log_mel(samples, mels, len(samples) / RATE)[0]


# --- pitch and energy -----------------------------------------------------------------------------


def pitch_of_frames(samples: Samples) -> Tensor:
    """Octaves above 128 Hz of each frame [frames], NaN where nothing is voiced.

    By autocorrelation, normalized by the energies of both windows that it compares.
    """
    half = (_PITCH_WINDOW + _LAGS[1]) // 2
    frames = len(samples) // HOP
    padded = functional.pad(torch.from_numpy(samples), (half, half + HOP))
    # Around the middle of each frame.
    windows = padded.unfold(0, 2 * half, HOP)[:frames]  # [frames, samples]
    windows = windows - windows.mean(dim=1, keepdim=True)
    size = 2 * windows.shape[1]
    # What begins at 0 is compared with what begins a lag later, as many samples of both.
    first = torch.fft.rfft(windows[:, :_PITCH_WINDOW], size)
    shared = torch.fft.irfft(first.conj() * torch.fft.rfft(windows, size), size)
    squares = functional.pad(windows.square().cumsum(dim=1), (1, 0))
    lags = torch.arange(*_LAGS)
    energies = squares[:, lags + _PITCH_WINDOW] - squares[:, lags]  # [frames, lags]
    norm = (energies * squares[:, _PITCH_WINDOW : _PITCH_WINDOW + 1]).clamp_min(1e-12).sqrt()
    likeness = shared[:, _LAGS[0] : _LAGS[1]] / norm  # [frames, lags]
    # Two periods are as like as one: the shorter lag is preferred (Boersma 1993).
    best = (likeness - _OCTAVE_COST * lags.log2()).argmax(dim=1)
    likeness = likeness.gather(1, best[:, None])[:, 0]
    pitch = torch.log2(RATE / (best + _LAGS[0]) / _REFERENCE)
    return torch.where(likeness > _VOICED, pitch, torch.nan)


def energy_of_frames(spectrogram: Tensor) -> Tensor:
    """The energy of each frame of a log-mel spectrogram [mels, frames], on its scale: [frames]."""
    power = 10.0 ** (4.0 * spectrogram - 4.0)
    return (power.sum(dim=0).log10() + 4.0) / 4.0


def means_of_tokens(values: Tensor, durations: Tensor) -> Tensor:
    """The mean of frames [frames] over those of each token [S], without NaN; 0 of none."""
    tokens = torch.repeat_interleave(torch.arange(len(durations)), durations)
    rows = (~values.isnan()).nonzero()[:, 0]
    zeros = torch.zeros(len(durations))
    sums = zeros.index_add(0, tokens[rows], values[rows].float())
    counts = zeros.index_add(0, tokens[rows], torch.ones(len(rows)))
    return sums / counts.clamp_min(1.0)


# --- from a spectrogram to samples ----------------------------------------------------------------


@lru_cache(maxsize=4)
def _mel_filters_and_inverse(mels: int) -> tuple[Tensor, Tensor]:
    """The mel filter bank [mels, 201], and its pseudo-inverse."""
    filters = mel_filters(mels)
    pair = (filters, np.linalg.pinv(filters))
    return tuple(torch.from_numpy(one.astype(np.float32)) for one in pair)  # type: ignore[return-value]


def _power_of_mels(energy: Tensor) -> Tensor:
    """The power of frequencies [201, frames] that has this energy in mel bands [mels, frames].

    None is negative: least squares by multiplicative updates (Lee and Seung 2000).
    """
    filters, inverse = _mel_filters_and_inverse(len(energy))
    power = (inverse @ energy).clamp_min(1e-9)
    for _ in range(_UPDATES):
        power = power * (filters.T @ energy) / (filters.T @ (filters @ power) + 1e-12)
    return power


def griffin_lim(spectrogram: Tensor, rounds: int = 60, seed: int = 0) -> Samples:
    """Samples of a log-mel spectrogram [mels, frames] (Griffin and Lim 1984).

    A spectrogram has no phases: random ones are replaced, in turn, by those of the samples that
    they give.
    """
    length = HOP * spectrogram.shape[1]
    # What no samples between −1 and 1 have is cut off, and no transform is of a single frame.
    spectrogram = spectrogram.float().cpu().clamp(*_LOUDNESS)
    spectrogram = functional.pad(spectrogram, (0, max(0, 2 - spectrogram.shape[1])), "replicate")
    size = _power_of_mels(10.0 ** (4.0 * spectrogram - 4.0)).sqrt()  # [201, frames]
    size = functional.pad(size, (0, 1))  # the frame that `log_mel` leaves out
    window = torch.hann_window(FFT)
    count = HOP * spectrogram.shape[1]
    generator = torch.Generator().manual_seed(seed)
    phase = torch.exp(2j * torch.pi * torch.rand(size.shape, generator=generator))
    before = torch.zeros_like(phase)

    def samples_of(spectrum: Tensor) -> Tensor:
        return torch.istft(spectrum, FFT, HOP, window=window, length=count)

    for _ in range(rounds):
        heard = torch.stft(samples_of(size * phase), FFT, HOP, window=window, return_complex=True)
        phase = heard + _MOMENTUM * (heard - before)
        phase = phase / phase.abs().clamp_min(1e-9)
        before = heard
    samples = samples_of(size * phase)[:length]
    # As loud as it says, unless that is cut off.
    return (samples / samples.abs().max().clamp_min(1.0)).numpy()


def write_wav(path: str | Path, samples: Samples, rate: int = RATE) -> None:
    """Samples between -1 and 1 as a WAV file of 16 bits, one channel."""
    Path(path).write_bytes(wav_bytes(samples, rate))


def wav_bytes(samples: Samples, rate: int = RATE) -> bytes:
    """The content of that file."""
    numbers = (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2")
    content = BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(numbers.tobytes())
    return content.getvalue()
