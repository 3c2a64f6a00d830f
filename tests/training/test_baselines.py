"""What came before the Transformer trains, decodes, resumes and is looked at by the same commands."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.data.generated import builtin
from regard.families import folder as folders
from regard.families.encoder_decoders.recurrent import FAMILIES
from regard.lab.verify.invariants import check_invariants
from regard.look import alignment, look
from regard.models import Translator
from regard.system.errors import SettingError
from regard.training.recipe import loading
from regard.training.run import resume, run
from regard.training.run_folder import begin

pytestmark = pytest.mark.thorough

TINY: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "layers": 1, "dropout": 0.1, "batch_tokens": 256, "steps": 4, "warmup_steps": 2,
    "save_every": 2, "validate_every": 9, "samples": 0, "tokenizer": "words", "vocabulary": 300, "beam": 2, "threads": 1,
    "max_length": 60,
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("text")
    pairs = list(itertools.islice(builtin.sentences("train"), 80))
    files: dict[str, str] = {}
    for side in ("source", "target"):
        path, short = folder / f"train.{side}", folder / f"valid.{side}"
        path.write_text("".join(getattr(pair, side) + "\n" for pair in pairs))
        short.write_text("".join(getattr(pair, side) + "\n" for pair in pairs[:4]))
        files |= {side: str(path), f"valid_{side}": str(short), f"test_{side}": str(short)}
    return files


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_stops_goes_on_and_holds_what_every_model_holds(
    family: str, text: dict[str, str], tmp_path: Path, crash_at: Callable[[int], Any]
) -> None:
    recipe = loading.load(None, TINY | text | {"model": family})
    run(begin(recipe, tmp_path / "whole", "test"), recipe, "test", quiet=True)
    with pytest.raises(KeyboardInterrupt):
        run(
            begin(recipe, tmp_path / "parts", "test"),
            recipe,
            "test",
            quiet=True,
            on_step=crash_at(2),
        )
    resume(tmp_path / "parts", quiet=True)
    one, opened = folders.open_model(tmp_path / "whole")
    two, _ = folders.open_model(tmp_path / "parts")
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)
    assert [f.verdict for f in check_invariants(one.double(), opened)] == ["holds"] * 5
    translator: Any = regard.load(tmp_path / "whole")
    assert isinstance(translator.translate("the dog sleeps"), str)


def test_bahdanau_learns(tmp_path: Path) -> None:
    settings = {
        "model": "bahdanau",
        "d_model": 48,
        "layers": 1,
        "steps": 60,
        "builtin_lines": 1000,
        "threads": 1,
    }
    settings |= {
        "validate_every": 60,
        "save_every": 60,
        "log_every": 10,
        "samples": 0,
        "schedule": "constant",
    }
    settings |= {"learning_rate": 0.01, "warmup_steps": 10}
    recipe, _ = loading.choose("builtin", settings)
    with pytest.MonkeyPatch.context() as context:
        context.setattr("regard.training.data.parallel_text.test_sets", lambda _: {})
        run(begin(recipe, tmp_path / "run", "test"), recipe, "test", quiet=True)
    said = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["loss"] for line in said if "event" not in line]
    assert losses[-1] < 0.75 * losses[0]
    translator = regard.load(tmp_path / "run")
    assert isinstance(translator, Translator)
    found = alignment(look(translator, "The dog sees a cat."))
    assert found.weights.shape == (len(found.target), len(found.source))
    assert abs(found.weights.sum(axis=1) - 1).max() < 1e-5


def test_a_recipe_of_stacks_lends_what_fits_and_flags_that_do_not_are_refused() -> None:
    recipe, _ = loading.choose("builtin", {"model": "gru"})
    assert (recipe.model.heads, recipe.model.layers, recipe.train.steps) == (None, 2, 2850)
    for changes, message in (
        ({"model": "gru", "heads": 4}, "heads is not a setting of gru"), ({"model": "gru", "gradient_checkpointing": True}, "gradient_ch"),
        ({"model": "gpt2"}, "not for the objective"), ({"model": "convs2s", "attention": "linear"}, "attention is not a setting"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=message):
            loading.choose("builtin", changes)
    with pytest.raises(SettingError, match="not for the objective"):
        loading.load(None, {"model": "bahdanau", "objective": "causal", "text": "x"})
