"""Images drawn of texts: image tokens, a run on generated scenes, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from command_line import Command
from regard.data.generated.scenes import scene, write_scenes
from regard.data.image import open_image
from regard.data.labelled import read_captions
from regard.data.patch_codebook import FILE, PatchCodebook, fit_codebook
from regard.evaluation.metrics.registry import metric
from regard.lab.plan.planner import plan
from regard.system.errors import DataError, SettingError

SMALL: dict[str, Any] = {
    "objective": "draw", "model": "gpt2:tiny", "image_tokens": "16:4:16", "d_model": 16,
    "heads": 2, "layers": 1, "context": 24, "batch_tokens": 128, "warmup_steps": 1,
    "device": "cpu", "threads": 1, "schedule": "constant", "learning_rate": 1e-3,
    "validate_every": 2, "save_every": 2, "final_weights": "last",
}  # fmt: skip


@pytest.fixture
def scenes(tmp_path: Path) -> dict[str, str]:
    write_scenes(tmp_path / "scenes", {"train": 8, "valid": 4}, size=16, most=2)
    return {
        "images": str(tmp_path / "scenes/train/captions.tsv"),
        "valid_images": str(tmp_path / "scenes/valid/captions.tsv"),
    }


@pytest.fixture
def images() -> torch.Tensor:
    """[4, 16, 16, 3]"""
    return torch.from_numpy(np.stack([scene(0, number, 16).image for number in range(4)]))


def test_each_patch_is_the_nearest_of_the_codebook(images: torch.Tensor) -> None:
    codebook = fit_codebook(images.numpy(), patch=4, size=8, seed=0)
    numbers = codebook.encode(images.permute(0, 3, 1, 2))  # [4, 16]
    drawn = codebook.decode(numbers)
    assert drawn.shape == images.shape
    # Row by row: the sixth token is the second patch of the second row.
    patch = images[1, 4:8, 4:8].float()
    distances = (codebook.codes.view(8, 4, 4, 3) - patch).square().sum(dim=(1, 2, 3))
    assert numbers[1, 5] == distances.argmin()
    assert (drawn[1, 4:8, 4:8] == codebook.codes[numbers[1, 5]].view(4, 4, 3).numpy()).all()


def test_more_codes_are_nearer_and_as_many_as_patches_exact(images: torch.Tensor) -> None:
    pixels = images.permute(0, 3, 1, 2)
    errors = []
    for size in (2, 8, 24):
        codebook = fit_codebook(images.numpy(), 4, size, seed=0)
        drawn = codebook.decode(codebook.encode(pixels)).astype(float)
        errors.append(np.square(drawn - images.numpy()).mean())
    assert errors[0] > errors[1] > errors[2]
    count = len({bytes(images[i, y : y + 4, x : x + 4].numpy())
                 for i in range(4) for y in range(0, 16, 4) for x in range(0, 16, 4)})  # fmt: skip
    exact = fit_codebook(images.numpy(), 4, count, seed=0)
    assert (exact.decode(exact.encode(pixels)) == images.numpy()).all()
    with pytest.raises(DataError, match="different patches"):
        fit_codebook(images.numpy(), 4, count + 1, seed=0)


def test_a_run_draws_and_resumes_to_the_bit(tmp_path: Path, scenes: dict[str, str]) -> None:
    settings = {**SMALL, **scenes}
    whole = regard.train(**settings, steps=4, out=str(tmp_path / "whole"))
    regard.train(**settings, steps=2, out=str(tmp_path / "parts"))
    resumed = regard.resume(tmp_path / "parts", steps=4)
    both = [regard.load(one.folder).model.state_dict() for one in (whole, resumed)]
    assert all(torch.equal(tensor, both[1][name]) for name, tensor in both[0].items())
    model = regard.load(tmp_path / "whole")
    assert isinstance(model, regard.ImageGenerator)
    # What training validates is what anybody evaluates, batched otherwise.
    report = regard.evaluate(model, scenes["valid_images"])
    assert report["loss"] == pytest.approx(whole.scores["valid"].loss, rel=1e-5)
    first, second = model.draw(["a red circle", "a red circle"])
    assert first.pixels.shape == (16, 16, 3)
    assert (first.pixels != second.pixels).any()
    assert (model.draw("a red circle").pixels == first.pixels).all()
    # Every patch is one of the codebook's: no word is drawn.
    pixels = torch.tensor(first.pixels).permute(2, 0, 1)[None]
    exact = model.codebook.decode(model.codebook.encode(pixels))[0]
    assert (exact == first.pixels).all()
    assert regard.predict(model, ["a red circle"])[0].answer.startswith("data:image/png;base64,")
    model.save(tmp_path / "copy")
    assert (regard.load(tmp_path / "copy").draw("a red circle").pixels == first.pixels).all()
    # The next patch follows from the words and from the patches before it, not from later ones.
    prompt = model.prompts(["a red circle"])
    row = torch.cat([prompt, model.image_tokens(pixels)], dim=1)
    other = row.clone()
    other[0, -1] = model.words
    with torch.inference_mode():
        logits = [model(input_ids=one)["logits"][0, :-1] for one in (row, other)]
    assert torch.equal(*logits)


def test_drawn_tables_are_read_as_captions(
    tmp_path: Path, scenes: dict[str, str], command: Command
) -> None:
    run = tmp_path / "run"
    settings: dict[str, Any] = {**SMALL, **scenes}
    regard.train(**settings, steps=1, out=str(run))
    out = tmp_path / "drawn"
    assert command("draw", run, "red", "blue", "--copies", 2, "--out", out).code == 0
    rows = read_captions(out / "table.tsv")
    assert [row.text for row in rows] == ["red", "red", "blue", "blue"]
    assert open_image(str(out / "grid.png")).size == (32, 32)
    command("draw", run, "a", "b").refused("name a folder")
    look = regard.load(run).look("red\t" + str(rows[0].image))
    attention = look.attention("decoder.0.self")
    assert attention.weights.shape[-1] == 24 + 16
    assert "<svg" in attention._repr_html_()


def test_a_damaged_codebook(tmp_path: Path) -> None:
    PatchCodebook(torch.zeros(3, 12), 2).save(tmp_path)
    assert len(PatchCodebook.open(tmp_path)) == 3
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**content, "patch": 5}))
    with pytest.raises(DataError, match="no codebook"):
        PatchCodebook.open(tmp_path)


@pytest.mark.parametrize("tokens", ["48:5:512", "48:4", "48:4:1", "4:8:512", "a:b:c", "0:0:4"])
def test_image_tokens_are_squares_that_make_an_image(tokens: str) -> None:
    with pytest.raises(SettingError, match="image_tokens"):
        regard.train(**{**SMALL, "image_tokens": tokens}, steps=1)


def test_emoji_have_names_and_their_tones_stand_on_one_side(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    names = {"\u270b": ["raised_hand", "stop"], "\u2764\ufe0f": ["red_heart", "love"]}
    (tmp_path / "names.json").write_text(json.dumps(names))
    for name in ("270b", "270b-1f3fb", "270b-1f3ff", "2764", "1f1e6"):
        (tmp_path / f"images/{name}.png").touch()
    every = {row.text for row in read_captions(tmp_path / "names.json")}
    assert every == {
        "raised hand", "raised hand, light skin", "raised hand, dark skin", "red heart"
    }  # fmt: skip
    splits = [
        {row.text for row in read_captions(f"{tmp_path}/names.json:{split}")}
        for split in ("train", "valid", "test")
    ]
    assert set.union(*splits) == every
    assert sum(map(len, splits)) == len(every)
    assert any(len([text for text in split if "hand" in text]) == 3 for split in splits)


def test_the_mean_rank_counts_from_one() -> None:
    ranks = metric("mean_rank")
    candidates = ["a", "b", "c"]
    assert ranks.compute([candidates] * 3, ["a", "c", "a"]) == pytest.approx(5 / 3)
    assert ranks.compute([candidates], ["d"]) == 4


def test_drawing_is_planned() -> None:
    result = plan("emoji", device="H200")
    assert result.subject.objective == "draw"
    assert result.subject.sizes.length == 24 + 144
