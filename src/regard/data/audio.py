"""Audio: WAV and FLAC files, resampling, and the windows of Whisper's log-mel spectrogram.

A window of 30 seconds is 3000 frames of 10 ms, each the energy of 25 ms in `mels` frequency bands,
as decimal logarithms, clipped 8 below the loudest. Recordings shorter than a window are padded with
silence, as in training; longer ones are split into consecutive windows. Nothing is dropped.
"""

from __future__ import annotations

import math
import wave
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.system.errors import DataError

RATE = 16_000  # samples a second
SUFFIXES = (".wav", ".flac")
_FLAC_MARKER = b"fLaC"
_WIDEST = 4  # bytes of a sample
# Samples a second: of telephones 8,000, of studios 192,000; beyond these a header is damaged.
_LOWEST_RATE = 1_000
_HIGHEST_RATE = 1_000_000
# The low-pass filter of resampling: zero crossings of its sinc on each side, the shape of its
# Kaiser window, and where it cuts off, as a share of the lower Nyquist frequency.
_ZERO_CROSSINGS = 32
_KAISER_BETA = 12.0
_ROLL_OFF = 0.94
_LARGEST_PERIOD = 2**22  # outputs times inputs of a period: 16 MB of filters
Samples = NDArray[np.float32]


# --- WAV and FLAC files ---


def read_wav_and_rate(path: str | Path | bytes) -> tuple[Samples, int]:
    """The samples of a WAV or FLAC file, between -1 and 1, as one channel, and its sample rate.

    `path` may be the contents of a file. Several channels are averaged.
    """
    name = "the recording"
    if isinstance(path, bytes):
        content = path
    else:
        name = str(path)
        try:
            content = Path(path).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
            raise DataError(f"{name!r} cannot be read: {error}", "give a WAV file") from None
    convert = f"convert it, for example: ffmpeg -i FILE -ar {RATE} -ac 1 -c:a pcm_s16le new.wav"
    if content.startswith(_FLAC_MARKER):
        return _read_by_soundfile(content, f"{name} is a FLAC file", convert)
    try:
        with wave.open(BytesIO(content)) as file:
            channels = file.getnchannels()
            width = file.getsampwidth()  # bytes
            file_rate = file.getframerate()
            frames = file.getnframes()
            raw = file.readframes(frames)
    except (wave.Error, EOFError, RuntimeError) as error:
        if str(error).startswith("unknown format"):
            # Floating point, or the extensible header that many programs write for 24 bits.
            problem = f"{name} is not a WAV file of plain whole numbers"
            return _read_by_soundfile(content, problem, convert)
        # RuntimeError: a chunk is longer than the file.
        reason = f": {error}" if str(error) else ", it is cut off, damaged or empty"
        raise DataError(f"{name} is not a WAV file{reason}", "give a WAV or FLAC file") from None
    if width > _WIDEST or not _LOWEST_RATE <= file_rate <= _HIGHEST_RATE:
        raise DataError(
            f"{name} has {8 * width} bits a sample and {file_rate} samples a second", convert
        )
    if len(raw) < frames * width * channels:
        raise DataError(
            f"{name} is cut off: its header announces {frames:,} samples, and "
            f"{len(raw) // (width * channels):,} are there",
            "copy or download it again; ffmpeg converts what is there",
        )
    samples = _pcm_to_float(raw, width).reshape(-1, channels)  # [N, channels]
    return np.ascontiguousarray(samples.mean(axis=1, dtype=np.float32)), file_rate


