"""A mistyped command leaves no run folder behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from command_line import SIZES, Command
from regard.lab.compare.contenders import Contender
from regard.training import preflight
from regard.training.recipe import loading

FLAGS = [
    word
    for key, value in SIZES.items()
    for word in (f"--{key.replace('_', '-')}", str(value))
    if key != "device"
]

MISTAKES = {
    "a path": ("--target", "nope.de"),
    "a device": ("--device", "cuda:99"),
    "no device": ("--device", "mps"),
    "a preset": ("--preset", "tinny"),
    "heads": ("--heads", "7"),
    "a spec": ("--spec", "nope.toml"),
    "a tokenizer": ("--tokenizer", "nope.json"),
    "a schedule": ("--schedule", "cosine"),
    "a teacher": ("--teacher", "nowhere"),
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_a_mistake_leaves_no_folder(
    mistake: str, command: Command, files: Path, tmp_path: Path
) -> None:
    flags = [*FLAGS, "--source", files / "s.en", "--target", files / "s.de"]
    out = tmp_path / "run"
    command("train", *flags, *MISTAKES[mistake], "--out", out).refused()
    assert not out.exists()


def test_a_missing_extra_is_seen_before_the_folder_is_made(
    command: Command, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the package were not installed.
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    flags = [*FLAGS, "--source", files / "s.en", "--target", files / "s.de"]
    out = tmp_path / "run"
    command("train", *flags, "--tensorboard", "--out", out).refused("pip install tensorboard")
    assert not out.exists()


def test_the_corrected_command_takes_the_folder(
    command: Command, files: Path, tmp_path: Path
) -> None:
    """Unequal files are seen only while they are read; a crash leaves what it has written."""
    out = tmp_path / "run"
    (tmp_path / "short.de").write_text("Ein Hund.\n")
    flags = [*FLAGS, "--steps", "1", "--source", files / "s.en", "--out", out]
    command("train", *flags, "--target", tmp_path / "short.de").refused("line")
    # As after `kill -9` while the corpus was prepared.
    (out / "state" / "data").mkdir(parents=True)
    (out / "state" / "recipe.json").write_text(
        '{"name": "x", "data": {"text": null, "pairs": null}}'
    )
    (out / "tokenizer.json").write_text("{}")
    done = command("train", *flags, "--target", files / "s.de")
    assert done.code == 0, done.err
    assert (out / "model.safetensors").is_file()


def test_a_folder_that_is_no_run_is_never_emptied(
    command: Command, files: Path, trained: Path, tmp_path: Path
) -> None:
    flags = [*FLAGS, "--source", files / "s.en", "--target", files / "s.de", "--out"]
    (tmp_path / "thesis.txt").write_text("precious")
    done = command("train", *flags, tmp_path)
    done.refused("not empty")
    assert "--resume" not in done.err  # it is no run
    assert (tmp_path / "thesis.txt").read_text() == "precious"
    command("train", *flags, tmp_path / "thesis.txt").refused("is a file")
    command("train", *flags, trained).refused("--resume")


IMPOSSIBLE = {
    "too few parameters": ("--parameters", "3"),
    "no parameters": ("--parameters", "0"),
    "too many parameters": ("--parameters", 10**15),
    "a device": ("--device", "cuda:99"),
    "heads": ("--heads", "7"),
    "a file": ("--valid-source", "nope.en", "--valid-target", "nope.de"),
}


@pytest.mark.parametrize("mistake", list(IMPOSSIBLE))
def test_an_impossible_comparison_prepares_no_data(
    mistake: str, command: Command, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "comparison"
    pairs = ("--source", files / "s.en", "--target", files / "s.de", "--preset", "tiny")
    tested = ("--test-source", files / "s.en", "--test-target", files / "s.de")
    done = command("compare", *pairs, *tested, *IMPOSSIBLE[mistake], "--out", out)
    done.refused()
    assert "training:" not in done.err  # what is said of the prepared pairs
    assert not out.exists()


@pytest.mark.parametrize("flag", [None, "--test-source", "--test-target"])
def test_a_comparison_without_test_pairs_prepares_no_data(
    flag: str | None, command: Command, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "comparison"
    flags = ["--source", files / "s.en", "--target", files / "s.de", "--preset", "tiny"]
    if flag is not None:
        flags += [flag, files / "s.en"]
    done = command("compare", *flags, "--out", out)
    done.refused("needs a test or validation set", "--test-source and --test-target")
    assert "training:" not in done.err
    assert not out.exists()


def test_the_corrected_comparison_takes_the_folder(
    command: Command, files: Path, tmp_path: Path
) -> None:
    """Unequal files are seen while they are read; only what was trained stands in the way."""
    out = tmp_path / "comparison"
    (tmp_path / "short.de").write_text("Ein Hund.\n")
    flags = ["--models", "transformer", "--preset", "tiny", "--source", files / "s.en"]
    flags += ["--test-source", files / "s.en", "--test-target", files / "s.de", "--threads", "1"]
    flags += ["--heads", "2", "--layers", "1", "--parameters", "100000", "--beam", "1"]
    flags += ["--steps", "1", "--out", out]
    command("compare", *flags, "--target", tmp_path / "short.de").refused("line")
    done = command("compare", *flags, "--target", files / "s.de")
    assert done.code == 0, done.err
    command("compare", *flags, "--target", tmp_path / "short.de").refused("other data")


def test_a_search_is_checked_before_its_folder_is_made(
    command: Command, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "search"
    flags = [*FLAGS, "--source", files / "s.en", "--steps", "60", "--order", "rate"]
    flags += ["--batch-tokens", "256", "--out", out]
    command("tune", *flags, "--target", "nope.de").refused("cannot read")
    command("tune", *flags, "--target", files / "s.de", "--device", "cuda:99").refused(
        "not available"
    )
    assert not out.exists()
    # Unequal files are seen only while they are read: nothing was trained, so nothing is kept.
    (tmp_path / "short.de").write_text("Ein Hund.\n")
    command("tune", *flags, "--target", tmp_path / "short.de").refused("line")
    done = command("tune", *flags, "--target", files / "s.de")
    assert done.code == 0, done.err
    command("tune", *flags, "--target", files / "s.de").refused("--resume")
    command("tune", *flags[:-1], files / "s.en", "--target", files / "s.de").refused("is a file")


FEW = 60  # examples, of which none is held out


@pytest.fixture
def few_reviews(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.tsv"
    lines = [
        f"a {word} film number {i}\t{word}\n" for i in range(FEW // 2) for word in ("good", "bad")
    ]
    path.write_text("".join(lines))
    return path


CLASSIFIER: list[object] = ["--objective", "classify", "--preset", "tiny", "--layers", "1"]
CLASSIFIER += ["--heads", "2", "--threads", "1", "--batch-tokens", "256", "--context", "16"]


def test_a_comparison_without_validation_data_trains_nothing(
    command: Command, few_reviews: Path, tmp_path: Path
) -> None:
    """How many examples there are is seen when they are read, and not after a training."""
    out = tmp_path / "comparison"
    flags = [*CLASSIFIER, "--models", "bert", "--parameters", "100000", "--steps", "2"]
    flags += ["--text", few_reviews, "--out", out]
    command("compare", *flags).refused("needs a test or validation set", "--valid-text")
    assert not list(out.glob("bert/*"))
    done = command("compare", *flags, "--valid-text", few_reviews)
    assert done.code == 0, done.err


def test_a_search_without_validation_data_ends_at_once(
    command: Command, few_reviews: Path, tmp_path: Path
) -> None:
    out = tmp_path / "search"
    flags = [*CLASSIFIER, "--model", "bert", "--d-model", "16", "--text", few_reviews]
    flags += ["--steps", "60", "--order", "rate", "--out", out]
    command("tune", *flags).refused("tuning needs a validation set")
    assert not list(out.glob("trials/*"))
    done = command("tune", *flags, "--valid-text", few_reviews)
    assert done.code == 0, done.err


def test_a_search_of_too_many_updates_leaves_no_folder(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "search"
    command("tune", *FLAGS, "--flops", "1e36", "--out", out).refused("steps", "smaller")
    assert not out.exists()


def test_epochs_of_a_recipe_do_not_beat_the_budget(
    command: Command, files: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    data = [f'{side} = "{files / name}"' for side, name in SIDES.items()]
    recipe.write_text("[data]\n" + "\n".join(data) + "\n[tune]\nepochs = 40\n")
    flags = ["--models", "transformer", "--preset", "tiny", "--heads", "2", "--layers", "1"]
    flags += ["--threads", "1", "--parameters", "100000", "--beam", "1", "--steps", "1"]
    done = command("compare", recipe, *flags, "--out", tmp_path / "comparison")
    assert done.code == 0, done.err
    metrics = (tmp_path / "comparison" / "transformer" / "1" / "metrics.jsonl").read_text()
    assert {json.loads(line).get("step", 1) for line in metrics.splitlines()} == {1}
    command("compare", recipe, *flags, "--epochs", "40").refused("--epochs")


SIDES = {"source": "s.en", "target": "s.de", "test_source": "s.en", "test_target": "s.de"}


@pytest.mark.parametrize("word", ["vit", "deit", "swin", "dinov2", "clip-image"])
def test_all_models_of_a_comparison_read_the_same_images(word: str) -> None:
    base = loading.load(
        None, {"images": "photos", "model": "vit:tiny", "image_size": 48, "patch": 8}
    )
    model = Contender(word).recipe(base).model
    assert (model.image_size, model.patch) == (48, 8)


@pytest.mark.parametrize("word", ["patchtst", "dlinear", "time-series-transformer"])
def test_all_models_of_a_comparison_forecast_as_far(word: str) -> None:
    base = loading.load(
        None, {"series": "load.csv", "model": "patchtst", "horizon": 24, "patch": 8}
    )
    recipe = Contender(word).recipe(base)
    assert recipe.model.horizon == 24
    preflight.nominal_spec(recipe)  # patches are those of one architecture
