"""Generated tasks as data: every task for its objective, from one setting of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import regard
from regard.data.generated.algorithmic_tasks import SPLITS, TASKS
from regard.evaluation.scores import Score
from regard.system.errors import DataError, SettingError
from regard.training.entry_points import train
from regard.training.recipe import loading

TINY: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "layers": 1, "batch_tokens": 256, "steps": 2, "warmup_steps": 2, "builtin_lines": 400,
    "test_lines": 8, "learning_rate": 0.001, "validate_every": 2, "save_every": 2, "threads": 1, "device": "cpu",
    "context": 128, "beam": 1, "samples": 0,
}  # fmt: skip
SHORT = {
    "smiles": "smiles:15:20",
    "listops": "listops:3:20",
    "parity": "parity:1:12",
    "dyck": "dyck:1:8",
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_learnt_by_the_objective_it_is_meant_for(name: str, tmp_path: Path) -> None:
    task = SHORT.get(name, f"{name}:1:4")
    result = train({**TINY, "generated": task}, out=tmp_path / "run")
    if TASKS[name].kind != "texts":  # which have no answers
        assert {"test", "longer"} <= set(result.scores)
    recipe = loading.load(None, {"generated": task})
    expected = {"pairs": "translate", "classify": "classify", "texts": "causal"}[TASKS[name].kind]
    assert recipe.objective == expected
    if expected == "translate":
        assert isinstance(result.scores["longer"], Score)
    # The tokens are the words of the task: none of a longer input is unknown.
    model: Any = regard.load(tmp_path / "run")
    generated = recipe.generated_task
    assert generated is not None
    source, _ = next(generated.examples("longer"))
    tokenizer = model.input_tokenizer
    assert tokenizer.decode(tokenizer.encode(source)) == source


def test_a_language_model_reads_source_and_target_as_a_line(tmp_path: Path) -> None:
    settings = {**TINY, "generated": "copying:1:4", "model": "gpt2", "context": 16}
    train(settings, out=tmp_path / "run")
    assert loading.load(None, {"generated": "copying", "model": "gpt2"}).objective == "causal"
    model: Any = regard.load(tmp_path / "run")
    line = " a b c = a b c\n"
    ids = model.tokenizer.encode(line)
    assert len(ids) == 8
    assert model.tokenizer.decode(ids) == line


def test_the_recipes_of_the_package_are_complete() -> None:
    for name in set(TASKS) - {"listops"}:
        recipe = loading.load(name, {})
        assert recipe.data.generated is not None
        assert recipe.data.generated.startswith(name)
        assert recipe.tokens.tokenizer == ("characters" if name == "smiles" else "words")
        task = recipe.generated_task
        assert task is not None
        source, _ = max((next(task.examples(split)) for split in SPLITS), key=len)
        limit = recipe.data.max_length if task.kind == "pairs" else recipe.data.context
        assert len(source.split()) < limit


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generated": "copyng"}, "no generated task 'copyng'"),
        ({"generated": "copying:many"}, "does not have the numbers"),
        ({"generated": "copying", "text": "a.txt"}, "replaces files"),
        ({"generated": "copying", "objective": "classify"}, "nothing for the objective"),
        ({"generated": "parity", "objective": "tag"}, "nothing for the objective"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        loading.load(None, settings)


def test_lengths_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no lengths from 5 to 2"):
        loading.load(None, {"generated": "copying:5:2"})
    # A text that is cut off has another label.
    with pytest.raises(SettingError, match="raise context"):
        train({**TINY, "generated": "parity:1:20", "context": 24}, out=tmp_path / "run")
