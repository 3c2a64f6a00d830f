"""Pitch, energy, Griffin–Lim and forced alignment: known signals, and all alignments counted."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from regard.data.audio import HOP, RATE, log_mel, read_wav_and_rate
from regard.data.speech import (
    energy_of_frames,
    griffin_lim,
    means_of_tokens,
    pitch_of_frames,
    whole_log_mel,
    write_wav,
)
from regard.data.text.ctc import forced_alignment
from regard.evaluation.metrics.speech import MelCepstralDistortion, warped
from seeds import SEEDS


def tone(hertz: float, seconds: float = 0.4) -> np.ndarray:
    """A voice of several overtones."""
    times = np.arange(round(seconds * RATE)) / RATE
    waves = [np.sin(2 * np.pi * hertz * k * times) / k for k in (1, 2, 3, 4)]
    return (0.2 * np.sum(waves, axis=0)).astype(np.float32)


@pytest.mark.parametrize("hertz", [80.0, 128.0, 213.0, 350.0])
def test_the_pitch_of_a_tone(hertz: float) -> None:
    pitch = pitch_of_frames(tone(hertz))
    assert len(pitch) == 40
    middle = pitch[4:-4]
    assert torch.allclose(middle, torch.tensor(np.log2(hertz / 128.0)).float(), atol=0.03)


def test_noise_and_silence_have_no_pitch() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, RATE // 2).astype(np.float32)
    assert pitch_of_frames(noise).isnan().float().mean() > 0.9
    assert pitch_of_frames(np.zeros(RATE // 2, np.float32)).isnan().all()


def test_twice_as_loud_has_four_times_the_energy() -> None:
    quiet, loud = (
        energy_of_frames(whole_log_mel((k * tone(150.0)).astype(np.float32), 80))
        for k in (0.25, 0.5)
    )
    assert torch.allclose(4 * (loud - quiet), torch.tensor(np.log10(4.0)).float(), atol=1e-3)


def test_means_of_tokens_leave_out_what_is_unknown() -> None:
    values = torch.tensor([1.0, 3.0, torch.nan, 5.0, torch.nan])
    means = means_of_tokens(values, torch.tensor([2, 0, 2, 1]))
    assert means.tolist() == [2.0, 0.0, 5.0, 0.0]


def test_samples_of_a_spectrogram_have_that_spectrogram() -> None:
    samples = (tone(140.0) * np.hanning(len(tone(140.0)))).astype(np.float32)
    spectrogram = whole_log_mel(samples, 80)
    again = griffin_lim(spectrogram)
    assert len(again) == len(samples) == HOP * spectrogram.shape[1]
    assert np.array_equal(again, griffin_lim(spectrogram))
    distance = (whole_log_mel(again, 80) - spectrogram).abs().mean()
    once = (whole_log_mel(griffin_lim(spectrogram, rounds=0), 80) - spectrogram).abs().mean()
    assert distance < 0.7 * once


def test_a_whole_recording_has_the_frames_of_its_window() -> None:
    samples = tone(140.0)
    window = log_mel(samples, 80, 1.0)[0]
    whole = whole_log_mel(samples, 80)
    # The last two frames hear the silence behind it, or its reflection.
    assert torch.allclose(whole[:, :-2], window[:, : whole.shape[1] - 2])


def test_a_wav_file_is_read_as_it_was_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    samples = tone(200.0)
    write_wav(tmp_path / "tone.wav", samples, 22_050)
    again, rate = read_wav_and_rate(tmp_path / "tone.wav")
    assert rate == 22_050
    assert np.abs(again - samples).max() < 1e-4


# --- forced alignment -----------------------------------------------------------------------------


def merged(path: tuple[int, ...]) -> list[int]:
    """B of Graves et al.: repetitions merged, blanks (0) dropped."""
    kept = [one for i, one in enumerate(path) if i == 0 or one != path[i - 1]]
    return [one for one in kept if one]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("labels", [[1], [1, 2], [2, 2], [1, 2, 1]])
def test_no_alignment_is_likelier(labels: list[int], seed: int) -> None:
    frames = 5
    logits = np.random.default_rng(seed).normal(size=(frames, 3)) * 2
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    paths = [path for path in product(range(3), repeat=frames) if merged(path) == labels]
    best = max(paths, key=lambda path: sum(log_p[t, one] for t, one in enumerate(path)))
    # The frames of each label, then halves of the blanks between two of them.
    begins = [i for i, one in enumerate(best) if one and (i == 0 or best[i - 1] != one)]
    ends = [i + 1 for i, one in enumerate(best) if one and best[i + 1 : i + 2] != (one,)]
    wanted = [(begin + end) // 2 for begin, end in zip(begins[1:], ends[:-1], strict=True)]
    assert forced_alignment(log_p, labels, 0) == wanted


# --- mel-cepstral distortion ----------------------------------------------------------------------


def test_slower_speech_is_as_near() -> None:
    metric = MelCepstralDistortion()
    spectrogram = np.random.default_rng(0).normal(size=(9, 20))
    slower = spectrogram.repeat(3, axis=0)
    assert metric.compute([spectrogram], [spectrogram]) == 0.0
    assert metric.compute([slower], [spectrogram]) == pytest.approx(0.0)
    louder = spectrogram + 0.3  # the energy is not among the coefficients
    assert metric.compute([louder], [spectrogram]) == pytest.approx(0.0, abs=1e-9)
    assert metric.compute([spectrogram[::-1]], [spectrogram]) > 1.0


def test_the_nearest_path() -> None:
    table = np.array([[1.0, 9.0, 9.0], [2.0, 9.0, 1.0]])
    assert warped(table) == (4.0, 4.0) or warped(table) == (11.0, 3.0)
    assert warped(np.array([[1.0, 5.0], [5.0, 1.0]])) == (2.0, 2.0)


def test_samples_of_any_spectrogram() -> None:
    for frames in (1, 2, 3):
        samples = griffin_lim(50 * torch.randn(80, frames))
        assert samples.shape == (HOP * frames,)
        assert np.isfinite(samples).all()
        assert np.abs(samples).max() <= 1.0
