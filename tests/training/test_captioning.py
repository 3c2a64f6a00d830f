"""Captions: a run on generated scenes, which is resumed to the bit, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.data.generated.scenes import scene, write_scenes
from regard.data.labelled import read_captions
from regard.lab.plan.planner import plan

SMALL: dict[str, Any] = {
    "objective": "caption", "model": "vit-gpt2:tiny", "image_size": 16, "patch": 8, "d_model": 16,
    "heads": 2, "d_ff": 16, "layers": 1, "context": 40, "batch_tokens": 128, "warmup_steps": 1,
    "device": "cpu", "threads": 1, "samples": 1, "metric": "exact_match",
}  # fmt: skip


@pytest.fixture
def scenes(tmp_path: Path) -> dict[str, str]:
    write_scenes(tmp_path / "scenes", {"train": 8, "valid": 4}, size=16, most=2)
    return {
        "images": str(tmp_path / "scenes/train/captions.tsv"),
        "valid_images": str(tmp_path / "scenes/valid/captions.tsv"),
    }


def test_a_run_writes_captions_and_resumes_to_the_bit(
    tmp_path: Path, scenes: dict[str, str]
) -> None:
    settings = {
        **SMALL, **scenes, "schedule": "constant", "learning_rate": 1e-3, "validate_every": 2,
        "save_every": 2, "final_weights": "last",
    }  # fmt: skip
    whole = regard.train(**settings, steps=4, out=str(tmp_path / "whole"))
    regard.train(**settings, steps=2, out=str(tmp_path / "parts"))
    resumed = regard.resume(tmp_path / "parts", steps=4)
    both = [regard.load(one.folder).model.state_dict() for one in (whole, resumed)]
    assert all(torch.equal(tensor, both[1][name]) for name, tensor in both[0].items())
    first = regard.load(tmp_path / "whole")
    assert isinstance(first, regard.ImageCaptioner)
    assert 0 <= whole.scores["valid"].exact_match <= 100
    image = str(next((tmp_path / "scenes/valid/images").iterdir()))
    [prediction] = regard.predict(first, [image])
    assert prediction.answer == first.caption(image)
    assert len(first.caption(image, beam=2, max_new_tokens=3).split()) <= 3
    report = regard.evaluate(first, scenes["valid_images"])
    assert report["exact_match"] == pytest.approx(whole.scores["valid"].exact_match)


def test_generated_captions_are_those_of_the_files(tmp_path: Path) -> None:
    write_scenes(tmp_path, {"train": 3}, size=16)
    written = [one.text for one in read_captions(tmp_path / "train/captions.tsv")]
    assert written == [scene(0, number, 16).caption for number in range(3)]


def test_which_patches_a_word_attends_to(tmp_path: Path, scenes: dict[str, str]) -> None:
    settings: dict[str, Any] = {**SMALL, **scenes}
    regard.train(**settings, steps=1, out=str(tmp_path / "run"))
    model = regard.load(tmp_path / "run")
    image = next((tmp_path / "scenes/valid/images").iterdir())
    cross = model.look(image).attention("decoder.0.cross")
    assert cross.weights.shape[-1] == 1 + 2 * 2  # the class token, and patches
    assert cross.weights.sum(-1) == pytest.approx(1, abs=1e-5)
    assert "<svg" in cross._repr_html_()


def test_a_captioner_is_planned() -> None:
    result = plan("vit-gpt2:tiny", device="H200")
    assert result.subject.objective == "caption"
    assert result.subject.sizes.source_length == 65
