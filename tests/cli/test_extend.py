"""`--extend FILE`: parts and objectives of the user's own, for every command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from command_line import Command
from regard import spec
from regard.spec import serialization
from regard.training import setup

PARTS = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from regard import spec
from regard.extend import CausalLM, ExplicitAttention


class SigmoidAttention(ExplicitAttention):
    def attention_weights(self, q, k, allowed, bias):
        return torch.sigmoid(q @ k.mT)


@dataclass(frozen=True)
class Sigmoid:
    dropout: float = 0.0

    def build(self, sizes: spec.AttentionSizes) -> SigmoidAttention:
        return SigmoidAttention(self.dropout)


class Halved(CausalLM):
    def loss(self, tensors):
        loss, nll = super().loss(tensors)
        print("half of the loss")
        return loss / 2, nll
"""


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the end of a process does."""
    monkeypatch.setattr(setup, "REGISTERED", {})
    monkeypatch.setattr(serialization, "_REGISTERED", {})


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    forget(monkeypatch)
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "my_parts.py"
    path.write_text(PARTS)
    return path


def test_every_command_knows_the_parts_of_a_file(
    command: Command, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = spec.Block(spec.Attention(2, 8, 8), spec.FeedForward(16, "gelu"))
    decoder = spec.Decoder(
        d_model=16,
        tokens=spec.Tokens(300, spec.Sinusoidal()),
        stack=spec.Stack.of(1, block, spec.CausalMask()),
    )
    written = spec.to_dict(decoder)
    written["stack"]["blocks"][0]["attention"]["mixer"] = {"kind": "Sigmoid", "dropout": 0.0}
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps(written))
    text = tmp_path / "text.txt"
    text.write_text("the dog sees a cat\n" * 80)
    run = tmp_path / "run"
    flags = ["--spec", mine, "--text", text, "--objective", "causal", "--context", "16"]
    flags += ["--steps", "2", "--threads", "1", "--tokenizer", "characters", "--out", run]
    command("train", *flags).refused("Sigmoid", "--extend FILE.py")
    done = command("train", "--extend", parts, *flags)
    assert done.code == 0, done.err
    assert "half of the loss" in done.out  # the objective of that name is the file's
    generate = ("generate", run, "the dog", "--max-new-tokens", "3")
    for form in ((*generate, "--extend", parts), ("--extend", parts, *generate)):
        forget(monkeypatch)
        assert command(*form).code == 0
    for words in (("show", run, "--extend", parts), (f"--extend={parts}", "show", run)):
        forget(monkeypatch)
        assert "Sigmoid" in command(*words).out
    forget(monkeypatch)
    command(*generate).refused("Sigmoid")


def test_what_is_no_file_of_parts_is_refused(command: Command, tmp_path: Path) -> None:
    command("--extend", tmp_path / "none.py", "show").refused("is not a Python file")
    command("show", "--extend").refused("is not a Python file")
