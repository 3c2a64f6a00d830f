"""Classes of recordings, and contrastive pre-training, on generated tones."""

from __future__ import annotations

import struct
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_sound import AUGMENTED, MODELS, WORDS, settings, tone, write_wav

import regard
from regard.data.audio import RATE, read_wav_and_rate
from regard.data.labelled import read_labelled_recordings, read_unlabelled_recordings
from regard.models.inputs.sound import read_recordings
from regard.system.errors import DataError, ModelError, SettingError, TrainingInterrupted
from regard.training.assembly import assemble
from regard.training.objectives.speech import sampled_negatives, span_masks
from regard.training.recipe import loading
from regard.training.run import resume
from regard.training.run_folder import begin
from regard.training.setup import Setup


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve recordings of 8 kHz in a subfolder for each class."""
    folder = tmp_path_factory.mktemp("sounds")
    for number in range(12):
        word = list(WORDS)[number % 2]
        (folder / word).mkdir(exist_ok=True)
        samples = tone(WORDS[word], 0.3 + 0.02 * number, 8000)
        write_wav(folder / word / f"{number}.wav", samples, 8000)
    return folder


def _objective(values: dict[str, Any], folder: Path) -> Any:
    recipe = loading.load(None, values)
    setup = Setup(begin(recipe, folder, "test"), recipe, lambda _: None)
    return assemble(setup)


def _same_weights(one: Path, other: Path) -> None:
    weights = load_file(one / "model.safetensors")
    for name, tensor in load_file(other / "model.safetensors").items():
        assert tensor.equal(weights[name]), name


# ------------------------------------------------------------------ classes


def test_folders_and_tables_are_the_same_data(folder: Path, tmp_path: Path) -> None:
    recordings = read_labelled_recordings(folder)
    assert {recording.text for recording in recordings} == set(WORDS)
    rows = [f"{recording.audio}\t{recording.text}\n" for recording in recordings]
    (tmp_path / "table.tsv").write_text("".join(rows))
    assert read_labelled_recordings(tmp_path / "table.tsv") == recordings
    with pytest.raises(DataError, match="holds no WAV files in subfolders"):
        read_labelled_recordings(folder / "low")


@pytest.mark.parametrize("model", MODELS)
def test_classes_are_learnt_and_open_in_transformers(
    model: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    values = settings(folder, model, objective="sounds", steps=40, validate_every=40)
    result = regard.train(values, out=tmp_path / "run", metrics=["accuracy"])
    assert capfd.readouterr().err.count("8,000 samples per second is resampled to 16,000") == 1
    score: Any = result.scores["valid"]
    assert score.accuracy == result.metrics["valid"]["accuracy"] == 100.0
    ours: Any = regard.load(result.folder, device="cpu")
    assert ours.labels == sorted(WORDS)
    sounds = [tone(300, 0.4), tone(1500, 0.35)]
    answers = ours.classify([*sounds])
    assert [next(iter(answer)) for answer in answers] == ["low", "high"]
    assert regard.evaluate(ours, str(folder)).scores["accuracy"] == 100.0
    other = transformers.AutoModelForAudioClassification.from_pretrained(result.folder).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(result.folder)
    for sound, answer in zip(sounds, answers, strict=True):
        inputs = extractor(sound, sampling_rate=RATE, return_tensors="pt")
        with torch.no_grad():
            shares = other(inputs[other.main_input_name]).logits[0].softmax(-1)
        names = other.config.id2label
        for i, share in enumerate(shares.tolist()):
            assert answer[names[i]] == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_several_time_scales_are_learnt_and_stored(
    model: str, folder: Path, tmp_path: Path
) -> None:
    values = settings(folder, model, objective="sounds", steps=40, validate_every=40)
    result = regard.train(values | {"scales": "4,9:3"}, out=tmp_path / "run", metrics=["accuracy"])
    assert result.metrics["valid"]["accuracy"] == 100.0
    weights = load_file(result.folder / "model.safetensors")
    # A matrix for each scale, which began at random.
    assert len([name for name in weights if ".scales." in name and "weight" in name]) == 2
    ours: Any = regard.load(result.folder, device="cpu")
    answers = ours.classify([tone(300, 0.4), tone(1500, 0.35)])
    assert [next(iter(answer)) for answer in answers] == ["low", "high"]


def test_time_scales_need_sound_or_series(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="`scales` needs a model of time series or of sound"):
        regard.preset("bert:tiny", scales="10,100")


@pytest.mark.parametrize("model", MODELS)
def test_a_run_of_classes_resumes_bit_for_bit(
    model: str, folder: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    values = settings(
        folder, model, objective="sounds", steps=4, save_every=2, dropout=0.1, **AUGMENTED
    )
    expected = regard.train(values, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        regard.train(values, out=tmp_path / "cut", on_step=stop_at(3))
    resumed = resume(tmp_path / "cut", quiet=True)
    _same_weights(resumed.folder, expected.folder)
    assert resumed.scores == expected.scores


@pytest.mark.parametrize("model", MODELS)
def test_transcribers_are_fine_tuned_to_classify(model: str, folder: Path, tmp_path: Path) -> None:
    """The encoder's weights come from the base, bit for bit; the head is new."""
    rows = [f"{one.audio}\t{one.text}\n" for one in read_labelled_recordings(folder)]
    (tmp_path / "table.tsv").write_text("".join(rows))
    base = regard.train(settings(tmp_path / "table.tsv", model), out=tmp_path / "base").folder
    values = {"base": str(base), "objective": "sounds", "sounds": str(folder), "device": "cpu"}
    objective = _objective(values, tmp_path / "run")
    source: Any = regard.load(base, device="cpu")
    names = {"source": "input", "encoder": "stack"}
    parameters = dict(objective.model.named_parameters())
    copied = 0
    for name, parameter in source.model.named_parameters():
        part, _, rest = name.partition(".")
        mine = parameters.get(f"{names.get(part, part)}.{rest}")
        if mine is not None and part != "labels":
            assert mine.equal(parameter)
            copied += 1
    assert copied == len([name for name in parameters if name.startswith(("input.", "stack."))])
    assert objective.trained_model.labels == sorted(WORDS)


