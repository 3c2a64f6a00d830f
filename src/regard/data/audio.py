"""From sound to what Whisper hears: log-mel features of windows of 30 seconds.

A window is 3000 frames of 10 ms, each the energy of 25 ms in `mels` bands of frequency, in decimal logarithms, cut off 8
below the loudest. Recordings shorter than a window are filled with silence, as the models were trained; longer ones are cut
into windows that follow each other, and `windows` tells how many there are. Nothing is dropped and nothing is resampled.
"""

from __future__ import annotations

import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import DataError

RATE = 16_000  # samples a second
SECONDS = 30
_FFT, _HOP = 400, 160
Samples = NDArray[np.float32]


def read_wav(path: str | Path | bytes, rate: int = RATE) -> Samples:
    """The samples of a PCM file (its path or its contents) of 8, 16, 24 or 32 bits, between -1 and 1; several channels
    become their mean."""
    held = BytesIO(path) if isinstance(path, bytes) else str(path)
    path = "the recording" if isinstance(path, bytes) else path
    try:
        with wave.open(held, "rb") as file:
            channels, width, found = file.getnchannels(), file.getsampwidth(), file.getframerate()
            raw = file.readframes(file.getnframes())
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", "give a WAV file") from None
    except (wave.Error, EOFError) as error:
        raise DataError(
            f"{path} is no WAV file of whole numbers: {error}", _convert(path, rate)
        ) from None
    if found != rate:
        raise DataError(
            f"{path} has {found} samples a second, but {rate} are heard here", _convert(path, rate)
        )
    whole = raw[: len(raw) - len(raw) % (width * channels)]
    return np.ascontiguousarray(
        _numbers(whole, width).reshape(-1, channels).mean(axis=1, dtype=np.float32)
    )


def _convert(path: str | Path, rate: int) -> str:
    name = "sound.mp3" if path == "the recording" else path
    return (
        f"convert it, for example: ffmpeg -i {name} -ar {rate} -ac 1 -c:a pcm_s16le converted.wav"
    )


def _numbers(raw: bytes, width: int) -> Samples:
    """Whole numbers of `width` bytes, least first, as fractions; those of one byte alone have no sign."""
    if width == 1:
        return ((np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128).astype(np.float32)
    # Each number moves to the top of four bytes, which keeps its sign.
    four = np.zeros((len(raw) // width, 4), np.uint8)
    four[:, 4 - width :] = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return (four.view("<i4")[:, 0] / 2.0**31).astype(np.float32)


def windows(samples: Samples, seconds: float = SECONDS) -> list[Samples]:
    """The recording in parts of `seconds`, one after the other; the last one is filled with silence."""
    if samples.ndim != 1 or len(samples) == 0:
        raise DataError(
            f"a recording of the shape {samples.shape} is no row of samples",
            "give one channel of sound",
        )
    if not np.isfinite(samples).all():
        raise DataError(
            "the recording holds numbers that are not finite", "read or convert the file again"
        )
    length = round(seconds * RATE)
    whole = np.zeros(-(-len(samples) // length) * length, np.float32)
    whole[: len(samples)] = samples
    return list(whole.reshape(-1, length))


def log_mel(samples: Samples, mels: int = 80, seconds: float = SECONDS) -> Tensor:
    """Features [windows, mels, frames] of a recording at 16 kHz: 100 frames a second, `mels` is 80 or 128 in Whisper."""
    waves = torch.from_numpy(
        np.stack(windows(np.asarray(samples, np.float32), seconds))
    )  # [W, samples]
    spectrum = torch.stft(waves, _FFT, _HOP, window=torch.hann_window(_FFT), return_complex=True)
    power = (
        spectrum[..., :-1].abs().square()
    )  # [W, 201, frames]; the last frame would begin where the window ends
    energy = torch.from_numpy(mel_filters(mels).astype(np.float32)) @ power
    log = energy.clamp_min(1e-10).log10()
    log = torch.maximum(log, log.amax(dim=(1, 2), keepdim=True) - 8.0)
    return (log + 4.0) / 4.0


def mel_filters(mels: int) -> NDArray[np.float64]:
    """[mels, 201]: triangles of equal area, evenly spaced on Slaney's mel scale from 0 to 8000 Hz."""
    corners = _hertz(np.linspace(0.0, _mel(RATE / 2), mels + 2))
    bins = np.linspace(0.0, RATE / 2, 1 + _FFT // 2)
    low, middle, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    triangles = np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)).clip(0.0)
    return triangles * (2.0 / (high - low))


# Slaney's scale: 3 mels for 200 Hz up to 1000 Hz, beyond that 27 mels for a factor of 6.4.
_BEND = 15.0


def _mel(hertz: float) -> float:
    return (
        _BEND + 27.0 * float(np.log(hertz / 1000.0) / np.log(6.4))
        if hertz >= 1000.0
        else 3.0 * hertz / 200.0
    )


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    beyond = 1000.0 * 6.4 ** ((mel - _BEND) / 27.0)
    return np.where(mel >= _BEND, beyond, 200.0 * mel / 3.0)
