"""Classification of clips and masked pre-training: made, resumed, learnt from, opened and scored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import regard
from regard.data.generated.clips import clip, write_clips
from regard.data.image import FILE
from regard.evaluation.tasks import task_of
from regard.system.errors import SettingError, TrainingInterrupted
from regard.training.run import resume

QUICK: dict[str, Any] = {
    "steps": 6,
    "warmup_steps": 1,
    "validate_every": 3,
    "save_every": 3,
    "schedule": "constant",
    "learning_rate": 1e-3,
    "threads": 1,
    "device": "cpu",
    "samples": 0,
    "batch_tokens": 160,
}
SIZES: dict[str, Any] = {
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "layers": 2,
    "image_size": 16,
    "patch": 8,
    "frames": 4,
}
MODELS: dict[str, dict[str, Any]] = {
    "clips": SIZES | {"model": "timesformer:tiny", "crop_padding": 2, "cutmix": 1.0},
    "masked_clips": SIZES | {"model": "videomae:tiny", "tubelet": 2, "mask_ratio": 0.75},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_clips(tmp_path / "clips", {"train": 20, "test": 8}, size=16, frames=4)
    return tmp_path / "clips"


@pytest.mark.parametrize("objective", MODELS)
def test_a_run_resumes_bit_for_bit_without_its_files(
    objective: str, folder: Path, tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    settings = QUICK | MODELS[objective] | {"images": str(folder / "train")}
    whole = regard.train(settings, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        regard.train(settings, out=tmp_path / "halves", on_step=stop_at(3))
    folder.rename(tmp_path / "elsewhere")
    halves = resume(tmp_path / "halves", quiet=True)
    expected = load_file(whole.folder / "model.safetensors")
    weights = load_file(halves.folder / "model.safetensors")
    assert all(expected[name].equal(weights[name]) for name in expected)


def test_generated_clips_are_learnt_from_and_the_folder_answers(tmp_path: Path) -> None:
    settings = QUICK | MODELS["clips"] | {"builtin_lines": 100, "test_lines": 12}
    run = regard.train(settings, out=tmp_path / "run")
    assert run.scores["test"].examples == 12
    model: Any = regard.load(run.folder)
    assert task_of(model) == "clips"
    images, _ = clip(0, 0, 16, 4)
    scores = model.classify(images)
    assert sum(scores.values()) == pytest.approx(1)
    # A picture stands still in all frames.
    assert model.classify(images[0]) == pytest.approx(model.classify(images[[0] * 4]))
    assert model.embed([images, images]).shape == (2, 16)
    write_clips(tmp_path / "more", {"test": 6}, size=16, frames=4)
    assert regard.evaluate(model, str(tmp_path / "more" / "test")).examples == 6
    with pytest.raises(SettingError):
        model.with_image_size(24)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.TimesformerForVideoClassification.from_pretrained(run.folder).eval()
    pixels = model.image_processor.batch([images])
    with torch.inference_mode():
        torch.testing.assert_close(theirs(pixels).logits, model(pixels).logits, rtol=0, atol=1e-5)
    prepared = transformers.VideoMAEImageProcessor.from_pretrained(run.folder)(
        [list(images)], return_tensors="pt"
    )
    torch.testing.assert_close(prepared["pixel_values"], pixels, rtol=0, atol=1e-5)
    assert (run.folder / FILE).is_file()


def test_a_masked_autoencoder_becomes_a_classifier(folder: Path, tmp_path: Path) -> None:
    settings = QUICK | MODELS["masked_clips"] | {"images": str(folder / "train")}
    base = regard.train(settings, out=tmp_path / "base")
    model: Any = regard.load(base.folder)
    assert task_of(model) == "masked_clips"
    (one,) = model.reconstruct([clip(0, 0, 16, 4)[0]])
    assert one.predicted.shape == (2 * 3, 2 * 8 * 8 * 3)  # three tubes of four are masked
    scored = regard.evaluate(model, str(folder / "test"))
    assert scored.scores["mse"] > 0
    data = {"images": str(folder / "train")}
    tuned = regard.train(
        QUICK | data, base=str(base.folder), objective="clips", out=tmp_path / "tuned"
    )
    opened: Any = regard.load(tuned.folder)
    assert opened.spec.pixels is None
    assert sum(opened.classify(str(next((folder / "test").glob("*/*")))).values()) == pytest.approx(
        1
    )


def test_attention_is_drawn_on_the_frames(tmp_path: Path) -> None:
    settings = QUICK | MODELS["clips"] | {"builtin_lines": 100, "test_lines": 4, "steps": 1}
    model: Any = regard.load(regard.train(settings, out=tmp_path / "run").folder)
    write_clips(tmp_path / "clip", {"test": 1}, size=16, frames=4)
    (source,) = (tmp_path / "clip" / "test").glob("*/*")
    run = model.look(source)
    assert run.model_inputs.input_tokens[:3] == ("extra 0", "0:0,0", "1:0,0")
    inside = run.weights("encoder.1.self")
    over = run.weights("encoder.1.time")
    assert inside.shape == over.shape == (2, 17, 17)
    np.testing.assert_allclose(inside.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(over[:, 1:].sum(axis=-1), 1, atol=1e-5)
    frame = np.arange(16) % 4
    patch = np.arange(16) // 4
    assert (inside[:, 1:, 1:][:, frame[:, None] != frame] == 0).all()
    assert (over[:, 1:, 1:][:, patch[:, None] != patch] == 0).all()
    medium = model.read_file(source)
    images = model.image_processor.resized(source)
    # Position 6 is the second time of the second patch: row 1, column 2 of a square of four.
    cell = medium.picture[8:16, 8:16]
    assert medium.picture.shape == (32, 32, 3)
    assert abs(cell.astype(int) - images[1, 0:8, 8:16]).max() <= 1
    picture = run.attention("encoder.1.self")
    assert picture.backdrop.position_name("1:0,1") == "patch 1 at 0,1"
    picture.to_png(tmp_path / "frames.png")
    with Image.open(tmp_path / "frames.png") as image:
        assert image.width > 4 * 100  # the frames stand side by side
