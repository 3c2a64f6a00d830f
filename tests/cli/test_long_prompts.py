"""A prompt beyond the context is an error, or truncated with a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from command_line import Command
from regard.models import LanguageModel, load
from regard.system.errors import DataError

CONTEXT = 32
LONG = "abcdefgh" * 10  # 80 characters
QUICK: dict[str, Any] = {
    "model": "gpt2:tiny", "d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "steps": 2,
    "device": "cpu", "threads": 1, "learning_rate": 1e-3, "samples": 0, "context": CONTEXT,
    "tokenizer": "characters",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt")
    (folder / "plain.txt").write_text("abcdefgh abc\n" * 60)
    regard.train({**QUICK, "text": str(folder / "plain.txt")}, out=folder / "run")
    return folder / "run"


@pytest.fixture
def model(folder: Path) -> LanguageModel:
    return load(folder, LanguageModel)


def test_python_refuses_it_or_says_what_is_cut(model: LanguageModel) -> None:
    told: list[str] = []
    model.say = told.append
    with pytest.raises(DataError, match=r"1 of 2 .* 32 tokens .* text 2, which has 80\W.*trunc"):
        model.generate(["abc", LONG], max_new_tokens=2)
    assert not told
    truncated = model.generate(["abc", LONG], max_new_tokens=2, truncation=True)
    assert len(told) == 1
    assert "64 tokens at their beginnings are truncated" in told[0]
    # What is left is the end of the prompt: half a context.
    assert truncated[1] == model.generate(LONG[-CONTEXT // 2 :], max_new_tokens=2)


@pytest.mark.parametrize("length", [CONTEXT - 1, CONTEXT])
def test_a_prompt_as_long_as_the_context_is_read_whole(model: LanguageModel, length: int) -> None:
    """Its last position predicts the token after it."""
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.normal_()  # so that each token counts
    for start in range(8):
        prompt = (LONG[start:] + "b" * start)[:length]
        [next_token] = model.generate([prompt], max_new_tokens=1)
        best = int(model(**model.tokens([prompt])).logits[0, -1].argmax())
        assert next_token == model.tokenizer.decode([best])
        # And goes on from there, as always.
        assert model.generate(prompt, max_new_tokens=4).startswith(next_token)


def test_the_commands_refuse_it_or_say_what_is_cut(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(f"{LONG}\n")
    generate = ("generate", folder, "--greedy", "--max-new-tokens", 2)
    for arguments in (
        (*generate, LONG),
        (*generate, LONG, "--json"),
        (*generate, "--input", file),
        ("predict", folder, LONG),
        ("predict", folder, file),
    ):
        done = command(*arguments)
        done.refused("80", "--truncation")
        assert done.out == ""
        done = command(*arguments, "--truncation")
        assert done.code == 0, done.err
        assert "64 tokens at their beginnings are truncated" in done.err
        assert LONG in done.out


def test_a_prompt_with_labels_is_refused(model: LanguageModel) -> None:
    with pytest.raises(DataError, match="shorten the text"):
        model.classify(LONG, ["a", "b"])
    with pytest.raises(DataError, match="fewer or shorter examples"):
        model.classify("a", ["a", "b"], examples=[(LONG, "a")])
    with pytest.raises(DataError, match="shorten the text"):
        regard.predict(model, LONG, "classify", labels=("a", "b"))


@pytest.mark.parametrize("what", ["attention", "entropy", "lens", "steps", "beam", "cache"])
def test_a_picture_of_it_is_refused(what: str, command: Command, folder: Path) -> None:
    command("look", folder, LONG, "--what", what).refused(str(CONTEXT))


def test_a_text_is_evaluated_whole(folder: Path, tmp_path: Path, command: Command) -> None:
    """Likelihoods are read in windows: no token is left out."""
    text = tmp_path / "text.txt"
    text.write_text(LONG)
    done = command("evaluate", folder, "--data", text, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)
    _, count = load(folder, LanguageModel).nll([LONG])
    assert count == len(LONG) - 1
