"""Audio: WAV files, and Whisper's log-mel spectrogram of windows of 30 seconds.

A window is 3000 frames of 10 ms, each the energy of 25 ms in `mels` frequency bands, as decimal
logarithms, clipped 8 below the loudest. Recordings shorter than a window are padded with silence,
as in training; longer ones are split into consecutive windows. Nothing is dropped or resampled.
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
SECONDS = 30  # of a window
_FFT = 400  # samples of a frame: 25 ms
_HOP = 160  # samples from frame to frame: 10 ms
Samples = NDArray[np.float32]


def read_wav(path: str | Path | bytes, rate: int = RATE) -> Samples:
    """The samples of a PCM file of 8, 16, 24 or 32 bits, between -1 and 1, as one channel.

    `path` may be the contents of a file. Several channels are averaged.
    """
    file_or_path: str | BytesIO
    if isinstance(path, bytes):
        file_or_path = BytesIO(path)
        path = "the recording"  # for error messages
    else:
        file_or_path = str(path)
    try:
        with wave.open(file_or_path, "rb") as file:
            channels = file.getnchannels()
            width = file.getsampwidth()  # bytes
            file_rate = file.getframerate()
            raw = file.readframes(file.getnframes())
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", "give a WAV file") from None
    except (wave.Error, EOFError) as error:
        raise DataError(
            f"{path} is no WAV file of whole numbers: {error}", _convert(path, rate)
        ) from None
    if file_rate != rate:
        raise DataError(
            f"{path} has {file_rate} samples a second, but {rate} are heard here",
            _convert(path, rate),
        )
    complete = raw[: len(raw) - len(raw) % (width * channels)]  # the last frame may be cut off
    samples = _pcm_to_float(complete, width).reshape(-1, channels)  # [N, channels]
    return np.ascontiguousarray(samples.mean(axis=1, dtype=np.float32))


def _convert(path: str | Path, rate: int) -> str:
    name = "sound.mp3" if path == "the recording" else path
    return (
        f"convert it, for example: ffmpeg -i {name} -ar {rate} -ac 1 -c:a pcm_s16le converted.wav"
    )


def _pcm_to_float(raw: bytes, width: int) -> Samples:
    """Little-endian integers of `width` bytes as fractions between -1 and 1."""
    if width == 1:  # the only width without a sign
        return ((np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128).astype(np.float32)
    # Each integer moves to the top of four bytes, which keeps its sign.
    padded = np.zeros((len(raw) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return (padded.view("<i4")[:, 0] / 2.0**31).astype(np.float32)


def windows(samples: Samples, seconds: float = SECONDS) -> list[Samples]:
    """Consecutive windows of `seconds` of a recording; the last one is padded with silence."""
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
    count = -(-len(samples) // length)  # rounded up
    padded = np.zeros(count * length, np.float32)
    padded[: len(samples)] = samples
    return list(padded.reshape(count, length))


def log_mel(samples: Samples, mels: int = 80, seconds: float = SECONDS) -> Tensor:
    """Log-mel spectrogram [W, mels, frames] of the W windows of a recording at 16 kHz.

    100 frames a second; Whisper has 80 or 128 mels.
    """
    parts = windows(np.asarray(samples, np.float32), seconds)
    waves = torch.from_numpy(np.stack(parts))  # [W, samples]
    spectrum = torch.stft(waves, _FFT, _HOP, window=torch.hann_window(_FFT), return_complex=True)
    # The last frame would begin where the window ends.
    power = spectrum[..., :-1].abs().square()  # [W, 201, frames]
    energy = torch.from_numpy(mel_filters(mels).astype(np.float32)) @ power  # [W, mels, frames]
    log = energy.clamp_min(1e-10).log10()  # silence would be −∞
    # Whisper's normalization: a dynamic range of 8, then about -1 to 1.
    log = torch.maximum(log, log.amax(dim=(1, 2), keepdim=True) - 8.0)
    return (log + 4.0) / 4.0


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


# Slaney's scale: 3 mels for 200 Hz up to 1000 Hz, beyond that 27 mels for a factor of 6.4.
_BEND = 15.0  # mels at 1000 Hz


def _mel(hertz: float) -> float:
    if hertz < 1000.0:
        return 3.0 * hertz / 200.0
    return _BEND + 27.0 * float(np.log(hertz / 1000.0) / np.log(6.4))


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    beyond = 1000.0 * 6.4 ** ((mel - _BEND) / 27.0)
    return np.where(mel >= _BEND, beyond, 200.0 * mel / 3.0)
