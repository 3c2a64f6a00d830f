"""Augmentation of sound: what is drawn, what it does to recordings, and who may ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_sound import AUGMENTED, MODELS, _objective, settings, table, tone

from regard.data.audio import RATE, mel_scale_hertz
from regard.system.errors import SettingError
from regard.training.data.sound_augmentation import LengthLimits, SoundAugmentation
from regard.training.recipe import loading
from regard.training.recipe.sections import TrainSettings

__all__ = ["table"]  # a fixture
FREE = LengthLimits()
EVERYTHING = SoundAugmentation(
    TrainSettings(
        seed=1,
        speed_perturbation=0.2,
        time_shift=0.05,
        noise_snr=10.0,
        time_masks=2,
        time_mask_width=0.2,
        frequency_masks=2,
        frequency_mask_width=0.2,
    )
)


def augmented_by(**settings: Any) -> SoundAugmentation:
    return SoundAugmentation(EVERYTHING.settings.model_copy(update=settings))


def noise(seconds: float = 0.5) -> Any:
    samples = np.random.default_rng(0).normal(size=round(seconds * RATE))
    return (0.1 * samples).astype(np.float32)


def spectrogram() -> torch.Tensor:
    """80 bands of 100 frames, all different."""
    return torch.arange(8000.0).reshape(1, 80, 100)


# ------------------------------------------------------------------ what is drawn


def test_a_recording_is_a_function_of_seed_epoch_and_row() -> None:
    def augmented(seed: int, row: int, epoch: int) -> Any:
        augmentation = augmented_by(seed=seed)
        samples = augmentation.samples(noise(), row, epoch, FREE)
        return augmentation.mask_waveform(samples, row, epoch).tobytes()

    places = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]
    results = [augmented(*place) for place in places]
    assert results == [augmented(*place) for place in places]
    assert len(set(results)) == len(places)


def test_settings_do_not_shift_what_others_draw() -> None:
    """The masks of a run stay where they are when noise or more of them are added."""
    masked = []
    for more in ({}, {"noise_snr": None, "frequency_masks": 0}, {"speed_perturbation": 0.0}):
        features = spectrogram()
        augmented_by(**more, time_masks=1).mask_spectrogram(features, 100, 5, 7)
        # Time masks cover all bands.
        frames = (features[0] == spectrogram()[0]).any(dim=0).logical_not()
        masked.append(frames.nonzero()[:, 0].tolist())
    assert masked[0] == masked[1] == masked[2]
    assert 0 < len(masked[0]) <= 20


# ------------------------------------------------------------------ what it does


def test_another_speed_is_another_pitch_and_length() -> None:
    augmentation = SoundAugmentation(TrainSettings(seed=1, speed_perturbation=0.2))
    samples = tone(1000, 0.5)
    speeds = []
    for row in range(40):
        heard = augmentation.samples(samples, row, 0, FREE)
        speed = len(samples) / len(heard)
        spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard))))
        pitch = spectrum.argmax() * RATE / len(heard)
        assert pitch == pytest.approx(1000 * speed, abs=RATE / len(heard))
        speeds.append(speed)
    assert 0.79 < min(speeds) < 0.85
    assert 1.15 < max(speeds) < 1.21


def test_limits_of_length_are_kept() -> None:
    augmentation = augmented_by(time_shift=0.3)
    samples = noise()
    limits = LengthLimits(fewest=len(samples) - 100, most=len(samples) + 200)
    lengths = {len(augmentation.samples(samples, row, 0, limits)) for row in range(50)}
    assert limits.fewest <= min(lengths) <= max(lengths) <= limits.most
    assert len(lengths) > 1
    free = {len(augmentation.samples(samples, row, 0, FREE)) for row in range(50)}
    assert max(free) > limits.most


def test_noise_is_as_far_below_the_recording_as_asked() -> None:
    augmentation = SoundAugmentation(TrainSettings(seed=1, noise_snr=10.0))
    samples = tone(500, 0.5)
    ratios = []
    for row in range(40):
        added = augmentation.samples(samples, row, 0, FREE) - samples
        ratios.append(10 * np.log10(np.mean(samples**2) / np.mean(added**2)))
    assert 9.5 < min(ratios) < 14
    assert 36 < max(ratios) < 40.5


def test_masks_of_spectrograms_have_the_mean_and_end_with_the_recording() -> None:
    """Park et al. 2019, Section 2: blocks of consecutive frames, and of consecutive bands."""
    augmentation = augmented_by(time_masks=1, frequency_masks=1)
    heard = 60
    shares = []
    for row in range(60):
        features = spectrogram()
        mean = features[..., :heard].mean()
        augmentation.mask_spectrogram(features, heard, row, 0)
        changed = features[0] != spectrogram()[0]
        assert not changed[:, heard:].any()
        assert (features[0][changed] == mean).all()
        bands = changed[:, :heard].all(dim=1).nonzero()[:, 0]
        frames = changed[:, :heard].all(dim=0).nonzero()[:, 0]
        for places, total in ((bands, 80), (frames, heard)):
            assert len(places) <= 0.2 * total + 1
            if len(places):
                assert places.tolist() == list(range(int(places[0]), int(places[-1]) + 1))
        shares.append(len(frames) / heard)
    assert np.mean(shares) == pytest.approx(0.1, abs=0.03)  # uniform up to 0.2


def test_time_masks_of_waveforms_are_stretches_of_silence() -> None:
    samples = noise()
    augmentation = SoundAugmentation(TrainSettings(seed=1, time_masks=1, time_mask_width=0.4))
    for row in range(5):
        masked = augmentation.mask_waveform(samples.copy(), row, 0)
        places = np.flatnonzero(masked != samples)
        assert (masked[places] == 0).all()
        assert len(places) == places[-1] - places[0] + 1 <= 0.4 * len(samples) + 1


def test_a_stopped_band_is_that_of_the_mel_scale() -> None:
    """Tones that a spectrogram's mask covers are not heard in the waveform; others are."""
    augmentation = SoundAugmentation(
        TrainSettings(seed=3, frequency_masks=1, frequency_mask_width=0.5)
    )
    for row in range(6):
        features = torch.ones(1, 80, 10)
        features[..., 0] = 0.0  # so that the mean differs
        augmentation.mask_spectrogram(features, 10, row, 0)
        bands = (features[0, :, 1] != 1).nonzero()[:, 0]
        if len(bands) < 8:
            continue
        middle = (bands[0] + bands[-1] + 1).item() / 2 / 80
        outside = 0.1 if bands[0] > 16 else 0.95
        for share, is_silent in ((middle, True), (outside, False)):
            hertz = float(mel_scale_hertz(np.array(share)))
            samples = tone(hertz, 0.5)
            heard = augmentation.mask_waveform(samples.copy(), row, 0)
            loudness = np.sqrt(np.mean(heard[2000:6000] ** 2) / np.mean(samples**2))
            assert loudness < 0.1 if is_silent else loudness > 0.9


