"""Log-mel features against WhisperFeatureExtractor, and WAV files against the numbers that were
written.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.audio import RATE, log_mel, read_wav_and_rate
from regard.system.errors import DataError

transformers = pytest.importorskip("transformers")


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """Tones, noise and a pause."""
    chance, t = np.random.default_rng(seed), np.arange(int(seconds * RATE)) / RATE
    tones = sum(
        chance.uniform(0.01, 0.3) * np.sin(2 * np.pi * chance.uniform(50, 7000) * t)
        for _ in range(5)
    )
    return ((tones + chance.normal(0, 0.01, len(t))) * (np.sin(t) > -0.7)).astype(np.float32)


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("seconds", [0.01, 3.7, 30.0])
def test_features_are_whispers(mels: int, seconds: float) -> None:
    samples = sound(seconds, mels)
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
    wanted = extractor(samples, sampling_rate=RATE, return_tensors="np").input_features
    result = log_mel(samples, mels)
    assert result.shape == wanted.shape == (1, mels, 3000)
    assert np.abs(result.numpy() - wanted).max() <= 1e-5
    # Their way without torch is in float64: both of theirs differ by this much, in bands that are
    # nearly silent.
    padded = np.zeros(30 * RATE, np.float32)
    padded[: len(samples)] = samples
    plain = extractor._np_extract_fbank_features(padded[None], "cpu")
    assert np.abs(result.numpy() - plain).max() <= 2e-4


def test_long_recordings_are_windows_that_follow_each_other() -> None:
    samples = sound(71.3)
    full = log_mel(samples)
    assert full.shape == (3, 80, 3000)
    alone = torch.cat(
        [log_mel(samples[start : start + 30 * RATE]) for start in range(0, len(samples), 30 * RATE)]
    )
    assert (full - alone).abs().max() <= 1e-6


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files_are_read_as_fractions(width: int, channels: int, tmp_path: Path) -> None:
    top = 2 ** (8 * width - 1)
    numbers = np.array([[0, 1], [-top, top - 1], [top // 2, -top // 2], [3, -5]])[:, :channels]
    stored = numbers + (top if width == 1 else 0)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((channels, width, RATE, 0, "NONE", ""))
        file.writeframes(
            b"".join(int(n).to_bytes(width, "little", signed=width > 1) for n in stored.ravel())
        )
    result, _ = read_wav_and_rate(tmp_path / "a.wav")
    assert result.dtype == np.float32
    assert np.abs(result - (numbers / top).mean(axis=1)).max() <= 1e-7


def test_what_cannot_be_heard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(DataError, match="not a WAV"):
        read_wav_and_rate(tmp_path / "text.wav")
    with pytest.raises(DataError, match="cannot be read"):
        read_wav_and_rate(tmp_path / "absent.wav")
