"""NaN in any one weight is found, and runs that diverge end with an error."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import looked
import regard
from command_line import Command
from regard import build
from regard.families.presets import preset
from regard.models import LanguageModel
from regard.system.errors import DivergenceError, NonFiniteError
from regard.training.engine.loop import Loop
from regard.training.engine.progress import EarlyStopping, Progress

TEXT = "The dog sees a cat."


def test_a_bad_number_in_any_weight_is_an_error(tmp_path: Path) -> None:
    """Of queries and keys it does not reach the output: fused attention swallows it."""
    description = preset("gpt2:tiny", len(looked.WORDS), 32, layers=2, d_model=16, heads=2)
    model = LanguageModel(build(description), description, looked.WORDS)  # type: ignore[arg-type]
    numbers = itertools.cycle([torch.nan, torch.inf, -torch.inf])
    names = []
    for name, parameter in model.model.named_parameters():
        values = parameter.detach().view(-1)
        place = len(values) // 2
        usual = values[place].clone()
        values[place] = next(numbers)
        folder = model.save(tmp_path / name)
        values[place] = usual
        with pytest.raises(NonFiniteError, match=rf"{re.escape(name)} holds NaN or infinity\n"):
            regard.load(folder)
        names.append(name)
    assert len(names) > 20
    assert regard.load(model.save(tmp_path / "sound"))


def test_queries_of_nan_do_not_answer(command: Command, trained: Path, tmp_path: Path) -> None:
    model = regard.load(trained)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "self" in name or "cross" in name:
                parameter.view(-1)[0] = torch.nan
    folder = model.save(tmp_path / "queries")
    for verb in ("translate", "predict", "look"):
        answer = command(verb, folder, *([] if verb == "translate" else [TEXT]), text=TEXT + "\n")
        answer.refused("a weight of", "not a number", "more")


SETTINGS: dict[str, Any] = {
    "objective": "causal", "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1,
    "batch_tokens": 64, "context": 16, "tokenizer": "characters", "samples": 0, "threads": 1,
    "device": "cpu",
}  # fmt: skip


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_a_run_that_ends_while_it_diverges_has_failed(
    objective: str, steps: int, tmp_path: Path
) -> None:
    """Three updates in a row end a run: these have fewer."""
    text = tmp_path / "text.txt"
    text.write_text("The dog sees the cat. A dog sees a cat.\n" * 50)
    destructive = {"learning_rate": 1e30, "warmup_steps": 1, "max_grad_norm": 0.0, "steps": steps}
    settings = SETTINGS | destructive | {"text": str(text), "objective": objective}
    with pytest.raises(DivergenceError, match="lower learning_rate"):
        regard.train(settings, out=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_without_validation_ends_badly_if_its_last_updates_do(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The dog sees the cat. A dog sees a cat.\n" * 50)

    def no_score(progress: Progress, validation: dict[str, Any]) -> bool:
        return False

    def spoil(loop: Loop) -> None:
        loop.early_stopping.update = no_score  # type: ignore[method-assign]
        if loop.progress.step == 3:
            parameter = next(iter(loop.model.parameters()))
            parameter.register_hook(lambda gradient: gradient * torch.nan)

    with pytest.raises(DivergenceError, match="the last 1 of 4 updates had no finite"):
        regard.train(
            SETTINGS | {"text": str(text), "steps": 4}, out=tmp_path / "run", on_step=spoil
        )


def test_no_number_is_not_the_best_score() -> None:
    progress = Progress(step=1)
    watch = EarlyStopping("loss", patience=2)
    assert not watch.update(progress, {"loss": float("nan")})
    assert progress.best is None
    progress.step = 2
    assert watch.update(progress, {"loss": 3.0})
    assert not watch.update(progress, {"loss": float("nan")})
    assert not watch.update(progress, {"loss": float("inf")})
    assert progress.finished
    assert progress.best_step == 2


def test_examples_of_a_skipped_update_take_one_line_each(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A dog.\nA cat.\n" * 400)
    settings = SETTINGS | {"text": str(text), "steps": 4, "context": 300, "batch_tokens": 600}
    settings |= {"learning_rate": 1e30, "warmup_steps": 1, "max_grad_norm": 0.0}
    with pytest.raises(DivergenceError):
        regard.train(settings, out=tmp_path / "run")
    lines = capfd.readouterr().err.splitlines()
    examples = [line for line in lines if line.startswith("    ")]
    assert examples
    assert all(len(line) <= 104 for line in lines if "A dog. A cat." in line)
    assert not [line for line in lines if line.startswith("A ")]