def test_recordings_that_cannot_be_heard_are_refused(folder: Path, tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", tone(300, 0.01))
    write_wav(tmp_path / "b.wav", tone(300, 0.4))
    (tmp_path / "table.tsv").write_text("a.wav\tlow\nb.wav\thigh\n")
    values = settings(tmp_path / "table.tsv", "wav2vec2:tiny", objective="sounds")
    with pytest.raises(DataError, match="'low' needs 1 frames"):
        regard.train(values, out=tmp_path / "run")
    with pytest.raises(SettingError, match="learns from recordings"):
        loading.load(None, {"model": "wav2vec2:tiny", "objective": "sounds"})
    other = regard.train(
        settings(folder, "whisper:tiny", objective="sounds", steps=1), out=tmp_path / "other"
    )
    model: Any = regard.load(other.folder, device="cpu")
    with pytest.raises(DataError, match="longer than the 1 seconds"):
        model.classify(tone(300, 1.2))
    values = {"base": str(other.folder), "objective": "speech_contrastive", "sounds": str(folder)}
    with pytest.raises(ModelError, match="pre-trained this way"):
        _objective(values, tmp_path / "pretrained")


# ------------------------------------------------------------------ contrastive pre-training


def test_spans_are_masked_and_negatives_are_other_masked_positions() -> None:
    generator = np.random.default_rng(0)
    lengths = [200, 23, 3, 2]
    shares = []
    for _ in range(50):
        masked = span_masks(lengths, 0.65, 10, generator)
        for row, length in enumerate(lengths):
            assert not masked[row, length:].any()
            assert masked[row].sum() >= 2
        shares.append(masked[0].mean())
        negatives = sampled_negatives(masked, 7, generator)
        flat = masked.reshape(-1)
        for row, place in np.argwhere(masked):
            drawn = negatives[row, place]
            assert flat[drawn].all()
            assert (drawn // masked.shape[1] == row).all()
            assert row * masked.shape[1] + place not in drawn
    # Section 4.2 of the paper: about 49 % of all positions, for p = 0.065 and M = 10.
    assert np.mean(shares) == pytest.approx(0.49, abs=0.03)


def test_the_pre_training_loss_equals_that_of_transformers(folder: Path, tmp_path: Path) -> None:
    """On the masks and negatives of a batch, with the codes that are chosen in eval mode."""
    transformers = pytest.importorskip("transformers")
    values = settings(folder, "wav2vec2:tiny", objective="speech_contrastive", mask_ratio=0.5)
    run = regard.train(values, out=tmp_path / "run").folder
    objective = _objective(values, tmp_path / "objective")
    ours: Any = regard.load(run, device="cpu")
    objective.model.load_state_dict(ours.model.state_dict())
    objective.model.eval()
    other = transformers.Wav2Vec2ForPreTraining.from_pretrained(run).eval()
    batch = objective.collate("train", np.arange(4), (1, 2)).tensors
    with torch.no_grad():
        loss, nll = objective.loss(batch)
        expected = other(
            batch["waves"],
            attention_mask=batch["padding_mask"].long(),
            mask_time_indices=batch["masked"],
            sampled_negative_indices=batch["negatives"],
        )
    torch.testing.assert_close(loss, expected.loss, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(nll, expected.contrastive_loss, rtol=1e-4, atol=1e-4)


def test_pre_training_resumes_bit_for_bit(
    folder: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    """Masks, negatives, temperature and Gumbel noise are functions of seed and step."""
    values = settings(
        folder, "wav2vec2:tiny", objective="speech_contrastive", steps=6, save_every=2,
        dropout=0.1, speed_perturbation=0.2, time_shift=0.05, noise_snr=10.0,
    )  # fmt: skip
    expected = regard.train(values, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        regard.train(values, out=tmp_path / "cut", on_step=stop_at(3))
    resumed = resume(tmp_path / "cut", quiet=True)
    _same_weights(resumed.folder, expected.folder)
    assert resumed.scores == expected.scores
    objective = _objective(values, tmp_path / "again")
    again, same, later = (
        objective.collate("train", np.arange(2), position).tensors
        for position in ((3, 1), (3, 1), (90_000, 0))
    )
    assert all(again[name].equal(same[name]) for name in again)
    assert not again["negatives"].equal(later["negatives"])
    assert again["temperature"] > later["temperature"] >= 0.5


def test_a_pre_trained_encoder_is_fine_tuned(folder: Path, tmp_path: Path) -> None:
    """Its codebook stays behind; transcription and classes start from the same encoder."""
    values = settings(folder, "wav2vec2:tiny", objective="speech_contrastive")
    base = regard.train(values, out=tmp_path / "base").folder
    rows = [f"{one.audio}\t{one.text}\n" for one in read_labelled_recordings(folder)]
    (tmp_path / "table.tsv").write_text("".join(rows))
    source: Any = regard.load(base, device="cpu")
    assert len(read_unlabelled_recordings(folder)) == 12
    for objective, data in (("ctc", tmp_path / "table.tsv"), ("sounds", folder)):
        tuned = regard.train(
            {"base": str(base), "objective": objective, "sounds": str(data), "steps": 1,
             "device": "cpu", "threads": 1, "learning_rate": 1e-9},
            out=tmp_path / objective,
        )  # fmt: skip
        model: Any = regard.load(tuned.folder, device="cpu")
        assert model.spec.contrastive is None
        weight = source.model.stack.blocks[0].feedforward.inner.weight
        assert model.model.stack.blocks[0].feedforward.inner.weight.allclose(weight, atol=1e-6)


# ------------------------------------------------------------------ files


def test_flac_is_read_as_wav_is(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = tone(300, 0.3, 8000)
    write_wav(tmp_path / "a.wav", samples, 8000)
    stereo = np.stack([samples, samples], axis=1)
    soundfile.write(tmp_path / "b.flac", stereo, 8000, subtype="PCM_16")
    wav_samples, wav_rate = read_wav_and_rate(tmp_path / "a.wav")
    flac_samples, flac_rate = read_wav_and_rate((tmp_path / "b.flac").read_bytes())
    assert wav_rate == flac_rate == 8000
    np.testing.assert_allclose(flac_samples, wav_samples, atol=1e-4)
    assert [one.text for one in read_unlabelled_recordings(tmp_path)] == ["a.wav", "b.flac"]
    (tmp_path / "b.flac").write_bytes(b"fLaC and nothing else")
    with pytest.raises(DataError, match="cannot be read"):
        read_wav_and_rate(tmp_path / "b.flac")


def test_flac_without_its_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    with pytest.raises(DataError, match=r"regard\[sound\]"):
        read_wav_and_rate(tmp_path / "a.flac")


def test_rates_and_channels_are_converted_and_said_once(tmp_path: Path) -> None:
    left = tone(700, 0.5, 44_100)
    frames = np.stack([left, 0.5 * left], axis=1)  # the mean of both channels is heard
    with wave.open(str(tmp_path / "stereo.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44_100)
        file.writeframes((frames * 32767).astype("<i2").tobytes())
    write_wav(tmp_path / "slow.wav", 0.75 * tone(700, 0.5, 8000), 8000)
    write_wav(tmp_path / "plain.wav", 0.75 * tone(700, 0.5))
    names = ("stereo.wav", "slow.wav", "stereo.wav", "plain.wav")
    messages: list[str] = []
    recordings = read_recordings([tmp_path / name for name in names], messages.append)
    assert messages == ["audio at 8,000 and 44,100 samples per second is resampled to 16,000"]
    inner = slice(400, 7000)  # at the ends the filter hears silence
    for samples in recordings[:3]:
        np.testing.assert_allclose(samples[inner], recordings[3][inner], atol=2e-4)


def test_wav_files_of_floats_are_read_by_soundfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = tone(300, 0.1)
    data = samples.astype("<f4").tobytes()
    # RIFF: format 3 is floating point; one channel of 32 bits.
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, RATE, 4 * RATE, 4, 32)
    chunks = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    contents = struct.pack("<4sI", b"RIFF", len(chunks)) + chunks
    with monkeypatch.context() as patched, pytest.raises(DataError, match=r"regard\[sound\]"):
        patched.setitem(sys.modules, "soundfile", None)
        read_wav_and_rate(contents)
    pytest.importorskip("soundfile")
    heard, rate = read_wav_and_rate(contents)
    assert rate == RATE
    np.testing.assert_array_equal(heard, samples)
