"""Speaking: what is learnt from recordings, a run that is resumed, and what it says afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import regard
from regard import spec
from regard.builder import build
from regard.cli.speak import command
from regard.data.audio import RATE, read_wav_and_rate
from regard.data.speech import write_wav
from regard.data.text.ctc import CTCDecoder
from regard.families.presets import preset
from regard.lab.plan.planner import plan
from regard.models import CTCModel, SpeechSynthesizer
from regard.models.saving import config_json
from regard.system.errors import DataError, ModelError, SettingError, TrainingInterrupted
from regard.training.data.spoken_texts import SpokenText
from regard.training.data.stored_items import StoredItems

# Each letter is a vowel of its own pitch, as high as the speaker.
LETTERS = {"a": 1.0, "b": 1.5, "c": 2.25}
SPEAKERS = {"low": 100.0, "high": 150.0}
TINY: dict[str, Any] = {
    "objective": "speak", "model": "fastspeech2:tiny", "d_model": 16, "d_ff": 16, "layers": 1,
    "heads": 2, "steps": 8, "batch_tokens": 200, "warmup_steps": 2, "learning_rate": 1e-3,
    "schedule": "cosine", "optimizer": "adamw", "validate_every": 4, "save_every": 4,
    "device": "cpu", "threads": 1, "samples": 0,
}  # fmt: skip


def said(text: str, speaker: str) -> np.ndarray:
    """A tenth of a second for each letter."""
    times = np.arange(RATE // 10) / RATE
    waves = [
        sum(np.sin(2 * np.pi * SPEAKERS[speaker] * LETTERS[letter] * k * times) / k for k in (1, 2))
        for letter in text
    ]
    return (0.3 * np.concatenate(waves)).astype(np.float32)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spoken")
    lines = []
    for number, text in enumerate(("ab", "abc", "ca", "bca", "cab", "b")):
        for speaker in SPEAKERS:
            write_wav(folder / f"{number}-{speaker}.wav", said(text, speaker))
            lines.append(f"{number}-{speaker}.wav\t{text}\t{speaker}\n")
    (folder / "table.tsv").write_text("".join(lines))
    return folder / "table.tsv"


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    result = regard.train(sounds=str(table), valid_sounds=str(table), out=str(folder), **TINY)
    assert result.scores["valid"].examples == 12
    return folder


def test_a_run_speaks_and_is_scored_as_at_its_end(run: Path, table: Path) -> None:
    model = regard.load(run)
    assert isinstance(model, SpeechSynthesizer)
    assert model.speakers == ["high", "low"]
    speech = model.speak("abc", speaker="low")
    assert speech.rate == RATE
    assert speech.tokens[:3] == ("a", "b", "c")
    assert len(speech.spectrogram) == sum(speech.durations)
    assert len(speech.samples) == round(speech.seconds * RATE)
    # A batch says what each text says alone.
    one, other = model.speak(["abc\tlow", "b\thigh"])
    np.testing.assert_allclose(one.spectrogram, speech.spectrogram, atol=1e-4)
    assert other.text == "b"
    slow = model.speak("abc\tlow", slowness=2.0)
    pairs = zip(slow.durations, speech.durations, strict=True)
    assert all(twice == 2 * once for twice, once in pairs)
    [prediction] = regard.predict(model, ["abc\tlow"])
    assert prediction.answer["frames"] == list(speech.durations)
    assert "a:" in prediction.text
    report = regard.evaluate(model, str(table))
    scores = (run / "metrics.jsonl").read_text()
    assert f'"mcd": {report["mcd"]:.3f}'[:12] in scores


def test_a_resumed_run_is_the_same(
    run: Path, table: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    cut = tmp_path / "run"
    files: dict[str, Any] = {"sounds": str(table), "valid_sounds": str(table)}
    with pytest.raises(TrainingInterrupted):
        regard.train(**files, out=str(cut), on_step=stop_at(5), **TINY)
    regard.resume(cut, quiet=True)
    before, after = (load_file(place / "model.safetensors") for place in (run, cut))
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)


def test_what_a_row_holds(run: Path) -> None:
    stored = StoredItems.open(run / "state/data/train")
    line = next(line for line in stored.texts if line.startswith("abc\tlow"))
    assert SpokenText.parse(line) == SpokenText("abc", "low", (10, 20, 30))
    assert str(SpokenText.parse(line)) == line


def test_an_aligner_says_how_long_letters_last(
    run: Path, table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    decoder = CTCDecoder.of_texts(["abc"])
    description: Any = preset("wav2vec2:tiny", len(decoder.names))
    heads = (spec.ClassifierHead(len(decoder.names), "transcribe"),)
    description = description.with_heads(*heads)
    aligner = CTCModel(build(description), description, decoder, config_json(description, {}))
    aligner.save(tmp_path / "aligner")
    folder = tmp_path / "run"
    changes = TINY | {"steps": 1, "warmup_steps": 1, "validate_every": 9, "save_every": 9}
    regard.train(sounds=str(table), aligner=str(tmp_path / "aligner"), out=str(folder), **changes)
    stored = StoredItems.open(folder / "state/data/train")
    rows = [SpokenText.parse(line) for line in stored.texts]
    evenly = [tuple(range(10, 10 * len(row.text) + 1, 10)) for row in rows]
    assert [row.ends for row in rows] != evenly
    assert all(row.ends[-1] == 10 * len(row.text) for row in rows)
    assert all(list(row.ends) == sorted(row.ends) for row in rows)
    assert "sampling_rate" not in capfd.readouterr().err
    # The same model says what it hears.
    texts = ["abc\tlow", "b\thigh"]
    told = ["--out", str(tmp_path / "said"), "--recogniser", str(tmp_path / "aligner")]
    done = CliRunner().invoke(command, [str(run), *texts, *told], catch_exceptions=False)
    *_, first, second, scores = done.output.splitlines()
    assert first.startswith("abc\tlow\tunderstood as")
    assert second.startswith("b\thigh\tunderstood as")
    assert scores.startswith("2 texts\t")


def test_sounds_and_pictures_from_the_command_line(run: Path, table: Path, tmp_path: Path) -> None:
    def call(*arguments: str) -> str:
        done = CliRunner().invoke(command, [str(run), *arguments], catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    out = tmp_path / "abc.wav"
    assert "abc" in call("abc", "--speaker", "low", "--out", str(out), "--pictures")
    samples, rate = read_wav_and_rate(out)
    assert (rate, len(samples)) == (RATE, len(regard.load(run).speak("abc\tlow").samples))
    assert "<svg" in out.with_suffix(".html").read_text()
    call("--table", str(table), "--out", str(tmp_path / "all"))
    lines = (tmp_path / "all/table.tsv").read_text().splitlines()
    assert len(lines) == 12
    assert all((tmp_path / "all" / line.split("\t")[0]).is_file() for line in lines)


def test_mistakes(run: Path, table: Path, tmp_path: Path) -> None:
    model: Any = regard.load(run)
    with pytest.raises(SettingError):
        model.speak("abc", speaker="lo")
    with pytest.raises(SettingError):
        model.speak("abc", slowness=0.0)
    description: Any = preset("fastspeech2:tiny", 9)
    nobody = SpeechSynthesizer(build(description), description, model.tokenizer)
    with pytest.raises(SettingError):
        nobody.speak("abc", speaker="low")
    write_wav(tmp_path / "short.wav", said("a", "low")[: RATE // 50])
    (tmp_path / "short.tsv").write_text("short.wav\tabc\tlow\n")
    with pytest.raises(DataError):
        regard.train(sounds=str(tmp_path / "short.tsv"), out=str(tmp_path / "run"), **TINY)
    (run.parent / "other").mkdir(exist_ok=True)
    with pytest.raises(ModelError):
        regard.load(run, regard.Translator)


def test_a_look_at_its_durations(run: Path) -> None:
    speech = regard.load(run).speak("abc\tlow")
    alignment = speech.look()
    assert alignment.letters == speech.tokens
    assert alignment.probabilities.sum(axis=1).tolist() == list(speech.durations)
    assert alignment.spans[-1][1] == len(speech.spectrogram)
    assert len(alignment.table()) == 1 + len(speech.tokens)


def test_a_speaker_is_planned() -> None:
    result = plan("fastspeech2:tiny", device="H200")
    assert result.subject.objective == "speak"
