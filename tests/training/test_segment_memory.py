"""Language models that remember, and language models with other attentions: trained, resumed and written as all others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import spec
from regard.builder import build
from regard.families import folder as folders
from regard.families.encoders import bert
from regard.families.presets import preset
from regard.lab.verify.invariants import check_invariants
from regard.look import cache
from regard.system.errors import DataError, SettingError
from regard.training.model_spec import initialize
from regard.training.recipe import loading
from regard.training.recipe.options import Initialization
from regard.training.run import resume, run
from regard.training.run_folder import RunFolder, begin

pytestmark = pytest.mark.thorough

TEXT = (
    "".join(
        f"The {a} dog {v} the {b} cat.\n" for a in "abcd" for b in "efgh" for v in ("sees", "hears")
    )
    * 3
)
SMALL: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 2, "dropout": 0.1, "context": 16,
    "batch_tokens": 64, "steps": 24, "warmup_steps": 5, "save_every": 6, "validate_every": 12, "log_every": 3, "samples": 1,
    "tokenizer": "characters", "vocabulary": 400, "threads": 1, "learning_rate": 0.01, "schedule": "cosine",
    "optimizer": "adamw", "max_grad_norm": 1.0, "objective": "causal",
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text(TEXT)
    return str(path)


def trained(out: Path, text: str, on_step: Any = None, **changes: Any) -> RunFolder:
    recipe = loading.load(None, SMALL | {"text": text} | changes)
    place = begin(recipe, out, "test")
    run(place, recipe, "test", quiet=True, on_step=on_step)
    return place


def losses(place: RunFolder) -> list[float]:
    found = [json.loads(line) for line in place.metrics.read_text().splitlines()]
    return [line["loss"] for line in found if "gradient_norm" in line]


@pytest.mark.parametrize(
    "compressed",
    [
        {},
        {"compressed": "6:3"},
        pytest.param({"compressed": "5:4:max"}, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_remembers_what_an_uninterrupted_one_does(
    compressed: dict[str, str], text: str, tmp_path: Path, crash_at: Callable[[int], Any]
) -> None:
    whole = trained(tmp_path / "whole", text, memory=12, **compressed)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", text, crash_at(13), memory=12, **compressed)
    resume(tmp_path / "parts", quiet=True)
    one, other = (folders.open_model(folder)[0] for folder in (whole.folder, tmp_path / "parts"))
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)
    told = losses(whole)
    assert told[-1] < told[0]


def test_what_leaves_the_memory_is_compressed(text: str, tmp_path: Path) -> None:
    """Trained by its own loss, written and opened again, inspected, and writing on at a constant size."""
    place = trained(tmp_path / "run", text, memory=12, compressed="6:3")
    model = regard.load(place.folder)
    assert model.spec.stack.scheme == spec.Segments(12, spec.CompressiveMemory(6, 3))  # type: ignore[attr-defined]
    assert 'compressed = "6:3"' in (place.folder / "README.md").read_text()
    torch.manual_seed(loading.load(None, SMALL | {"text": text}).train.seed)
    first = build(model.spec)  # type: ignore[attr-defined]
    initialize(first, Initialization(0.02, scales_residuals=True))
    for (name, now), before in zip(model.model.named_parameters(), first.parameters(), strict=True):
        assert not torch.equal(now, before), name
    assert len(model.generate("The", max_new_tokens=90)) > 40  # type: ignore[attr-defined]
    grown = cache(model, "The dog", length=60)
    assert len(set(grown.used)) == 1
    weights = model.look("The a dog sees the b cat.").weights("decoder.1.self")  # type: ignore[attr-defined]
    assert torch.allclose(torch.from_numpy(weights).sum(-1), torch.ones(()), atol=1e-5)
    again, opened = folders.open_model(place.folder)
    assert not [
        finding
        for finding in check_invariants(again.double(), opened)
        if finding.verdict == "fails"
    ]


def test_fine_tuning_reads_segments_too(text: str, tmp_path: Path) -> None:
    place = trained(tmp_path / "base", text, memory=12, compressed="6:3", steps=2)
    options: dict[str, Any] = {
        "context": 16,
        "batch_tokens": 64,
        "epochs": 1,
        "device": "cpu",
        "threads": 1,
        "samples": 0,
    }
    regard.finetune(place.folder, "lm", text, out=tmp_path / "run", quiet=True, **options)
    before, after = (folders.open_model(folder)[0] for folder in (place.folder, tmp_path / "run"))
    for (name, one), other in zip(before.named_parameters(), after.parameters(), strict=True):
        assert not torch.equal(one, other), name


def test_only_what_leaves_a_memory_is_compressed(text: str) -> None:
    with pytest.raises(SettingError, match="--memory"):
        loading.load(None, SMALL | {"text": text, "compressed": "6:3"})
    with pytest.raises(SettingError, match="64:4:mean"):
        loading.load(None, SMALL | {"text": text, "memory": 4, "compressed": "6"})


def test_it_writes_on_beyond_its_context(text: str, tmp_path: Path) -> None:
    model = regard.load(trained(tmp_path / "run", text, memory=12, steps=6).folder)
    assert model.spec.stack.scheme == spec.Segments(12)  # type: ignore[attr-defined]
    assert isinstance(model.spec.stack.block.position, spec.RelativeSinusoids)  # type: ignore[attr-defined]
    assert len(model.generate("The", max_new_tokens=60)) > 30  # type: ignore[attr-defined]


def test_streams_need_text(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="streams"):
        trained(tmp_path / "run", text, memory=12, batch_tokens=64 * 4096)
    with pytest.raises(SettingError, match="not a setting of the objective"):
        loading.load(None, SMALL | {"text": text, "memory": 4, "objective": "masked"})


@pytest.mark.parametrize("word", ["window:5", "bigbird:4", "linear", "performer", "strided:3"])
def test_language_models_look_as_they_are_told(word: str, text: str, tmp_path: Path) -> None:
    place = trained(tmp_path / "run", text, attention=word, steps=6, validate_every=6)
    model = regard.load(place.folder)
    made = preset("gpt2:tiny", 50, 16, attention=word).stack  # type: ignore[union-attr]
    assert model.spec.stack.block.pattern == made.block.pattern  # type: ignore[attr-defined]
    assert type(model.spec.stack.block.attention.mixer) is type(made.block.attention.mixer)  # type: ignore[attr-defined]


@pytest.mark.parametrize("word", ["window:5", "linformer:6", "reformer:4:8"])
def test_encoders_look_as_they_are_told(word: str, text: str, tmp_path: Path) -> None:
    place = trained(
        tmp_path / "run",
        text,
        attention=word,
        objective="masked",
        steps=6,
        validate_every=6,
        mask_ratio=0.2,
    )
    assert (
        folders.open_model(place.folder)[1].spec.stack
        == bert.preset(  # type: ignore[union-attr]
            "tiny", 50, 16, attention=word, d_model=16, d_ff=24, heads=2, layers=2
        ).stack
    )


def test_what_does_not_exist_is_refused(text: str, tmp_path: Path) -> None:
    for word, reason in (
        ("linformer:6", "no causal form"),
        ("reformer:8", "LSH attention cannot be cached"),
    ):
        with pytest.raises(SettingError, match=reason):
            trained(tmp_path / word, text, attention=word)
    with pytest.raises(SettingError, match="computes no scores"):
        trained(tmp_path / "linear", text, attention="linear", memory=8)


def test_the_estimate_before_the_first_step_changes_nothing(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the running statistics of BatchNorm, which every forward pass in training moves."""
    weights = []
    for least_steps in (1, 10**9):
        monkeypatch.setattr("regard.training.engine.loop.STEPS_WORTH_AN_ESTIMATE", least_steps)
        place = trained(tmp_path / str(least_steps), text, norm="batch", steps=3)
        weights.append((place.folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
