"""Inputs that are empty, or of no kind that a method reads: typed errors, and no perfect score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import looked
import regard
from command_line import Command
from regard import build, look, spec
from regard.data.audio import read_wav_and_rate
from regard.families.presets import preset
from regard.models import LanguageModel, Model
from regard.models.memory_network import MemoryNetworkModel
from regard.system.errors import DataError, RegardError, SettingError

NO_TEXTS: list[Any] = [
    *(None, 5, 1.5, True, b"x", [None], [1], ["ok", 3], [[[1]]], range(3), object(), str),
    *(Path("nope"), torch.zeros(3)),
]


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    description = preset("gpt2:tiny", len(looked.WORDS), 32, layers=1, d_model=16, heads=2)
    return LanguageModel(build(description), description, looked.WORDS)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", NO_TEXTS)
def test_a_likelihood_is_one_of_texts(value: Any, language_model: LanguageModel) -> None:
    for method in (language_model.nll, language_model.perplexity):
        with pytest.raises((RegardError, TypeError)):
            method(value)


@pytest.mark.parametrize("texts", ["", [], [""], ["dog"], ["dog", "cat"]], ids=repr)
def test_nothing_is_not_predicted_perfectly(texts: Any, language_model: LanguageModel) -> None:
    with pytest.raises(DataError, match="no token to score"):
        language_model.perplexity(texts)
    assert language_model.nll(texts) == (0.0, 0)


@pytest.mark.parametrize("name", ["gpt2:tiny", "bert:tiny", "transformer:tiny"])
@pytest.mark.parametrize("shape", [(3,), (0,), (1, 0)])
def test_a_tensor_of_another_form_is_not_looked_at(name: str, shape: tuple[int, ...]) -> None:
    description = preset(name, len(looked.WORDS), 32, layers=1, d_model=16, heads=2)
    model = Model(build(description), description)
    with pytest.raises(SettingError, match="shape"):
        model.look(torch.zeros(shape, dtype=torch.long))


def test_a_text_is_not_patched_with_itself(trained: Path) -> None:
    model = regard.load(trained)
    with pytest.raises(DataError, match="both texts have the same tokens"):
        look.patching(model, "The dog sees a cat.", "The dog sees a cat.")


def test_no_story_and_no_file() -> None:
    tokenizer = looked.UNFRAMED
    description = spec.MemoryNetwork(8, len(tokenizer))
    model = MemoryNetworkModel(build(description), description, tokenizer)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="list of stories is empty"):
        model.tokens([])
    with pytest.raises(DataError, match="null byte"):
        read_wav_and_rate("a\0b")


def test_a_refused_run_leaves_no_parent_behind(
    command: Command, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    text = ("--text", files / "s.en", "--valid-text", "empty.txt", "--objective", "causal")
    out = ("--preset", "tiny", "--steps", "2")
    command("train", *text, *out, "--out", "new/folder/run").refused("empty")
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    command("train", *text, *out, "--out", "mine/run").refused("empty")
    assert (tmp_path / "mine").is_dir()
    assert not (tmp_path / "mine" / "run").exists()


def test_an_output_needs_its_folder(command: Command, trained: Path, files: Path) -> None:
    flags = ("--input", files / "s.en", "--output", "nowhere/out.txt")
    command("translate", trained, *flags).refused("there is no folder nowhere")


def test_a_wrong_task_is_answered_with_those_of_the_model(command: Command, trained: Path) -> None:
    command("predict", trained, "The dog.", "--task", "foo").refused(
        "unknown task 'foo'", "translate"
    )
    command("translate", trained, "The dog.", "--language", "de_DE").refused("remove it")


def test_a_resumed_run_has_its_task(command: Command, trained: Path) -> None:
    command("finetune", "--resume", trained, "--task", "lm").refused("remove the other flags")
