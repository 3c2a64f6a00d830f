"""WAV files of odd widths, rates and channels, and damaged ones."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from regard.data.audio import read_wav_and_rate, resample
from regard.system.errors import DataError


def wav(samples: bytes, rate: int = 16_000, channels: int = 1, width: int = 2) -> bytes:
    """A file of whole numbers, whatever its header says."""
    step = channels * width
    header = struct.pack("<HHIIHH", 1, channels, rate, rate * step & 0xFFFFFFFF, step, 8 * width)
    return b"".join(
        [
            b"RIFF",
            struct.pack("<I", 36 + len(samples)),
            b"WAVEfmt ",
            struct.pack("<I", len(header)),
            header,
            b"data",
            struct.pack("<I", len(samples)),
            samples,
        ]
    )


@pytest.mark.parametrize("rate", [1000, 8000, 11_025, 16_001, 44_100, 192_000])
@pytest.mark.parametrize("channels", [1, 2, 7])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_odd_rates_channels_and_widths(rate: int, channels: int, width: int) -> None:
    # Half of the largest positive number, in each width.
    level = bytes([192]) if width == 1 else (1 << (8 * width - 2)).to_bytes(width, "little")
    count = max(9, rate // 10)
    samples, actual_rate = read_wav_and_rate(wav(level * channels * count, rate, channels, width))
    assert actual_rate == rate
    assert samples.shape == (count,)
    assert np.allclose(samples, 0.5)
    assert len(resample(samples, rate)) == -(-count * 16_000 // rate)


@pytest.mark.parametrize(("rate", "width"), [(0, 2), (8000, 5), (8000, 8)])
def test_headers_that_cannot_be_are_refused(rate: int, width: int) -> None:
    with pytest.raises(DataError, match="bits a sample"):
        read_wav_and_rate(wav(bytes(80), rate, width=width))


def test_a_folder_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_wav_and_rate(tmp_path)


def test_damaged_files_are_read_or_refused() -> None:
    """Bytes changed at random, and files cut off: never another error than ours."""
    generator = random.Random(0)
    for _ in range(300):
        data = bytearray(wav(bytes(120), channels=2, width=3))
        for _ in range(2):
            data[generator.randrange(48)] = generator.randrange(256)
        if generator.random() < 0.3:
            del data[generator.randrange(1, len(data)) :]
        try:
            read_wav_and_rate(bytes(data))
        except DataError as error:
            assert "→" in str(error)
