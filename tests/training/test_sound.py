"""Training on recordings: CTC and Whisper-style transcription, on generated tones."""

from __future__ import annotations

import itertools
import json
import math
import wave
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

import regard
from regard import spec
from regard.data.audio import RATE, resample
from regard.data.labelled import Recording, read_transcripts
from regard.data.padding import IGNORED
from regard.data.text.ctc import CTCDecoder
from regard.models.sound_models import CTCModel
from regard.system.errors import DataError, ModelError, SettingError, TrainingInterrupted
from regard.training import model_spec
from regard.training.assembly import assemble
from regard.training.data.sound_sources import alignment_length
from regard.training.data.stored_items import StoredItems
from regard.training.recipe import loading
from regard.training.run import resume
from regard.training.run_folder import begin
from regard.training.setup import Parts, Setup

pytestmark = pytest.mark.thorough

WORDS = {"low": 300.0, "high": 1500.0}  # each word is a tone of so many Hz
QUICK: dict[str, Any] = {
    "steps": 2, "warmup_steps": 1, "batch_tokens": 120, "validate_every": 2, "save_every": 2,
    "schedule": "constant", "learning_rate": 0.003, "max_grad_norm": 1.0, "samples": 1, "threads": 1,
    "device": "cpu", "d_model": 32, "d_ff": 64, "heads": 2, "layers": 1, "dropout": 0.0,
    "attention_dropout": 0.0, "feedforward_dropout": 0.0,
}  # fmt: skip
MODELS = ("wav2vec2:tiny", "whisper:tiny")
AUGMENTED: dict[str, Any] = {
    "speed_perturbation": 0.2, "time_shift": 0.05, "noise_snr": 10.0, "time_masks": 2,
    "frequency_masks": 1,
}  # fmt: skip


