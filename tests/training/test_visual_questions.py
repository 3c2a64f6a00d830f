"""Questions about images: tables and NLVR's files, a run that is resumed, answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import regard
from regard.data.generated.scenes import scene, write_scenes
from regard.data.image_questions import read_image_questions
from regard.system.errors import DataError, SettingError

SMALL: dict[str, Any] = {
    "objective": "vqa", "model": "vilt:tiny", "image_size": 16, "patch": 8, "d_model": 16,
    "heads": 2, "d_ff": 16, "layers": 1, "context": 16, "batch_tokens": 128, "warmup_steps": 1,
    "device": "cpu", "threads": 1, "schedule": "constant", "learning_rate": 1e-3,
    "validate_every": 2, "save_every": 2, "final_weights": "last",
}  # fmt: skip


@pytest.fixture
def scenes(tmp_path: Path) -> dict[str, str]:
    write_scenes(tmp_path / "scenes", {"train": 8, "valid": 4}, size=16)
    return {
        "images": str(tmp_path / "scenes/train/questions.tsv"),
        "valid_images": str(tmp_path / "scenes/train/questions.tsv"),
    }


def test_a_run_answers_and_resumes_to_the_bit(tmp_path: Path, scenes: dict[str, str]) -> None:
    settings = {**SMALL, **scenes}
    whole = regard.train(**settings, steps=4, out=str(tmp_path / "whole"))
    regard.train(**settings, steps=2, out=str(tmp_path / "parts"))
    resumed = regard.resume(tmp_path / "parts", steps=4)
    both = [regard.load(one.folder).model.state_dict() for one in (whole, resumed)]
    assert all(torch.equal(tensor, both[1][name]) for name, tensor in both[0].items())
    assert whole.scores["valid"].majority > 0

    model = regard.load(tmp_path / "whole", regard.VisualQuestionModel)
    report = regard.evaluate(model, scenes["valid_images"])
    assert report["accuracy"] == pytest.approx(whole.scores["valid"].accuracy)
    image = str(next((tmp_path / "scenes/valid/images").iterdir()))
    asked = f"{image}\thow many circles are there?"
    [prediction] = regard.predict(model, [asked])
    scores = model.answer("how many circles are there?", image)
    assert prediction.answer == dict(list(scores.items())[: len(prediction.answer)])
    assert sum(scores.values()) == pytest.approx(1, abs=1e-5)
    # The image is read: another one changes the answers.
    others = [str(path) for path in sorted((tmp_path / "scenes/valid/images").iterdir())]
    each = model.answers(["how many circles are there?"] * len(others), others)
    assert len({tuple(one.values()) for one in each}) == len(others)
    with pytest.raises(DataError, match="needs the image"):
        regard.predict(model, ["how many circles are there?"])

    weights = model.look(asked).attention("encoder.0.self")
    assert weights.weights.shape[-1] == len(weights.columns)
    assert weights.columns[-1] == "patch 3"


def test_a_convolutional_stem_is_stored_and_resumes_to_the_bit(
    tmp_path: Path, scenes: dict[str, str]
) -> None:
    settings = {**SMALL, **scenes, "stem": "convolutional"}
    whole = regard.train(**settings, steps=3, out=str(tmp_path / "whole"))
    regard.train(**settings, steps=2, out=str(tmp_path / "parts"))
    resumed = regard.resume(tmp_path / "parts", steps=3)
    both = [regard.load(one.folder).model.state_dict() for one in (whole, resumed)]
    assert "input.image.convolutions.2.project.weight" in both[0]
    assert all(torch.equal(tensor, both[1][name]) for name, tensor in both[0].items())
    with pytest.raises(SettingError, match="patches"):
        regard.train(stem="convolutional", out=str(tmp_path / "text"))


def test_generated_questions_are_those_of_the_files(tmp_path: Path) -> None:
    write_scenes(tmp_path, {"train": 3}, size=16)
    written = read_image_questions(tmp_path / "train/questions.tsv")
    drawn = [pair for number in range(3) for pair in scene(0, number, 16).questions]
    assert [(one.question, one.answer) for one in written] == drawn


def test_nlvr_is_read_as_it_is_published(tmp_path: Path) -> None:
    (tmp_path / "images/2").mkdir(parents=True)
    for order in range(6):
        Image.new("RGB", (40, 10)).save(tmp_path / f"images/2/dev-37-0-{order}.png")
    row = {"sentence": "There is a tower.", "label": "true", "identifier": "37-0", "directory": "2"}
    elsewhere = {**row, "directory": "3"}  # whose images are not there
    (tmp_path / "dev.json").write_text(f"{json.dumps(row)}\n{json.dumps(elsewhere)}\n")
    examples = read_image_questions(tmp_path / "dev.json")
    assert len(examples) == 6
    assert {(one.question, one.answer) for one in examples} == {("There is a tower.", "true")}


def test_a_table_with_missing_columns(tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_text("a.png\twhat is it?\n")
    with pytest.raises(DataError, match="line 1"):
        read_image_questions(tmp_path / "table.tsv")
