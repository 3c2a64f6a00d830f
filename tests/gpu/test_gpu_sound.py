"""Objectives of sound on a GPU: captured and compiled steps learn what plain ones do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_sound
import test_sound_classes
from test_gpu_training import assert_same_run, plain_step

import regard
from regard.system.errors import TrainingInterrupted
from regard.training.engine.train_step import Step
from regard.training.run import resume
from regard.training.run_folder import RunFolder

pytestmark = pytest.mark.gpu

folder = test_sound_classes.folder  # a fixture: recordings in a subfolder for each class
table = test_sound.table  # another: a table of recordings with transcripts

# Masks of SpecAugment are no setting of contrastive learning, which has its own.
_NO_MASKS = {"time_masks": 0, "frequency_masks": 0}
RUNS: dict[str, dict[str, Any]] = {
    "ctc": {"model": "wav2vec2:tiny", "objective": "ctc"},
    "transcription": {"model": "whisper:tiny", "objective": "transcribe"},
    "classes of spectrograms": {"model": "whisper:tiny", "objective": "sounds"},
    "classes of waveforms": {"model": "wav2vec2:tiny", "objective": "sounds"},
    "contrastive": {"model": "wav2vec2:tiny", "objective": "speech_contrastive", **_NO_MASKS},
}
# Their batches have one shape, so that steps are captured; those of waveforms have many.
CAPTURED = ("transcription", "classes of spectrograms")
# The backward pass of ctc_loss adds in any order on a GPU, and so do convolutions over waveforms.
TOLERANCE = 2e-3


def settings(name: str, folder: Path, table: Path, **changes: Any) -> dict[str, Any]:
    """Augmented recordings, and no dropout, whose random numbers differ between devices."""
    values = test_sound.settings(table, RUNS[name]["model"], **test_sound.AUGMENTED)
    if RUNS[name]["objective"] not in ("ctc", "transcribe"):
        values |= {"sounds": str(folder), "valid_sounds": str(folder)}
    more = {
        "steps": 8,
        "log_every": 1,
        "validate_every": 8,
        "save_every": 2,
        "pad_to_multiple_of": 8,
    }
    return values | more | {"device": "cuda"} | RUNS[name] | changes


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    return [line["loss"] for line in lines if "event" not in line]


@pytest.mark.parametrize("name", RUNS)
def test_a_compiled_gpu_learns_what_a_cpu_learns(
    name: str, folder: Path, table: Path, tmp_path: Path
) -> None:
    def run(out: str, **changes: Any) -> list[float]:
        values = settings(name, folder, table, **changes)
        return losses(regard.train(values, out=tmp_path / out).folder)

    plain = run("cuda")
    assert len(plain) == 8
    assert run("compiled", compile=True) == pytest.approx(plain, rel=TOLERANCE)
    if name != "contrastive":  # the noise of its Gumbel softmax is drawn on the device
        assert run("cpu", device="cpu") == pytest.approx(plain, rel=TOLERANCE)


@pytest.mark.parametrize("name", RUNS)
def test_sound_is_learnt_on_a_gpu(name: str, folder: Path, table: Path, tmp_path: Path) -> None:
    values = settings(name, folder, table, steps=40, validate_every=40, precision="bf16")
    logged = losses(regard.train(values, out=tmp_path / "run").folder)
    # A contrast of a hundred negatives begins at ln 101, and takes long to leave it.
    share = 0.999 if name == "contrastive" else 0.9
    assert sum(logged[-5:]) < share * sum(logged[:5])


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_steps_are_plain_steps(
    name: str, folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[int] = []

    def count_graphs(loop: Any) -> None:
        graphs.append(sum(graph is not None for graph in loop.step.captured.values()))

    values = settings(name, folder, table)
    captured = regard.train(values, out=tmp_path / "captured", on_step=count_graphs).folder
    assert max(graphs) > 0
    monkeypatch.setattr(Step, "_replay", plain_step)
    plain = regard.train(values, out=tmp_path / "plain").folder
    assert losses(captured) == pytest.approx(losses(plain), rel=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_augmented_sound_resumes_on_a_gpu(
    name: str, folder: Path, table: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    values = settings(name, folder, table, dropout=0.1)
    uninterrupted = regard.train(values, out=tmp_path / "uninterrupted").folder
    with pytest.raises(TrainingInterrupted):
        regard.train(values, out=tmp_path / "resumed", on_step=stop_at(5))
    resumed = resume(tmp_path / "resumed", quiet=True).folder
    assert losses(resumed) == pytest.approx(losses(uninterrupted), rel=TOLERANCE)
    if name in CAPTURED:
        assert_same_run(RunFolder(resumed), RunFolder(uninterrupted))