def tone(hertz: float, seconds: float, rate: int = RATE) -> Any:
    return (0.3 * np.sin(2 * math.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(
        np.float32
    )


def write_wav(path: Path, samples: Any, rate: int = RATE) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve recordings of 8 kHz, of different lengths."""
    folder = tmp_path_factory.mktemp("sounds")
    rows = []
    for number, word in enumerate(itertools.islice(itertools.cycle(WORDS), 12)):
        samples = tone(WORDS[word], 0.3 + 0.02 * number, 8000)
        write_wav(folder / f"{number}.wav", samples, 8000)
        rows.append(f"{number}.wav\t{word}\n")
    (folder / "table.tsv").write_text("".join(rows))
    return folder / "table.tsv"


def settings(table: Path, model: str, **changes: Any) -> dict[str, Any]:
    return QUICK | {"sounds": str(table), "valid_sounds": str(table), "model": model} | changes


# ------------------------------------------------------------------ data


@pytest.mark.parametrize("rate", [8000, 11_025, 16_001, 22_050, 44_100, 48_000])
def test_resampling_keeps_tones_and_filters_what_would_alias(rate: int) -> None:
    heard = resample(tone(700, 0.5, rate), rate)
    expected = tone(700, 0.5)
    assert abs(len(heard) - len(expected)) <= 1
    inner = slice(400, 7000)  # at the ends the filter hears silence
    assert np.abs(heard[inner] - expected[inner]).max() < 1e-4
    if rate > 2 * RATE:
        # 12 kHz would come out as 4 kHz.
        assert np.abs(resample(tone(12_000, 0.5, rate), rate)[inner]).max() < 1e-4
    constant = resample(np.ones(rate, np.float32), rate)
    assert np.abs(constant[inner] - 1).max() < 1e-6


def test_resampling_agrees_with_scipy() -> None:
    signal = pytest.importorskip("scipy.signal")
    # Noise below 3 kHz, which both filters pass.
    noise = np.random.default_rng(0).normal(size=8000)
    noise = signal.sosfiltfilt(signal.butter(8, 2000, fs=8000, output="sos"), noise)
    ours = resample(noise.astype(np.float32), 8000)
    theirs = signal.resample_poly(noise, 2, 1, window=("kaiser", 12.0))
    difference = np.abs(ours - theirs)[500:-500].max()
    assert difference < 0.01 * np.abs(noise).max()


def test_tables_as_tsv_and_json_lines(table: Path, tmp_path: Path) -> None:
    rows = read_transcripts(table)
    records = [{"audio": str(row.audio), "text": row.text} for row in rows]
    path = tmp_path / "table.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read_transcripts(path) == rows  # absolute paths stay what they are
    path.write_text('{"audio": "0.wav"}\n')
    with pytest.raises(DataError, match="'text' is missing"):
        read_transcripts(path)
    (tmp_path / "table.tsv").write_text("nowhere.wav\tlow\n")
    with pytest.raises(DataError, match=r"names nowhere\.wav, which does not exist"):
        read_transcripts(tmp_path / "table.tsv")


# ------------------------------------------------------------------ CTC


def test_labels_and_text_are_inverse() -> None:
    decoder = CTCDecoder.of_texts(["a cab", "ab"])
    assert list(decoder.names.values()) == ["<pad>", "<s>", "</s>", "<unk>", "|", "a", "b", "c"]
    labels = decoder.labels(" a  bb cab ")
    # A blank after every label, each label twice: decoding merges and drops them.
    frames = [frame for label in labels for frame in (label, label, decoder.blank)]
    assert decoder.text(frames) == "a bb cab"
    assert decoder.labels("ax", allow_unknown=True)[1] == 3
    for text in ("ax", "a|b"):
        with pytest.raises(DataError, match="which the model cannot write"):
            decoder.labels(text)


def test_words_stand_where_their_letters_are() -> None:
    decoder = CTCDecoder.of_texts(["a cab", "ab"])
    frames = [0, 5, 5, 0, 4, 0, 7, 5, 0, 6, 6, 4, 4, 1, 5, 0]
    assert decoder.text(frames) == "a cab a"
    assert decoder.words(frames) == [("a", 1, 3), ("cab", 6, 11), ("a", 14, 15)]
    for frames in np.random.default_rng(0).integers(0, 8, (200, 30)).tolist():
        words = decoder.words(frames)
        assert " ".join(word for word, _, _ in words) == decoder.text(frames)
        assert all(decoder.text(frames[begin:end]) == word for word, begin, end in words)
    assert decoder.words([0, 4, 0]) == []


def _objective(values: dict[str, Any], folder: Path) -> Any:
    """The objective of a run that has not begun."""
    recipe = loading.load(None, values)
    setup = Setup(begin(recipe, folder, "test"), recipe, lambda _: None)
    objective = assemble(setup)
    objective.model.eval()
    return objective


def test_the_loss_is_that_of_all_alignments(tmp_path: Path) -> None:
    """Equal to the sum over every sequence of frame labels that decodes to the transcript."""
    write_wav(tmp_path / "a.wav", tone(300, 0.1))
    (tmp_path / "table.tsv").write_text("a.wav\taa\n")
    objective = _objective(settings(tmp_path / "table.tsv", "wav2vec2:tiny"), tmp_path / "run")
    decoder = objective.data.vocabulary
    batch = objective.collate("train", np.array([0]))
    model = objective.trained_model.model
    with torch.no_grad():
        _, nll = objective.loss(batch.tensors)
        hidden, _ = model(batch.tensors["waves"], batch.tensors["padding_mask"])
        log_probs = model.classes(hidden)[0].log_softmax(-1)  # [frames, characters]
    assert log_probs.shape == (4, len(decoder.names))
    total = torch.tensor(-math.inf)
    for path in itertools.product(range(len(decoder.names)), repeat=4):
        # The paper's B: merge what is repeated, then drop blanks. Not `text`, which hides <s>.
        merged = [label for label, _ in itertools.groupby(path) if label != decoder.blank]
        if merged == decoder.labels("aa"):
            total = torch.logaddexp(total, log_probs[torch.arange(4), torch.tensor(path)].sum())
    torch.testing.assert_close(nll, -total)
    assert alignment_length(decoder.labels("aa")) == 3
    assert batch.tokens == 2


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_has_the_loss_of_its_recordings(model: str, table: Path, tmp_path: Path) -> None:
    """Padding changes nothing, so that accumulated batches equal a large one."""
    values = settings(table, model)
    if model == "wav2vec2:tiny":
        # Norms of channels, not over time, which includes the padding; given as a file.
        preset: Any = recipe_spec(values)
        norm = spec.LayerNorm()
        convolutions = tuple(replace(part, norm=norm) for part in preset.waves.convolutions)
        preset = replace(preset, input=replace(preset.waves, convolutions=convolutions))
        (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict(preset)))
        sizes = ("model", "d_model", "d_ff", "heads", "layers")
        values = {key: value for key, value in values.items() if key not in sizes}
        dropouts = ("dropout", "attention_dropout", "feedforward_dropout")
        values = {key: value for key, value in values.items() if key not in dropouts}
        values |= {"spec": str(tmp_path / "spec.json"), "objective": "ctc"}
    objective = _objective(values, tmp_path / "run")
    split = "train"
    with torch.no_grad():
        rows = [objective.collate(split, np.array([row])) for row in range(4)]
        single = sum(objective.loss(row.tensors)[1] for row in rows)
        batch = objective.collate(split, np.arange(4))
        _, nll = objective.loss(batch.tensors)
    assert batch.tokens == sum(row.tokens for row in rows)
    torch.testing.assert_close(nll, single, rtol=1e-4, atol=1e-4)


def recipe_spec(values: dict[str, Any]) -> Any:
    return model_spec.describe(loading.load(None, values), 10)


def test_the_loss_equals_that_of_transformers(table: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run = regard.train(settings(table, "wav2vec2:tiny"), out=tmp_path / "run").folder
    objective = _objective(settings(table, "wav2vec2:tiny"), tmp_path / "objective")
    ours: Any = regard.load(run, device="cpu")
    objective.trained_model.model.load_state_dict(ours.model.state_dict())
    other = transformers.Wav2Vec2ForCTC.from_pretrained(run).eval()
    other.config.ctc_loss_reduction = "sum"
    processor = transformers.Wav2Vec2FeatureExtractor.from_pretrained(run)
    tokenizer = transformers.Wav2Vec2CTCTokenizer.from_pretrained(run)
    speech = objective.source.splits["train"]
    for row in range(3):
        inputs = processor(speech[row], sampling_rate=RATE, return_tensors="pt").input_values
        labels = tokenizer(speech.texts[row], return_tensors="pt").input_ids
        with torch.no_grad():
            expected = other(inputs, labels=labels)
            batch = objective.collate("train", np.array([row]))
            _, nll = objective.loss(batch.tensors)
        torch.testing.assert_close(nll, expected.loss, rtol=1e-4, atol=1e-4)
        assert labels[0].tolist() == objective.source.labels["train"][row]
        text = tokenizer.batch_decode(expected.logits.argmax(-1))[0]
        assert ours.transcribe(speech[row]) == text


def test_a_transcript_longer_than_its_frames_is_refused(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", tone(300, 0.1))
    (tmp_path / "table.tsv").write_text("a.wav\taabb\n")
    with pytest.raises(DataError, match="'aabb' needs 6 frames, and there are 4"):
        regard.train(settings(tmp_path / "table.tsv", "wav2vec2:tiny"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------ runs


@pytest.mark.parametrize("model", MODELS)
def test_a_run_resumes_bit_for_bit_without_its_files(
    model: str, table: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    values = settings(table, model, steps=4, save_every=2, dropout=0.1, **AUGMENTED)
    expected = regard.train(values, out=tmp_path / "whole")
    copied = tmp_path / "sounds"
    copied.mkdir()
    for path in table.parent.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    values |= {"sounds": str(copied / "table.tsv"), "valid_sounds": str(copied / "table.tsv")}
    with pytest.raises(TrainingInterrupted):
        regard.train(values, out=tmp_path / "cut", on_step=stop_at(3))
    for path in copied.iterdir():
        path.unlink()
    resumed = resume(tmp_path / "cut", quiet=True)
    weights = load_file(resumed.folder / "model.safetensors")
    for name, tensor in load_file(expected.folder / "model.safetensors").items():
        assert tensor.equal(weights[name]), name
    assert resumed.scores == expected.scores


def test_recordings_are_stored_as_the_model_hears_them(
    table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = regard.train(settings(table, "whisper:tiny"), out=tmp_path / "run").folder
    assert capfd.readouterr().err.count("8,000 samples per second is resampled to 16,000") == 1
    stored = StoredItems.open(run / "state" / "data" / "train")
    model: Any = regard.load(run, device="cpu")
    assert model.seconds == 1.0  # the longest recording has 0.52
    for row, recording in enumerate(read_transcripts(table)):
        assert stored.texts[row] == recording.text
        assert model.transcribe(stored[row]) == model.transcribe(recording.audio)
    assert capfd.readouterr().err.count("resampled") == len(stored)  # once for each call
    (run / "state" / "data" / "train" / "values").write_bytes(b"")
    with pytest.raises(DataError, match="are damaged"):
        StoredItems.open(run / "state" / "data" / "train")


def test_words_are_learnt_by_teacher_forcing(table: Path, tmp_path: Path) -> None:
    values = settings(table, "whisper:tiny", steps=60, validate_every=60, save_every=60)
    result = regard.train(values, metric="wer", out=tmp_path / "run", metrics=["cer"])
    score: Any = result.scores["valid"]
    assert score.wer == 0.0
    assert result.metrics["valid"]["cer"] == 0.0
    model = regard.load(result.folder, device="cpu")
    assert model.transcribe([tone(300, 0.4), tone(1500, 0.4)]) == ["low", "high"]
    assert regard.evaluate(model, str(table)).scores == {"wer": 0.0, "cer": 0.0}
    _same_logits_in_transformers(result.folder)


def _same_logits_in_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model: Any = regard.load(folder, device="cpu")
    other = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    samples = tone(300, 0.4)
    features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    torch.testing.assert_close(features, model.features(samples), rtol=1e-4, atol=1e-4)
    target = torch.tensor([[model.ids.start, *tokenizer.encode("low", add_special_tokens=False)]])
    with torch.no_grad():
        expected = other(features, decoder_input_ids=target).logits
        logits = model(features, decoder_input_ids=target).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert tokenizer.decode(expected.argmax(-1)[0], skip_special_tokens=True) == "low"


def test_ctc_learns_words(table: Path, tmp_path: Path) -> None:
    values = settings(table, "wav2vec2:tiny", steps=150, validate_every=50, save_every=150)
    result = regard.train(values, out=tmp_path / "run")
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").open()]
    losses = [line["loss"] for line in lines if line.get("event") == "validation"]
    assert losses[-1] < 0.5 * losses[0]
    score: Any = result.scores["valid"]
    assert score.cer < 50
    model = regard.load(result.folder, device="cpu")
    low, high = model.transcribe([tone(300, 0.4), tone(1500, 0.4)])
    assert set(low) <= set("low")
    assert set(high) <= set("high")


# ------------------------------------------------------------------ fine-tuning


@pytest.mark.parametrize(
    ("model", "task"),
    [
        ("wav2vec2:tiny", "ctc"),
        pytest.param("whisper:tiny", "transcribe", marks=pytest.mark.slow),
    ],
)
def test_finetuning_is_training_from_a_folder(
    model: str, task: str, table: Path, tmp_path: Path
) -> None:
    base = regard.train(settings(table, model), out=tmp_path / "base").folder
    result = regard.finetune(
        base, task, table, valid=table, epochs=1, batch_tokens=200, device="cpu", threads=1,
        out=tmp_path / "run", quiet=True,
    )  # fmt: skip
    for name in ("preprocessor_config.json", "tokenizer_config.json"):
        assert (result.folder / name).read_bytes() == (base / name).read_bytes()
    tuned: Any = regard.load(result.folder, device="cpu")
    assert tuned.spec == regard.load(base, device="cpu").spec
    assert isinstance(tuned.transcribe(tone(300, 0.4)), str)


def test_a_pretrained_encoder_gets_a_head(table: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        conv_dim=[16] * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    transformers.Wav2Vec2Model(config).save_pretrained(tmp_path / "base")
    result = regard.finetune(
        tmp_path / "base", "ctc", table, valid=table, epochs=1, batch_tokens=200, device="cpu",
        threads=1, out=tmp_path / "run", quiet=True,
    )  # fmt: skip
    tuned = regard.load(result.folder, device="cpu")
    assert isinstance(tuned, CTCModel)
    assert set(tuned.decoder.names.values()) >= set("lowhigh")
    assert isinstance(tuned.spec.labels, spec.ClassifierHead)
    assert tuned.spec.labels.count == len(tuned.decoder.names)
    opened = transformers.Wav2Vec2ForCTC.from_pretrained(result.folder)
    assert opened.config.pad_token_id == tuned.decoder.blank
    base = load_file(tmp_path / "base" / "model.safetensors")
    name = "encoder.layers.0.attention.q_proj.weight"
    moved = load_file(result.folder / "model.safetensors")[f"wav2vec2.{name}"] - base[name]
    assert 0 < moved.abs().max() < 0.01  # begins where the base was


# ------------------------------------------------------------------ settings


def test_objectives_and_their_data_must_fit(table: Path, tmp_path: Path) -> None:
    assert loading.load(None, {"sounds": "x", "model": "wav2vec2"}).objective == "ctc"
    assert loading.load(None, {"sounds": "x", "model": "whisper"}).objective == "transcribe"
    with pytest.raises(SettingError, match="learns from recordings"):
        loading.load(None, {"text": "x", "model": "whisper"})
    with pytest.raises(SettingError, match="not from `sounds`"):
        loading.load(None, {"sounds": "x", "model": "bert"})
    with pytest.raises(SettingError, match="not for the objective 'ctc'"):
        loading.load(None, {"sounds": "x", "model": "whisper", "objective": "ctc"})
    text_model = regard.train({
        "text": str(table), "model": "gpt2:tiny", "steps": 1, "warmup_steps": 1, "device": "cpu",
        "vocabulary": 300, "context": 8, "held_out": 0.5, "d_model": 16, "heads": 2, "layers": 1, "samples": 0,
    }, out=tmp_path / "text").folder  # fmt: skip
    for task in ("ctc", "transcribe"):
        with pytest.raises(ModelError, match=f"holds no model for {task}"):
            regard.finetune(text_model, task, table, out=tmp_path / task, quiet=True)


class Tones:
    """A data source: samples instead of files."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def splits(self) -> Any:
        return {"train": self.train}

    def train(self) -> Iterator[Recording]:
        for word, hertz in WORDS.items():
            yield Recording(tone(hertz, self.seconds), word)


def test_recordings_longer_than_the_window_are_refused(tmp_path: Path) -> None:
    base = regard.train(QUICK, model="whisper:tiny", data=Tones(0.4), out=tmp_path / "base").folder
    with pytest.raises(DataError, match=r"has 1\.5 seconds, but the model hears 1"):
        regard.train(
            base=str(base), objective="transcribe", data=Tones(1.5), device="cpu",
            out=tmp_path / "run",
        )  # fmt: skip


def test_a_multilingual_model_learns_in_a_language(tmp_path: Path) -> None:
    """The decoder reads the prompt of Whisper's figure 1; only the transcript is learnt."""
    base = regard.train(QUICK, model="whisper:tiny", data=Tones(0.4), out=tmp_path / "base").folder
    backend = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    names = ("startoftranscript", "en", "de", "translate", "transcribe", "notimestamps")
    backend.add_special_tokens([f"<|{name}|>" for name in names])
    described: Any = regard.load(base, device="cpu")
    target = replace(described.spec.target, vocabulary=backend.get_vocab_size())
    model = replace(described.spec, target=target)
    multilingual = tmp_path / "multilingual"
    regard.SpeechToText(regard.build(model), model, described.ids).save(multilingual)
    backend.save(str(multilingual / "tokenizer.json"))
    (multilingual / "preprocessor_config.json").write_bytes(
        (base / "preprocessor_config.json").read_bytes()
    )
    values: dict[str, Any] = {
        "base": str(multilingual), "objective": "transcribe", "sounds": "-", "device": "cpu",
    }  # fmt: skip
    recipe = loading.load(None, values | {"languages": "de"})
    setup = Setup(
        begin(recipe, tmp_path / "run", "test"), recipe, lambda _: None, Parts(Tones(0.4))
    )
    objective: Any = assemble(setup)
    prompt = [f"<|{name}|>" for name in ("startoftranscript", "de", "transcribe", "notimestamps")]
    tensors = objective.collate("train", np.array([0])).tensors
    tokenizer = objective.data.vocabulary
    assert tokenizer.tokens(tensors["target"][0].tolist()) == [*prompt, *"low"]
    labels = tensors["labels"][0].tolist()
    assert labels[:3] == [IGNORED] * 3
    assert tokenizer.tokens(labels[3:]) == [*"low", "</s>"]
    with pytest.raises(SettingError, match="supports 2 languages"):
        regard.train(
            base=str(multilingual), objective="transcribe", data=Tones(0.4), device="cpu",
            out=tmp_path / "other",
        )  # fmt: skip
