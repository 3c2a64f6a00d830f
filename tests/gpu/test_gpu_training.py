"""Training on a GPU: recorded steps are plain steps, and a resumed run is the uninterrupted one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_images
import test_language
import test_run
import torch
from safetensors.torch import load_file

import regard
from regard.data.batching import Batch
from regard.system.errors import TrainingInterrupted
from regard.training.engine.train_step import Shape, Step
from regard.training.run import resume
from regard.training.run_folder import RunFolder

pytestmark = pytest.mark.gpu

text = test_run.text  # a fixture: files of sentence pairs
tales = test_language.text  # another: a file of plain text
images = test_images.images  # another: folders of images

PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {"precision": "float32"},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "bf16 compiled": {"precision": "bf16", "compile": True},
    "float32 compiled": {"precision": "float32", "compile": True},
}


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    """Bit for bit: the log, the weights, and all state of the last checkpoint."""
    assert test_run.losses(one) == test_run.losses(other)
    weights = load_file(one.weights)
    for name, tensor in load_file(other.weights).items():
        assert torch.equal(weights[name], tensor), name
    progress, tensors = test_run.state(one)
    other_progress, other_tensors = test_run.state(other)
    for state in (progress, other_progress):
        del state["compiling"]  # seconds
    assert progress == other_progress
    assert tensors.keys() == other_tensors.keys()
    for name in tensors:
        assert torch.equal(tensors[name], other_tensors[name]), name


@pytest.mark.parametrize("name", PRECISIONS)
def test_resumed_equals_uninterrupted(
    name: str, text: dict[str, str], tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    settings = {"device": "cuda", **PRECISIONS[name]}
    uninterrupted = test_run.start(text, tmp_path / "uninterrupted", **settings)
    logged = [line["loss"] for line in test_run.losses(uninterrupted) if "event" not in line]
    assert logged[-1] < logged[0] - 0.3
    with pytest.raises(TrainingInterrupted):
        test_run.start(text, tmp_path / "resumed", stop_at(5), **settings)
    with pytest.raises(TrainingInterrupted):
        resume(tmp_path / "resumed", quiet=True, on_step=stop_at(13))
    resume(tmp_path / "resumed", quiet=True)
    assert_same_run(RunFolder(tmp_path / "resumed"), uninterrupted)


def plain_step(step: Step, batch: Batch, _: Shape) -> torch.Tensor:
    return step._update([(batch.to(step.device).tensors, 1.0)])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_recorded_steps_are_plain_steps(
    precision: str, text: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"device": "cuda", "precision": precision}
    recorded = test_run.start(text, tmp_path / "recorded", **settings)
    monkeypatch.setattr(Step, "_replay", plain_step)
    plain = test_run.start(text, tmp_path / "plain", **settings)
    assert_same_run(recorded, plain)


def test_a_gpu_learns_what_a_cpu_learns(text: dict[str, str], tmp_path: Path) -> None:
    """Without dropout, whose random numbers differ between devices."""
    settings = {"dropout": 0.0, "attention_dropout": 0.0, "steps": 12, "pad_to_multiple_of": 8}
    runs = [
        test_run.start(text, tmp_path / device, device=device, **settings)
        for device in ("cpu", "cuda")
    ]
    on_cpu, on_gpu = (
        [line["loss"] for line in test_run.losses(run) if "event" not in line] for run in runs
    )
    assert on_gpu == pytest.approx(on_cpu, rel=1e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_sparse_attention_learns_as_on_a_cpu(compiled: bool, tales: Path, tmp_path: Path) -> None:
    """Rows of 320 positions of which each sees 33: FlexAttention, captured with the step."""
    settings = test_language.settings(
        tales,
        "causal",
        context=320,
        attention="window:16",
        dropout=0.0,
        batch_tokens=1280,
        steps=6,
        log_every=1,
    )
    on_cpu = test_language.start(tmp_path / "cpu", settings | {"device": "cpu"})
    on_gpu = test_language.start(
        tmp_path / "cuda", settings | {"device": "cuda", "compile": compiled}
    )
    expected, actual = (
        [line["loss"] for line in test_language.lines(run) if "event" not in line]
        for run in (on_cpu, on_gpu)
    )
    assert actual == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_augmented_images_resume_on_a_gpu(
    compiled: bool, images: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    """Images are augmented inside the captured step; a resumed run sees the same ones."""
    settings = test_images.settings_of("augmented", images)
    settings |= {"device": "cuda", "precision": "bf16", "compile": compiled}
    uninterrupted = RunFolder(regard.train(settings, out=tmp_path / "uninterrupted").folder)
    with pytest.raises(TrainingInterrupted):
        regard.train(settings, out=tmp_path / "resumed", on_step=stop_at(3))
    resume(tmp_path / "resumed", quiet=True)
    assert_same_run(RunFolder(tmp_path / "resumed"), uninterrupted)