# ------------------------------------------------------------------ in training


@pytest.mark.parametrize("model", MODELS)
def test_only_training_is_augmented(model: str, table: Path, tmp_path: Path) -> None:
    """Batches differ from epoch to epoch; those of validation are as without augmentation."""
    objective = _objective(settings(table, model, **AUGMENTED), tmp_path / "run")
    plain = _objective(settings(table, model), tmp_path / "plain")
    name = "waves" if model == "wav2vec2:tiny" else "features"
    rows = np.arange(3)
    one, same, other = (
        objective.collate("train", rows, (epoch, 0)).tensors[name] for epoch in (0, 0, 1)
    )
    assert one.equal(same)
    assert not (one.shape == other.shape and one.equal(other))
    for mine, expected in zip(
        objective.evaluation_batches("valid"),
        plain.evaluation_batches("valid"),
        strict=True,
    ):
        assert mine.tensors[name].equal(expected.tensors[name])
    batches = [next(run.batches(0, 0))[1].tensors[name] for run in (objective, plain)]
    assert not (batches[0].shape == batches[1].shape and batches[0].equal(batches[1]))


def test_a_faster_recording_has_a_frame_for_each_character(table: Path, tmp_path: Path) -> None:
    """The loss of CTC is infinite without; so the shortest recordings keep their speed."""
    objective = _objective(
        settings(table, "wav2vec2:tiny", speed_perturbation=0.5), tmp_path / "run"
    )
    source = objective.source
    # "low" in eight frames becomes a text that needs all of them.
    source.labels["train"] = [[5, 6] * 10 for _ in source.labels["train"]]
    limits = source.length_limits("train", 0)
    assert objective.trained_model.frames(np.array([limits.fewest])) == 20
    assert objective.trained_model.frames(np.array([limits.fewest - 1])) == 19
    for epoch in range(20):
        assert len(source.waveform("train", 11, epoch)) >= limits.fewest


def test_label_smoothing_is_that_of_transcription(table: Path, tmp_path: Path) -> None:
    values = settings(table, "whisper:tiny", label_smoothing=0.2)
    objective = _objective(values, tmp_path / "run")
    batch = objective.collate("train", np.arange(4)).tensors
    with torch.no_grad():
        loss, nll = objective.loss(batch)
        hidden, _ = objective.model(batch["features"], batch["target"])
        logits = objective.model.head(hidden).flatten(0, 1)
    labels = batch["labels"].flatten()
    log_p = logits.log_softmax(-1)[labels >= 0]
    labels = labels[labels >= 0]
    others = 0.2 / (log_p.shape[1] - 1)  # Section 5.4 of the paper
    share = torch.full_like(log_p, others).scatter_(1, labels[:, None], 0.8)
    torch.testing.assert_close(loss, -(share * log_p).sum(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(nll, -log_p.gather(1, labels[:, None]).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("key", AUGMENTED)
def test_settings_of_sound_need_sound(key: str) -> None:
    with pytest.raises(SettingError, match=f"{key} is not a setting of the objective 'causal'"):
        loading.load(None, {"text": "x", "model": "gpt2", key: AUGMENTED[key]})
    if key.endswith("masks"):  # contrastive learning masks by `mask_ratio` and `span_length`
        changes = {"sounds": "x", "model": "wav2vec2", "objective": "speech_contrastive"}
        with pytest.raises(SettingError, match="'speech_contrastive'"):
            loading.load(None, changes | {key: 1})