def _read_by_soundfile(content: bytes, problem: str, convert: str) -> tuple[Samples, int]:
    try:
        import soundfile
    except ImportError:
        raise DataError(
            f"{problem}, which needs soundfile", f"pip install 'regard[sound]', or {convert}"
        ) from None
    try:
        samples, rate = soundfile.read(BytesIO(content), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise DataError(f"{problem} that cannot be read: {error}", convert) from None
    # [N, channels]
    return np.ascontiguousarray(samples.mean(axis=1, dtype=np.float32)), int(rate)


def _pcm_to_float(raw: bytes, width: int) -> Samples:
    """Little-endian integers of `width` bytes as fractions between -1 and 1."""
    if width == 1:  # the only width without a sign
        return ((np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128).astype(np.float32)
    # Each integer moves to the top of four bytes, which keeps its sign.
    padded = np.zeros((len(raw) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return (padded.view("<i4")[:, 0] / 2.0**31).astype(np.float32)


# --- resampling ---


def resample(samples: Samples, rate: int, new_rate: int = RATE) -> Samples:
    """Band-limited resampling by a polyphase filter: a sinc under a Kaiser window.

    The result has ⌈samples · new_rate / rate⌉ samples. What lies above the lower of the two Nyquist
    frequencies is filtered out, so that nothing is aliased.
    """
    if rate == new_rate:
        return samples
    common = math.gcd(rate, new_rate)
    up = new_rate // common  # outputs of a period, in which `down` inputs pass
    down = rate // common
    if up * down > _LARGEST_PERIOD:
        return _resample_output_by_output(samples, up, down)
    kernel = _polyphase_filter(up, down)  # [up, 1, 2 half + down]
    half = (kernel.shape[-1] - down) // 2
    periods = -(-len(samples) // down)
    padded = np.zeros(half + periods * down + half, np.float32)
    padded[half : half + len(samples)] = samples
    # One output channel a phase, one step a period: [1, up, periods].
    outputs = functional.conv1d(torch.from_numpy(padded)[None, None], kernel, stride=down)
    count = -(-len(samples) * up // down)
    return outputs[0].T.reshape(-1)[:count].contiguous().numpy()


# As many as speeds of whole percents and the usual sample rates.
@lru_cache(maxsize=128)
def _polyphase_filter(up: int, down: int) -> torch.Tensor:
    """The filter of each of `up` outputs, over the inputs that they hear: [up, 1, inputs]."""
    half = _half_width(up, down)
    # Output p of a period stands at input p · down / up: its distances to the inputs it hears.
    phases = np.arange(up)[:, None] * down / up  # [up, 1]
    distances = phases - np.arange(-half, half + down)  # [up, 2 half + down]
    kernel = _windowed_sinc(distances, up, down)
    return torch.from_numpy(kernel.astype(np.float32))[:, None]


def _resample_output_by_output(samples: Samples, up: int, down: int) -> Samples:
    """The same where rates share no large factor (16,001 Hz): each output has a filter of its own.

    A table of the filters of a whole period would not fit into memory.
    """
    half = _half_width(up, down)
    offsets = np.arange(-half, half + 1)  # [taps]
    padded = np.pad(samples, half + 1)
    result = np.empty(-(-len(samples) * up // down), np.float32)
    at_once = max(1, _LARGEST_PERIOD // len(offsets))
    for start in range(0, len(result), at_once):
        outputs = np.arange(start, min(start + at_once, len(result)))
        inputs = outputs * down // up  # [outputs], the last input at or before each
        phases = (outputs * down % up) / up  # [outputs], how far after it
        kernel = _windowed_sinc(phases[:, None] - offsets, up, down)  # [outputs, taps]
        heard = padded[half + 1 + inputs[:, None] + offsets]
        result[outputs] = (kernel * heard).sum(axis=1)
    return result


def _half_width(up: int, down: int) -> int:
    """The inputs that an output hears on each side."""
    return math.ceil(_ZERO_CROSSINGS / _cutoff(up, down))


def _cutoff(up: int, down: int) -> float:
    """Where the low-pass filter cuts off, as a share of the input's Nyquist frequency."""
    return _ROLL_OFF * min(1.0, up / down)


def _windowed_sinc(distances: NDArray[np.float64], up: int, down: int) -> NDArray[np.float64]:
    """Filters [outputs, inputs] at distances in inputs; the weights of an output sum to 1."""
    cutoff = _cutoff(up, down)
    half = _half_width(up, down)
    inside = np.clip(1 - (distances / half) ** 2, 0.0, None)
    window = np.i0(_KAISER_BETA * np.sqrt(inside)) / np.i0(_KAISER_BETA)
    window[np.abs(distances) > half] = 0.0
    kernel = cutoff * np.sinc(cutoff * distances) * window
    kernel /= kernel.sum(axis=1, keepdims=True)  # a constant stays what it is
    return kernel


# --- log-mel spectrograms, as Whisper hears them ---


SECONDS = 30  # of a window
FFT = 400  # samples of a frame: 25 ms
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
        waves[:, :heard], FFT, HOP, window=torch.hann_window(FFT), return_complex=True
    )
    # The last frame would begin where the window ends.
    power = spectrum[..., :-1].abs().square()  # [W, 201, frames]
    energy = torch.from_numpy(mel_filters(mels).astype(np.float32)) @ power  # [W, mels, frames]
    energy = functional.pad(energy, (0, frames - energy.shape[-1]))
    log = energy.clamp_min(1e-10).log10()  # silence would be −∞
    # Whisper's normalization: a dynamic range of 8, then about -1 to 1.
    log = torch.maximum(log, log.amax(dim=(1, 2), keepdim=True) - 8.0)
    return (log + 4.0) / 4.0


@lru_cache(maxsize=4)
def mel_filters(mels: int) -> NDArray[np.float64]:
    """Mel filter bank [mels, 201]: triangles of equal area, evenly spaced on Slaney's mel scale.

    From 0 to 8000 Hz.
    """
    # Filter i rises from corner i, peaks at i + 1 and falls to i + 2.
    corners = _hertz(np.linspace(0.0, _mel(RATE / 2), mels + 2))
    # Frequencies of the FFT, in Hz: [201].
    bins = np.linspace(0.0, RATE / 2, 1 + FFT // 2)
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
